//! Ports: into a sandbox, and out of it.

use crate::{
    Duplex, Error, Guest, Result,
    framed::{FrameReader, FrameWriter},
    guest::{first_reply, not_control},
    link::Framed,
    mux::MuxStream,
};
use seawall_api::{
    frame::Kind,
    message::{Accepted, Listening, Request},
};
use std::{fmt, time::Duration};
use tokio::time::timeout;

/// How long a guest may take to say why it opened a stream.
const ACCEPT_PATIENCE: Duration = Duration::from_secs(10);

impl Guest {
    /// A connection to a port of the sandbox's loopback.
    pub async fn connect_port(&self, port: u16) -> Result<Box<dyn Duplex>> {
        let (mut reader, writer) = self.ask(&Request::Connect { port }).await?;
        let () = first_reply(&mut reader).await?;
        Ok(Box::new(tokio::io::join(reader.into_raw(), writer.into_inner())))
    }

    /// Listens on a port of the sandbox's loopback; 0 lets the guest choose. One listener per control
    /// wire at a time.
    pub async fn listen(&self, port: u16) -> Result<Listener> {
        if !self.link.is_control() {
            return Err(not_control());
        }
        let (mut reader, writer) = self.ask(&Request::Listen { port }).await?;
        let listening: Listening = first_reply(&mut reader).await?;
        Ok(Listener { port: listening.port, guest: self.clone(), hold: (reader, writer) })
    }
}

/// A port in a sandbox whose connections end here. Dropping it closes the port.
pub struct Listener {
    pub port: u16,
    guest: Guest,
    hold: Framed,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("port", &self.port).finish_non_exhaustive()
    }
}

impl Listener {
    /// The next connection from inside. May be dropped at any await.
    pub async fn accept(&mut self) -> Result<Box<dyn Duplex>> {
        let link = self.guest.link.clone();
        let mut accepting = link.accepting.lock().await;
        loop {
            let stream = tokio::select! {
                stream = accepting.recv() => stream,
                end = self.hold.0.next() => return Err(match end {
                    Ok(Some(frame)) if frame.kind == Kind::Fault => Error::Guest(frame.decode()?),
                    Ok(_) => Error::Broken("the listener is gone".into()),
                    Err(error) => error,
                }),
            };
            let Some(stream) = stream else {
                return Err(Error::Broken("the wire is gone".into()));
            };
            match self.greet(stream).await {
                Ok(connection) => return Ok(connection),
                // One bad stream is the guest's fault, and no reason to stop listening.
                Err(error) => tracing::warn!(%error, port = self.port, "a stream from the guest was refused"),
            }
        }
    }

    async fn greet(&self, stream: MuxStream) -> Result<Box<dyn Duplex>> {
        let (read, write) = tokio::io::split(stream);
        let (mut reader, writer) = (FrameReader::new(read), FrameWriter::new(write));
        let first = timeout(ACCEPT_PATIENCE, reader.expect())
            .await
            .map_err(|_| Error::Timeout("a stream without a first frame".into()))??;
        if first.kind != Kind::Request {
            return Err(Error::Protocol(format!("a {:?} frame first", first.kind)));
        }
        let accepted: Accepted = first.decode()?;
        if accepted.port != self.port {
            return Err(Error::Protocol(format!("a connection to port {}", accepted.port)));
        }
        Ok(Box::new(tokio::io::join(reader.into_raw(), writer.into_inner())))
    }
}
