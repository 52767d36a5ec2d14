//! Folders of the host as tenants can ask for them, and how little they are told of the host.

use crate::http_edges::{
    client::Answer,
    server::{Server, skip, text},
};
use crate::world::World;
use rustix::process::geteuid;
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown, symlink},
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// How often a sandbox is made while another one exchanges its source with a link.
const ROUNDS: usize = 20;

/// A server, folders beside it, and a tenant.
struct Yard {
    server: Server,
    host: TempDir,
    /// The secret of a key that is not the operator's.
    tenant: String,
}

impl Yard {
    /// `mounts`: of `[native]`, with `HOST` for the folder of the folders.
    fn new(folders: &[&str], mounts: &str, templates: &[(&str, &str)]) -> Yard {
        let host = tempfile::tempdir().unwrap();
        fs::set_permissions(host.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for folder in folders {
            fs::create_dir_all(host.path().join(folder)).unwrap();
        }
        let world = World::new();
        fs::create_dir(world.data().join("templates")).unwrap();
        for (name, template) in templates {
            let place = world.data().join("templates").join(format!("{name}.toml"));
            fs::write(place, filled(template, host.path(), world.data())).unwrap();
        }
        let settings = format!("[native]\nmounts = [{}]\n", filled(mounts, host.path(), world.data()));
        let server = Server::within(world, &settings, &[]);
        let (_, tenant) = server.new_account("tenant");
        Yard { server, host, tenant }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.host.path().join(name)
    }

    fn post(&self, key: &str, path: &str, body: &Value) -> Answer {
        self.server.anonymous("POST", path).key(key).json(body).send()
    }

    /// Asks for a sandbox with this folder, and starts nothing.
    fn ask(&self, key: &str, source: &str, writable: bool) -> Answer {
        let mount = json!({ "source": source, "target": "/data", "writable": writable });
        self.post(key, "/sandboxes", &json!({ "start": false, "mounts": [mount] }))
    }

    /// What a command printed, and nothing where it failed.
    fn run(&self, key: &str, sandbox: &str, command: &str) -> String {
        let path = format!("/sandboxes/{sandbox}/exec");
        text(&self.post(key, &path, &json!({ "command": command })).is(200).json()["stdout"])
    }

    /// Whether a text has a path of this machine in it.
    #[track_caller]
    fn is_clean(&self, answer: &Answer) {
        let text = answer.text();
        for path in [self.host.path(), self.server.world.data()] {
            assert!(!text.contains(&path.display().to_string()), "{text}");
        }
    }
}

fn filled(text: &str, host: &Path, data: &Path) -> String {
    text.replace("HOST", &host.display().to_string()).replace("DATA", &data.display().to_string())
}

#[test]
fn a_tenant_mounts_what_it_is_granted_and_writes_where_the_operator_says() {
    let tooled = "[agent]\nprogram = \"HOST/agent\"\n[sandbox]\nmounts = [{ source = \"HOST/tools\", target = \"/tools\" }]";
    let yard = Yard::new(
        &["local", "all/inner", "out/agents/mine", "tools", "agent"],
        "\"HOST/local\", { path = \"HOST/all\", accounts = [\"*\"] }, \
         { path = \"HOST/out\", accounts = [\"*\"], writable = true }, \
         { path = \"DATA\", accounts = [\"*\"], writable = true }",
        &[("tooled", tooled), ("other", "[agent]\nprogram = \"HOST/out/agents/mine\"")],
    );
    fs::write(yard.path("agent/sh"), "").unwrap();
    symlink(yard.path("local"), yard.path("all/link")).unwrap();
    let (mine, tenant) = (yard.server.key.clone(), yard.tenant.clone());
    let data = yard.server.world.data().display().to_string();
    let named = |name: &str| yard.path(name).display().to_string();
    for (key, source, writable, status) in [
        (&mine, named("local"), false, 201),
        (&mine, named("local"), true, 403),
        (&tenant, named("local"), false, 403),
        (&tenant, named("all/inner"), false, 201),
        (&tenant, named("all/inner"), true, 403),
        (&tenant, named("all/link"), false, 403),
        (&tenant, named("all/../local"), false, 400),
        (&tenant, named("out"), false, 201),
        // It has an agent's program in it.
        (&tenant, named("out"), true, 403),
        (&tenant, named("out/agents/mine"), true, 403),
        (&tenant, named("tools"), false, 403),
        (&tenant, named("agent"), false, 403),
        (&tenant, named("agent"), true, 403),
        (&mine, named("agent"), false, 403),
        (&mine, named("tools"), false, 403),
        (&tenant, named(""), false, 400),
        (&tenant, "/".to_owned(), false, 400),
        // Granted by mistake, and refused all the same.
        (&tenant, data.clone(), false, 403),
        (&mine, format!("{data}/native/volumes"), false, 403),
    ] {
        let answer = yard.ask(key, &source, writable);
        assert_eq!(answer.status, status, "{source} {writable}: {}", answer.text());
        if status == 403 {
            assert_eq!(answer.json()["code"], "mount_denied", "{source}");
        }
    }
    // What a template brings along is there, and whence stays the operator's.
    let ask = json!({ "template": "tooled", "start": false });
    let theirs = yard.post(&tenant, "/sandboxes", &ask).is(201);
    yard.is_clean(&theirs);
    let sources = |answer: &Answer| -> Vec<String> {
        let mounts = answer.json()["spec"]["mounts"].as_array().unwrap().clone();
        mounts.iter().map(|mount| text(&mount["source"])).collect()
    };
    assert_eq!(sources(&theirs), ["hidden", "hidden"]);
    let ours = yard.post(&mine, "/sandboxes", &ask).is(201);
    assert_eq!(sources(&ours), [named("tools"), named("agent")]);
    let listed = yard.server.anonymous("GET", "/sandboxes").key(&tenant).send().is(200).text();
    assert!(!listed.contains(&named("tools")) && !listed.contains(&named("agent")), "{listed}");
    // The command line is the account `local`.
    let refused = yard.server.world.seawall(["create", "--mount", &format!("{}:/x", named("agent"))]);
    assert!(!refused.status.success());
}

#[test]
fn a_grant_that_was_taken_back_counts_at_the_next_start() {
    let mut yard = Yard::new(&["all"], "{ path = \"HOST/all\", accounts = [\"*\"] }", &[]);
    let made = yard.ask(&yard.tenant, &yard.path("all").display().to_string(), false).is(201).json();
    let start = format!("/sandboxes/{}/start", text(&made["id"]));
    yard.post(&yard.tenant, &start, &json!({})).is(200);
    let stop = format!("/sandboxes/{}/stop", text(&made["id"]));
    yard.post(&yard.tenant, &stop, &json!({ "grace_ms": 0 })).is(200);
    let toml = yard.server.world.data().join("seawall.toml");
    let all = yard.path("all").display().to_string();
    fs::write(&toml, format!("[server]\nshutdown_grace_seconds = 1\n[native]\nmounts = [{all:?}]\n"))
        .unwrap();
    yard.server.crash();
    yard.post(&yard.tenant, &start, &json!({})).refused(403, "mount_denied");
}

/// The escape of issue 16: a box that can write an allowed folder exchanges a directory with a link, while sandboxes with a
/// source below it are made.
#[test]
fn a_box_that_exchanges_a_source_with_a_link_gets_nobodys_files() {
    if !geteuid().is_root() {
        skip("a_box_that_exchanges_a_source_with_a_link_gets_nobodys_files", "needs root");
        return;
    }
    let yard =
        Yard::new(&["shared/a"], "{ path = \"HOST/shared\", accounts = [\"*\"], writable = true }", &[]);
    // Owned by somebody, so that the box's user can write it.
    for folder in ["shared", "shared/a"] {
        chown(yard.path(folder), Some(4321), Some(4321)).unwrap();
    }
    let victim = yard.server.sandbox();
    yard.server.run(&victim, "echo secret > /work/secret");
    let shared = yard.path("shared").display().to_string();
    let mount = |source: &str| json!({ "source": source, "target": "/m", "writable": true });
    let attacker = yard.post(&yard.tenant, "/sandboxes", &json!({ "mounts": [mount(&shared)] })).is(201);
    let attacker = text(&attacker.json()["id"]);
    let work =
        yard.server.world.data().canonicalize().unwrap().join("native/volumes").join(&victim).join("work");
    let program = format!(
        "import ctypes, os\nos.symlink({:?}, '/m/b')\nrename = ctypes.CDLL(None).renameat2\n\
         print('ready', flush=True)\nwhile True: rename(-100, b'/m/a', -100, b'/m/b', 2)\n",
        work.display().to_string()
    );
    let path = format!("/sandboxes/{attacker}/content?path=/tmp/race.py");
    yard.server.anonymous("PUT", &path).key(&yard.tenant).body("text/plain", program).send().is(200);
    let started =
        "python3 /tmp/race.py > /tmp/said 2>&1 & while ! grep -q ready /tmp/said; do sleep 0.01; done";
    yard.run(&yard.tenant, &attacker, started);
    let source = format!("{shared}/a");
    let mut outcomes = [0, 0];
    for _ in 0..ROUNDS {
        let made = yard.post(&yard.tenant, "/sandboxes", &json!({ "mounts": [mount(&source)] }));
        outcomes[usize::from(made.status != 201)] += 1;
        if made.status != 201 {
            assert_eq!(made.status, 403, "{}", made.text());
            continue;
        }
        let id = text(&made.json()["id"]);
        assert_eq!(
            yard.run(&yard.tenant, &id, "ls -A /m; echo mine > /m/stolen 2> /dev/null; rm -f /m/stolen"),
            ""
        );
        let path = format!("/sandboxes/{id}?sync=false&volumes=delete");
        yard.server.anonymous("DELETE", &path).key(&yard.tenant).send().is(200);
    }
    assert_eq!(yard.server.run(&victim, "ls /work"), "secret\n", "{outcomes:?}");
}

#[test]
fn errors_tell_a_tenant_no_path_of_the_host() {
    let broken = "[agent]\ndriver = \"claude-code\"\nprogram = \"HOST/nothing/there\"";
    let yard = Yard::new(&[], "", &[("broken", broken)]);
    let (mine, tenant) = (yard.server.key.clone(), yard.tenant.clone());
    let bucket = yard.server.world.data().join("bucket");
    fs::write(&bucket, "no folder").unwrap();
    for (key, is_told) in [(&tenant, false), (&mine, true)] {
        let shows = |answer: &Answer, path: &Path| {
            let text = answer.text();
            assert_eq!(text.contains(&path.display().to_string()), is_told, "{text}");
            assert_eq!(text.contains("[server path]"), !is_told, "{text}");
            if !is_told {
                yard.is_clean(answer);
            }
        };
        let refused = yard.post(key, "/sandboxes", &json!({ "template": "broken" })).is(400);
        shows(&refused, &yard.path("nothing/there"));
        let id = text(&yard.post(key, "/sandboxes", &json!({ "start": false })).is(201).json()["id"]);
        let refused =
            yard.server.anonymous("GET", &format!("/sandboxes/{id}/versions")).key(key).send().is(400);
        shows(&refused, &bucket);
        // A folder of the provider's that cannot be what it must be.
        let own = yard.server.world.data().join("native/boxes").join(&id).join("own");
        // It is not there before the first start where the files are in an image.
        let _ = fs::remove_dir_all(&own);
        fs::write(&own, "").unwrap();
        let started = yard.post(key, &format!("/sandboxes/{id}/start"), &json!({}));
        yard.is_clean(&started);
        // Files in an image do not need that folder.
        if is_told {
            started.is(500);
        }
    }
}

#[test]
fn a_damaged_box_is_one_sandboxs_problem() {
    let mut yard = Yard::new(&[], "", &[]);
    let made = || text(&yard.post(&yard.tenant, "/sandboxes", &json!({})).is(201).json()["id"]);
    let (damaged, well) = (made(), made());
    let folder = yard.server.world.data().join("native/boxes").join(&damaged);
    let pid: u32 =
        fs::read_to_string(folder.join("run")).unwrap().split(' ').next().unwrap().parse().unwrap();
    for content in ["", "{"] {
        fs::write(folder.join("box.json"), content).unwrap();
        // Whoever is started now clears away what crashes left, and sweeps.
        yard.server.crash();
        let listed = yard.server.anonymous("GET", "/sandboxes").key(&yard.tenant).send().is(200);
        yard.is_clean(&listed);
        let all = listed.json()["items"].as_array().unwrap().clone();
        let of = |id: &str| all.iter().find(|each| each["id"] == id).unwrap().clone();
        assert_eq!(
            (&of(&damaged)["state"], &of(&damaged)["reason"]),
            (&json!("failed"), &json!("failed: damaged"))
        );
        assert_eq!(of(&well)["state"], "running");
        assert_eq!(yard.run(&yard.tenant, &well, "echo well"), "well\n");
        yard.post(&yard.tenant, &format!("/sandboxes/{damaged}/exec"), &json!({ "command": "true" }))
            .refused(409, "damaged");
        // The command line sweeps too.
        yard.server.world.ok(["ls"]);
        assert!(Path::new("/proc").join(pid.to_string()).join("root").exists(), "it was ended");
    }
    let path = format!("/sandboxes/{damaged}?force=true&sync=false&volumes=delete");
    yard.server.anonymous("DELETE", &path).key(&yard.tenant).send().is(200);
    assert!(!folder.exists() && !Path::new("/proc").join(pid.to_string()).join("root").exists());
    assert_eq!(yard.run(&yard.tenant, &well, "echo well"), "well\n");
}
