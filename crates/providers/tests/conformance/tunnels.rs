//! Ports: into a box, and out of it.

use super::{
    kit::{Sandbox, ensure_kind, ensure_same, guest_with, pattern, read_until},
    suite::{Cx, cases},
};
use anyhow::{Context, Result, ensure};
use seawall_api::{ErrorKind, exec::StartProcess, hello::Role};
use seawall_wire::{Listener, Process};
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

cases!("tunnels";
    a_port_of_the_box_is_reached [Tunnels, Python];
    ten_connections_at_once_stay_apart [Tunnels, Python];
    a_port_that_nobody_listens_on_is_refused [Tunnels];
    a_connection_from_inside_arrives [Tunnels, Python];
    a_listener_that_is_dropped_closes_its_port [Tunnels, Python];
    a_client_wire_may_not_listen [Tunnels];
);

const ECHO: &str = "
import socketserver
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536): self.request.sendall(data)
class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
server = Server(('127.0.0.1', 0), Echo)
print('port', server.server_address[1], 'end', flush=True)
server.serve_forever()
";

/// Calls a port, says hello, and prints what it hears.
const CALL: &str = "
import socket, sys
s = socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5)
s.sendall(b'from inside'); s.shutdown(socket.SHUT_WR)
print(s.makefile().read(), end='')
";

async fn echo_server(sandbox: &Sandbox) -> Result<(Process, u16)> {
    let mut server = sandbox.guest.start(StartProcess::new(["python3", "-c", ECHO])).await?;
    let text = read_until(&mut server, "end").await?;
    let port = text.split_whitespace().nth(1).context("a port")?.parse()?;
    Ok((server, port))
}

async fn a_port_of_the_box_is_reached(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let (_server, port) = echo_server(&sandbox).await?;
    let connection = sandbox.guest.connect_port(port).await?;
    let (mut read, mut write) = tokio::io::split(connection);
    let body = pattern(2 << 20);
    let sent = body.clone();
    let writer = tokio::spawn(async move {
        write.write_all(&sent).await?;
        write.shutdown().await
    });
    let mut echoed = Vec::new();
    read.read_to_end(&mut echoed).await.context("half closed, the rest still comes")?;
    writer.await??;
    ensure_same(&echoed, &body)
}

async fn ten_connections_at_once_stay_apart(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let (_server, port) = echo_server(&sandbox).await?;
    let call = |number: u8| {
        let guest = sandbox.guest.clone();
        tokio::spawn(async move {
            let mut connection = guest.connect_port(port).await?;
            connection.write_all(&[number; 1000]).await?;
            connection.flush().await?;
            let mut heard = [0; 1000];
            connection.read_exact(&mut heard).await?;
            ensure!(heard == [number; 1000], "{number} heard another");
            anyhow::Ok(())
        })
    };
    for done in futures::future::join_all((0..10).map(call)).await {
        done??;
    }
    Ok(())
}

async fn a_port_that_nobody_listens_on_is_refused(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let refused = sandbox.guest.connect_port(1).await;
    ensure_kind(refused, &[ErrorKind::Unavailable, ErrorKind::NotFound])?;
    ensure!(sandbox.run(["true"]).await?.status.success(), "the guest goes on");
    Ok(())
}

async fn listening(cx: &Cx, sandbox: &Sandbox) -> Result<Listener> {
    let control = guest_with(&cx.provider, sandbox.id, Role::Control { epoch: 1 });
    let listener = control.listen(0).await?;
    ensure!(listener.port != 0, "the port that was chosen is told");
    Ok(listener)
}

async fn a_connection_from_inside_arrives(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let mut listener = listening(&cx, &sandbox).await?;
    for _ in 0..2 {
        let port = listener.port.to_string();
        let caller = sandbox.clone();
        let call = tokio::spawn(async move { caller.run(["python3", "-c", CALL, &port]).await });
        let mut connection = timeout(Duration::from_secs(20), listener.accept()).await??;
        let mut heard = Vec::new();
        connection.read_to_end(&mut heard).await?;
        ensure!(heard == b"from inside", "{heard:?}");
        connection.write_all(b"from outside").await?;
        connection.shutdown().await?;
        let output = call.await??;
        ensure!(output.out() == "from outside", "{output:?}");
    }
    Ok(())
}

async fn a_listener_that_is_dropped_closes_its_port(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let listener = listening(&cx, &sandbox).await?;
    let port = listener.port.to_string();
    drop(listener);
    let closed = super::kit::eventually(|| async {
        let call = sandbox.run(["python3", "-c", CALL, &port]).await;
        call.is_ok_and(|output| output.err().contains("refused"))
    });
    ensure!(closed.await, "the port stays open");
    Ok(())
}

async fn a_client_wire_may_not_listen(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    ensure_kind(sandbox.guest.listen(0).await, &[ErrorKind::Denied])
}
