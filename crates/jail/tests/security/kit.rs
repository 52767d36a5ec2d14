//! What cases share: installations, boxes with the attacker in them, and whether the host is well.

use super::probe::{Facts, Outcome, REFUSED, UNTRIED, WON, pids};
use anyhow::{Context, Result, anyhow, bail, ensure};
use seawall_api::{
    AccountId, SandboxId,
    exec::{ExitStatus, StartProcess},
    files::{FileRef, WriteFile, WriteMode},
    hello::Role,
    sandbox::SandboxSpec,
};
use seawall_core::ports::{Provider, ToBox, Volumes};
use seawall_providers::native::{NativeProvider, NativeSettings};
use seawall_wire::{Guest, Process, ProcessOutput};
use std::{
    fs,
    ops::Deref,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};
use tokio::time::{sleep, timeout};

/// Where the attacker's program is in a box.
pub const PROBE: &str = "/work/probe";
/// A box is gone within this time, whatever it did.
pub const REMOVAL: Duration = Duration::from_secs(10);
/// What an attempt may take.
const ATTEMPT_MS: u64 = 30_000;

/// A folder that goes in any case: the library's way of removing one gives up on trees that go too deep.
#[derive(Debug)]
pub struct Folder(pub PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = Command::new("rm").arg("-rf").arg(&self.0).stderr(Stdio::null()).status();
    }
}

/// An installation of its own.
#[derive(Clone)]
pub struct Yard {
    pub provider: Arc<dyn Provider>,
    pub data: Arc<Folder>,
}

impl Yard {
    pub fn new() -> Result<Yard> {
        Yard::with(NativeSettings::default())
    }

    pub fn with(settings: NativeSettings) -> Result<Yard> {
        let data = Folder(tempfile::tempdir()?.keep());
        // The folder's own mode must not be what keeps others out.
        fs::set_permissions(&data.0, fs::Permissions::from_mode(0o755))?;
        let provider = NativeProvider::open(&data.0, settings)?;
        Ok(Yard { provider: Arc::new(provider), data: Arc::new(data) })
    }

    pub fn path(&self) -> &Path {
        &self.data.0
    }

    /// A box that runs, with the attacker's program in it.
    pub async fn cell(&self, spec: &SandboxSpec) -> Result<Cell> {
        let id = SandboxId::generate();
        self.provider.create(id, spec, AccountId::LOCAL).await.context("create")?;
        let info = self.provider.start(id).await.context("start")?;
        let pid = info.pid.context("a running box has a process")?;
        let connector = ToBox { provider: self.provider.clone(), id };
        let guest = Guest::new(id, Role::Client, Arc::new(connector));
        let space = space_of(pid).context("a running box has a pid namespace")?;
        let cell = Cell { id, guest, pid, space, work: PathBuf::from(info.volume), yard: self.clone() };
        cell.put(PROBE, 0o755, program()?).await.context("bringing the attacker in")?;
        Ok(cell)
    }

    pub async fn clean(&self) -> Result<()> {
        for info in self.provider.list().await? {
            self.provider.remove(info.id, Volumes::Delete).await?;
        }
        let left = self.provider.list().await?;
        ensure!(left.is_empty(), "boxes are left after they were removed: {left:?}");
        Ok(())
    }
}

/// This program.
fn program() -> Result<&'static [u8]> {
    static PROGRAM: OnceLock<Result<Vec<u8>, String>> = OnceLock::new();
    let read = || fs::read(std::env::current_exe()?);
    let found = PROGRAM.get_or_init(|| read().map_err(|error| error.to_string()));
    found.as_deref().map_err(|error| anyhow!("this program cannot be read: {error}"))
}

/// A box that runs.
#[derive(Clone)]
pub struct Cell {
    pub id: SandboxId,
    pub guest: Guest,
    /// Its process 1, as the host counts.
    pub pid: u32,
    /// Its pid namespace: what shares it is in the box.
    space: PathBuf,
    /// Its volume, as the host sees it.
    pub work: PathBuf,
    pub yard: Yard,
}

impl Deref for Cell {
    type Target = Guest;

    fn deref(&self) -> &Guest {
        &self.guest
    }
}

/// What a process said, and how it ended.
#[derive(Debug)]
pub struct Said {
    pub status: ExitStatus,
    pub text: String,
}

impl Said {
    /// Reads to the end.
    pub async fn all(mut process: Process) -> Result<Said> {
        let mut bytes = Vec::new();
        loop {
            match process.next().await? {
                ProcessOutput::Data { bytes: more, .. } => bytes.extend_from_slice(&more),
                ProcessOutput::End(status) => {
                    return Ok(Said { status, text: String::from_utf8_lossy(&bytes).into_owned() });
                }
                _ => {}
            }
        }
    }

    pub fn outcome(&self) -> Result<Outcome> {
        let code = self.status.code.with_context(|| format!("it was ended: {self:?}"))?;
        read_outcome(code, &self.text)
    }
}

/// From an exit code and what was printed.
pub fn read_outcome(code: i32, printed: &str) -> Result<Outcome> {
    let line = printed.lines().last().unwrap_or_default();
    let (errno, text) = line.split_once(' ').unwrap_or(("", line));
    match (code, errno.parse::<i32>()) {
        (WON, Ok(_)) => Ok(Outcome::Won(text.to_owned())),
        (REFUSED, Ok(errno)) => Ok(Outcome::Refused(errno, text.to_owned())),
        (UNTRIED, Ok(_)) => Ok(Outcome::Untried(text.to_owned())),
        _ => bail!("the attacker fell over: exit code {code}, {printed:?}"),
    }
}

