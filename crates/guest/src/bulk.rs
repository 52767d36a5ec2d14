//! A connection for one body: no multiplexing, and the kernel carries the bytes where it can.

use crate::{
    creds::with_identity,
    deadlines::InUse,
    fault::{Outcome, from_io, invalid},
    files::{
        Place,
        read::{self, Opened},
        write::Target,
    },
    server::{Reader, Writer},
    state::Guest,
    sync::bodies,
    tunnel::carry,
};
use rustix::fd::{AsFd, OwnedFd};
use seawall_api::{
    files::{Entry, FileName},
    frame::{self, Frame, HEADER, Kind, MAX_BODY},
    message::Request,
};
use seawall_sync::disk::Disk;
use seawall_wire::{Error, Result};
use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream as StdStream,
    rc::Rc,
    sync::Arc,
    time::Duration,
};
use tokio::{net::UnixStream, sync::oneshot};

/// How long the other side may be silent in mid-body.
const PATIENCE: Duration = Duration::from_secs(120);

pub async fn serve(guest: Rc<Guest>, stream: UnixStream) -> Result<()> {
    let mut stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let (request, stream) = on_a_thread(move || {
        let request = next(&mut stream)?;
        Ok((request, stream))
    })
    .await?;
    if request.kind != Kind::Request {
        return Err(Error::Protocol("a request was due".into()));
    }
    let request = request.decode()?;
    let _in_use = match &request {
        Request::Collect { .. } | Request::Put { .. } => InUse::saving(&guest),
        _ => InUse::new(&guest),
    };
    let job = Job::new(&guest, request);
    on_a_thread(move || job.run(stream)).await
}

/// A bulk connection on a stream of the multiplexed wire.
pub async fn on_stream(guest: Rc<Guest>, reader: Reader, writer: Writer) -> Result<()> {
    let (inner, outer) = UnixStream::pair()?;
    let carried = carry(outer, reader.into_raw(), writer.into_inner());
    tokio::join!(serve(guest, inner), carried).0
}

/// A thread of its own: a body whose sender stalls must not take the threads that other files need.
async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let (done, result) = oneshot::channel();
    std::thread::Builder::new().name("bulk".into()).stack_size(256 << 10).spawn(move || {
        // Whoever waited may be gone.
        drop(done.send(work()));
    })?;
    result.await.map_err(|_| Error::Broken("the transfer's thread died".into()))?
}

/// What a bulk connection can be asked for.
enum Job {
    Read(Place, seawall_api::files::ReadFile),
    Write(Place, seawall_api::files::WriteFile),
    Collect(Arc<Disk>, Vec<FileName>),
    Put(Arc<Disk>),
    Refused(seawall_api::Fault),
}

impl Job {
    fn new(guest: &Guest, request: Request) -> Job {
        let job = match request {
            Request::Read(read) => Place::new(guest, &read.file).map(|place| Job::Read(place, read)),
            Request::Write(write) => Place::new(guest, &write.file).map(|place| Job::Write(place, write)),
            Request::Collect { session, files } => {
                guest.sync.disk_of(session).map(|disk| Job::Collect(disk, files))
            }
            Request::Put { session } => guest.sync.disk_of(session).map(Job::Put),
            _ => Err(invalid("a bulk connection carries the body of one file")),
        };
        job.unwrap_or_else(Job::Refused)
    }

    fn run(self, mut stream: StdStream) -> Result<()> {
        match self {
            Job::Refused(fault) => Ok(say(&mut stream, Kind::Fault, &fault)?),
            Job::Collect(disk, files) => bodies::collect(&disk, &files, stream),
            Job::Put(disk) => bodies::put(&disk, stream),
            Job::Read(place, request) => {
                match with_identity(&place.identity, || read::open(&place, &request)) {
                    Ok(opened) => {
                        say(&mut stream, Kind::Reply, &opened.entry)?;
                        send(&mut stream, opened)
                    }
                    Err(fault) => Ok(say(&mut stream, Kind::Fault, &fault)?),
                }
            }
            Job::Write(place, request) => {
                let identity = place.identity.clone();
                let written = match with_identity(&identity, || Target::open(place, request)) {
                    Ok(target) => {
                        say(&mut stream, Kind::Reply, &())?;
                        receive(&mut stream, target)?
                            .and_then(|target| with_identity(&identity, || target.finish()))
                    }
                    Err(fault) => Err(fault),
                };
                Ok(answer(&mut stream, written)?)
            }
        }
    }
}

