//! A client at a process: output from an offset on goes out, acknowledgements and controls come in.
//!
//! Input has a stream of its own: a process that does not read must not hold up the acknowledgements
//! that let it write.

use super::{Input, Process, log::Read};
use crate::fault::{Outcome, invalid};
use seawall_api::{
    exec::{ExitStatus, ProcessControl, ProcessEvent},
    frame::{DATA_CHUNK, Frame, Kind},
    message::{Attach, Started},
};
use seawall_wire::{
    Result,
    framed::{FrameReader, FrameWriter},
};
use std::{io, rc::Rc};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

/// Serves a client until the process ends or the client goes.
pub async fn serve<R, W>(
    process: Rc<Process>,
    attach: Attach,
    resumed: bool,
    reader: &mut FrameReader<R>,
    writer: &mut FrameWriter<W>,
) -> Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    if let Err(fault) = check(&process, attach) {
        return writer.message(Kind::Fault, &fault).await;
    }
    let holding = attach.hold.then(|| Holding::new(process.clone(), attach.from));
    writer.message(Kind::Reply, &Started { process: process.id, pid: process.pid, resumed }).await?;
    tokio::select! {
        sent = send_output(&process, attach, holding.as_ref(), writer) => sent?,
        // The client hung up, or broke the protocol. The process does not mind.
        heard = hear(&process, attach.hold, reader) => heard?,
    }
    writer.close().await
}

fn check(process: &Process, attach: Attach) -> Outcome<()> {
    let end = process.log.borrow().end();
    match attach.from > end {
        true => Err(invalid(format!("offset {} lies behind the output's end at {end}", attach.from))),
        false => Ok(()),
    }
}

/// A reader that the process waits for, until it is dropped.
struct Holding {
    process: Rc<Process>,
    reader: u64,
}

impl Holding {
    fn new(process: Rc<Process>, from: u64) -> Self {
        let reader = process.log.borrow_mut().hold(from);
        Holding { process, reader }
    }

    fn advance(&self, to: u64) {
        self.process.log.borrow_mut().advance(self.reader, to);
        self.process.room.notify_waiters();
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.process.log.borrow_mut().release(self.reader);
        self.process.room.notify_waiters();
    }
}

async fn send_output<W: AsyncWrite + Unpin>(
    process: &Process,
    attach: Attach,
    holding: Option<&Holding>,
    writer: &mut FrameWriter<W>,
) -> Result<()> {
    let mut position = attach.from;
    loop {
        let changed = process.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        // The status first: output that came before it is then surely seen.
        let status = process.status();
        let read = process.log.borrow_mut().read(position, DATA_CHUNK);
        match (read, status) {
            (Read::Piece { stream, offset, bytes }, _) => {
                writer.output(stream, offset, &bytes).await?;
                position = offset + bytes.len() as u64;
                if let Some(holding) = holding {
                    holding.advance(position);
                }
            }
            (Read::Gap { to }, _) => {
                writer.message(Kind::Event, &ProcessEvent::Gap { from: position, to }).await?;
                position = to;
            }
            (Read::Nothing, Some(status)) => {
                let status = ExitStatus { output_end: position, ..status };
                return writer.message(Kind::End, &status).await;
            }
            (Read::Nothing, None) if !attach.follow => {
                return writer.send(&Frame::empty(Kind::End)).await;
            }
            (Read::Nothing, None) => changed.await,
        }
    }
}

/// Takes what the client says. Ends only with the client.
async fn hear<R: AsyncRead + Unpin>(
    process: &Process,
    holds: bool,
    reader: &mut FrameReader<R>,
) -> Result<()> {
    while let Some(frame) = reader.next().await? {
        match frame.kind {
            // Who only looks on cannot say what others still need.
            Kind::Ack if !holds => {}
            Kind::Ack => {
                process.log.borrow_mut().ack(frame.decode_ack()?);
                process.room.notify_waiters();
            }
            Kind::Control => match frame.decode()? {
                // A signal or a size that makes no sense is ignored, as a terminal would.
                ProcessControl::Signal(signal) => drop(process.signal(signal)),
                ProcessControl::Resize(size) => drop(process.resize(size)),
            },
            other => {
                return Err(seawall_wire::Error::Protocol(format!("a {other:?} frame to a process")));
            }
        }
    }
    Ok(())
}

/// Input for a process, until the client ends it or goes.
pub async fn take_input<R: AsyncRead + Unpin>(
    process: &Process,
    close: bool,
    reader: &mut FrameReader<R>,
) -> Result<()> {
    while let Some(frame) = reader.next().await? {
        match frame.kind {
            Kind::Data => write_input(process, &frame.body).await,
            Kind::End => {
                if close {
                    close_input(process).await;
                }
                return Ok(());
            }
            other => {
                return Err(seawall_wire::Error::Protocol(format!("a {other:?} frame among input")));
            }
        }
    }
    Err(seawall_wire::Error::Broken("it ended within input".into()))
}

/// Gives bytes to the process. What it does not want any more is thrown away, as a closed pipe would.
async fn write_input(process: &Process, bytes: &[u8]) {
    let mut input = process.input.lock().await;
    let written = match &mut *input {
        Input::Pipe(pipe) => pipe.write_all(bytes).await,
        Input::Tty(tty) => write_tty(tty, bytes).await,
        Input::Closed => Ok(()),
    };
    if written.is_err() {
        *input = Input::Closed;
    }
}

/// End of input. A terminal is told by the character that means it.
async fn close_input(process: &Process) {
    let mut input = process.input.lock().await;
    match &*input {
        // What it does with it is its own affair.
        Input::Tty(tty) => drop(write_tty(tty, b"\x04").await),
        _ => *input = Input::Closed,
    }
}

async fn write_tty(tty: &tokio::io::unix::AsyncFd<rustix::fd::OwnedFd>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let mut ready = tty.writable().await?;
        match ready.try_io(|fd| Ok(rustix::io::write(fd.get_ref(), bytes)?)) {
            Ok(Ok(n)) => bytes = &bytes[n..],
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(Err(error)) => return Err(error),
            Err(_would_block) => {}
        }
    }
    Ok(())
}