impl Cell {
    pub fn attempt(&self, name: &str, user: &str, facts: &Facts) -> StartProcess {
        let args = [PROBE, "--attempt", name].map(str::to_owned).into_iter().chain(facts.args());
        let (user, timeout_ms) = (Some(user.to_owned()), Some(ATTEMPT_MS));
        StartProcess { user, timeout_ms, ..StartProcess::new(args) }
    }

    /// Something that takes as long as it is let.
    pub fn bomb(&self, name: &str, facts: &Facts) -> StartProcess {
        StartProcess { timeout_ms: None, ..self.attempt(name, "user", facts) }
    }

    /// Makes an attempt, to its end.
    pub async fn try_to(&self, name: &str, user: &str, facts: &Facts) -> Result<Said> {
        let process = self.guest.start(self.attempt(name, user, facts)).await?;
        Said::all(process).await
    }

    /// The output of a script that must succeed.
    pub async fn sh(&self, user: &str, script: &str) -> Result<String> {
        let start = StartProcess { user: Some(user.to_owned()), ..StartProcess::new(["sh", "-c", script]) };
        let said = Said::all(self.guest.start(start).await?).await?;
        ensure!(said.status.success(), "`{script}`: {said:?}");
        Ok(said.text)
    }

    pub async fn put(&self, path: &str, mode: u32, body: &[u8]) -> Result<()> {
        let write = WriteFile {
            file: FileRef::new(path),
            mode: WriteMode::Replace,
            permissions: Some(mode),
            mtime: None,
            parents: false,
            max_size: None,
        };
        let mut writer = self.guest.write_bulk(write).await?;
        writer.write(body).await?;
        writer.finish().await?;
        Ok(())
    }

    /// Starts something that goes on, and reads until it says that it is ready, or ends.
    pub async fn start_until_ready(&self, start: StartProcess) -> Result<(Process, String)> {
        let mut process = self.guest.start(start).await?;
        let mut seen = String::new();
        while !seen.contains("ready") {
            match timeout(Duration::from_secs(60), process.next()).await?? {
                ProcessOutput::Data { bytes, .. } => seen.push_str(&String::from_utf8_lossy(&bytes)),
                ProcessOutput::End(status) => bail!("{status}, and was never ready: {seen}"),
                _ => {}
            }
        }
        Ok((process, seen))
    }

    /// The processes of the box, as the host counts, also when its process 1 is gone.
    pub fn processes(&self) -> Vec<u32> {
        pids().into_iter().filter(|pid| space_of(*pid).as_ref() == Some(&self.space)).collect()
    }

    /// No process of the box is left. The first of them may be dead already and its parent about to hear of it.
    pub async fn ensure_reaped(&self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let left = self.processes();
            if left.is_empty() {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "processes of the box are left: {left:?}");
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Removes the box, in time and with everything that was in it.
    pub async fn remove_within(&self, patience: Duration) -> Result<()> {
        timeout(patience, self.yard.provider.remove(self.id, Volumes::Delete))
            .await
            .map_err(|_| anyhow!("the box was not removed within {patience:?}"))??;
        self.ensure_reaped().await?;
        ensure!(!self.work.exists(), "its volume is left");
        Ok(())
    }

    pub async fn remove_in_time(&self) -> Result<()> {
        self.remove_within(REMOVAL).await
    }
}

/// Which pid namespace a process is in. None where it is gone.
fn space_of(pid: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}

/// The host does what a host does.
pub fn host_is_well() -> Result<()> {
    let began = Instant::now();
    let ran = Command::new("/bin/true").status().context("the host cannot start a program")?;
    ensure!(ran.success(), "/bin/true: {ran}");
    let took = began.elapsed();
    ensure!(took < Duration::from_secs(5), "/bin/true took {took:?} on the host");
    tempfile::tempfile().context("the host cannot make a file")?;
    Ok(())
}

/// A number of a file of /proc with names and kilobytes.
pub fn kilobytes(path: &str, name: &str) -> u64 {
    let table = fs::read_to_string(path).unwrap_or_default();
    let line = table.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.trim_start_matches(':').trim().trim_end_matches("kB").trim().parse().unwrap_or(0)
}

/// Whether it becomes true within half a minute.
pub async fn eventually(mut check: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + Duration::from_secs(30);
    while !check() {
        if Instant::now() > until {
            return false;
        }
        sleep(Duration::from_millis(20)).await;
    }
    true
}

/// `DATA ID FILES`: removes a box in a process that may die of it, and may open so many files at once.
pub fn remove_in_this_process(args: &[String]) -> i32 {
    let done = match args {
        [data, id, files] => id.parse::<SandboxId>().map_err(anyhow::Error::from).and_then(|id| {
            limit_files(files.parse()?);
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
            runtime.block_on(remove(Path::new(data), id))
        }),
        _ => Err(anyhow!("a folder, an id and a number")),
    };
    match done {
        Ok(()) => 0,
        Err(error) => {
            println!("{error:?}");
            1
        }
    }
}

async fn remove(data: &Path, id: SandboxId) -> Result<()> {
    let provider = NativeProvider::open(data, NativeSettings::default())?;
    Ok(provider.remove(id, Volumes::Delete).await?)
}

/// As far as this host allows it.
fn limit_files(wanted: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure lives on this stack, in both calls.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = wanted.min(limit.rlim_max);
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
    }
}
