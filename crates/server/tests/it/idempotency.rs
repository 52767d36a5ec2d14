//! K6 over HTTP: a call with an `Idempotency-Key` runs once, whatever its length and whenever it dies.

use crate::world::{
    Setup, World, ask, text,
    trouble::{Call, Manner},
    within,
};
use axum::{
    Router,
    body::Body,
    http::{Request, StatusCode},
    response::Response,
};
use seawall_api::account::KeyScope;
use seawall_server::Options;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tower::ServiceExt;

const ANY: &str = "/conversations/new/sandbox/auto?stream=false";

/// A call with a key.
fn keyed(secret: &str, path: &str, key: &str, body: &Value) -> Request<Body> {
    let request = ask("POST", path, secret).header("idempotency-key", key);
    request.header("content-type", "application/json").body(Body::from(body.to_string())).unwrap()
}

async fn call(router: &Router, request: Request<Body>) -> Response {
    within(router.clone().oneshot(request)).await.unwrap()
}

async fn told(response: Response) -> (u16, String) {
    let status = response.status().as_u16();
    let body: Value = serde_json::from_str(&text(response).await).unwrap_or_default();
    (status, body["code"].as_str().unwrap_or_default().to_owned())
}

fn is(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

async fn made(world: &World) -> String {
    let (status, sandbox) = world.json("POST", "/sandboxes", &world.mine, Some(json!({}))).await;
    assert_eq!(status, StatusCode::CREATED, "{sandbox}");
    sandbox["id"].as_str().unwrap().to_owned()
}

/// The hold on a key lasts ten minutes.
#[tokio::test(start_paused = true)]
async fn k6_a_call_that_still_runs_is_not_run_again_whatever_its_length() {
    let world = World::new().await;
    let path = format!("/sandboxes/{}/exec", made(&world).await);
    let body = json!({"args": ["/bin/sh", "-c", "say once; sleep 3000"]});
    let send = || keyed(&world.mine, &path, "slow", &body);
    let (router, request) = (world.router(), send());
    let first = tokio::spawn(async move { router.oneshot(request).await.unwrap() });
    for _ in 0..5 {
        sleep(Duration::from_secs(590)).await;
        assert_eq!(told(call(&world.router(), send()).await).await, is(409, "idempotency_running"));
    }
    assert_eq!(first.await.unwrap().status(), StatusCode::OK);
    let again = call(&world.router(), send()).await;
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    let again: Value = serde_json::from_str(&text(again).await).unwrap();
    assert_eq!((&again["stdout"], world.shell.scripts().len()), (&json!("once"), 1));
}

/// Also where its caller has hung up.
#[tokio::test(start_paused = true)]
async fn k6_a_call_whose_caller_hung_up_runs_on_and_is_answered() {
    let world = World::new().await;
    let path = format!("/sandboxes/{}/exec", made(&world).await);
    let body = json!({"args": ["/bin/sh", "-c", "say once; sleep 2000"]});
    let send = || keyed(&world.mine, &path, "slow", &body);
    timeout(Duration::from_secs(1), world.router().oneshot(send())).await.unwrap_err();
    sleep(Duration::from_secs(1500)).await;
    assert_eq!(told(call(&world.router(), send()).await).await, is(409, "idempotency_running"));
    sleep(Duration::from_secs(600)).await;
    assert_eq!(call(&world.router(), send()).await.status(), StatusCode::OK);
    assert_eq!(world.shell.scripts().len(), 1);
}

/// And counts among its account's calls in flight until it is done.
#[tokio::test(start_paused = true)]
async fn k5_a_call_whose_caller_hung_up_keeps_its_place_in_flight() {
    let options = Options { concurrency: 4, ..Options::default() };
    let world = World::with(Setup { options, ..Setup::default() }).await;
    let router = world.router();
    let path = format!("/sandboxes/{}/exec", made(&world).await);
    let body = json!({"args": ["/bin/sh", "-c", "sleep 2000"]});
    for number in 0..4 {
        let call = router.clone().oneshot(keyed(&world.mine, &path, &format!("{number}"), &body));
        timeout(Duration::from_secs(1), call).await.unwrap_err();
    }
    let refused = told(call(&router, keyed(&world.mine, &path, "more", &body)).await).await;
    assert_eq!(refused.0, 429, "{refused:?}");
    sleep(Duration::from_secs(2100)).await;
    assert_eq!(call(&router, keyed(&world.mine, &path, "0", &body)).await.status(), StatusCode::OK);
}

/// A sandbox that is stopped in the midst of a command.
#[tokio::test(start_paused = true)]
async fn k6_a_call_cut_off_by_a_stop_is_not_run_again() {
    let world = World::new().await;
    let id = made(&world).await;
    let path = format!("/sandboxes/{id}/exec");
    let body = json!({"args": ["/bin/sh", "-c", "say did; hang"]});
    let send = || keyed(&world.mine, &path, "cut", &body);
    let (router, request) = (world.router(), send());
    let first = tokio::spawn(async move { router.oneshot(request).await.unwrap() });
    sleep(Duration::from_secs(5)).await;
    world.mock.crash(id.parse().unwrap());
    let first = told(within(first).await.unwrap()).await;
    assert_ne!(first.0, 200, "the command did not end by itself");
    assert_eq!(told(call(&world.router(), send()).await).await, is(409, "idempotency_unknown"), "{first:?}");
    assert_eq!(world.shell.scripts().len(), 1);
}

/// What surely was not done may be done with the same key.
#[tokio::test(start_paused = true)]
async fn k6_refusals_before_anything_is_done_leave_the_key_free() {
    let world = World::new().await;
    let reader = world.key(&[KeyScope::Read]).await;
    let good = json!({"prompt": "say hi"});
    let send = async |secret: &str, body: &Value| {
        told(call(&world.router(), keyed(secret, ANY, "k", body)).await).await
    };
    assert_eq!(send(&reader, &good).await, is(403, "scope_missing"));
    assert_eq!(send(&world.mine, &json!({"prompt": 7})).await, is(400, "invalid_body"));
    assert_eq!(send(&world.mine, &json!({"prompt": "hi", "template": "none"})).await.0, 400);
    assert_eq!(send(&world.mine, &good).await.0, 202);
    world.quiet().await;
    assert_eq!(world.shell.scripts().len(), 1);

    // A turn that waits for another, and is refused while that runs.
    let (_, conversations) = world.json("GET", "/conversations", &world.mine, None).await;
    let id = conversations["items"][0]["id"].as_str().unwrap();
    let path = format!("/conversations/{id}/sandbox/auto?stream=false");
    let (status, _) =
        world.json("POST", &path, &world.mine, Some(json!({"prompt": "say one; sleep 60"}))).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    let next = || keyed(&world.mine, &path, "next", &json!({"prompt": "say two"}));
    let refused = call(&world.router(), next()).await;
    let problem: Value = serde_json::from_str(&text(refused).await).unwrap();
    assert_eq!((&problem["status"], &problem["nothing_done"]), (&json!(409), &json!(true)), "{problem}");
    world.quiet().await;
    assert_eq!(call(&world.router(), next()).await.status(), StatusCode::ACCEPTED);
    world.quiet().await;
    assert_eq!(world.shell.scripts().len(), 3);
}

/// A turn that runs, and the call that ends it.
async fn cancelling(world: &World) -> String {
    let body = json!({"prompt": "say one; sleep 100000"});
    let (status, turn) = world.json("POST", ANY, &world.mine, Some(body)).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{turn}");
    let of = |key: &str| turn[key].as_str().unwrap().to_owned();
    format!("/conversations/{}/turns/{}/cancel", of("conversation_id"), of("id"))
}

/// A row for each way to die in the midst, by whether the caller stays and who is asked again.
#[tokio::test(start_paused = true)]
async fn k6_a_call_that_dies_in_the_midst_is_never_done_twice() {
    let manners = [
        (Manner::FailBefore, 0, is(503, "unavailable")),
        (Manner::FailAfter, 1, is(503, "unavailable")),
        (Manner::PanicAfter, 1, is(500, "internal")),
        (Manner::HangAfter, 1, is(504, "request_timeout")),
    ];
    for (manner, effects, answered) in manners {
        for stays in [true, false] {
            for restarts in [false, true] {
                let case = format!("{manner:?}, the caller stays: {stays}, the server restarts: {restarts}");
                let world = World::new().await;
                let path = cancelling(&world).await;
                world.trouble.plan(Call::CancelTurn, manner);
                let send = || keyed(&world.mine, &path, "k", &Value::Null);
                if stays {
                    assert_eq!(told(call(&world.router(), send()).await).await, answered, "{case}");
                } else {
                    hang_up(&world, send()).await;
                }
                world.trouble.heal();
                let router = if restarts { world.restarted().await } else { world.router() };
                let again = settled(&router, send).await;
                assert_eq!(again, is(409, "idempotency_unknown"), "{case}");
                assert_eq!(settled(&router, send).await, again, "{case}: it stays so");
                assert_eq!(world.trouble.done(Call::CancelTurn), effects, "{case}");
                // A new key is a new call.
                let new = call(&router, keyed(&world.mine, &path, "new", &Value::Null)).await;
                assert_eq!(new.status(), StatusCode::OK, "{case}");
            }
        }
    }
}

/// Drops a call when it has reached the store. Some are answered by then.
async fn hang_up(world: &World, request: Request<Body>) {
    let _ = timeout(Duration::from_millis(1), world.router().oneshot(request)).await;
}

/// The answer once the first call is over, by itself or by its time.
async fn settled(router: &Router, send: impl Fn() -> Request<Body>) -> (u16, String) {
    loop {
        let answer = told(call(router, send()).await).await;
        if answer.1 != "idempotency_running" {
            return answer;
        }
        sleep(Duration::from_secs(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn k6_a_call_that_was_done_is_answered_by_its_first_answer() {
    let world = World::new().await;
    let path = cancelling(&world).await;
    let send = || keyed(&world.mine, &path, "k", &Value::Null);
    let first = text(call(&world.router(), send()).await).await;
    for router in [world.router(), world.restarted().await] {
        let again = call(&router, send()).await;
        assert_eq!(again.headers()["idempotent-replayed"], "true");
        assert_eq!(text(again).await, first);
    }
    assert_eq!(world.trouble.done(Call::CancelTurn), 1);
}
