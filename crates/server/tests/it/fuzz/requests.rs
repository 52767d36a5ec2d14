//! Whole requests to the router: whatever path, query and headers they have, they are answered, and never with an
//! error of the server's own.

use crate::world::{World, ask};
use axum::{
    body::{Body, to_bytes},
    http::{
        HeaderName, HeaderValue, Method, Uri,
        header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE},
    },
};
use serde_json::{Value, json};
use std::{cell::OnceCell, time::Duration};
use tokio::{runtime::Runtime, time::timeout};

/// On a clock that jumps.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server with a sandbox that has a file, and a conversation with a turn.
struct Served {
    runtime: Runtime,
    world: World,
    /// What stands for ids in an input, and the ids.
    ids: [(&'static str, String); 3],
}

impl Served {
    fn new() -> Served {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let (world, ids) = runtime.block_on(async {
            let world = World::new().await;
            let events = world
                .sse(
                    "POST",
                    "/conversations/new/sandbox/auto",
                    &world.mine,
                    Some(json!({"prompt": "say hi"})),
                )
                .await;
            let first = serde_json::to_value(&events[0].1).unwrap();
            let ids = [("{s}", "sandbox_id"), ("{c}", "conversation_id"), ("{t}", "turn_id")];
            let ids = ids.map(|(mark, field)| (mark, first[field].as_str().unwrap().to_owned()));
            let path = format!("/sandboxes/{}/content?path=file", ids[0].1);
            let put = ask("PUT", &path, &world.mine).body(Body::from("0123456789")).unwrap();
            assert!(world.call(put).await.status().is_success());
            (world, ids)
        });
        Served { runtime, world, ids }
    }

    async fn answer(&self, input: &str) {
        let input = self.ids.iter().fold(input.to_owned(), |input, (mark, id)| input.replace(mark, id));
        let mut lines = input.lines();
        let Some((method, path)) = lines.next().and_then(|line| line.split_once(' ')) else { return };
        // What changes nothing, so that each input finds the same.
        let Some(method) =
            [Method::GET, Method::HEAD, Method::OPTIONS].into_iter().find(|known| *known == method)
        else {
            return;
        };
        let Ok(uri) = path.parse::<Uri>() else { return };
        let mut request = axum::http::Request::builder().method(&method).uri(uri);
        let mut has_key = false;
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            let (Ok(name), Ok(value)) =
                (HeaderName::from_bytes(name.trim().as_bytes()), HeaderValue::from_str(value.trim()))
            else {
                continue;
            };
            has_key |= name == AUTHORIZATION;
            request = request.header(name, value);
        }
        if !has_key {
            request = request.header(AUTHORIZATION, format!("Bearer {}", self.world.mine));
        }
        let Ok(request) = request.body(Body::empty()) else { return };
        let response = self.world.call(request).await;
        let (status, headers) = (response.status(), response.headers().clone());
        assert!(
            !status.is_server_error() || [501, 502, 503, 504].contains(&status.as_u16()),
            "{status}: {input}"
        );
        // Some streams end with who reads them.
        let Ok(Ok(body)) = timeout(PATIENCE, to_bytes(response.into_body(), 16 << 20)).await else { return };
        let text =
            |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok()).unwrap_or_default();
        if status.is_client_error() && method == Method::GET && !body.is_empty() {
            assert_eq!(text(CONTENT_TYPE), "application/problem+json", "{status}: {input}");
            let problem: Value = serde_json::from_slice(&body).unwrap();
            assert!(problem["code"].is_string(), "{problem}");
        }
        if status.as_u16() == 206 {
            assert!(text(CONTENT_RANGE).starts_with("bytes "), "{input}");
            assert!(method == Method::HEAD || text(CONTENT_LENGTH) == body.len().to_string(), "{input}");
        }
    }
}

thread_local! {
    static SERVED: OnceCell<Served> = const { OnceCell::new() };
}

/// The first line is a method and a path, in which `{s}`, `{c}` and `{t}` stand for a sandbox, a conversation and a
/// turn; the others are headers.
pub fn requests(data: &[u8]) {
    let input = String::from_utf8_lossy(data);
    SERVED.with(|served| {
        let served = served.get_or_init(Served::new);
        served.runtime.block_on(served.answer(&input));
    });
}
