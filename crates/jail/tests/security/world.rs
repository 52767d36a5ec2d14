//! What there is on the host to be had: secrets, sockets, processes, another box. Made once for all attempts.

use super::{
    kit::{Cell, Yard},
    probe::{
        Arg::{N, S},
        Facts, MARKER, call, text,
    },
};
use anyhow::{Context, Result};
use seawall_api::sandbox::SandboxSpec;
use std::{
    fs,
    net::{TcpListener, UdpSocket},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener},
    },
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Before anything else, and before there are threads.
pub fn mark_environment() {
    // SAFETY: this process has one thread.
    unsafe { std::env::set_var(MARKER, "of-the-host") };
}

/// A process of the host that does nothing. It has the runner's environment.
pub struct Victim(Child);

impl Victim {
    pub fn new() -> Result<Victim> {
        let child = Command::new("sleep").arg("100000").stdin(Stdio::null()).spawn();
        Ok(Victim(child.context("no victim")?))
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn is_alive(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub struct World {
    pub facts: Facts,
    runtime: Runtime,
    neighbour: Yard,
    shm: i64,
    _places: Vec<TempDir>,
    _victim: Victim,
    _sockets: Sockets,
}

static WORLD: Mutex<Option<Arc<World>>> = Mutex::new(None);

fn slot() -> MutexGuard<'static, Option<Arc<World>>> {
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The one world. Not from within a runtime: it has its own.
pub fn get() -> Result<Arc<World>> {
    let mut slot = slot();
    if let Some(world) = &*slot {
        return Ok(world.clone());
    }
    Ok(slot.insert(Arc::new(World::new()?)).clone())
}

/// Takes everything away again.
pub fn end() {
    drop(slot().take());
}

impl World {
    fn new() -> Result<World> {
        let secret = format!("the-hosts-secret-{}", std::process::id());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let neighbour = Yard::new()?;
        let cell = runtime.block_on(neighbour.cell(&SandboxSpec::default())).context("the other box")?;
        fs::write(cell.work.join("secret"), &secret)?;
        let victim = Victim::new()?;
        let facts = Facts::default()
            .with("secret", &secret)
            .with("runner", std::process::id())
            .with("victim", victim.pid())
            .with("lan", lan_address().unwrap_or_default())
            .with("disk", disk().unwrap_or_default());
        let (places, facts) = hide(facts, &secret);
        let (sockets, facts) = listen(&neighbour, facts)?;
        let (shm, facts) = share(facts)?;
        let facts = describe(&neighbour, &cell, facts);
        Ok(World { facts, runtime, neighbour, shm, _places: places, _victim: victim, _sockets: sockets })
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = call(libc::SYS_shmctl, [N(self.shm), N(libc::IPC_RMID.into()), N(0)]);
        let _ = call(libc::SYS_mq_unlink, [S(&text(self.facts.get("queue")))]);
        let _ = self.runtime.block_on(self.neighbour.clean());
    }
}

/// Secrets in places of the host that boxes have under the same name.
fn hide(mut facts: Facts, secret: &str) -> (Vec<TempDir>, Facts) {
    let places = [
        ("canary_root", "/root"),
        ("canary_home", "/home"),
        ("canary_var_tmp", "/var/tmp"),
        ("canary_tmp", "/tmp"),
        ("canary_shm", "/dev/shm"),
    ];
    let mut made = Vec::new();
    for (key, place) in places {
        let Ok(dir) = tempfile::Builder::new().prefix(".seawall-canary").tempdir_in(place) else { continue };
        let path = dir.path().join("secret");
        if fs::write(&path, secret).is_ok() {
            facts = facts.with(key, path.display());
            made.push(dir);
        }
    }
    (made, facts)
}

type Sockets = (TcpListener, Option<TcpListener>, UnixListener, UnixListener);

fn listen(yard: &Yard, facts: Facts) -> Result<(Sockets, Facts)> {
    let tcp = TcpListener::bind("0.0.0.0:0")?;
    let tcp6 = TcpListener::bind("[::1]:0").ok();
    let name = format!("seawall-escape-{}", std::process::id());
    let hidden = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
    let path = yard.path().join("a.sock");
    let file = UnixListener::bind(&path)?;
    let port6 = tcp6.as_ref().and_then(|tcp6| Some(tcp6.local_addr().ok()?.port().to_string()));
    let facts = facts
        .with("port", tcp.local_addr()?.port())
        .with("port6", port6.unwrap_or_default())
        .with("abstract", name)
        .with("socket", path.display());
    Ok(((tcp, tcp6, hidden, file), facts))
}

/// A piece of memory and a message queue that all of the host may use.
fn share(facts: Facts) -> Result<(i64, Facts)> {
    let (key, queue) =
        (0x5ea_0000 + i64::from(std::process::id()), format!("seawall-{}", std::process::id()));
    let flags = i64::from(libc::IPC_CREAT | libc::IPC_EXCL | 0o666);
    let shm = call(libc::SYS_shmget, [N(key), N(4096), N(flags)]).context("shmget")?;
    let flags = i64::from(libc::O_CREAT | libc::O_RDWR);
    // Not every kernel has them; then the attempt says so.
    let _ = call(libc::SYS_mq_open, [S(&text(&queue)), N(flags), N(0o666), N(0)]);
    Ok((shm, facts.with("shm", key).with("queue", queue)))
}

fn describe(yard: &Yard, cell: &Cell, facts: Facts) -> Facts {
    facts
        .with("neighbour_work", cell.work.display())
        .with("neighbour_wire", wire_of(yard, cell).display())
        .with("neighbour_pid", cell.pid)
}

/// Where the host reaches a box's guest.
pub fn wire_of(yard: &Yard, cell: &Cell) -> std::path::PathBuf {
    yard.path().join("native/boxes").join(cell.id.to_string()).join("wire.sock")
}

/// The address that others know this host by. Nothing is sent.
fn lan_address() -> Option<String> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("1.1.1.1:53").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then(|| address.to_string())
}

fn disk() -> Option<String> {
    let table = fs::read_to_string("/proc/partitions").ok()?;
    let names = table.lines().filter_map(|line| line.split_whitespace().nth(3));
    names.map(|name| format!("/dev/{name}")).find(|path| Path::new(path).exists())
}
