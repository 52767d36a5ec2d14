//! What the cases share: boxes with a guest, output to its end, and bytes that can be told apart.

use super::suite::Cx;
use anyhow::{Context, Result, anyhow, bail, ensure};
use seawall_api::{
    AccountId, ErrorKind, ProcessId, SandboxId,
    exec::{ExitStatus, OutputStream, StartProcess},
    files::{FileRef, ReadFile, WriteFile, WriteMode},
    hello::Role,
    message::Attach,
    sandbox::SandboxSpec,
};
use seawall_core::ports::{Provider, ToBox};
use seawall_wire::{FileReader, Guest, Process, ProcessOutput};
use std::{
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::time::{Instant, sleep};

pub fn guest_with(provider: &Arc<dyn Provider>, id: SandboxId, role: Role) -> Guest {
    Guest::new(id, role, Arc::new(ToBox { provider: provider.clone(), id }))
}

pub fn guest_of(provider: &Arc<dyn Provider>, id: SandboxId) -> Guest {
    guest_with(provider, id, Role::Client)
}

/// A box that runs, and its guest.
#[derive(Clone)]
pub struct Sandbox {
    pub id: SandboxId,
    pub guest: Guest,
}

impl Deref for Sandbox {
    type Target = Guest;

    fn deref(&self) -> &Guest {
        &self.guest
    }
}

impl Cx {
    pub async fn sandbox(&self) -> Result<Sandbox> {
        self.sandbox_of(&SandboxSpec::default()).await
    }

    pub async fn sandbox_of(&self, spec: &SandboxSpec) -> Result<Sandbox> {
        let id = SandboxId::generate();
        self.provider.create(id, spec, AccountId::LOCAL).await.context("create")?;
        self.provider.start(id).await.context("start")?;
        Ok(Sandbox { id, guest: guest_of(&self.provider, id) })
    }

    /// Fails unless every process with this argument is gone soon.
    pub async fn none_left(&self, argument: &str) -> Result<()> {
        let gone = eventually(|| async { self.fixture.alive(argument).is_empty() }).await;
        ensure!(gone, "still alive: {:?}", self.fixture.alive(argument));
        Ok(())
    }
}

impl Sandbox {
    pub async fn run<const N: usize>(&self, args: [&str; N]) -> Result<Output> {
        self.finish(StartProcess::new(args)).await
    }

    pub async fn finish(&self, start: StartProcess) -> Result<Output> {
        Output::of(self.guest.start(start).await?).await
    }

    pub async fn sh(&self, script: &str) -> Result<Output> {
        self.run(["sh", "-c", script]).await
    }

    /// The standard output of a script that must succeed.
    pub async fn sh_ok(&self, script: &str) -> Result<String> {
        let output = self.sh(script).await?;
        ensure!(output.status.success(), "`{script}`: {}, {}", output.status, output.err());
        Ok(output.out())
    }

    pub async fn put(&self, path: &str, body: &[u8]) -> Result<()> {
        self.guest.write_all(to(path), body).await?;
        Ok(())
    }

    pub async fn take(&self, path: &str) -> Result<Vec<u8>> {
        Ok(self.guest.read_all(FileRef::new(path), 64 << 20).await?)
    }
}

/// All that a process printed, and how it ended.
#[derive(Debug)]
pub struct Output {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub gaps: Vec<(u64, u64)>,
    #[allow(dead_code)] // Seen in failures, through Debug.
    pub reconnects: u32,
}

impl Output {
    pub async fn of(mut process: Process) -> Result<Output> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let (mut gaps, mut reconnects) = (Vec::new(), 0);
        loop {
            match process.next().await? {
                ProcessOutput::Data { stream: OutputStream::Stderr, bytes, .. } => {
                    stderr.extend_from_slice(&bytes);
                }
                ProcessOutput::Data { bytes, .. } => stdout.extend_from_slice(&bytes),
                ProcessOutput::Gap { from, to } => gaps.push((from, to)),
                ProcessOutput::Reconnected => reconnects += 1,
                ProcessOutput::End(status) => {
                    return Ok(Output { status, stdout, stderr, gaps, reconnects });
                }
                ProcessOutput::Drained => bail!("drained, though it was to be followed"),
            }
        }
    }

    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

/// Reads until the output has this text; returns all of it so far, line ends as `\n`.
pub async fn read_until(process: &mut Process, text: &str) -> Result<String> {
    let mut seen = String::new();
    while !seen.contains(text) {
        match process.next().await? {
            ProcessOutput::Data { bytes, .. } => {
                seen.push_str(&String::from_utf8_lossy(&bytes).replace("\r\n", "\n"));
            }
            ProcessOutput::End(status) => bail!("{status} before `{text}`: {seen:?}"),
            _ => {}
        }
    }
    Ok(seen)
}

pub fn attach(process: ProcessId, from: u64) -> Attach {
    Attach { process, from, hold: true, follow: true }
}

pub fn to(path: &str) -> WriteFile {
    WriteFile {
        file: FileRef::new(path),
        mode: WriteMode::Replace,
        permissions: None,
        mtime: None,
        parents: false,
        max_size: None,
    }
}

pub fn from(path: &str) -> ReadFile {
    ReadFile { file: FileRef::new(path), offset: 0, length: None }
}

pub async fn read_to_end(mut reader: FileReader) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    while let Some(bytes) = reader.next().await? {
        body.extend_from_slice(&bytes);
    }
    Ok(body)
}

/// Bytes without a period that a lost or doubled piece could hide in.
pub fn pattern(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Compares by hash: the bytes themselves would fill a screen.
pub fn ensure_same(got: &[u8], wanted: &[u8]) -> Result<()> {
    ensure!(got.len() == wanted.len(), "{} bytes instead of {}", got.len(), wanted.len());
    ensure!(blake3::hash(got) == blake3::hash(wanted), "the same length, other bytes");
    Ok(())
}

/// A number of seconds that no other process on the machine sleeps for.
pub fn long_sleep() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let count = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("1{:07}{:04}", std::process::id(), count)
}

/// Whether it becomes true within half a minute.
pub async fn eventually<F: Future<Output = bool>>(mut check: impl FnMut() -> F) -> bool {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        if check().await {
            return true;
        }
        if Instant::now() > until {
            return false;
        }
        sleep(Duration::from_millis(20)).await;
    }
}

pub trait HasKind: std::fmt::Display {
    fn kind(&self) -> ErrorKind;
}

impl HasKind for seawall_wire::Error {
    fn kind(&self) -> ErrorKind {
        self.kind()
    }
}

impl HasKind for seawall_core::Error {
    fn kind(&self) -> ErrorKind {
        self.kind()
    }
}

/// The error of a call that must fail.
pub fn error_of<T, E>(result: Result<T, E>) -> Result<E> {
    result.err().ok_or_else(|| anyhow!("it succeeded, though it must not"))
}

/// Fails unless the call failed, with one of these kinds.
pub fn ensure_kind<T, E: HasKind>(result: Result<T, E>, kinds: &[ErrorKind]) -> Result<()> {
    let error = error_of(result)?;
    ensure!(kinds.contains(&error.kind()), "{} instead of {kinds:?}: {error}", error.kind());
    Ok(())
}
