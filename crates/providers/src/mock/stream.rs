//! One stream of a mock guest: a request, and its answer.

use super::{
    guest::MockGuest,
    lock,
    output::{Next, pieces},
    processes::MockProcess,
};
use bytes::BytesMut;
use seawall_api::{
    ErrorKind, Fault,
    exec::{ExitReason, ProcessControl, StartProcess},
    files::{ReadFile, WriteFile},
    frame::{Frame, Kind},
    message::{Attach, Request, Started},
};
use seawall_wire::{
    Duplex, Error,
    framed::{FrameReader, FrameWriter},
};
use serde::Serialize;
use std::sync::Arc;
use tokio::io::{ReadHalf, WriteHalf};

pub(super) async fn serve_stream<S: Duplex>(guest: Arc<MockGuest>, io: S) {
    let (read, write) = tokio::io::split(io);
    let stream =
        Stream { guest: guest.clone(), reader: FrameReader::new(read), writer: FrameWriter::new(write) };
    // The host knows of a broken wire itself; there is nobody else to tell.
    tokio::select! {
        () = guest.death() => {}
        _ = stream.serve() => {}
    }
}

/// One request and its answer.
struct Stream<S> {
    guest: Arc<MockGuest>,
    reader: FrameReader<ReadHalf<S>>,
    writer: FrameWriter<WriteHalf<S>>,
}

impl<S: Duplex> Stream<S> {
    async fn serve(mut self) -> Result<(), Error> {
        let first = self.reader.expect().await?;
        if first.kind != Kind::Request {
            let message = format!("a {:?} frame instead of a request", first.kind);
            return self.fault(Fault::new(ErrorKind::Protocol, message)).await;
        }
        let request: Request = match first.decode() {
            Ok(request) => request,
            Err(e) => return self.fault(Fault::new(ErrorKind::Protocol, e.to_string())).await,
        };
        self.answer(request).await?;
        self.writer.close().await
    }

    async fn answer(&mut self, request: Request) -> Result<(), Error> {
        let guest = self.guest.clone();
        if !matches!(request, Request::Ping | Request::Info | Request::Attend(_)) {
            guest.used();
        }
        match request {
            Request::Ping => self.pong().await,
            Request::Info | Request::Attend(_) => self.reply(Ok(guest.info())).await,
            Request::Start(start) => self.start(*start).await,
            Request::Attach(attach) => self.attach(attach).await,
            Request::Processes => self.reply(Ok(guest.processes.list())).await,
            Request::Signal { process, signal } => {
                let process = guest.processes.get(process);
                self.reply(process.map(|process| process.signal(signal))).await
            }
            Request::Kill { process } => match guest.processes.get(process) {
                Ok(process) => {
                    process.kill(ExitReason::Killed).await;
                    self.reply(Ok(())).await
                }
                Err(fault) => self.fault(fault).await,
            },
            Request::Input { process, close } => match guest.processes.get(process) {
                Ok(process) => self.input(&process, close).await,
                Err(fault) => self.fault(fault).await,
            },
            Request::Shutdown { .. } => {
                self.reply(Ok(())).await?;
                guest.shut_down().await;
                Ok(())
            }
            file => self.files(file).await,
        }
    }

    async fn files(&mut self, request: Request) -> Result<(), Error> {
        let files = self.guest.files.clone();
        match request {
            Request::Stat { file, .. } => {
                let entry = lock(&files).stat(&file);
                self.reply(entry).await
            }
            Request::List(list) => {
                let listing = lock(&files).list(&list);
                self.reply(listing).await
            }
            Request::Read(read) => self.read(read).await,
            Request::Write(write) => self.write(write).await,
            Request::MakeDir(make) => {
                let entry = lock(&files).make_dir(&make);
                self.reply(entry).await
            }
            Request::Move(moved) => {
                let done = lock(&files).move_file(&moved);
                self.reply(done).await
            }
            Request::Remove { file, recursive } => {
                let done = lock(&files).remove(&file, recursive);
                self.reply(done).await
            }
            _ => {
                let message = "the mock provider cannot do that; use another provider";
                self.fault(Fault::new(ErrorKind::Unsupported, message)).await
            }
        }
    }

    async fn reply<T: Serialize>(&mut self, answer: Result<T, Fault>) -> Result<(), Error> {
        match answer {
            Ok(reply) => self.writer.message(Kind::Reply, &reply).await,
            Err(fault) => self.fault(fault).await,
        }
    }

    async fn fault(&mut self, fault: Fault) -> Result<(), Error> {
        self.writer.message(Kind::Fault, &fault).await
    }

    async fn pong(&mut self) -> Result<(), Error> {
        while let Some(frame) = self.reader.next().await? {
            self.writer.send(&Frame::new(Kind::Pong, frame.body)).await?;
        }
        Ok(())
    }

