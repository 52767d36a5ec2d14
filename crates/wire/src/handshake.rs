//! How a connection begins: preamble and hello from the host, welcome or a fault from the guest.
//!
//! Read byte by byte up to the end of the frame and no further: what follows belongs to whoever takes
//! the connection next.

use crate::{Error, Result};
use bytes::Bytes;
use seawall_api::{
    ErrorKind, Fault,
    frame::{self, Frame, HEADER, Kind},
    hello::{self, Hello, MAX_VERSION, MIN_VERSION, PREAMBLE, Welcome},
};
use std::time::Duration;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::timeout,
};

/// How long the whole handshake may take.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// A hello or welcome is small; a peer that announces more is not ours.
const MAX_GREETING: usize = 4096;

/// The host's side.
pub async fn offer<S: AsyncRead + AsyncWrite + Unpin>(io: &mut S, hello: &Hello) -> Result<Welcome> {
    in_time(async {
        let mut bytes = PREAMBLE.to_vec();
        bytes.extend(Frame::message(Kind::Hello, hello)?.to_bytes());
        io.write_all(&bytes).await?;
        io.flush().await?;
        let answer = read_greeting(io).await?;
        match answer.kind {
            Kind::Welcome => check(answer.decode()?),
            Kind::Fault => Err(Error::Guest(answer.decode()?)),
            other => Err(Error::Protocol(format!("a {other:?} frame instead of a welcome"))),
        }
    })
    .await
}

fn check(welcome: Welcome) -> Result<Welcome> {
    match (MIN_VERSION..=MAX_VERSION).contains(&welcome.version) {
        true => Ok(welcome),
        false => Err(Error::Protocol(format!(
            "it chose version {}, this host speaks {MIN_VERSION} to {MAX_VERSION}",
            welcome.version
        ))),
    }
}

/// The guest's side. `decide` has the last word, after the versions were compared.
pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
    io: &mut S,
    decide: impl FnOnce(&Hello) -> Result<Welcome, Fault>,
) -> Result<(Hello, Welcome)> {
    in_time(async {
        let mut preamble = [0; PREAMBLE.len()];
        io.read_exact(&mut preamble).await?;
        if preamble != PREAMBLE {
            return refuse(
                io,
                Fault::new(ErrorKind::Protocol, "this is a seawall guest; the preamble is wrong"),
            )
            .await;
        }
        let greeting = read_greeting(io).await?;
        if greeting.kind != Kind::Hello {
            return refuse(io, Fault::new(ErrorKind::Protocol, "a hello was due")).await;
        }
        let hello: Hello = greeting.decode()?;
        let verdict = match hello::agree(&hello) {
            Some(version) => decide(&hello).map(|welcome| Welcome { version, ..welcome }),
            None => Err(version_mismatch(&hello)),
        };
        match verdict {
            Ok(welcome) => {
                let answer = Frame::message(Kind::Welcome, &welcome)?;
                io.write_all(&answer.to_bytes()).await?;
                io.flush().await?;
                Ok((hello, welcome))
            }
            Err(fault) => refuse(io, fault).await,
        }
    })
    .await
}

fn version_mismatch(hello: &Hello) -> Fault {
    Fault::new(
        ErrorKind::Protocol,
        format!(
            "the host (seawall {}) speaks wire versions {} to {}, the guest (seawall {}) {MIN_VERSION} to \
             {MAX_VERSION}; restart the sandbox to give it this host's guest",
            hello.build,
            hello.min_version,
            hello.max_version,
            env!("CARGO_PKG_VERSION"),
        ),
    )
}

async fn refuse<S: AsyncWrite + Unpin, T>(io: &mut S, fault: Fault) -> Result<T> {
    io.write_all(&Frame::message(Kind::Fault, &fault)?.to_bytes()).await?;
    io.flush().await?;
    // The peer may have gone already.
    let _ = io.shutdown().await;
    Err(Error::Guest(fault))
}

async fn read_greeting<S: AsyncRead + Unpin>(io: &mut S) -> Result<Frame> {
    let mut head = [0; HEADER];
    io.read_exact(&mut head).await?;
    let (kind, len) = frame::parse_header(head)
        .map_err(|e| Error::Protocol(format!("what answers is no seawall guest ({e})")))?;
    if len > MAX_GREETING {
        return Err(Error::Protocol(format!("a greeting of {len} bytes")));
    }
    let mut body = vec![0; len];
    io.read_exact(&mut body).await?;
    Ok(Frame { kind, body: Bytes::from(body) })
}

async fn in_time<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    match timeout(PATIENCE, work).await {
        Ok(result) => result,
        Err(_) => Err(Error::Timeout(format!("the handshake took over {} s", PATIENCE.as_secs()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_api::{SandboxId, hello::Role};

    fn welcome() -> Welcome {
        Welcome { version: 1, build: "test".into(), boot: "b".into() }
    }

    #[tokio::test]
    async fn both_sides_agree() {
        let (mut host, mut guest) = tokio::io::duplex(4096);
        let hello = Hello::new(Role::Control { epoch: 7 }, SandboxId::generate());
        let (answer, seen) = tokio::join!(offer(&mut host, &hello), accept(&mut guest, |_| Ok(welcome())));
        assert_eq!(answer.unwrap(), welcome());
        assert_eq!(seen.unwrap().0, hello);
    }

    #[tokio::test]
    async fn a_refusal_reaches_the_host_as_it_was_said() {
        let (mut host, mut guest) = tokio::io::duplex(4096);
        let hello = Hello::new(Role::Control { epoch: 7 }, SandboxId::generate());
        let fault = Fault::new(ErrorKind::Conflict, "epoch 9 holds the control wire");
        let (answer, seen) =
            tokio::join!(offer(&mut host, &hello), accept(&mut guest, |_| Err(fault.clone())));
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::Conflict);
        assert!(seen.is_err());
    }

    #[tokio::test]
    async fn another_version_is_named() {
        let (mut host, mut guest) = tokio::io::duplex(4096);
        let hello =
            Hello { min_version: 8, max_version: 9, ..Hello::new(Role::Client, SandboxId::generate()) };
        let (answer, _) = tokio::join!(offer(&mut host, &hello), accept(&mut guest, |_| Ok(welcome())));
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol);
        assert!(error.to_string().contains("8 to 9"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn silence_ends() {
        let (mut host, _guest) = tokio::io::duplex(4096);
        let hello = Hello::new(Role::Client, SandboxId::generate());
        assert_eq!(offer(&mut host, &hello).await.unwrap_err().kind(), ErrorKind::Timeout);
    }
}
