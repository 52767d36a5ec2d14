//! P7: a program that listens in a sandbox, through the server. It is a small one of Python (program.py).

use crate::http_edges::{
    client::{Answer, Ask},
    server::{Server, skip, text},
    socket::{Frame, Socket},
};
use crate::world::eventually;
use serde_json::{Value, json};
use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

const PROGRAM: &str = include_str!("program.py");
const PORT: u16 = 8123;
/// Nobody listens there.
const SILENT: u16 = 8124;

/// A sandbox in which the program runs.
struct Site {
    server: Server,
    sandbox: String,
}

impl Site {
    /// None: the sandbox has no Python, and the test was left out by name.
    fn start(test: &str) -> Option<Site> {
        let server = Server::start();
        let sandbox = server.sandbox();
        if !server.run(&sandbox, "python3 --version 2>&1 || true").starts_with("Python 3") {
            skip(test, "there is no python3 in a sandbox");
            return None;
        }
        server.put(&format!("/sandboxes/{sandbox}/content?path=/tmp/program.py"), PROGRAM).is(200);
        let site = Site { server, sandbox };
        site.listen();
        Some(site)
    }

    /// Starts the program, and waits until it answers.
    fn listen(&self) {
        // A terminal is a process that nobody has to wait for.
        let ask = json!({ "args": ["python3", "/tmp/program.py", PORT.to_string()] });
        self.server.post(&format!("/sandboxes/{}/terminals", self.sandbox), &ask).is(201);
        eventually("the program listens", || self.server.get(&self.path(PORT, "/")).status == 200).unwrap();
    }

    fn path(&self, port: u16, rest: &str) -> String {
        format!("/sandboxes/{}/ports/{port}{rest}", self.sandbox)
    }

    fn ask(&self, rest: &str) -> Ask {
        self.server.ask("GET", &self.path(PORT, rest))
    }

    fn anonymous(&self, rest: &str) -> Ask {
        self.server.anonymous("GET", &self.path(PORT, rest))
    }

    fn token(&self, port: u16, ask: &Value) -> Value {
        self.server.post(&self.path(port, "/token"), ask).is(200).json()
    }
}

/// What the program was asked, as it tells it.
#[track_caller]
fn told(answer: Answer) -> Value {
    assert_eq!(answer.header("x-own"), Some("yes"), "{} {}", answer.status, answer.text());
    answer.json()
}

#[test]
fn p7_a_port_of_a_sandbox_answers_through_the_server() {
    let Some(site) = Site::start("p7_a_port_of_a_sandbox_answers_through_the_server") else { return };
    let seen = told(site.ask("/some/page?a=1&b=%2F").send().is(200));
    assert_eq!((&seen["method"], &seen["path"]), (&json!("GET"), &json!("/some/page?a=1&b=%2F")));
    // With and without its slash, the root is the root.
    for rest in ["", "/"] {
        assert_eq!(told(site.ask(rest).send())["path"], "/");
    }
    // A status of its own, and any method.
    assert_eq!(told(site.ask("/teapot").send().is(418))["path"], "/teapot");
    for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
        let seen = told(site.server.ask(method, &site.path(PORT, "/x")).send().is(200));
        assert_eq!(seen["method"], method);
    }
    // A program may have a page of this name; only POST is the server's.
    assert_eq!(told(site.ask("/token").send().is(200))["path"], "/token");
    let head = site.server.ask("HEAD", &site.path(PORT, "/x")).send().is(200);
    assert!(head.body.is_empty() && head.header("content-length").is_some());
}

#[test]
fn p7_bodies_pass_whole_whatever_their_size() {
    let Some(site) = Site::start("p7_bodies_pass_whole_whatever_their_size") else { return };
    // More than a call of the API may have.
    let body: Vec<u8> = (0..4_000_000_u32).map(|number| (number % 251) as u8).collect();
    let ask = site.server.ask("POST", &site.path(PORT, "/upload"));
    let seen = told(ask.body("application/octet-stream", body.clone()).send().is(200));
    assert_eq!(seen["length"], body.len());
    let path = format!("/sandboxes/{}/content?path=/tmp/same", site.sandbox);
    site.server.put(&path, body).is(200);
    let sum = site.server.run(&site.sandbox, "sha256sum /tmp/same | cut -d' ' -f1");
    assert_eq!(seen["sum"], sum.trim());
}

