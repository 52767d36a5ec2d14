//! Ports of the box's loopback, carried over the wire: into the box, and out of it.

use crate::{
    fault::from_io,
    server::{Reader, Writer, answer},
};
use seawall_api::{
    frame::Kind,
    message::{Accepted, Listening},
};
use seawall_wire::{
    Result,
    framed::{FrameReader, FrameWriter},
    mux::Mux,
};
use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr},
    sync::Arc,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, copy_bidirectional},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::spawn_local,
};

/// Connections to one listened port at the same time.
const MAX_CONNECTIONS: usize = 128;

/// From the host to a port in the box.
pub async fn connect(port: u16, reader: Reader, mut writer: Writer) -> Result<()> {
    let tcp = match dial(port).await {
        Ok(tcp) => tcp,
        Err(error) => {
            let fault = from_io(format!("port {port} in the sandbox"), &error);
            return answer(&mut writer, Err::<(), _>(fault)).await;
        }
    };
    writer.message(Kind::Reply, &()).await?;
    // Nagle's algorithm would delay small writes.
    let _ = tcp.set_nodelay(true);
    carry(tcp, reader.into_raw(), writer.into_inner()).await;
    Ok(())
}

/// Programs listen on either loopback.
async fn dial(port: u16) -> io::Result<TcpStream> {
    match TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
        Ok(tcp) => Ok(tcp),
        Err(error) => TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await.map_err(|_| error),
    }
}

/// From a port in the box to the host, while the host keeps the request's stream open.
pub async fn listen(port: u16, mux: Mux, mut reader: Reader, mut writer: Writer) -> Result<()> {
    let bound = async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let port = listener.local_addr()?.port();
        Ok::<_, io::Error>((listener, port))
    };
    let (listener, port) = match bound.await {
        Ok(bound) => bound,
        Err(error) => {
            let fault = from_io(format!("port {port} in the sandbox"), &error);
            return answer(&mut writer, Err::<(), _>(fault)).await;
        }
    };
    writer.message(Kind::Reply, &Listening { port }).await?;
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        // More connections wait in the kernel, as with any busy server.
        let Ok(slot) = slots.clone().acquire_owned().await else { return Ok(()) };
        tokio::select! {
            taken = listener.accept() => match taken {
                Ok((tcp, _)) => drop(spawn_local(hand_over(port, tcp, mux.clone(), slot))),
                Err(error) => {
                    crate::say!("port {port}: {error}");
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
            },
            // The host is gone, or wants no more.
            _ = reader.next() => return Ok(()),
        }
    }
}

async fn hand_over(port: u16, tcp: TcpStream, mux: Mux, _slot: OwnedSemaphorePermit) {
    let opened = async {
        let (read, write) = tokio::io::split(mux.open().await?);
        let mut writer = FrameWriter::new(write);
        writer.message(Kind::Request, &Accepted { port }).await?;
        Ok::<_, seawall_wire::Error>((FrameReader::new(read), writer))
    };
    match opened.await {
        Ok((reader, writer)) => {
            let _ = tcp.set_nodelay(true);
            carry(tcp, reader.into_raw(), writer.into_inner()).await;
        }
        Err(error) => crate::say!("port {port}: no server attached ({error})"),
    }
}

/// Carries bytes between a connection and a stream of the wire until both have ended.
pub async fn carry(
    mut connection: impl AsyncRead + AsyncWrite + Unpin,
    read: impl AsyncRead + Unpin,
    write: impl AsyncWrite + Unpin,
) {
    let mut wire = tokio::io::join(read, write);
    // Either side may hang up at any time; that is how connections end.
    let _ = copy_bidirectional(&mut connection, &mut wire).await;
}
