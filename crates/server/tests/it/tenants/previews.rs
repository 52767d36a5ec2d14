//! Previews and sockets: one spelling of a token, and whose pages may open sockets.

use crate::world::{Setup, World, ask, text};
use axum::http::{StatusCode, request::Builder};
use seawall_server::Options;
use serde_json::{Value, json};

/// Of what listens nowhere, to who may ask.
const PASSED: (u16, &str) = (502, "port_refused");

async fn world(origins: &[&str]) -> (World, String) {
    let cors_origins = origins.iter().map(|origin| (*origin).to_owned()).collect();
    let options = Options { cors_origins, ..Options::default() };
    let world = World::with(Setup { options, ..Setup::default() }).await;
    let (status, sandbox) = world.json("POST", "/sandboxes", &world.theirs, Some(json!({}))).await;
    assert_eq!(status, StatusCode::CREATED, "{sandbox}");
    let one = format!("/sandboxes/{}", sandbox["id"].as_str().unwrap());
    (world, one)
}

async fn token(world: &World, one: &str) -> String {
    let (_, made) =
        world.json("POST", &format!("{one}/ports/80/token"), &world.theirs, Some(json!({}))).await;
    made["token"].as_str().unwrap().to_owned()
}

async fn told(world: &World, request: Builder) -> (u16, String) {
    let response = world.send(request, None).await;
    let status = response.status().as_u16();
    let problem: Value = serde_json::from_str(&text(response).await).unwrap_or_default();
    (status, problem["code"].as_str().unwrap_or_default().to_owned())
}

fn is((status, code): (u16, &str)) -> (u16, String) {
    (status, code.to_owned())
}

#[tokio::test(start_paused = true)]
async fn p7_a_token_is_taken_in_one_spelling_and_in_one_place() {
    let (world, one) = world(&[]).await;
    let token = token(&world, &one).await;
    let path = format!("{one}/ports/80/");
    let get = |query: &str| ask("GET", &format!("{path}?{query}"), "");
    let escaped = token.replace('_', "%5F");
    let good = [
        get(&format!("seawall_token={token}")),
        get(&format!("a=1&seawall_token={token}&b=seawall_token")),
        get("").header("x-seawall-token", &token),
        get("").header("cookie", format!("a=1; seawall_80={token}")),
        // A browser sends its cookie too; what is shown goes before it.
        get(&format!("seawall_token={token}")).header("cookie", "seawall_80=swp_old"),
    ];
    for request in good {
        assert_eq!(told(&world, request).await, is(PASSED));
    }
    let odd = [
        get(&format!("seawall_token={escaped}")),
        get(&format!("seawall%5Ftoken={token}")),
        get(&format!("%73eawall_token={token}")),
        get(&format!("Seawall_Token={token}")),
        get(&format!("SEAWALL_TOKEN={token}")),
        get(&format!("seawall_token={token}&seawall_token={token}")),
        get(&format!("seawall_token={token}&SEAWALL_token=x")),
        get(&format!("seawall_token=+{token}")),
        get(&format!("seawall_token={token}%00")),
        get(&format!("seawall_token={token}")).header("x-seawall-token", &token),
        get("").header("x-seawall-token", &token).header("x-seawall-token", &token),
        get("").header("x-seawall-token", &escaped),
        get("").header("cookie", format!("seawall_80={token}; seawall_80={token}")),
        get("").header("cookie", format!("seawall_80={escaped}")),
    ];
    for (number, request) in odd.into_iter().enumerate() {
        assert_eq!(told(&world, request).await, is((400, "token_malformed")), "{number}");
    }
    // Its letters and numbers are written in one way too.
    let mut parts = token.splitn(4, '_');
    let (head, account, expires, mac) =
        (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
    for other in [
        format!("{head}_{}_{expires}_{mac}", account.to_uppercase()),
        format!("{head}_{account}_0{expires}_{mac}"),
        format!("{head}_{account}_{expires}_{}", mac.to_uppercase()),
        format!("SWP_{account}_{expires}_{mac}"),
    ] {
        let told = told(&world, get(&format!("seawall_token={other}"))).await;
        assert_eq!(told, is((403, "token_invalid")), "{other}");
    }
    // With other letters in the name of a cookie it is no token at all.
    let other = get("").header("cookie", format!("Seawall_80={token}"));
    assert_eq!(told(&world, other).await, is((401, "key_missing")));
}

/// A request for a WebSocket.
fn socket(path: &str, key: &str) -> Builder {
    ask("GET", path, key)
        .header("host", "here.example:8080")
        .header("connection", "upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
}

#[tokio::test(start_paused = true)]
async fn p7_pages_of_other_origins_open_no_socket_to_a_port() {
    let (world, one) = world(&["https://app.example.com"]).await;
    let token = token(&world, &one).await;
    let path = format!("{one}/ports/80/");
    let cookie = format!("seawall_80={token}");
    let denied = is((403, "origin_denied"));
    for (origin, expected) in [
        (None, is(PASSED)),
        (Some("http://here.example:8080"), is(PASSED)),
        (Some("https://app.example.com"), is(PASSED)),
        (Some("https://evil.example.com"), denied.clone()),
        (Some("http://here.example"), denied.clone()),
        (Some("https://here.example:8080"), denied.clone()),
        (Some("http://here.example:8080.evil.example"), denied.clone()),
        (Some("null"), denied.clone()),
    ] {
        let mut request = socket(&path, "").header("cookie", &cookie);
        if let Some(origin) = origin {
            request = request.header("origin", origin);
        }
        assert_eq!(told(&world, request).await, expected, "{origin:?}");
    }
    let twice = socket(&path, "").header("cookie", &cookie).header("origin", "http://here.example:8080");
    assert_eq!(told(&world, twice.header("origin", "http://here.example:8080")).await, denied);
    // A page of a preview has no origin; it passes with the token itself, which no other page knows.
    let shown = socket(&format!("{path}?seawall_token={token}"), "").header("origin", "null");
    assert_eq!(told(&world, shown).await, is(PASSED));
    // Requests that are no sockets are the browser's to judge.
    let plain = ask("GET", &path, "").header("cookie", &cookie).header("origin", "https://evil.example.com");
    assert_eq!(told(&world, plain).await, is(PASSED));
}
