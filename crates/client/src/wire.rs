//! The wire of a sandbox's guest, through the server: `seawall_wire::Guest` works with it as with a box of this machine.

use crate::{Client, WsStream};
use async_trait::async_trait;
use seawall_api::{SandboxId, hello::Role};
use seawall_wire::{Connector, Duplex, Error, Guest, Result};
use std::sync::Arc;

/// Connections to one guest, each a WebSocket. The server starts a sandbox that does not run.
#[derive(Debug, Clone)]
pub struct WsConnector {
    client: Client,
    sandbox: SandboxId,
}

impl WsConnector {
    pub fn new(client: Client, sandbox: SandboxId) -> WsConnector {
        WsConnector { client, sandbox }
    }
}

#[async_trait]
impl Connector for WsConnector {
    async fn connect(&self) -> Result<Box<dyn Duplex>> {
        let call = self.client.get(&["sandboxes", &self.sandbox.to_string(), "wire"]);
        // The link decides whether it is tried again.
        let socket = self
            .client
            .websocket(call)
            .await
            .map_err(|error| Error::Unreachable { kind: error.kind(), message: error.to_string() })?;
        Ok(Box::new(WsStream::new(socket)))
    }
}

impl Client {
    /// The guest of a sandbox. Its wire is made when it is needed.
    pub fn guest(&self, sandbox: SandboxId) -> Guest {
        Guest::new(sandbox, Role::Client, Arc::new(WsConnector::new(self.clone(), sandbox)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use seawall_api::ErrorKind;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    #[tokio::test]
    async fn bytes_pass_through_a_real_handshake() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let (io, _) = listener.accept().await.unwrap();
            let socket = tokio_tungstenite::accept_async(io).await.unwrap();
            let (mut read, mut write) = tokio::io::split(WsStream::new(socket));
            let mut said = [0; 5];
            read.read_exact(&mut said).await.unwrap();
            write.write_all(&said).await.unwrap();
            write.flush().await.unwrap();
            let _ = read.read(&mut said).await;
        });
        let client = Client::new(&url, None).unwrap();
        let connector = WsConnector::new(client, SandboxId::generate());
        let mut io = connector.connect().await.unwrap();
        io.write_all(b"hello").await.unwrap();
        io.flush().await.unwrap();
        let mut back = [0; 5];
        io.read_exact(&mut back).await.unwrap();
        assert_eq!(&back, b"hello");
    }

    #[tokio::test]
    async fn a_refusal_keeps_its_kind() {
        let problem = r#"{"type":"about:blank","title":"Gone","status":410,"code":"gone","detail":"it was ended",
            "request_id":"r","retryable":false}"#;
        let answer = format!(
            "HTTP/1.1 410 Gone\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{problem}",
            problem.len()
        );
        let server = testing::serve(vec![answer]).await;
        let client = Client::new(&server.url, None).unwrap();
        let error = client.guest(SandboxId::generate()).info().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Gone);
        assert!(error.to_string().contains("it was ended"), "{error}");
    }
}
