//! One request to a program in a sandbox, and its answer, streamed both ways.

use super::{
    headers::{About, is_websocket, set_websocket, to_client, to_program},
    inside,
};
use crate::in_flight::InFlight;
use axum::{
    body::Body,
    extract::Request,
    http::{
        StatusCode, Version,
        header::{CONTENT_LENGTH, TRANSFER_ENCODING},
    },
    response::Response,
};
use hyper::{body::Incoming, client::conn::http1, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use seawall_wire::Duplex;
use std::error::Error;
use tokio::io::copy_bidirectional_with_sizes;
use tokio_util::sync::CancellationToken;

/// Of a WebSocket, for each direction.
const BUFFER: usize = 64 << 10;

type BoxError = Box<dyn Error + Send + Sync>;

/// Passes a request on over a connection to the program's port. `place` lasts as long as what comes of it.
pub(super) async fn pass(
    io: Box<dyn Duplex>,
    mut request: Request,
    about: &About,
    place: InFlight,
    shutdown: &CancellationToken,
) -> Result<Response, BoxError> {
    // Other protocols are not passed on: nobody here could say what goes through them.
    let outside = is_websocket(request.headers()).then(|| hyper::upgrade::on(&mut request));
    let asked = outgoing(request, about, outside.is_some())?;
    let mut answer = exchange(io, asked).await?;
    let inside = match (answer.status(), outside) {
        (StatusCode::SWITCHING_PROTOCOLS, Some(outside)) if is_websocket(answer.headers()) => {
            Some((outside, hyper::upgrade::on(&mut answer)))
        }
        (StatusCode::SWITCHING_PROTOCOLS, _) => return Err("it changed to another protocol".into()),
        _ => None,
    };
    let (parts, body) = answer.into_parts();
    let mut response = Response::new(Body::new(body));
    *response.status_mut() = parts.status;
    *response.headers_mut() = to_client(parts.headers, about);
    if let Some((outside, inside)) = inside {
        set_websocket(response.headers_mut());
        tokio::spawn(carry(outside, inside, shutdown.clone(), place));
    }
    Ok(response)
}

/// The request as the program shall see it.
fn outgoing(request: Request, about: &About, is_upgrade: bool) -> Result<Request, BoxError> {
    let (parts, body) = request.into_parts();
    // A request that announces no body has none. The client must not say that one may come.
    let has_body =
        parts.headers.contains_key(CONTENT_LENGTH) || parts.headers.contains_key(TRANSFER_ENCODING);
    let mut asked = Request::new(if has_body { body } else { Body::empty() });
    *asked.uri_mut() = inside(&parts.uri).ok_or("it has no such address")?;
    *asked.method_mut() = parts.method;
    *asked.version_mut() = Version::HTTP_11;
    *asked.headers_mut() = to_program(parts.headers, about);
    if is_upgrade {
        set_websocket(asked.headers_mut());
    }
    Ok(asked)
}

async fn exchange(io: Box<dyn Duplex>, request: Request) -> hyper::Result<axum::http::Response<Incoming>> {
    let (mut sender, connection) =
        http1::Builder::new().max_buf_size(BUFFER).handshake::<_, Body>(TokioIo::new(io)).await?;
    // It ends with the answer's body, or when nobody wants that any more.
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a connection to a port ended badly");
        }
    });
    sender.send_request(request).await
}

/// The bytes of a WebSocket, until either side goes, or the key of who opened it.
async fn carry(outside: OnUpgrade, inside: OnUpgrade, shutdown: CancellationToken, place: InFlight) {
    let carried = async {
        let (outside, inside) = tokio::try_join!(outside, inside)?;
        let (mut outside, mut inside) = (TokioIo::new(outside), TokioIo::new(inside));
        copy_bidirectional_with_sizes(&mut outside, &mut inside, BUFFER, BUFFER).await?;
        Ok::<(), BoxError>(())
    };
    let carried = async {
        if let Err(error) = carried.await {
            tracing::debug!(%error, "a WebSocket to a port ended badly");
        }
    };
    tokio::select! {
        () = place.pace(carried) => {}
        () = shutdown.cancelled() => {}
        () = place.revoked() => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{body::to_bytes, http::Method};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        task::JoinHandle,
    };

    /// How the head of a request ends.
    const HEAD: &str = "\r\n\r\n";

    fn about() -> About {
        About {
            prefix: "/sandboxes/a/ports/80".to_owned(),
            port: 80,
            is_https: false,
            remote: None,
            trust_forwarded: false,
            is_trusted: false,
        }
    }

    /// A program that answers once, when it heard this end. What it was asked comes back.
    fn program(end: &'static str, answer: &'static str) -> (Box<dyn Duplex>, JoinHandle<String>) {
        let (ours, mut theirs) = tokio::io::duplex(64 << 10);
        let heard = tokio::spawn(async move {
            let mut heard = Vec::new();
            while !heard.ends_with(end.as_bytes()) {
                assert!(theirs.read_buf(&mut heard).await.unwrap() > 0);
            }
            theirs.write_all(answer.as_bytes()).await.unwrap();
            theirs.shutdown().await.unwrap();
            String::from_utf8(heard).unwrap()
        });
        (Box::new(ours), heard)
    }

    fn request(method: Method, body: Option<&'static str>) -> Request {
        let request = Request::builder().method(method).uri("/sandboxes/a/ports/80/x?y=1");
        let request = request.header("host", "here");
        let built = match body {
            Some(body) => {
                let parts = futures::stream::iter([Ok::<_, std::io::Error>(body)]);
                request.header("transfer-encoding", "chunked").body(Body::from_stream(parts))
            }
            None => request.body(Body::empty()),
        };
        built.unwrap()
    }

    async fn passed(io: Box<dyn Duplex>, request: Request) -> Result<Response, BoxError> {
        pass(io, request, &about(), InFlight::default(), &CancellationToken::new()).await
    }

    #[tokio::test]
    async fn p7_requests_and_answers_pass() {
        let (io, heard) = program(HEAD, "HTTP/1.1 201 Made\r\nx-own: 1\r\ncontent-length: 5\r\n\r\nhello");
        let response = passed(io, request(Method::GET, None)).await.unwrap();
        assert_eq!(response.status(), StatusCode::CREATED);
        assert_eq!(response.headers()["x-own"], "1");
        assert_eq!(to_bytes(response.into_body(), 100).await.unwrap(), "hello");
        let heard = heard.await.unwrap();
        assert!(heard.starts_with("GET /x?y=1 HTTP/1.1\r\n"), "{heard}");
        assert!(heard.contains("host: localhost:80\r\n") && !heard.contains("transfer-encoding"), "{heard}");
    }

    #[tokio::test]
    async fn p7_bodies_stream_in() {
        let (io, heard) = program("0\r\n\r\n", "HTTP/1.1 204 No Content\r\n\r\n");
        let response = passed(io, request(Method::POST, Some("abc"))).await.unwrap();
        assert_eq!(response.status(), StatusCode::NO_CONTENT);
        assert!(heard.await.unwrap().ends_with("\r\n\r\n3\r\nabc\r\n0\r\n\r\n"));
    }

    #[tokio::test]
    async fn p7_what_speaks_no_http_is_an_error() {
        let changed = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n";
        for odd in ["", "SSH-2.0-OpenSSH\r\n\r\n", changed] {
            let (io, _heard) = program(HEAD, odd);
            assert!(passed(io, request(Method::GET, None)).await.is_err(), "{odd}");
        }
    }
}
