//! A Docker daemon of a test's own, which can be killed and started again.

use std::{
    env, fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// How long a daemon may take to end.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Daemon {
    folder: TempDir,
    /// Whether its containers can have networks. Only one daemon of a machine can change its packet filter at a time.
    has_bridges: bool,
}

impl Daemon {
    /// Starts a daemon. `None`, with the reason, if none can be started.
    pub fn start(test: &str) -> Option<Daemon> {
        Daemon::start_with(test, false)
    }

    /// Starts a daemon whose containers can have networks.
    pub fn with_bridges(test: &str) -> Option<Daemon> {
        Daemon::start_with(test, true)
    }

    fn start_with(test: &str, has_bridges: bool) -> Option<Daemon> {
        if env::var_os("SEAWALL_TEST_DOCKER").is_none() {
            let required = env::var("SEAWALL_TEST_REQUIRE").is_ok_and(|what| what == "all");
            assert!(!required, "SEAWALL_TEST_DOCKER names no daemon: see scripts/docker");
            let _ =
                writeln!(std::io::stderr(), "skipped docker::{test}: SEAWALL_TEST_DOCKER names no daemon");
            return None;
        }
        let daemon = Daemon { folder: tempfile::tempdir().unwrap(), has_bridges };
        daemon.script("start");
        Some(daemon)
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("docker")
    }

    pub fn address(&self) -> String {
        format!("unix://{}", self.path().join("docker.sock").display())
    }

    fn script(&self, verb: &str) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/docker");
        let mut command = Command::new(script);
        command.arg(verb).arg(self.path());
        if self.has_bridges {
            command.env("SEAWALL_DOCKER_BRIDGES", "1");
        }
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "scripts/docker {verb}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    fn pid(&self) -> String {
        fs::read_to_string(self.path().join("pid")).unwrap_or_default().trim().to_owned()
    }

    /// Ends the daemon by a signal and starts it again.
    pub fn restart(&self, signal: &str) {
        self.restart_after(signal, || {});
    }

    /// As [`Daemon::restart`], and does something while the daemon is down.
    pub fn restart_after(&self, signal: &str, meanwhile: impl FnOnce()) {
        let pid = self.pid();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        let give_up = Instant::now() + PATIENCE;
        while is_alive(&pid) {
            assert!(Instant::now() < give_up, "the daemon {pid} does not end");
            thread::sleep(Duration::from_millis(50));
        }
        meanwhile();
        self.script("again");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if is_alive(&self.pid()) {
            self.script("stop");
        }
    }
}

fn is_alive(pid: &str) -> bool {
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !pid.is_empty() && !state.is_empty() && !state.contains(") Z ")
}