    async fn start(&mut self, start: StartProcess) -> Result<(), Error> {
        let guest = self.guest.clone();
        let detach = start.detach;
        match guest.processes.start(start, |start| guest.script(start)) {
            Ok((_, started)) if detach => self.reply(Ok(started)).await,
            Ok((process, started)) => {
                let attach = Attach { process: process.id, from: 0, hold: true, follow: true };
                self.follow(&process, started, attach).await
            }
            Err(fault) => self.fault(fault).await,
        }
    }

    async fn attach(&mut self, attach: Attach) -> Result<(), Error> {
        match self.guest.clone().processes.get(attach.process) {
            Ok(process) if attach.from <= process.info().output_end => {
                let started = Started { process: process.id, pid: process.pid, resumed: true };
                self.follow(&process, started, attach).await
            }
            Ok(_) => {
                let message = format!("offset {} is behind the end of the output", attach.from);
                self.fault(Fault::new(ErrorKind::Invalid, message)).await
            }
            Err(fault) => self.fault(fault).await,
        }
    }

    async fn follow(
        &mut self,
        process: &Arc<MockProcess>,
        started: Started,
        attach: Attach,
    ) -> Result<(), Error> {
        // Held from before the answer: a process that prints at once must not outrun its reader.
        let hold = attach.hold.then(|| Hold::new(process.clone(), attach.from));
        self.reply(Ok(started)).await?;
        let mut position = attach.from;
        loop {
            let (next, exit) = process.peek(position);
            match next {
                Next::Data(stream, offset, bytes) => {
                    self.writer.output(stream, offset, &bytes).await?;
                    position = offset + bytes.len() as u64;
                }
                Next::Gap(gap, to) => {
                    self.writer.message(Kind::Event, &gap).await?;
                    position = to;
                }
                Next::Nothing => match exit {
                    Some(status) => return self.writer.message(Kind::End, &status).await,
                    None if !attach.follow => {
                        return self.writer.send(&Frame::empty(Kind::End)).await;
                    }
                    None => {}
                },
            }
            if let Some(hold) = &hold {
                hold.moved(position);
            }
            // Without following there is nothing to wait for: the next look sends the rest or leaves.
            if !attach.follow {
                continue;
            }
            tokio::select! {
                biased;
                frame = self.reader.next() => match frame? {
                    Some(frame) => take_input(process, frame)?,
                    None => return Ok(()),
                },
                () = process.ready(position) => {}
            }
        }
    }

    async fn input(&mut self, process: &MockProcess, close: bool) -> Result<(), Error> {
        loop {
            let frame = self.reader.expect().await?;
            match frame.kind {
                Kind::Data => process.input(frame.body),
                Kind::End => break,
                _ => return Err(Error::Protocol(format!("a {:?} frame in input", frame.kind))),
            }
        }
        if close {
            process.close_input();
        }
        self.reply(Ok(())).await
    }

    async fn read(&mut self, read: ReadFile) -> Result<(), Error> {
        let found = lock(&self.guest.files).read(&read);
        let (entry, body) = match found {
            Ok(found) => found,
            Err(fault) => return self.fault(fault).await,
        };
        self.reply(Ok(entry)).await?;
        for piece in pieces(body) {
            self.writer.body(&piece).await?;
        }
        self.writer.send(&Frame::empty(Kind::End)).await
    }

    async fn write(&mut self, write: WriteFile) -> Result<(), Error> {
        self.reply(Ok(())).await?;
        let mut body = BytesMut::new();
        loop {
            // A body that ends without an end is no body: nothing of it is kept.
            let frame = self.reader.expect().await?;
            match frame.kind {
                Kind::Data => body.extend_from_slice(&frame.body),
                Kind::End => break,
                _ => return Err(Error::Protocol(format!("a {:?} frame in a body", frame.kind))),
            }
            if write.max_size.is_some_and(|max| body.len() as u64 > max) {
                let message = format!("`{}` would be larger than was allowed", write.file.path);
                return self.fault(Fault::new(ErrorKind::TooLarge, message)).await;
            }
        }
        let written = lock(&self.guest.files).write(&write, body.freeze());
        self.reply(written).await
    }
}

fn take_input(process: &MockProcess, frame: Frame) -> Result<(), Error> {
    match frame.kind {
        Kind::Ack => {
            let offset = frame.decode_ack()?;
            process.live.send_modify(|live| live.output.ack(offset));
        }
        Kind::Control => match frame.decode()? {
            ProcessControl::Signal(signal) => process.signal(signal),
            // Without a terminal there is nothing to resize.
            ProcessControl::Resize(_) => {}
        },
        kind => return Err(Error::Protocol(format!("a {kind:?} frame to a process"))),
    }
    Ok(())
}

/// Makes a process wait for a reader, as long as the reader is there.
struct Hold {
    process: Arc<MockProcess>,
    holder: u64,
}

impl Hold {
    fn new(process: Arc<MockProcess>, position: u64) -> Self {
        let mut holder = 0;
        process.live.send_modify(|live| holder = live.output.hold(position));
        Hold { process, holder }
    }

    fn moved(&self, position: u64) {
        self.process.live.send_modify(|live| live.output.moved(self.holder, position));
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.process.live.send_modify(|live| live.output.release(self.holder));
    }
}
