//! Ports of sandboxes over HTTP: who may, and what becomes of those that do not run. Boxes of the mock provider have no
//! ports; what passes through is tested with real ones.

use crate::world::{Setup, World, ask, text};
use axum::http::StatusCode;
use seawall_api::account::KeyScope;
use seawall_server::Options;
use serde_json::{Value, json};
use std::time::Duration;

/// Of what listens nowhere, to who may ask.
const NOBODY: (u16, &str) = (502, "port_refused");

/// A sandbox of A that runs, as the beginning of its paths.
async fn made(world: &World) -> String {
    let (status, sandbox) = world.json("POST", "/sandboxes", &world.mine, Some(json!({}))).await;
    assert_eq!(status, StatusCode::CREATED, "{sandbox}");
    format!("/sandboxes/{}", sandbox["id"].as_str().unwrap())
}

async fn token(world: &World, one: &str, port: u16, ask: Value) -> Value {
    let path = format!("{one}/ports/{port}/token");
    let (status, token) = world.json("POST", &path, &world.mine, Some(ask)).await;
    assert_eq!(status, StatusCode::OK, "{token}");
    token
}

/// The status and the code of a request without a key.
async fn told(world: &World, path: &str, header: Option<(&str, &str)>) -> (u16, String) {
    let mut request = ask("GET", path, "");
    if let Some((name, value)) = header {
        request = request.header(name, value);
    }
    let response = world.send(request, None).await;
    let status = response.status().as_u16();
    let problem: Value = serde_json::from_str(&text(response).await).unwrap();
    (status, problem["code"].as_str().unwrap().to_owned())
}

fn is(told: (u16, &str)) -> (u16, String) {
    (told.0, told.1.to_owned())
}

#[tokio::test(start_paused = true)]
async fn p7_a_port_needs_a_key_or_its_token() {
    let world = World::new().await;
    let one = made(&world).await;
    let path = format!("{one}/ports/8080/index.html");
    assert_eq!(told(&world, &path, None).await, is((401, "key_missing")));
    let reader = world.key(&[KeyScope::Read]).await;
    assert_eq!(world.request("GET", &path, &reader, None).await.status(), StatusCode::FORBIDDEN);
    let runner = world.key(&[KeyScope::Run]).await;
    let (status, problem) = world.json("GET", &path, &runner, None).await;
    assert_eq!((status.as_u16(), problem["code"].as_str().unwrap()), NOBODY);

    let made = token(&world, &one, 8080, json!({})).await;
    let secret = made["token"].as_str().unwrap();
    assert_eq!(told(&world, &format!("{path}?seawall_token={secret}"), None).await, is(NOBODY));
    assert_eq!(told(&world, &path, Some(("x-seawall-token", secret))).await, is(NOBODY));
    let cookie = format!("other=1; seawall_8080={secret}");
    assert_eq!(told(&world, &path, Some(("cookie", cookie.as_str()))).await, is(NOBODY));
    for root in [format!("{one}/ports/8080"), format!("{one}/ports/8080/")] {
        assert_eq!(told(&world, &format!("{root}?seawall_token={secret}"), None).await, is(NOBODY), "{root}");
    }
}

#[tokio::test(start_paused = true)]
async fn p7_a_token_is_good_for_one_port_of_one_sandbox() {
    let world = World::new().await;
    let (one, other) = (made(&world).await, made(&world).await);
    let made = token(&world, &one, 8080, json!({})).await;
    let secret = made["token"].as_str().unwrap();
    let header = Some(("x-seawall-token", secret));
    let invalid = is((403, "token_invalid"));
    assert_eq!(told(&world, &format!("{one}/ports/8081/"), header).await, invalid);
    assert_eq!(told(&world, &format!("{other}/ports/8080/"), header).await, invalid);
    assert_eq!(
        told(&world, &format!("{one}/ports/8080/"), Some(("x-seawall-token", "swp_x"))).await,
        invalid
    );
    // And for nothing else of it.
    assert_eq!(told(&world, &format!("{one}/files"), header).await.0, 401);
    let cookie = format!("seawall_8081={secret}");
    assert_eq!(told(&world, &format!("{one}/ports/8081/"), Some(("cookie", cookie.as_str()))).await, invalid);
}

#[tokio::test(start_paused = true)]
async fn p7_a_token_ends() {
    let world = World::new().await;
    let one = made(&world).await;
    let made = token(&world, &one, 8080, json!({"expires_in_s": 60})).await;
    let secret = made["token"].as_str().unwrap();
    let (path, header) = (format!("{one}/ports/8080/"), Some(("x-seawall-token", secret)));
    tokio::time::advance(Duration::from_secs(50)).await;
    assert_eq!(told(&world, &path, header).await, is(NOBODY));
    tokio::time::advance(Duration::from_secs(20)).await;
    assert_eq!(told(&world, &path, header).await, is((403, "token_expired")));
    for seconds in [0, 10_000_000] {
        let ask = Some(json!({"expires_in_s": seconds}));
        let (status, _) = world.json("POST", &format!("{path}token"), &world.mine, ask).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{seconds}");
    }
}

#[tokio::test(start_paused = true)]
async fn p7_a_token_has_its_address() {
    let options = Options { public_url: Some("https://seawall.example/".into()), ..Options::default() };
    let world = World::with(Setup { options, ..Setup::default() }).await;
    let one = made(&world).await;
    let made = token(&world, &one, 8080, json!({})).await;
    let expected =
        format!("https://seawall.example{one}/ports/8080/?seawall_token={}", made["token"].as_str().unwrap());
    assert_eq!(made["url"], json!(expected));
}

#[tokio::test(start_paused = true)]
async fn p7_what_does_not_run_is_not_revived() {
    let world = World::new().await;
    let one = made(&world).await;
    let made = token(&world, &one, 8080, json!({})).await;
    let header = Some(("x-seawall-token", made["token"].as_str().unwrap()));
    let path = format!("{one}/ports/8080/");
    world.json("POST", &format!("{one}/stop"), &world.mine, None).await;
    let request = ask("GET", &path, "").header("x-seawall-token", made["token"].as_str().unwrap());
    let response = world.send(request, None).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(response.headers()["retry-after"], "1");
    assert_eq!(told(&world, &path, header).await, is((503, "not_running")));
    assert_eq!(world.get(&one).await["state"], "stopped");
    world.json("DELETE", &one, &world.mine, None).await;
    assert_eq!(told(&world, &path, header).await, is((410, "gone")));
}

#[tokio::test(start_paused = true)]
async fn p7_any_method_is_passed_on() {
    let world = World::new().await;
    let one = made(&world).await;
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"] {
        let (status, problem) = world.json(method, &format!("{one}/ports/8080/x"), &world.mine, None).await;
        assert_eq!((status.as_u16(), problem["code"].as_str().unwrap()), NOBODY, "{method}");
    }
    // Where POST is ours, the rest is the program's.
    let (status, _) = world.json("GET", &format!("{one}/ports/8080/token"), &world.mine, None).await;
    assert_eq!(status, StatusCode::BAD_GATEWAY);
    for port in ["0", "65536", "x"] {
        let (status, _) = world.json("GET", &format!("{one}/ports/{port}/"), &world.mine, None).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{port}");
    }
}
