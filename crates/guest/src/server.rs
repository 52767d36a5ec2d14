//! Connections from hosts, and what they ask for.

use crate::{
    bulk, container,
    deadlines::InUse,
    fault::{Outcome, invalid},
    files,
    process::{self, attach},
    state::{Control, Guest},
    sync, tunnel,
};
use seawall_api::{
    ErrorKind, Fault,
    exec::ExitReason,
    frame::{Frame, Kind},
    hello::{Hello, MAX_VERSION, Role, Welcome},
    message::{Attach, GuestInfo, Request},
};
use seawall_wire::{
    Error, Result,
    framed::{FrameReader, FrameWriter},
    handshake,
    mux::{Mux, MuxStream},
};
use serde::Serialize;
use std::{io, path::Path, rc::Rc, sync::Arc};
use tokio::{
    io::{ReadHalf, WriteHalf},
    net::{UnixListener, UnixStream},
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    task::spawn_local,
};

/// Connections at the same time. A host needs a handful.
const MAX_CONNECTIONS: usize = 64;

pub type Reader = FrameReader<ReadHalf<MuxStream>>;
pub type Writer = FrameWriter<WriteHalf<MuxStream>>;

pub fn listen(socket: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    UnixListener::bind(socket)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", socket.display())))
}

/// Connections to hosts, and their bound.
pub struct Connections {
    guest: Rc<Guest>,
    slots: Arc<Semaphore>,
}

impl Connections {
    pub fn new(guest: Rc<Guest>) -> Connections {
        Connections { guest, slots: Arc::new(Semaphore::new(MAX_CONNECTIONS)) }
    }

    /// Waits until one more connection may be open.
    pub async fn slot(&self) -> Option<OwnedSemaphorePermit> {
        self.slots.clone().acquire_owned().await.ok()
    }

    /// Serves a connection to its end.
    pub async fn serve(self: Rc<Self>, stream: UnixStream, _slot: Option<OwnedSemaphorePermit>) {
        match connection(self.guest.clone(), stream).await {
            // Hosts may hang up at any time.
            Ok(()) | Err(Error::Broken(_)) => {}
            Err(error) => crate::say!("a connection: {error}"),
        }
    }
}

/// Takes connections for ever.
pub async fn serve(guest: Rc<Guest>, listener: UnixListener) -> io::Result<()> {
    let connections = Rc::new(Connections::new(guest.clone()));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Too many descriptors, perhaps: it passes.
                crate::say!("taking a connection: {error}");
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                continue;
            }
        };
        if guest.config.container && !container::is_from_outside(&stream) {
            crate::say!("a process of the container dialled the guest and was refused");
            continue;
        }
        match connections.slots.clone().try_acquire_owned() {
            Ok(slot) => drop(spawn_local(connections.clone().serve(stream, Some(slot)))),
            Err(_) => crate::say!("{MAX_CONNECTIONS} connections are open; one more was refused"),
        }
    }
}

async fn connection(guest: Rc<Guest>, mut stream: UnixStream) -> Result<()> {
    let (hello, _) = handshake::accept(&mut stream, |hello| welcome(&guest, hello)).await?;
    if hello.role != Role::Bulk && guest.processes.expecting.take() {
        // While the host reads its welcome.
        process::pool::make_ready(&guest);
    }
    if guest.config.container {
        container::connected(&guest);
    }
    match hello.role {
        Role::Bulk => bulk::serve(guest, stream).await,
        Role::Client => multiplexed(guest, stream, None).await,
        Role::Control { epoch } => multiplexed(guest, stream, Some(epoch)).await,
    }
}

fn welcome(guest: &Guest, hello: &Hello) -> Outcome<Welcome> {
    if hello.sandbox != guest.config.sandbox {
        let (asked, own) = (hello.sandbox, guest.config.sandbox);
        return Err(Fault::new(ErrorKind::Conflict, format!("this is sandbox {own}, not {asked}")));
    }
    if let (Role::Control { epoch }, Some(control)) = (hello.role, &*guest.control.borrow())
        && control.epoch > epoch
    {
        let holder = control.epoch;
        let message = format!("epoch {holder} holds the control wire; epoch {epoch} has lost it");
        return Err(Fault::new(ErrorKind::Conflict, message));
    }
    Ok(Welcome {
        version: MAX_VERSION,
        build: env!("CARGO_PKG_VERSION").to_owned(),
        boot: guest.boot.clone(),
    })
}

async fn multiplexed(guest: Rc<Guest>, stream: UnixStream, control: Option<u64>) -> Result<()> {
    let (mux, mut incoming, drive) = Mux::server(stream);
    let replaced = Rc::new(Notify::new());
    if let Some(epoch) = control
        && !take_control(&guest, Control { epoch, replaced: replaced.clone() })
    {
        return Ok(());
    }
    let serving = async {
        while let Some(stream) = incoming.next().await {
            let (guest, control) = (guest.clone(), control.map(|_| mux.clone()));
            spawn_local(async move {
                let (read, write) = tokio::io::split(stream);
                let ended = request(guest, FrameReader::new(read), FrameWriter::new(write), control).await;
                if let Err(error @ Error::Protocol(_)) = ended {
                    crate::say!("a request: {error}");
                }
            });
        }
    };
    tokio::select! {
        _ = drive => {}
        () = serving => {}
        () = replaced.notified() => {}
    }
    Ok(())
}

/// The newest epoch has the control wire; whoever had it goes. False where a newer one came in between.
fn take_control(guest: &Guest, control: Control) -> bool {
    let mut held = guest.control.borrow_mut();
    if held.as_ref().is_some_and(|held| held.epoch > control.epoch) {
        return false;
    }
    if let Some(older) = held.replace(control) {
        older.replaced.notify_one();
    }
    true
}