fn answer(stream: &mut StdStream, written: Outcome<Entry>) -> Result<()> {
    match written {
        Ok(entry) => say(stream, Kind::Reply, &entry),
        Err(fault) => say(stream, Kind::Fault, &fault),
    }
}

pub fn say<T: serde::Serialize>(stream: &mut StdStream, kind: Kind, message: &T) -> Result<()> {
    Ok(stream.write_all(&Frame::message(kind, message)?.to_bytes())?)
}

fn next(stream: &mut StdStream) -> Result<Frame> {
    let mut head = [0; HEADER];
    stream.read_exact(&mut head)?;
    let (kind, len) = frame::parse_header(head)?;
    let mut body = vec![0; len];
    stream.read_exact(&mut body)?;
    Ok(Frame::new(kind, body))
}

/// The body, straight from the page cache to the socket.
fn send(stream: &mut StdStream, mut opened: Opened) -> Result<()> {
    while opened.left > 0 {
        let size = rustix::fs::fstat(&opened.fd).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
        if size == 0 {
            return send_unsized(stream, opened);
        }
        // A file that was cut short meanwhile must not leave a frame half sent.
        let want = opened.left.min(MAX_BODY as u64).min(size.saturating_sub(opened.offset)) as usize;
        if want == 0 {
            break;
        }
        stream.write_all(&frame::header(Kind::Data, want))?;
        if !send_exactly(stream, &opened.fd, opened.offset, want)? {
            let message = "the file was cut short while it was read; read it again";
            return say(
                stream,
                Kind::Fault,
                &seawall_api::Fault::new(seawall_api::ErrorKind::Conflict, message),
            );
        }
        opened.offset += want as u64;
        opened.left -= want as u64;
    }
    Ok(stream.write_all(&Frame::empty(Kind::End).to_bytes())?)
}

/// A file that does not say how long it is, as those of `/proc`.
fn send_unsized(stream: &mut StdStream, mut opened: Opened) -> Result<()> {
    let mut buffer = vec![0; 64 << 10];
    while opened.left > 0 {
        let want = opened.left.min(buffer.len() as u64) as usize;
        let n = rustix::io::pread(&opened.fd, &mut buffer[..want], opened.offset).map_err(io::Error::from)?;
        if n == 0 {
            break;
        }
        stream.write_all(&frame::header(Kind::Data, n))?;
        stream.write_all(&buffer[..n])?;
        opened.offset += n as u64;
        opened.left -= n as u64;
    }
    Ok(stream.write_all(&Frame::empty(Kind::End).to_bytes())?)
}

/// False where the file ended before, and the frame was filled up.
pub fn send_exactly(stream: &mut StdStream, file: &OwnedFd, offset: u64, want: usize) -> Result<bool> {
    let mut position = offset;
    let mut left = want;
    while left > 0 {
        match rustix::fs::sendfile(stream.as_fd(), file, Some(&mut position), left) {
            // The rest of the frame was promised.
            Ok(0) => {
                stream.write_all(&vec![0; left])?;
                return Ok(false);
            }
            Ok(n) => left -= n,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::Broken(io::Error::from(errno).to_string())),
        }
    }
    Ok(true)
}

/// Takes the body. The outer error is the connection's, the inner one the file's.
fn receive(stream: &mut StdStream, mut target: Target) -> Result<Outcome<Target>> {
    let mut buffer = vec![0u8; MAX_BODY];
    loop {
        let mut head = [0; HEADER];
        stream.read_exact(&mut head)?;
        match frame::parse_header(head)? {
            (Kind::Data, len) => {
                let mut left = len;
                while left > 0 {
                    let n = match stream.read(&mut buffer[..left]) {
                        Ok(0) => return Err(Error::Broken("it ended within a body".into())),
                        Ok(n) => n,
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                        Err(error) => return Ok(Err(from_io("the body", &error))),
                    };
                    if let Err(fault) = target.append(&buffer[..n]) {
                        return Ok(Err(fault));
                    }
                    left -= n;
                }
            }
            (Kind::End, _) => return Ok(Ok(target)),
            (other, _) => return Err(Error::Protocol(format!("a {other:?} frame in a file's body"))),
        }
    }
}
