//! The limits of accounts, over HTTP (K8, K9, K10): a tenant never gets above one, and is told which it met.

#![allow(clippy::unwrap_used, clippy::expect_used)] // Helpers beside the tests are tests too.

#[path = "common/world.rs"]
mod world;

use axum::http::StatusCode;
use futures::future::join_all;
use seawall_api::sandbox::SandboxState;
use seawall_core::{
    accounts::{AccountLimits, Limit},
    ports::{
        Provider as _,
        store::{ConversationFilter, Page, SandboxFilter},
    },
};
use serde_json::{Value, json};
use world::{Setup, World};

fn limits(values: &[(Limit, u64)]) -> AccountLimits {
    let mut limits = AccountLimits::NONE;
    for (limit, value) in values {
        limits.set(*limit, Some(*value));
    }
    limits
}

async fn world(values: &[(Limit, u64)]) -> World {
    World::with(Setup { limits: limits(values), ..Setup::default() }).await
}

/// Asks as the tenant.
async fn ask(world: &World, method: &str, path: &str, body: Value) -> (StatusCode, Value) {
    world.json(method, path, &world.theirs, Some(body).filter(|body| !body.is_null())).await
}

async fn boxes(world: &World) -> usize {
    world.mock.list().await.unwrap().len()
}

fn told(answer: &Value) -> (String, f64, f64) {
    let limit = &answer["limit"];
    let number = |name: &str| limit[name].as_f64().unwrap();
    (limit["name"].as_str().unwrap().to_owned(), number("value"), number("used"))
}

