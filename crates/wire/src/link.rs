//! A connection to a guest that is made when needed and made again when it broke.
//!
//! A broken connection is reported at once (`LinkState`), and the next call makes a new one. An attached process is
//! attached again at the next offset; the reader gets `Reconnected` and loses nothing that the guest still keeps.

use crate::{
    Duplex, Error, Result,
    framed::{FrameReader, FrameWriter},
    handshake,
    mux::{Incoming, Mux, MuxStream},
};
use async_trait::async_trait;
use seawall_api::{
    SandboxId,
    frame::{Frame, Kind},
    hello::{Hello, Role, Welcome},
    message::Request,
};
use std::{sync::Arc, time::Duration};
use tokio::{
    io::{ReadHalf, WriteHalf},
    sync::{Mutex, Notify, mpsc, watch},
    task::JoinHandle,
    time::{sleep, timeout},
};

/// How often a wire is asked whether it lives, and how long the answer may take.
const PING_EVERY: Duration = Duration::from_secs(5);
const PING_PATIENCE: Duration = Duration::from_secs(10);
/// How long the answer may take where something else reports that the guest does not run.
const PROBE_PATIENCE: Duration = Duration::from_secs(2);
/// Tries to connect before an error is the caller's, and the first pause between them.
const CONNECT_TRIES: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// How to get a fresh byte stream to a guest. Providers have one per box.
#[async_trait]
pub trait Connector: Send + Sync {
    async fn connect(&self) -> Result<Box<dyn Duplex>>;

    /// Whether each body of a file should have its own connection. Otherwise bodies use streams of the multiplexed one.
    fn connects_cheaply(&self) -> bool {
        true
    }
}

/// Whether the wire is there. A broken one is made again by the next call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkState {
    /// Not needed yet, or put down on purpose.
    Idle,
    Connected,
    /// Why it broke.
    Broken(String),
}

struct Live {
    mux: Mux,
    driver: JoinHandle<()>,
    pinger: JoinHandle<()>,
    /// Triggers a ping.
    probe: Arc<Notify>,
}

impl Drop for Live {
    fn drop(&mut self) {
        self.pinger.abort();
    }
}

pub(crate) struct Link {
    pub(crate) sandbox: SandboxId,
    role: Role,
    connector: Arc<dyn Connector>,
    live: Mutex<Option<Live>>,
    state: watch::Sender<LinkState>,
    /// Streams that the guest opened, on a control wire.
    accepted: mpsc::Sender<MuxStream>,
    pub(crate) accepting: Mutex<mpsc::Receiver<MuxStream>>,
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(live) = self.live.get_mut() {
            live.pinger.abort();
        }
    }
}

/// A stream in two framed halves.
pub(crate) type Framed = (FrameReader<ReadHalf<MuxStream>>, FrameWriter<WriteHalf<MuxStream>>);

impl Link {
    pub(crate) fn new(sandbox: SandboxId, role: Role, connector: Arc<dyn Connector>) -> Arc<Self> {
        let (accepted, accepting) = mpsc::channel(64);
        Arc::new(Link {
            sandbox,
            role,
            connector,
            live: Mutex::new(None),
            state: watch::Sender::new(LinkState::Idle),
            accepted,
            accepting: Mutex::new(accepting),
        })
    }

    pub(crate) fn state(&self) -> watch::Receiver<LinkState> {
        self.state.subscribe()
    }

    pub(crate) fn is_control(&self) -> bool {
        matches!(self.role, Role::Control { .. })
    }

    /// A new stream, on a new wire where the old one is gone.
    pub(crate) async fn open(&self) -> Result<Framed> {
        let stream = match self.mux().await?.open().await {
            Ok(stream) => stream,
            // It broke since the last look; one new wire is tried.
            Err(_) => self.mux().await?.open().await?,
        };
        let (read, write) = tokio::io::split(stream);
        Ok((FrameReader::new(read), FrameWriter::new(write)))
    }

    pub(crate) async fn warm(&self) -> Result<()> {
        self.mux().await.map(drop)
    }

    /// Opens a connection for one request and its body. Where connections are expensive, it is a stream.
    pub(crate) async fn bulk(&self) -> Result<Box<dyn Duplex>> {
        if self.connector.connects_cheaply() {
            let (io, _) = self.greet(Role::Bulk).await?;
            return Ok(io);
        }
        let (reader, mut writer) = self.open().await?;
        writer.message(Kind::Request, &Request::Bulk).await?;
        Ok(Box::new(tokio::io::join(reader.into_raw(), writer.into_inner())))
    }

    /// Cuts the wire soon unless the other side answers.
    pub(crate) fn probe(&self) {
        // A handshake in progress finds out by itself whether the guest answers.
        if let Ok(Some(live)) = self.live.try_lock().as_deref() {
            live.probe.notify_one();
        }
    }

