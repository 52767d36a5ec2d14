//! A process that this side is attached to.
//!
//! When the wire breaks, the next read attaches again from the offset behind the last byte handed out:
//! the reader sees [`ProcessOutput::Reconnected`] and loses nothing that the guest still has.

use crate::{
    Error, Guest, Result,
    framed::{FrameReader, FrameWriter},
    guest::{first_reply, reply},
    link::Framed,
    mux::MuxStream,
};
use bytes::Bytes;
use seawall_api::{
    ProcessId,
    exec::{ExitStatus, OutputStream, ProcessControl, ProcessEvent, StartProcess, TtySize},
    frame::{Frame, Kind},
    message::{Attach, Request, Started},
};
use std::{fmt, sync::Arc, time::Duration};
use tokio::{
    io::{ReadHalf, WriteHalf},
    sync::Mutex,
    time::{Instant, sleep},
};

/// After this many bytes the guest is told that they arrived.
const ACK_EVERY: u64 = 256 << 10;
/// How long a broken wire is mended before the reader gets the error.
const MEND_FOR: Duration = Duration::from_secs(30);
/// New wires in a row that brought nothing.
const MAX_FRUITLESS: u32 = 16;
const MEND_PAUSE: Duration = Duration::from_millis(100);

type Writer = FrameWriter<WriteHalf<MuxStream>>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessOutput {
    Data {
        stream: OutputStream,
        offset: u64,
        bytes: Bytes,
    },
    /// These bytes were dropped before this reader saw them.
    Gap {
        from: u64,
        to: u64,
    },
    /// The wire broke and was made again. Nothing is missing.
    Reconnected,
    End(ExitStatus),
    /// Without following: all that was there has been read, and the process still runs.
    Drained,
}

pub struct Process {
    guest: Guest,
    started: Started,
    reader: FrameReader<ReadHalf<MuxStream>>,
    writer: Arc<Mutex<Writer>>,
    input: Arc<Mutex<Option<Framed>>>,
    attach: Attach,
    acked: u64,
    has_acked: bool,
    manual_ack: bool,
    ended: Option<ProcessOutput>,
    /// New wires since the last byte. A guest that takes every attach and says nothing is not waited for.
    fruitless: u32,
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process")
            .field("started", &self.started)
            .field("offset", &self.attach.from)
            .finish_non_exhaustive()
    }
}

impl Process {
    pub(crate) async fn start(guest: Guest, start: StartProcess) -> Result<Process> {
        let attach = Attach { process: start.process, from: 0, hold: true, follow: true };
        let request = Request::Start(Box::new(start));
        // The id makes a second start harmless, so a lost answer may be asked for again.
        match Process::open(guest.clone(), &request, attach).await {
            Err(Error::Broken(_)) => Process::open(guest, &request, attach).await,
            other => other,
        }
    }

    pub(crate) async fn attach(guest: Guest, attach: Attach) -> Result<Process> {
        let request = Request::Attach(attach);
        match Process::open(guest.clone(), &request, attach).await {
            Err(Error::Broken(_)) => Process::open(guest, &request, attach).await,
            other => other,
        }
    }

    async fn open(guest: Guest, request: &Request, attach: Attach) -> Result<Process> {
        let (mut reader, writer) = guest.ask(request).await?;
        let started: Started = first_reply(&mut reader).await?;
        if started.process != attach.process {
            return Err(Error::Protocol("it answered for another process".into()));
        }
        Ok(Process {
            guest,
            started,
            reader,
            writer: Arc::new(Mutex::new(writer)),
            input: Arc::new(Mutex::new(None)),
            attach,
            acked: attach.from,
            has_acked: false,
            manual_ack: false,
            ended: None,
            fruitless: 0,
        })
    }

    pub fn id(&self) -> ProcessId {
        self.started.process
    }

    /// Its number in the sandbox.
    pub fn pid(&self) -> u32 {
        self.started.pid
    }

    /// The start found it running already.
    pub fn resumed(&self) -> bool {
        self.started.resumed
    }

    /// The offset behind the last byte handed out.
    pub fn offset(&self) -> u64 {
        self.attach.from
    }

    /// Acknowledge by hand, when bytes are stored in safety, instead of when they were handed out.
    pub fn set_manual_ack(&mut self, on: bool) {
        self.manual_ack = on;
    }

    /// Everything before `offset` is safe here; the guest may forget it.
    pub async fn ack(&mut self, offset: u64) -> Result<()> {
        self.acked = offset;
        self.has_acked = true;
        self.writer.lock().await.send(&Frame::ack(offset)).await
    }

    pub fn input(&self) -> ProcessInput {
        ProcessInput {
            guest: self.guest.clone(),
            process: self.id(),
            attached: self.writer.clone(),
            stream: self.input.clone(),
        }
    }

    /// What comes next. May be dropped at any await and called again.
    pub async fn next(&mut self) -> Result<ProcessOutput> {
        if let Some(ended) = &self.ended {
            return Ok(ended.clone());
        }
        if self.acks_by_itself() && self.attach.from - self.acked >= ACK_EVERY {
            let offset = self.attach.from;
            match self.ack(offset).await {
                Err(error) if error.is_broken_wire() => return self.mend(error).await,
                other => other?,
            }
        }
        let frame = match self.reader.next().await {
            Ok(Some(frame)) => frame,
            Ok(None) => return self.mend(Error::Broken("it ended in mid-output".into())).await,
            Err(error) if error.is_broken_wire() => return self.mend(error).await,
            Err(error) => return Err(error),
        };
        let output = self.take(frame)?;
        if matches!(output, ProcessOutput::End(_)) && self.acks_by_itself() && self.attach.from > self.acked {
            // The guest may forget it all. If this is lost, it remembers longer than it must.
            let _ = self.ack(self.attach.from).await;
        }
        Ok(output)
    }

