//! `seawall serve` on a data folder of its own: started, killed, started again. All is gone at the end of the test.

use super::client::Client;
use crate::{
    gates::waits_at,
    world::{World, is_alive},
};
use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    ops::Deref,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};
use tempfile::NamedTempFile;

/// How long a server may take to come up, and to go down.
const PATIENCE: Duration = Duration::from_secs(60);
/// Lines of its log that a failed test shows.
const SHOWN: usize = 80;

pub struct Served {
    child: Option<Child>,
    client: Client,
    /// Not in the data folder, whose disk may be full.
    log: NamedTempFile,
    /// How many files it may have open. None: as many as the test.
    files: Option<u32>,
    pub world: World,
}

impl Deref for Served {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Served {
    pub fn new() -> Served {
        Served::with("", &[])
    }

    /// With this `seawall.toml`, and these templates.
    pub fn with(settings: &str, templates: &[(&str, &str)]) -> Served {
        let world = World::new();
        std::fs::write(world.data().join("seawall.toml"), settings).unwrap();
        let folder = world.data().join("templates");
        std::fs::create_dir(&folder).unwrap();
        for (name, text) in templates {
            std::fs::write(folder.join(format!("{name}.toml")), text).unwrap();
        }
        Served::on(world)
    }

    pub fn on(world: World) -> Served {
        let log = NamedTempFile::new().unwrap();
        let mut served = Served { child: None, client: Client::default(), log, files: None, world };
        served.start();
        served
    }

    /// One that may have so many files open.
    pub fn with_files(settings: &str, files: u32) -> Served {
        let mut served = Served::with(settings, &[]);
        served.kill();
        served.files = Some(files);
        served.start();
        served
    }

    /// The most memory that it had, in MiB.
    pub fn most_memory(&self) -> u64 {
        let pid = self.child.as_ref().unwrap().id();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
    }

    /// On the same data folder. The port is another one.
    pub fn start(&mut self) {
        assert!(self.child.is_none(), "it runs already");
        let log = File::options().append(true).open(self.log.path()).unwrap();
        let mut command = match self.files {
            None => self.world.command(),
            Some(files) => {
                let mut shell = self.world.command_of("/bin/sh");
                let script = format!("ulimit -n {files} && exec \"$0\" \"$@\"");
                shell.args(["-c", &script, env!("CARGO_BIN_EXE_seawall")]);
                shell
            }
        };
        command.args(["serve", "--listen", "127.0.0.1:0", "--print-url"]);
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        self.child = Some(child);
        let (send, receive) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = BufReader::new(stdout).read_line(&mut line);
            let _ = send.send(line);
        });
        let url = receive.recv_timeout(PATIENCE).unwrap_or_default();
        let address = url.trim().strip_prefix("http://");
        let address = address.unwrap_or_else(|| panic!("the server does not come up: it said `{url}`"));
        let key = std::fs::read_to_string(self.world.data().join("key")).unwrap();
        self.client = Client { address: address.to_owned(), key: key.trim().to_owned() };
    }

    /// As a crash would.
    pub fn kill(&mut self) {
        self.kill_with(&[]);
    }

    /// Together with other processes, so that it sees nothing of their end.
    pub fn kill_with(&mut self, others: &[&str]) {
        let mut child = self.child.take().unwrap();
        let pid = child.id().to_string();
        let mut pids = vec![pid.as_str()];
        pids.extend_from_slice(others);
        kill("-9", &pids);
        child.wait().unwrap();
        within(60, "they are gone", || !others.iter().any(|pid| is_alive(pid)));
    }

    /// Asks it to go down.
    pub fn terminate(&self) {
        kill("-TERM", &[&self.child.as_ref().unwrap().id().to_string()]);
    }

    /// Until it is down.
    pub fn wait(&mut self) -> ExitStatus {
        let give_up = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.as_mut().unwrap().try_wait().unwrap() {
                self.child = None;
                return status;
            }
            assert!(Instant::now() < give_up, "the server does not go down");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The process of a sandbox's guest.
    pub fn guest(&self, sandbox: &str) -> String {
        self.world.guest(sandbox)
    }

    /// All that it said, in all its lives.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.log.path()).unwrap_or_default()).into_owned()
    }

    /// The status of `/ready`.
    pub fn said_ready(&self) -> u16 {
        self.send(&self.ask("GET", "/ready")).status
    }

    fn show_log(&self) {
        let text = self.log();
        let lines: Vec<&str> = text.lines().collect();
        eprintln!("the server said:\n{}", lines[lines.len().saturating_sub(SHOWN)..].join("\n"));
    }
}

/// Before the data folder goes, with its sandboxes.
impl Drop for Served {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            self.show_log();
        }
    }
}

pub fn kill(signal: &str, pids: &[&str]) {
    assert!(Command::new("kill").arg(signal).args(pids).status().unwrap().success(), "{signal} {pids:?}");
}

/// Looks again and again, for so many seconds.
#[track_caller]
pub fn within(seconds: u64, what: &str, mut holds: impl FnMut() -> bool) {
    let give_up = Instant::now() + Duration::from_secs(seconds);
    while !holds() {
        assert!(Instant::now() < give_up, "after {seconds} seconds, not so: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Something is missing: the test is skipped by name, unless everything is to be tested.
pub fn skip(test: &str, why: &str) {
    let required = std::env::var("SEAWALL_TEST_REQUIRE").is_ok_and(|what| what == "all");
    assert!(!required, "{test}: {why}");
    // Not captured, so that it is counted.
    let _ = writeln!(std::io::stderr(), "skipped http_turns::{test}: {why}");
}

/// A command that prints the numbers up to this one, slowly, and at these waits until it [may go on](super::gates::go).
pub fn counting(count: u32, stops: &[u32]) -> String {
    let wait = match stops {
        [] => String::new(),
        stops => format!("{};", waits_at(stops)),
    };
    format!("i=0; while [ $i -lt {count} ]; do i=$((i+1)); echo $i; {wait} sleep 0.01; done")
}

/// What it prints.
pub fn numbers(count: u32) -> String {
    (1..=count).map(|number| format!("{number}\n")).collect()
}