#[test]
fn p7_nothing_of_the_servers_reaches_the_program() {
    let Some(site) = Site::start("p7_nothing_of_the_servers_reaches_the_program") else { return };
    let token = text(&site.token(PORT, &json!({}))["token"]);
    let ask = site
        .ask(&format!("/x?a=1&seawall_token={token}&b=2"))
        .header("cookie", &format!("mine=1; seawall_{PORT}={token}; seawall_9=x; yours=2"))
        .header("x-their-own", "kept");
    let seen = told(ask.send().is(200));
    assert_eq!(seen["path"], "/x?a=1&b=2");
    let headers = &seen["headers"];
    assert_eq!((&headers["cookie"], &headers["x-their-own"]), (&json!("mine=1; yours=2"), &json!("kept")));
    assert_eq!(headers["host"], format!("localhost:{PORT}"));
    assert_eq!(headers["x-forwarded-host"], site.server.address.to_string());
    assert_eq!(headers["x-forwarded-prefix"], site.path(PORT, ""));
    assert_eq!(
        (&headers["x-forwarded-for"], &headers["x-forwarded-proto"]),
        (&json!("127.0.0.1"), &json!("http"))
    );
    let all = seen.to_string();
    for secret in [&site.server.key, &token] {
        assert!(!all.contains(secret.as_str()), "{all}");
    }
    assert!(headers.get("authorization").is_none(), "{all}");
}

#[test]
fn p7_what_the_program_says_is_not_the_servers_word() {
    let Some(site) = Site::start("p7_what_the_program_says_is_not_the_servers_word") else { return };
    let answer = site.ask("/").header("origin", "https://evil.example.com").send().is(200);
    let policy = answer.all("content-security-policy").join(", ");
    assert!(policy.contains("sandbox") && !policy.contains("allow-same-origin"), "{policy}");
    assert_eq!(answer.header("strict-transport-security"), None);
    assert_eq!(answer.header("access-control-allow-origin"), None);
    let cookies = answer.all("set-cookie");
    let [own] = cookies[..] else { panic!("{cookies:?}") };
    assert!(own.starts_with("own=1") && own.contains(&site.path(PORT, "")), "{own}");
    assert!(!own.contains("example.com"), "{own}");
}

#[test]
fn p7_a_token_opens_its_port_and_no_other() {
    let Some(site) = Site::start("p7_a_token_opens_its_port_and_no_other") else { return };
    site.anonymous("/").send().refused(401, "key_missing");
    site.anonymous("/").key(&site.server.new_key("read")).send().refused(403, "scope_missing");
    let made = site.token(PORT, &json!({}));
    let token = text(&made["token"]);
    // In the query: and from then on in a cookie of this port alone.
    let answer = site.anonymous(&format!("/x?seawall_token={token}")).send().is(200);
    let cookies = answer.all("set-cookie").join("\n");
    let wanted = format!("seawall_{PORT}={token}; Path={}; HttpOnly", site.path(PORT, ""));
    assert!(cookies.contains(&wanted), "{cookies}");
    told(answer);
    told(site.anonymous("/x").header("cookie", &format!("a=b; seawall_{PORT}={token}")).send().is(200));
    told(site.anonymous("/x").header("x-seawall-token", &token).send().is(200));
    let url = text(&made["url"]);
    let path = url.strip_prefix(&format!("http://{}", site.server.address)).unwrap();
    told(site.server.anonymous("GET", path).send().is(200));
    // Another port, another sandbox, another call, and what is no token.
    let other = site.server.sandbox();
    for path in [site.path(SILENT, "/"), format!("/sandboxes/{other}/ports/{PORT}/")] {
        let ask = site.server.anonymous("GET", &path).header("x-seawall-token", &token);
        ask.send().refused(403, "token_invalid");
    }
    let bent = token.replace("swp_", "swp_0");
    for wrong in ["", "nonsense", &token[..token.len() - 1], &bent] {
        site.anonymous("/").header("x-seawall-token", wrong).send().refused(403, "token_invalid");
    }
    let api = site.server.anonymous("GET", "/account").header("x-seawall-token", &token);
    api.key(&token).send().refused(401, "key_unknown");
    let more = site.server.anonymous("POST", &site.path(PORT, "/token")).header("x-seawall-token", &token);
    more.json(&json!({})).send().refused(401, "key_missing");
}

#[test]
fn p7_a_token_has_its_time() {
    let Some(site) = Site::start("p7_a_token_has_its_time") else { return };
    let token = text(&site.token(PORT, &json!({ "expires_in_s": 3 }))["token"]);
    let ask = site.anonymous("/").header("x-seawall-token", &token);
    told(ask.send().is(200));
    std::thread::sleep(Duration::from_secs(4));
    ask.send().refused(403, "token_expired");
    // Its end is a part of what is signed.
    let mut parts: Vec<String> = token.split('_').map(str::to_owned).collect();
    parts[2] = "9999999999".to_owned();
    let longer = parts.join("_");
    site.anonymous("/").header("x-seawall-token", &longer).send().refused(403, "token_invalid");
}