    /// Only a reader that the process waits for has a say in what may be forgotten.
    fn acks_by_itself(&self) -> bool {
        self.attach.hold && !self.manual_ack
    }

    fn take(&mut self, frame: Frame) -> Result<ProcessOutput> {
        match frame.kind {
            Kind::Output => {
                let (stream, offset, bytes) = frame.decode_output()?;
                if offset != self.attach.from {
                    let expected = self.attach.from;
                    let message = format!("output at {offset} where {expected} was due");
                    return Err(Error::Protocol(message));
                }
                self.attach.from = offset + bytes.len() as u64;
                self.fruitless = 0;
                Ok(ProcessOutput::Data { stream, offset, bytes })
            }
            Kind::Event => match frame.decode()? {
                ProcessEvent::Gap { from, to } if from == self.attach.from && to > from => {
                    self.attach.from = to;
                    Ok(ProcessOutput::Gap { from, to })
                }
                gap => Err(Error::Protocol(format!("a gap that cannot be: {gap:?}"))),
            },
            Kind::End => self.end(frame),
            Kind::Fault => Err(Error::Guest(frame.decode()?)),
            other => Err(Error::Protocol(format!("a {other:?} frame among output"))),
        }
    }

    fn end(&mut self, frame: Frame) -> Result<ProcessOutput> {
        let ended = match frame.body.is_empty() {
            true if self.attach.follow => {
                return Err(Error::Protocol("an end without a status".into()));
            }
            true => ProcessOutput::Drained,
            false => ProcessOutput::End(frame.decode()?),
        };
        self.ended = Some(ended.clone());
        Ok(ended)
    }

    /// Attaches again on a new wire.
    async fn mend(&mut self, mut error: Error) -> Result<ProcessOutput> {
        if self.fruitless >= MAX_FRUITLESS {
            return Err(error);
        }
        let give_up = Instant::now() + MEND_FOR;
        while Instant::now() < give_up {
            match Process::attach(self.guest.clone(), self.attach).await {
                Ok(fresh) => {
                    self.fruitless += 1;
                    self.adopt(fresh).await;
                    return Ok(ProcessOutput::Reconnected);
                }
                Err(next) if next.is_retryable() => error = next,
                Err(next) => return Err(next),
            }
            sleep(MEND_PAUSE).await;
        }
        Err(error)
    }

    async fn adopt(&mut self, fresh: Process) {
        let Process { reader, writer, started, .. } = fresh;
        self.reader = reader;
        self.started = started;
        // Nobody else has the fresh one's writer yet.
        if let Ok(writer) = Arc::try_unwrap(writer) {
            *self.writer.lock().await = writer.into_inner();
        }
        // The last acknowledgement may have been lost with the wire, and the process wait for it. If this one
        // is lost too, the next read notices.
        if self.has_acked {
            let _ = self.writer.lock().await.send(&Frame::ack(self.acked)).await;
        }
    }
}

/// The way into a process. It works while somebody else reads its output.
///
/// Input has a stream of its own, opened with the first byte. What was under way when a wire broke may
/// be lost; the error says so, and the next write opens a new stream.
#[derive(Clone)]
pub struct ProcessInput {
    guest: Guest,
    process: ProcessId,
    attached: Arc<Mutex<Writer>>,
    stream: Arc<Mutex<Option<Framed>>>,
}

impl fmt::Debug for ProcessInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessInput").field("process", &self.process).finish_non_exhaustive()
    }
}

impl ProcessInput {
    pub async fn write(&self, data: &[u8]) -> Result<()> {
        let mut stream = self.stream.lock().await;
        let (_, writer) = self.open(&mut stream).await?;
        let written = writer.data(data).await;
        if written.is_err() {
            *stream = None;
        }
        written
    }

    /// No more input.
    pub async fn close(&self) -> Result<()> {
        let mut stream = self.stream.lock().await;
        self.open(&mut stream).await?;
        let Some((mut reader, mut writer)) = stream.take() else { return Ok(()) };
        writer.send(&Frame::empty(Kind::End)).await?;
        reply(reader.expect().await?)
    }

    async fn open<'a>(&self, stream: &'a mut Option<Framed>) -> Result<&'a mut Framed> {
        let open = match stream.take() {
            Some(open) => open,
            None => self.guest.ask(&Request::Input { process: self.process, close: true }).await?,
        };
        Ok(stream.insert(open))
    }

    pub async fn resize(&self, size: TtySize) -> Result<()> {
        self.control(ProcessControl::Resize(size)).await
    }

    pub async fn signal(&self, signal: i32) -> Result<()> {
        self.control(ProcessControl::Signal(signal)).await
    }

    async fn control(&self, control: ProcessControl) -> Result<()> {
        self.attached.lock().await.message(Kind::Control, &control).await
    }
}