    pub(crate) async fn disconnect(&self) {
        // A wire that is just being made is let be: whoever wants it gets it, or an error.
        let Ok(mut live) = self.live.try_lock() else { return };
        if let Some(live) = live.take() {
            live.driver.abort();
            self.state.send_replace(LinkState::Idle);
        }
    }

    async fn mux(&self) -> Result<Mux> {
        let mut live = self.live.lock().await;
        if let Some(live) = live.as_ref().filter(|live| !live.mux.is_closed()) {
            return Ok(live.mux.clone());
        }
        *live = None;
        let connected = self.connect().await.inspect_err(|error| {
            self.state.send_replace(LinkState::Broken(error.to_string()));
        })?;
        let mux = connected.mux.clone();
        *live = Some(connected);
        Ok(mux)
    }

    async fn connect(&self) -> Result<Live> {
        let (io, welcome) = self.greet(self.role).await?;
        let (mux, incoming, drive) = Mux::client(io);
        let state = self.state.clone();
        state.send_replace(LinkState::Connected);
        let sandbox = self.sandbox;
        tracing::debug!(%sandbox, build = %welcome.build, boot = %welcome.boot, "wire connected");
        let driver = tokio::spawn(async move {
            let reason = drive.await;
            tracing::debug!(%sandbox, %reason, "wire ended");
            state.send_replace(LinkState::Broken(reason));
        });
        self.take_incoming(incoming);
        let probe = Arc::<Notify>::default();
        let pinged = ping(mux.clone(), driver.abort_handle(), self.state.clone(), probe.clone());
        Ok(Live { mux, driver, pinger: tokio::spawn(pinged), probe })
    }

    /// A guest may open streams on a control wire only; elsewhere they are reset.
    fn take_incoming(&self, mut incoming: Incoming) {
        let (accepted, control) = (self.accepted.clone(), self.is_control());
        tokio::spawn(async move {
            while let Some(stream) = incoming.next().await {
                if control && accepted.try_send(stream).is_err() {
                    tracing::warn!("a stream from the guest was refused: nobody listens, or too many wait");
                }
            }
        });
    }

    async fn greet(&self, role: Role) -> Result<(Box<dyn Duplex>, Welcome)> {
        let mut pause = FIRST_PAUSE;
        for attempt in 1.. {
            let error = match self.try_greet(role).await {
                Ok(greeted) => return Ok(greeted),
                Err(error) => error,
            };
            if attempt == CONNECT_TRIES || !error.is_retryable() {
                return Err(error);
            }
            sleep(pause).await;
            pause *= 4;
        }
        Err(Error::Timeout("it could not be connected to".into()))
    }

    async fn try_greet(&self, role: Role) -> Result<(Box<dyn Duplex>, Welcome)> {
        let mut io = self.connector.connect().await?;
        let welcome = handshake::offer(&mut io, &Hello::new(role, self.sandbox)).await?;
        Ok((io, welcome))
    }
}

/// Asks now and then whether the other side is there, and cuts the wire when it is not.
async fn ping(
    mux: Mux,
    driver: tokio::task::AbortHandle,
    state: watch::Sender<LinkState>,
    probe: Arc<Notify>,
) {
    if let Err(error) = ping_until_silent(mux, &probe).await {
        driver.abort();
        state.send_if_modified(|state| {
            let was_up = *state == LinkState::Connected;
            if was_up {
                *state = LinkState::Broken(error.to_string());
            }
            was_up
        });
    }
}

/// Waits until the next ping is due, and returns how long its answer may take.
async fn next_ping(probe: &Notify) -> Duration {
    tokio::select! {
        () = sleep(PING_EVERY) => PING_PATIENCE,
        () = probe.notified() => PROBE_PATIENCE,
    }
}

async fn ping_until_silent(mux: Mux, probe: &Notify) -> Result<()> {
    // Opened while there is room. It costs nothing until something is said on it.
    let (read, write) = tokio::io::split(mux.open().await?);
    drop(mux);
    let mut patience = next_ping(probe).await;
    let (mut reader, mut writer) = (FrameReader::new(read), FrameWriter::new(write));
    writer.message(Kind::Request, &Request::Ping).await?;
    loop {
        let asked = async {
            writer.send(&Frame::empty(Kind::Ping)).await?;
            reader.expect().await
        };
        match timeout(patience, asked).await {
            Ok(Ok(frame)) if frame.kind == Kind::Pong => {}
            Ok(Ok(frame)) => {
                return Err(Error::Protocol(format!("a {:?} frame to a ping", frame.kind)));
            }
            Ok(Err(error)) => return Err(error),
            Err(_) => {
                let seconds = patience.as_secs();
                return Err(Error::Timeout(format!("no answer to a ping for {seconds} s")));
            }
        }
        patience = next_ping(probe).await;
    }
}
