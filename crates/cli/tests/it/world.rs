//! A data folder with the sandboxes in it, all gone at the end of the test.

use anyhow::{Result, ensure};
use std::{
    ffi::OsStr,
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};
use tempfile::TempDir;

pub struct World {
    data: TempDir,
}

impl World {
    pub fn new() -> World {
        World { data: tempfile::tempdir().unwrap() }
    }

    pub fn data(&self) -> &Path {
        self.data.path()
    }

    /// `seawall`, alone with its data folder: no settings of whoever runs the tests.
    pub fn command(&self) -> Command {
        self.command_of(env!("CARGO_BIN_EXE_seawall"))
    }

    /// Another program in the same surroundings.
    pub fn command_of(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("SEAWALL_") {
                command.env_remove(name);
            }
        }
        command
            .env("SEAWALL_DATA", self.data.path())
            .env("XDG_CONFIG_HOME", self.data.path())
            .current_dir(self.data.path())
            .stdin(Stdio::null());
        command
    }

    pub fn seawall<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Output {
        self.command().args(args).output().unwrap()
    }

    /// Must succeed; its stdout.
    pub fn ok<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> String {
        let output = self.seawall(args);
        assert!(output.status.success(), "{:?}: {}", output.status, stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn create(&self) -> String {
        self.ok(["create"]).trim().to_owned()
    }

    pub fn json<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> serde_json::Value {
        let text = self.ok(args);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
    }

    /// Ends the server in the background, if one runs.
    pub fn stop_server(&self) {
        let stopped = self.seawall(["server", "stop"]);
        if !stopped.status.success() && !std::thread::panicking() {
            eprintln!("the server was not stopped: {}", stderr(&stopped));
        }
    }

    /// Kills the server, as a crash would, and waits until it is gone.
    pub fn kill_server(&self) {
        let server = self.server_pid().expect("no server runs");
        kill_9(&[&server.to_string()]);
        eventually("the server is gone", || !is_alive(&server.to_string())).unwrap();
    }

    /// The pid that the server wrote into its data folder.
    pub fn server_pid(&self) -> Option<u64> {
        let text = std::fs::read(self.data().join("server.json")).ok()?;
        let found: serde_json::Value = serde_json::from_slice(&text).ok()?;
        found["server"]["pid"].as_u64()
    }

    /// The process of the guest of a native sandbox.
    pub fn guest(&self, id: &str) -> String {
        let run = self.data().join("native/boxes").join(id).join("run");
        std::fs::read_to_string(run).unwrap().split_whitespace().next().unwrap().to_owned()
    }

    /// The pid of the server, if one runs.
    pub fn server(&self) -> Option<u32> {
        let status = self.json(["server", "status", "--json"]);
        status["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok())
    }

    /// Nothing of the sandboxes is left, neither records nor boxes.
    pub fn is_empty(&self) -> bool {
        self.ok(["ls", "-q"]).is_empty()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let listed = self.seawall(["ls", "-q"]);
        let ids = String::from_utf8_lossy(&listed.stdout).into_owned();
        let ids: Vec<&str> = ids.lines().collect();
        if !ids.is_empty() {
            self.seawall(["rm", "-f", "--volumes"].into_iter().chain(ids));
        }
        self.stop_server();
    }
}

pub fn kill_9(pids: &[&str]) {
    assert!(Command::new("kill").arg("-9").args(pids).status().unwrap().success(), "{pids:?}");
}

pub fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// How many processes of this machine have this text as an argument.
pub fn processes_with(argument: &str) -> usize {
    let has = |path: std::path::PathBuf| {
        let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
        line.split(|&byte| byte == 0).any(|part| part == argument.as_bytes())
    };
    std::fs::read_dir("/proc").unwrap().flatten().filter(|entry| has(entry.path())).count()
}

/// Looks again and again, for a minute: on a machine with too much to do an agent alone takes more than ten seconds to
/// start.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) -> Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(60) {
        if holds() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    ensure!(holds(), "after a minute, not so: {what}");
    Ok(())
}
