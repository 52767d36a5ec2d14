//! The service as its operator sees it: where it listens, with which keys, over TLS; whether it is well; its documents.

use crate::http_edges::{
    client::{Ask, find},
    server::{Server, is_there, serve, skip, text},
};
use crate::world::World;
use serde_json::json;
use std::{
    io::{Read, Write},
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

/// What a command says that has to end by itself.
#[track_caller]
fn ended(command: &mut Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > Duration::from_secs(30) {
            child.kill().unwrap();
            panic!("it did not end: {:?}", child.wait_with_output().unwrap());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

/// The command must fail, and its words must have all of these.
#[track_caller]
fn refuses(command: &mut Command, words: &[&str]) {
    let output = ended(command);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is not in {said}");
    }
}

#[test]
fn k3_who_listens_to_others_needs_a_key_first() {
    let world = World::new();
    refuses(serve(&world).args(["--listen", "0.0.0.0:0"]), &["0.0.0.0:0", "no key", "seawall keys create"]);
    assert!(!world.data().join("key").exists());
    // One that is worth nothing does not count.
    let made = world.json(["--json", "keys", "create", "--name", "gone", "--scope", "admin"]);
    world.ok(["keys", "revoke", &text(&made["key"]["id"])]);
    refuses(serve(&world).args(["--listen", "[::]:0"]), &["no key"]);
    let secret = world.ok(["keys", "create", "--name", "first", "--scope", "admin"]).trim().to_owned();
    std::fs::write(world.data().join("key"), &secret).unwrap();
    let mut server = Server::on("0.0.0.0:0", world, "", &[]);
    server.get("/account").is(200);
    server.anonymous("GET", "/account").send().refused(401, "key_missing");
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn k3_the_first_start_makes_a_key_for_its_user_alone() {
    let mut server = Server::start();
    let file = server.world.data().join("key");
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(server.key.starts_with("sw_"), "{}", server.key);
    let account = server.get("/account").is(200).json();
    assert_eq!(account["id"], seawall_api::AccountId::LOCAL.to_string());
    let keys = server.get("/keys").is(200).json();
    assert_eq!(keys["items"].as_array().unwrap().len(), 1, "{keys}");
    assert_eq!(keys["items"][0]["scopes"], json!(["admin"]));
    // The next start makes none.
    let before = server.key.clone();
    server.crash();
    assert_eq!(std::fs::read_to_string(&file).unwrap().trim(), before);
    assert_eq!(server.get("/keys").is(200).json()["items"].as_array().unwrap().len(), 1);
    let audit = server.world.data().join("audit.log");
    assert_eq!(std::fs::metadata(audit).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn k3_an_address_that_is_taken_is_a_clear_error() {
    let server = Server::start();
    let address = server.address.to_string();
    let other = World::new();
    refuses(serve(&other).args(["--listen", &address]), &[&address, "--listen"]);
    server.get("/account").is(200);
}

#[test]
fn k3_settings_that_cannot_be_are_told() {
    let refused = |settings: &str, words: &[&str]| {
        let world = World::new();
        std::fs::write(world.data().join("seawall.toml"), format!("[server]\n{settings}\n")).unwrap();
        refuses(serve(&world).args(["--listen", "127.0.0.1:0"]), words);
    };
    refused("tls_certificate = \"cert.pem\"", &["tls_key"]);
    refused("tls_certificate = \"cert.pem\"\ntls_key = \"key.pem\"", &["cert.pem"]);
    refused("cors_origins = [\"app.example.com\"]", &["app.example.com"]);
    refused("listen = \"here\"", &["listen", "here"]);
    refused("audit_log = \"/no/such/folder/audit\"", &["/no/such/folder/audit"]);
    refused("rate_per_secnd = 1", &["rate_per_second"]);
}

#[test]
fn it_says_whether_it_lives_and_whether_it_is_ready() {
    let server = Server::start();
    for path in ["/health", "/ready"] {
        let told = server.anonymous("GET", path).send().is(200).json();
        assert_eq!(told["status"], "ok", "{told}");
        assert_eq!(told["version"], env!("CARGO_PKG_VERSION"));
        // Whatever key comes with it.
        server.anonymous("GET", path).key("nonsense").send().is(200);
    }
    let head = server.anonymous("HEAD", "/health").send().is(200);
    assert!(head.body.is_empty());
}

#[test]
fn asked_to_end_it_ends_and_tells_those_who_listen() {
    let mut server = Server::start();
    let id = server.sandbox();
    let ask = server.ask("POST", &format!("/sandboxes/{id}/exec/stream"));
    let mut stream = ask.json(&json!({ "command": "echo begun; sleep 600" })).begin();
    let mut said = Vec::new();
    while find(&said, "begun").is_none() {
        let mut buffer = [0; 1024];
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&said));
        said.extend_from_slice(&buffer[..count]);
    }
    let begun = Instant::now();
    assert_eq!(server.stop(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(find(&rest, "goes down").is_some(), "{:?}", String::from_utf8_lossy(&rest));
}

#[test]
fn a1_the_documents_need_nobody_else() {
    let server = Server::start();
    let page = server.anonymous("GET", "/docs").send().is(200);
    assert!(page.header("content-type").unwrap().starts_with("text/html"));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'"), "{policy}");
    let text = page.text();
    for foreign in ["http://", "https://", "src=\"//", "href=\"//", "url(//", "@import"] {
        assert!(!text.contains(foreign), "{foreign} is in the page");
    }
    assert!(text.contains("openapi.json"));
    let document = server.anonymous("GET", "/openapi.json").send().is(200).json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"), "{}", document["openapi"]);
    // All that is referred to is in it.
    let whole = document.to_string();
    for part in whole.split("\"$ref\":\"").skip(1) {
        let place = part.split('"').next().unwrap();
        let pointer = place.strip_prefix('#').unwrap_or_else(|| panic!("{place} is elsewhere"));
        assert!(document.pointer(pointer).is_some(), "there is no {place}");
    }
}

/// A certificate for this machine, and its key.
fn certificate(folder: &Path) {
    let mut openssl = Command::new("openssl");
    openssl
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"])
        .args(["-keyout", "key.pem", "-out", "cert.pem"])
        .current_dir(folder);
    let output = openssl.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn k3_over_tls_by_configuration() {
    if !is_there("openssl", "version") || !is_there("curl", "--version") {
        return skip("k3_over_tls_by_configuration", "needs openssl and curl");
    }
    let world = World::new();
    certificate(world.data());
    // Relative to the file that names them.
    let server = Server::within(world, "tls_certificate = \"cert.pem\"\ntls_key = \"key.pem\"\n", &[]);
    assert!(server.url.starts_with("https://"), "{}", server.url);
    let curl = |more: &[&str]| {
        let mut curl = Command::new("curl");
        curl.args([
            "-sS",
            "--max-time",
            "20",
            "--noproxy",
            "*",
            "-H",
            &format!("authorization: Bearer {}", server.key),
        ]);
        curl.args(more).arg(format!("{}/account", server.url)).output().unwrap()
    };
    let trusted = server.world.data().join("cert.pem").display().to_string();
    let output = curl(&["--cacert", &trusted]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let account: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(account["id"], seawall_api::AccountId::LOCAL.to_string());
    assert!(curl(&["--cacert", &trusted, "--tlsv1.3"]).status.success());
    // Nobody has to take it for granted, and what is old is not spoken.
    assert!(!curl(&[]).status.success(), "a certificate that nobody knows was taken");
    assert!(!curl(&["--cacert", &trusted, "--tls-max", "1.1"]).status.success());
    // Without TLS there is no answer.
    let mut plain = TcpStream::connect(server.address).unwrap();
    plain.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    plain.write_all(Ask::new(server.address, "GET", "/health").head().as_bytes()).unwrap();
    let mut said = Vec::new();
    let _ = plain.read_to_end(&mut said);
    assert!(!said.starts_with(b"HTTP/"), "{}", String::from_utf8_lossy(&said));
}
