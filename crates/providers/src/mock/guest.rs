//! The guest of a mock box: the real protocol, served over a pipe in memory.

use super::{
    files::FileTree,
    lock,
    processes::Processes,
    provider::Substrate,
    script::{MockCall, Script},
    stream::serve_stream,
};
use seawall_api::{
    ErrorKind, Fault, SandboxId,
    exec::{ExitReason, StartProcess},
    files::FileRef,
    hello::{Hello, MAX_VERSION, Role, Welcome},
    message::GuestInfo,
    sandbox::{EndReason, SandboxSpec},
};
use seawall_wire::{handshake, mux::Mux};
use std::sync::{Arc, Mutex, Weak};
use tokio::{io::DuplexStream, sync::watch, time::Instant};

const PIPE: usize = 256 << 10;
const BUILD: &str = concat!("mock-", env!("CARGO_PKG_VERSION"));

#[derive(Debug)]
pub(super) struct MockGuest {
    id: SandboxId,
    spec: SandboxSpec,
    boot: String,
    started: Instant,
    last_used: Mutex<Instant>,
    pub(super) files: Arc<Mutex<FileTree>>,
    pub(super) processes: Processes,
    substrate: Weak<Substrate>,
    /// The epoch of the control wire; a newer one ends an older.
    epoch: watch::Sender<u64>,
    dead: watch::Sender<bool>,
}

impl MockGuest {
    pub(super) fn new(
        id: SandboxId,
        spec: SandboxSpec,
        files: Arc<Mutex<FileTree>>,
        substrate: Weak<Substrate>,
    ) -> Self {
        MockGuest {
            id,
            spec,
            boot: SandboxId::generate().to_string(),
            started: Instant::now(),
            last_used: Mutex::new(Instant::now()),
            files,
            processes: Processes::default(),
            substrate,
            epoch: watch::Sender::new(0),
            dead: watch::Sender::new(false),
        }
    }

    pub(super) fn connect(self: Arc<Self>) -> DuplexStream {
        let (host, io) = tokio::io::duplex(PIPE);
        tokio::spawn(async move {
            tokio::select! {
                () = self.death() => {}
                () = self.serve(io) => {}
            }
        });
        host
    }

    /// Every connection is cut, and every process gone.
    pub(super) fn die(&self) {
        self.dead.send_replace(true);
        self.processes.abandon();
    }

    pub(super) async fn end_processes(&self) {
        self.processes.end_all(ExitReason::Stopped).await;
    }

    pub(super) fn running(&self) -> usize {
        match *self.dead.borrow() {
            true => 0,
            false => self.processes.running(),
        }
    }

    /// The guest ends its box by itself.
    pub(super) async fn shut_down(&self) {
        self.end_processes().await;
        if let Some(substrate) = self.substrate.upgrade() {
            substrate.ended(self.id, EndReason::Stopped);
        }
    }

    pub(super) async fn death(&self) {
        let _ = self.dead.subscribe().wait_for(|dead| *dead).await;
    }

    async fn serve(self: &Arc<Self>, mut io: DuplexStream) {
        let Ok((hello, _)) = handshake::accept(&mut io, |hello| self.welcome(hello)).await else {
            return;
        };
        match hello.role {
            Role::Bulk => serve_stream(self.clone(), io).await,
            Role::Client => self.serve_wire(io).await,
            Role::Control { epoch } => {
                let mut newer = self.epoch.subscribe();
                tokio::select! {
                    _ = newer.wait_for(|highest| *highest > epoch) => {}
                    () = self.serve_wire(io) => {}
                }
            }
        }
    }

    fn welcome(&self, hello: &Hello) -> Result<Welcome, Fault> {
        if hello.sandbox != self.id {
            let message = format!("this is sandbox {}, not {}", self.id, hello.sandbox);
            return Err(Fault::new(ErrorKind::Conflict, message));
        }
        if let Role::Control { epoch } = hello.role {
            let highest = *self.epoch.borrow();
            if epoch < highest {
                let message = format!("epoch {highest} holds the control wire, {epoch} is older");
                return Err(Fault::new(ErrorKind::Conflict, message));
            }
            self.epoch.send_replace(epoch);
        }
        Ok(Welcome { version: MAX_VERSION, build: BUILD.into(), boot: self.boot.clone() })
    }

    async fn serve_wire(self: &Arc<Self>, io: DuplexStream) {
        let (_mux, mut incoming, driver) = Mux::server(io);
        let accept = async {
            while let Some(stream) = incoming.next().await {
                tokio::spawn(serve_stream(self.clone(), stream));
            }
        };
        tokio::select! {
            _ = driver => {}
            () = accept => {}
        }
    }

    pub(super) fn script(&self, start: &StartProcess) -> Result<Script, Fault> {
        let unsupported =
            |what: &str| Fault::new(ErrorKind::Unsupported, format!("the mock provider has no {what}"));
        if start.tty.is_some() {
            return Err(unsupported("terminals"));
        }
        if start.user.is_some() {
            return Err(unsupported("users"));
        }
        let Some(name) = start.args.first() else {
            return Err(Fault::new(ErrorKind::Invalid, "no command; name a program"));
        };
        let cwd = FileRef::new(start.cwd.as_deref().unwrap_or("/work"));
        if !lock(&self.files).is_directory(&cwd) {
            let message = format!("cannot run in `{}`: no such directory", cwd.path);
            return Err(Fault::new(ErrorKind::ExecFailed, message));
        }
        let mut env = self.spec.env.clone();
        env.extend(start.env.iter().cloned());
        let call = MockCall { args: start.args.clone(), env, cwd: start.cwd.clone() };
        let script = self.substrate.upgrade().and_then(|substrate| substrate.script(&call));
        script.ok_or_else(|| Fault::new(ErrorKind::ExecFailed, format!("command not found: {name}")))
    }

    pub(super) fn used(&self) {
        *lock(&self.last_used) = Instant::now();
    }

    pub(super) fn info(&self) -> GuestInfo {
        GuestInfo {
            build: BUILD.into(),
            boot: self.boot.clone(),
            pid: 1,
            uptime_s: self.started.elapsed().as_secs(),
            processes_running: u32::try_from(self.processes.running()).unwrap_or(u32::MAX),
            idle_s: lock(&self.last_used).elapsed().as_secs(),
        }
    }
}