#[tokio::test]
async fn k8_parallel_creates_never_exceed_the_sandboxes_of_an_account() {
    let world = world(&[(Limit::Sandboxes, 5)]).await;
    let answers = join_all((0..40).map(|_| ask(&world, "POST", "/sandboxes", json!({})))).await;
    let made = answers.iter().filter(|(status, _)| *status == StatusCode::CREATED).count();
    assert_eq!(made, 5, "{answers:?}");
    for (status, answer) in answers.iter().filter(|(status, _)| *status != StatusCode::CREATED) {
        assert_eq!(*status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(answer["code"], "limit_reached");
        assert_eq!(told(answer), ("sandboxes".to_owned(), 5.0, 5.0));
    }
    assert_eq!(boxes(&world).await, 5);
}

#[tokio::test]
async fn k8_what_was_ended_makes_room_and_what_was_stopped_may_not_run_beside_others() {
    let world = world(&[(Limit::RunningSandboxes, 1)]).await;
    let (_, first) = ask(&world, "POST", "/sandboxes", json!({})).await;
    let first = first["id"].as_str().unwrap().to_owned();
    let (status, answer) = ask(&world, "POST", "/sandboxes", json!({})).await;
    assert_eq!((status, told(&answer).0.as_str()), (StatusCode::TOO_MANY_REQUESTS, "running_sandboxes"));
    let (status, _) = ask(&world, "POST", &format!("/sandboxes/{first}/stop"), json!({})).await;
    assert_eq!(status, StatusCode::OK);
    let (status, second) = ask(&world, "POST", "/sandboxes", json!({})).await;
    assert_eq!(status, StatusCode::CREATED, "{second}");
    // Every way in starts the first one again, and all are refused.
    for (path, body) in [("start", json!({})), ("exec", json!({"command": "true"}))] {
        let (status, answer) = ask(&world, "POST", &format!("/sandboxes/{first}/{path}"), body).await;
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{path}: {answer}");
        assert_eq!(told(&answer), ("running_sandboxes".to_owned(), 1.0, 1.0), "{path}");
    }
    let second = second["id"].as_str().unwrap();
    let (status, _) = ask(&world, "DELETE", &format!("/sandboxes/{second}"), Value::Null).await;
    assert_eq!(status, StatusCode::OK);
    let (status, answer) = ask(&world, "POST", &format!("/sandboxes/{first}/start"), json!({})).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
}

#[tokio::test]
async fn k8_a_box_that_died_without_a_word_holds_no_place() {
    let world = world(&[(Limit::RunningSandboxes, 1)]).await;
    let (_, first) = ask(&world, "POST", "/sandboxes", json!({})).await;
    world.mock.crash(first["id"].as_str().unwrap().parse().unwrap());
    let (status, answer) = ask(&world, "POST", "/sandboxes", json!({})).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
}

#[tokio::test]
async fn k8_a_turn_is_refused_before_its_prompt_is_stored() {
    let world = world(&[(Limit::Sandboxes, 0)]).await;
    let conversation = "0190a5d0-7c1e-7b3a-9f00-3d2c1b0a9f8e";
    let path = format!("/conversations/{conversation}/sandbox/auto");
    let (status, answer) = ask(&world, "POST", &path, json!({"prompt": "true"})).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{answer}");
    assert_eq!(told(&answer).0, "sandboxes");
    let (status, _) = ask(&world, "GET", &format!("/conversations/{conversation}"), Value::Null).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn k8_a_sandbox_asks_for_no_more_than_its_account_may_have() {
    let world = world(&[(Limit::SandboxMemoryMb, 512), (Limit::SandboxCpus, 1500)]).await;
    for (asked, name, value) in
        [(json!({"memory_mb": 513}), "sandbox_memory_mb", 512.0), (json!({"cpus": 1.6}), "sandbox_cpus", 1.5)]
    {
        let (status, answer) = ask(&world, "POST", "/sandboxes", json!({ "limits": asked })).await;
        assert_eq!((status, &answer["code"]), (StatusCode::FORBIDDEN, &json!("over_limit")), "{answer}");
        let (told, most, _) = told(&answer);
        assert_eq!((told.as_str(), most), (name, value));
    }
    assert_eq!(boxes(&world).await, 0);
}

#[tokio::test]
async fn k8_parallel_conversations_never_exceed_the_limit() {
    let world = world(&[(Limit::Conversations, 3)]).await;
    let answers = join_all((0..20).map(|_| ask(&world, "POST", "/conversations", json!({})))).await;
    let made = answers.iter().filter(|(status, _)| *status == StatusCode::CREATED).count();
    assert_eq!(made, 3, "{answers:?}");
    let refused = answers.iter().find(|(status, _)| *status == StatusCode::TOO_MANY_REQUESTS).unwrap();
    assert_eq!(told(&refused.1), ("conversations".to_owned(), 3.0, 3.0));
    let (_, usage) = ask(&world, "GET", "/account/usage", Value::Null).await;
    let used =
        usage["limits"].as_array().unwrap().iter().find(|limit| limit["name"] == "conversations").unwrap();
    assert_eq!(*used, json!({"name": "conversations", "value": 3.0, "used": 3.0}));
}

#[tokio::test]
async fn k8_the_operators_account_has_no_totals() {
    let world =
        world(&[(Limit::Sandboxes, 0), (Limit::RunningSandboxes, 0), (Limit::Conversations, 0)]).await;
    let (status, answer) = world.json("POST", "/sandboxes", &world.mine, Some(json!({}))).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
}

#[tokio::test]
async fn k9_settings_that_are_wrong_are_refused_and_change_nothing() {
    let world = World::new().await;
    let path = format!("/accounts/{}/settings", world.other);
    let set = async |settings: Value| {
        world.json("PUT", &path, &world.mine, Some(json!({ "settings": settings }))).await
    };
    let (status, _) = set(json!({"tokens_per_day": 7})).await;
    assert_eq!(status, StatusCode::OK);
    for wrong in [
        json!({"tokens_per_day": "abc"}),
        json!({"models": "claude"}),
        json!({"token_per_day": 5}),
        json!({"sandboxes": -1}),
    ] {
        let (status, answer) = set(wrong.clone()).await;
        assert_eq!(
            (status, &answer["code"]),
            (StatusCode::BAD_REQUEST, &json!("invalid_settings")),
            "{wrong}"
        );
    }
    let account = world.stores.accounts.get(world.other).await.unwrap();
    assert_eq!(Value::Object(account.settings), json!({"tokens_per_day": 7}));
    let new = json!({"name": "third", "settings": {"models": "claude"}});
    assert_eq!(world.json("POST", "/accounts", &world.mine, Some(new)).await.0, StatusCode::BAD_REQUEST);
}

#[tokio::test(start_paused = true)]
async fn k10_a_suspended_account_is_refused_and_stopped_until_it_is_resumed() {
    let world = World::new().await;
    let (_, made) = ask(&world, "POST", "/sandboxes", json!({})).await;
    let sandbox = format!("/sandboxes/{}", made["id"].as_str().unwrap());
    let operator = async |what: &str| {
        let path = format!("/accounts/{}/{what}", world.other);
        world.json("POST", &path, &world.mine, None).await
    };
    let (status, account) = operator("suspend").await;
    assert_eq!(status, StatusCode::OK);
    assert!(account["suspended_at"].is_string(), "{account}");
    let (status, answer) = ask(&world, "GET", &sandbox, Value::Null).await;
    assert_eq!((status, &answer["code"]), (StatusCode::FORBIDDEN, &json!("account_suspended")));
    let id = made["id"].as_str().unwrap().parse().unwrap();
    assert_eq!(world.mock.running(id), 0, "its box is stopped");
    assert_eq!(operator("resume").await.0, StatusCode::OK);
    let (status, answer) = ask(&world, "POST", &format!("{sandbox}/start"), json!({})).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    // The operator's own account cannot lock itself out.
    let own = format!("/accounts/{}/suspend", world::ME);
    assert_eq!(world.json("POST", &own, &world.mine, None).await.0, StatusCode::BAD_REQUEST);
    let theirs = format!("/accounts/{}/suspend", world::ME);
    assert_eq!(ask(&world, "POST", &theirs, Value::Null).await.0, StatusCode::FORBIDDEN);
}

#[tokio::test(start_paused = true)]
async fn k10_a_deleted_account_leaves_nothing() {
    let world = World::new().await;
    for _ in 0..3 {
        let (status, answer) = ask(&world, "POST", "/sandboxes", json!({})).await;
        assert_eq!(status, StatusCode::CREATED, "{answer}");
    }
    let (_, ended) = ask(&world, "POST", "/sandboxes", json!({})).await;
    ask(&world, "DELETE", &format!("/sandboxes/{}", ended["id"].as_str().unwrap()), Value::Null).await;
    let turn = ask(&world, "POST", "/conversations", json!({})).await.1;
    let path = format!("/conversations/{}/sandbox/auto", turn["id"].as_str().unwrap());
    world.sse("POST", &path, &world.theirs, Some(json!({"prompt": "echo hi"}))).await;
    world.quiet().await;
    let (status, mine) = world.json("POST", "/sandboxes", &world.mine, Some(json!({}))).await;
    assert_eq!(status, StatusCode::CREATED);
    let gone = format!("/accounts/{}", world.other);
    assert_eq!(world.json("DELETE", &gone, &world.mine, None).await.0, StatusCode::NO_CONTENT);
    assert_eq!(
        world.json("DELETE", &gone, &world.mine, None).await.0,
        StatusCode::NO_CONTENT,
        "twice is once"
    );
    let (status, _) = ask(&world, "GET", "/sandboxes", Value::Null).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED, "its keys are gone");
    let left: Vec<_> =
        world.mock.list().await.unwrap().into_iter().map(|found| found.id.to_string()).collect();
    assert_eq!(left, [mine["id"].as_str().unwrap()], "only the operator's box is left");
    let volumes = world.mock.volumes().await.unwrap();
    assert!(volumes.iter().all(|volume| volume.name == mine["id"].as_str().unwrap()), "{volumes:?}");
    let stores = &world.stores;
    let page = Page::first(10);
    let filter = SandboxFilter { state: Some(SandboxState::Terminated), ..SandboxFilter::default() };
    assert!(stores.sandboxes.list(world.other, &filter, &page).await.unwrap().items.is_empty());
    let conversations = stores.conversations.list(world.other, &ConversationFilter::default(), &page).await;
    assert!(conversations.unwrap().items.is_empty());
    assert!(stores.hook_runs.list(world.other, None, &page).await.unwrap().items.is_empty());
    assert!(stores.accounts.get(world.other).await.is_err());
}