/// One stream: its request, and whatever belongs to it.
async fn request(
    guest: Rc<Guest>,
    mut reader: Reader,
    mut writer: Writer,
    control: Option<Mux>,
) -> Result<()> {
    let first = reader.expect().await?;
    let request = match first.kind {
        Kind::Request => first.decode::<Request>(),
        _ => return answer(&mut writer, Err::<(), _>(invalid("a request was due"))).await,
    };
    let request = match request {
        Ok(request) => request,
        Err(error) => {
            let message =
                format!("this guest (seawall {}) does not know that: {error}", env!("CARGO_PKG_VERSION"));
            return answer(&mut writer, Err::<(), _>(Fault::new(ErrorKind::Protocol, message))).await;
        }
    };
    // A bulk request counts its own use.
    let looks_only = matches!(
        request,
        Request::Ping | Request::Info | Request::Processes | Request::Attend(_) | Request::Bulk
    );
    let _in_use = match &request {
        _ if looks_only => None,
        Request::Sync { .. } => Some(InUse::saving(&guest)),
        _ => Some(InUse::new(&guest)),
    };
    dispatch(guest, request, reader, writer, control).await
}

async fn dispatch(
    guest: Rc<Guest>,
    request: Request,
    mut reader: Reader,
    mut writer: Writer,
    control: Option<Mux>,
) -> Result<()> {
    match request {
        Request::Ping => pong(reader, writer).await,
        Request::Info => answer(&mut writer, Ok(info(&guest))).await,
        Request::Attend(attend) => {
            guest.deadlines.set(attend);
            answer(&mut writer, Ok(info(&guest))).await
        }
        Request::Start(start) => match process::start(&guest, &start).await {
            Err(fault) => answer(&mut writer, Err::<(), _>(fault)).await,
            Ok((process, resumed)) if start.detach => {
                let started =
                    seawall_api::message::Started { process: process.id, pid: process.pid, resumed };
                answer(&mut writer, Ok(started)).await
            }
            Ok((process, resumed)) => {
                let whole = Attach { process: process.id, from: 0, hold: true, follow: true };
                attach::serve(process, whole, resumed, &mut reader, &mut writer).await
            }
        },
        Request::Attach(wanted) => match guest.processes.get(wanted.process) {
            Err(fault) => answer(&mut writer, Err::<(), _>(fault)).await,
            Ok(process) => attach::serve(process, wanted, true, &mut reader, &mut writer).await,
        },
        Request::Input { process, close } => match guest.processes.get(process) {
            Err(fault) => answer(&mut writer, Err::<(), _>(fault)).await,
            Ok(process) => {
                attach::take_input(&process, close, &mut reader).await?;
                answer(&mut writer, Ok(())).await
            }
        },
        Request::Processes => answer(&mut writer, Ok(guest.processes.list())).await,
        Request::Signal { process, signal } => {
            let done = guest.processes.get(process).and_then(|process| process.signal(signal));
            answer(&mut writer, done).await
        }
        Request::Kill { process } => {
            let done = match guest.processes.get(process) {
                Ok(process) => {
                    process.kill(ExitReason::Killed);
                    process.wait_gone().await;
                    Ok(())
                }
                Err(fault) => Err(fault),
            };
            answer(&mut writer, done).await
        }
        Request::Resize { process, size } => {
            let done = guest.processes.get(process).and_then(|process| process.resize(size));
            answer(&mut writer, done).await
        }
        Request::Connect { port } => tunnel::connect(port, reader, writer).await,
        Request::Listen { port } => match control {
            Some(mux) => tunnel::listen(port, mux, reader, writer).await,
            None => {
                let message = "only the holder of the control wire may listen";
                answer(&mut writer, Err::<(), _>(Fault::new(ErrorKind::Denied, message))).await
            }
        },
        Request::Bulk => bulk::on_stream(guest, reader, writer).await,
        Request::Sync { wait_ms } => sync::serve(&guest, wait_ms, reader, writer).await,
        Request::Shutdown { grace_ms } => {
            answer(&mut writer, Ok(())).await?;
            guest.stopping.set(Some(grace_ms));
            guest.stop.notify_one();
            Ok(())
        }
        files => files::serve(&guest, files, reader, writer).await,
    }
}

fn info(guest: &Guest) -> GuestInfo {
    GuestInfo {
        build: env!("CARGO_PKG_VERSION").to_owned(),
        boot: guest.boot.clone(),
        pid: std::process::id(),
        uptime_s: guest.started.elapsed().as_secs(),
        processes_running: guest.processes.running() as u32,
        idle_s: guest.deadlines.idle().as_secs(),
    }
}

async fn pong(mut reader: Reader, mut writer: Writer) -> Result<()> {
    while let Some(frame) = reader.next().await? {
        match frame.kind {
            Kind::Ping => writer.send(&Frame::empty(Kind::Pong)).await?,
            other => return Err(Error::Protocol(format!("a {other:?} frame among pings"))),
        }
    }
    Ok(())
}

/// The one answer to a request, and the end of this side of its stream.
pub async fn answer<T: Serialize>(writer: &mut Writer, outcome: Outcome<T>) -> Result<()> {
    match outcome {
        Ok(reply) => match Frame::message(Kind::Reply, &reply) {
            Ok(frame) => writer.send(&frame).await?,
            Err(error) => {
                let fault = Fault::new(ErrorKind::TooLarge, format!("the answer does not fit: {error}"));
                writer.message(Kind::Fault, &fault).await?;
            }
        },
        Err(fault) => writer.message(Kind::Fault, &fault).await?,
    }
    writer.close().await
}
