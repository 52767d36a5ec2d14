//! `seawall serve` in a world of its own, with what its tests ask again and again.

use crate::http_edges::client::{Answer, Ask};
use crate::world::World;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    net::{Ipv4Addr, SocketAddr},
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

const START: Duration = Duration::from_secs(60);
const STOP: Duration = Duration::from_secs(60);

pub struct Server {
    pub world: World,
    pub address: SocketAddr,
    /// As it was printed.
    pub url: String,
    /// The first one: of an admin of the account `local`.
    pub key: String,
    child: Child,
}

impl Server {
    pub fn start() -> Server {
        Server::with("")
    }

    /// With more lines of `[server]`, and what may come behind it.
    pub fn with(settings: &str) -> Server {
        Server::within(World::new(), settings, &[])
    }

    pub fn within(world: World, settings: &str, env: &[(&str, &str)]) -> Server {
        Server::on("127.0.0.1:0", world, settings, env)
    }

    /// At this address; it is asked on this machine's own in any case.
    pub fn on(listen: &str, world: World, settings: &str, env: &[(&str, &str)]) -> Server {
        // What hangs at a server that goes down must not hold up the tests.
        let text = format!("[server]\nshutdown_grace_seconds = 1\n{settings}");
        std::fs::write(world.data().join("seawall.toml"), text).unwrap();
        let (child, url) = spawn(&world, listen, env);
        let key = std::fs::read_to_string(world.data().join("key")).unwrap().trim().to_owned();
        Server { address: address(&url), world, url, key, child }
    }

    /// Kills it as a fall of the machine would, and starts it again, elsewhere.
    pub fn crash(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let (child, url) = spawn(&self.world, "127.0.0.1:0", &[]);
        (self.child, self.address, self.url) = (child, address(&url), url);
    }

    /// Asks it to end, and waits. Its exit code.
    pub fn stop(&mut self) -> Option<i32> {
        // One that is gone has no number any more: it may be another's.
        if let Some(status) = self.child.try_wait().unwrap() {
            return status.code();
        }
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let begun = Instant::now();
        while begun.elapsed() < STOP {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        None
    }

    /// In the name of its first key.
    pub fn ask(&self, method: &str, path: &str) -> Ask {
        self.anonymous(method, path).key(&self.key)
    }

    pub fn anonymous(&self, method: &str, path: &str) -> Ask {
        Ask::new(self.address, method, path)
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path).send()
    }

    pub fn delete(&self, path: &str) -> Answer {
        self.ask("DELETE", path).send()
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path).json(body).send()
    }

    pub fn put(&self, path: &str, body: impl Into<Vec<u8>>) -> Answer {
        self.ask("PUT", path).body("application/octet-stream", body).send()
    }

    /// A new sandbox that runs.
    #[track_caller]
    pub fn sandbox(&self) -> String {
        text(&self.post("/sandboxes", &json!({})).is(201).json()["id"])
    }

    /// What a command printed, in a sandbox; it must succeed.
    #[track_caller]
    pub fn run(&self, sandbox: &str, command: &str) -> String {
        let path = format!("/sandboxes/{sandbox}/exec");
        let done = self.post(&path, &json!({ "command": command })).is(200).json();
        assert_eq!(done["exit_code"], 0, "{done}");
        text(&done["stdout"])
    }

    #[track_caller]
    pub fn state(&self, sandbox: &str) -> String {
        text(&self.get(&format!("/sandboxes/{sandbox}")).is(200).json()["state"])
    }

    /// The secret of a new key.
    #[track_caller]
    pub fn new_key(&self, scope: &str) -> String {
        let ask = json!({ "name": format!("{scope} of a test"), "scopes": [scope] });
        text(&self.post("/keys", &ask).is(201).json()["secret"])
    }

    /// A new account with an admin's key: its id, and the secret.
    #[track_caller]
    pub fn new_account(&self, name: &str) -> (String, String) {
        let id = text(&self.post("/accounts", &json!({ "name": name })).is(201).json()["id"]);
        let ask = json!({ "name": "first", "scopes": ["admin"] });
        let made = self.post(&format!("/accounts/{id}/keys"), &ask).is(201).json();
        (id, text(&made["secret"]))
    }

    /// A turn of a new conversation, to its end: its events.
    #[track_caller]
    pub fn turn(&self, prompt: &str) -> Vec<Value> {
        let ask = json!({ "prompt": prompt, "template": "shell" });
        let told = self.post("/conversations/new/sandbox/auto", &ask).is(200).events();
        let told: Vec<Value> = told.into_iter().map(|(_, event)| event).collect();
        let last = told.last().unwrap();
        assert_eq!((&last["type"], &last["state"]), (&json!("turn_ended"), &json!("completed")), "{told:?}");
        told
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.world.data().join("serve.log")).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let last = lines[lines.len().saturating_sub(40)..].join("\n");
            let _ = writeln!(std::io::stderr(), "the server's log ended with:\n{last}");
        }
    }
}

/// `seawall serve`, and where it is.
fn spawn(world: &World, listen: &str, env: &[(&str, &str)]) -> (Child, String) {
    let log = world.data().join("serve.log");
    let mut command = serve(world);
    command.args(["--listen", listen, "--print-url"]).envs(env.iter().copied());
    command.stdout(Stdio::piped()).stderr(File::options().create(true).append(true).open(&log).unwrap());
    let mut child = command.spawn().unwrap();
    let stdout = child.stdout.take().unwrap();
    let (told, heard) = mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let _ = BufReader::new(stdout).read_line(&mut line);
        let _ = told.send(line);
    });
    let url = heard.recv_timeout(START).unwrap_or_default().trim().to_owned();
    if url.is_empty() {
        let _ = child.kill();
        let _ = child.wait();
        panic!("the server did not start: {}", std::fs::read_to_string(&log).unwrap_or_default());
    }
    (child, url)
}

/// `seawall serve`, without what whoever runs the tests has set.
pub fn serve(world: &World) -> Command {
    let mut command = world.command();
    for (name, _) in std::env::vars_os() {
        let shown = name.to_string_lossy().to_lowercase();
        let theirs = ["otel_", "sandbox_session_"].iter().any(|start| shown.starts_with(start));
        if theirs || shown.ends_with("_proxy") {
            command.env_remove(&name);
        }
    }
    command.arg("serve");
    command
}

fn address(url: &str) -> SocketAddr {
    let mut address: SocketAddr = url.split_once("://").unwrap().1.parse().unwrap();
    if address.ip().is_unspecified() {
        address.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    address
}

#[track_caller]
pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

/// Leaves a test out by name, unless everything is to be tested.
pub fn skip(test: &str, why: &str) {
    let required = std::env::var("SEAWALL_TEST_REQUIRE").is_ok_and(|what| what == "all");
    assert!(!required, "{test}: {why}");
    #[allow(clippy::explicit_write)] // The test harness hides what eprintln! says when a test passes.
    writeln!(std::io::stderr(), "skipped: {test}: {why}").unwrap();
}

/// Whether a program of this machine can be run.
pub fn is_there(program: &str, argument: &str) -> bool {
    let mut command = Command::new(program);
    command.arg(argument).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