#[test]
fn p7_a_websocket_passes() {
    let Some(site) = Site::start("p7_a_websocket_passes") else { return };
    let token = text(&site.token(PORT, &json!({}))["token"]);
    for ask in [site.ask("/socket"), site.anonymous(&format!("/socket?seawall_token={token}"))] {
        let mut socket = Socket::open(ask).unwrap_or_else(|answer| panic!("{}", answer.text()));
        socket.say("hello");
        assert_eq!(socket.frame(), Frame::Text("hello".to_owned()));
        for size in [0, 125, 126, 70_000] {
            let bytes = "x".repeat(size);
            socket.type_in(&bytes);
            assert_eq!(socket.frame(), Frame::Binary(bytes.into_bytes()));
        }
        socket.close();
        assert_eq!(socket.frame(), Frame::Close(1000));
        assert_eq!(socket.frame(), Frame::End);
    }
    let refused = Socket::open(site.anonymous("/socket")).expect_err("it was let in");
    refused.refused(401, "key_missing");
}

#[test]
fn p7_what_does_not_run_is_not_started() {
    let Some(site) = Site::start("p7_what_does_not_run_is_not_started") else { return };
    let token = text(&site.token(PORT, &json!({}))["token"]);
    let with_token = || site.anonymous("/").header("x-seawall-token", &token).send();
    site.server.get(&site.path(SILENT, "/")).refused(502, "port_refused");
    site.server.post(&format!("/sandboxes/{}/stop", site.sandbox), &json!({})).is(200);
    for answer in [site.ask("/").send(), with_token()] {
        assert_eq!(answer.refused(503, "not_running")["retryable"], true);
        assert!(answer.header("retry-after").is_some());
    }
    assert_eq!(site.server.state(&site.sandbox), "stopped");
    // Somebody else starts it, and the program.
    site.server.post(&format!("/sandboxes/{}/start", site.sandbox), &json!({})).is(200);
    site.server.put(&format!("/sandboxes/{}/content?path=/tmp/program.py", site.sandbox), PROGRAM).is(200);
    site.listen();
    told(with_token().is(200));
    site.server.delete(&format!("/sandboxes/{}", site.sandbox)).is(200);
    for answer in [site.ask("/").send(), with_token()] {
        answer.refused(410, "gone");
    }
}

#[test]
fn p2_published_ports_are_on_the_servers_loopback_while_the_sandbox_runs() {
    let server = Server::start();
    let ask = json!({ "ports": [PORT, SILENT] });
    let made = server.post("/sandboxes", &ask).is(201).json();
    let id = made["id"].as_str().unwrap();
    let path = format!("/sandboxes/{id}");
    let ports = server.get(&path).is(200).json()["ports"].clone();
    let address = ports[PORT.to_string()].as_str().unwrap().to_owned();
    assert!(address.starts_with("127.0.0.1:") && ports[SILENT.to_string()].is_string(), "{ports}");
    assert_eq!(server.get(&path).is(200).json()["ports"], ports, "another look gives other ports");
    server.put(&format!("{path}/content?path=/tmp/program.py"), PROGRAM).is(200);
    let ask = json!({ "args": ["python3", "/tmp/program.py", PORT.to_string()] });
    server.post(&format!("{path}/terminals"), &ask).is(201);
    let get = || -> std::io::Result<String> {
        let mut tcp = TcpStream::connect(&address)?;
        tcp.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        tcp.read_to_string(&mut answer)?;
        Ok(answer)
    };
    eventually("the program answers", || get().is_ok_and(|answer| answer.contains("200"))).unwrap();
    server.post(&format!("{path}/stop"), &json!({})).is(200);
    eventually("the port is closed", || TcpStream::connect(&address).is_err()).unwrap();
    assert!(server.get(&path).is(200).json().get("ports").is_none());
    server.post("/sandboxes", &json!({ "ports": [80, 80] })).is(400);
    server.post("/sandboxes", &json!({ "ports": [0] })).is(400);
}

#[test]
fn p2_what_native_cannot_do_it_refuses_by_name() {
    let server = Server::start();
    for (field, ask) in
        [("command", json!({ "command": ["true"] })), ("read_only_root", json!({ "read_only_root": true }))]
    {
        let refused = server.post("/sandboxes", &ask);
        assert!((400..500).contains(&refused.status), "{} {}", refused.status, refused.text());
        assert!(refused.text().contains(field) && refused.text().contains("docker"), "{}", refused.text());
    }
}
