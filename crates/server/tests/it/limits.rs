//! The limits of accounts, over HTTP (K8, K9, K10): a tenant never gets above one, and is told which it met.

use crate::world;

use crate::world::{Setup, World, template};
use axum::http::StatusCode;
use futures::future::join_all;
use seawall_api::sandbox::SandboxState;
use seawall_core::{
    accounts::{AccountLimits, Limit},
    ports::{
        BoxState, Provider as _,
        store::{ConversationFilter, Page, SandboxFilter},
    },
    templates::{SyncPart, Template},
};
use seawall_sync::bucket::{MemoryBucket, SharedBucket};
use serde_json::{Value, json};
use std::sync::Arc;

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

/// Of many at once, too: what is stored is what may run.
#[tokio::test]
async fn k8_of_many_turns_at_once_none_is_stored_that_has_no_place() {
    let world = world(&[(Limit::RunningSandboxes, 2)]).await;
    let turns = join_all((0..20).map(async |_| {
        ask(&world, "POST", "/conversations/new/sandbox/auto?stream=false", json!({"prompt": "sleep 3"}))
            .await
    }));
    let answers = turns.await;
    let begun = answers.iter().filter(|(status, _)| status.is_success()).count();
    assert_eq!(begun, 2, "{answers:?}");
    for (_, answer) in answers.iter().filter(|(status, _)| !status.is_success()) {
        assert_eq!(told(answer), ("running_sandboxes".to_owned(), 2.0, 2.0));
    }
    assert_eq!(world.stores.conversations.count(world.other).await.unwrap(), 2);
}

/// Turns of one conversation share its sandbox, also those that wait before it is made.
#[tokio::test]
async fn k8_turns_that_wait_for_one_sandbox_need_one_place() {
    let world = world(&[(Limit::Sandboxes, 1), (Limit::RunningSandboxes, 1)]).await;
    let path = "/conversations/0190a5d0-7c1e-7b3a-9f00-3d2c1b0a9f8e/sandbox/auto?stream=false&wait=60";
    let answers = join_all((0..20).map(|_| ask(&world, "POST", path, json!({"prompt": "say hi"})))).await;
    for (status, answer) in answers {
        assert!(status.is_success(), "{answer}");
    }
    assert_eq!(boxes(&world).await, 1);
}

/// Pushes are never refused, so they must not be a way to store without end: what is full is not pushed while it can change.
#[tokio::test]
async fn k8_an_end_of_a_full_account_stops_what_it_cannot_save() {
    let world = without_bucket(&[(Limit::StoredMb, 10)]).await;
    let (status, made) = ask(&world, "POST", "/sandboxes", json!({"template": "kept"})).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let id = made["id"].as_str().unwrap();
    let one = format!("/sandboxes/{id}");
    let (status, answer) = ask(&world, "DELETE", &one, Value::Null).await;
    assert_eq!((status.is_success(), &answer["code"]), (false, &json!("sync_failed")), "{answer}");
    assert!(runs(&world, id).await, "an account that is not full goes on with it");
    world.stores.stored.set(world.other, "memory:/docs/theirs", 10 << 20).await.unwrap();
    let (status, answer) = ask(&world, "DELETE", &one, Value::Null).await;
    assert_eq!((status.is_success(), &answer["code"]), (false, &json!("sync_failed")), "{answer}");
    assert!(!runs(&world, id).await);
    let (status, answer) = ask(&world, "POST", &format!("{one}/start"), json!({})).await;
    assert_eq!((status, told(&answer).0.as_str()), (StatusCode::TOO_MANY_REQUESTS, "stored_mb"));
    let (status, _) = ask(&world, "DELETE", &format!("{one}?force=true"), Value::Null).await;
    assert_eq!(status, StatusCode::OK);
}

/// Everything that would add to what is stored is refused, and what only saves is not.
#[tokio::test]
async fn k8_stored_bytes_refuse_new_work_and_no_end() {
    let world = world(&[(Limit::StoredMb, 10)]).await;
    let (_, made) = ask(&world, "POST", "/sandboxes", json!({})).await;
    let one = format!("/sandboxes/{}", made["id"].as_str().unwrap());
    let (_, made) = ask(&world, "POST", "/sandboxes", json!({})).await;
    let stopped = format!("/sandboxes/{}", made["id"].as_str().unwrap());
    assert_eq!(ask(&world, "POST", &format!("{stopped}/stop"), json!({})).await.0, StatusCode::OK);
    let place = "memory:/docs/theirs";
    world.stores.stored.set(world.other, place, 10 << 20).await.unwrap();
    let conversation = "0190a5d0-7c1e-7b3a-9f00-3d2c1b0a9f8e";
    for (path, body) in [
        ("/sandboxes".to_owned(), json!({})),
        (format!("/conversations/{conversation}/sandbox/auto"), json!({"prompt": "true"})),
        (format!("{one}/restore"), json!({"version": 1})),
        (format!("{one}/sync"), json!({})),
        (format!("{stopped}/start"), json!({})),
        (format!("{stopped}/exec"), json!({"command": "true"})),
    ] {
        let (status, answer) = ask(&world, "POST", &path, body).await;
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{path}: {answer}");
        assert_eq!(told(&answer), ("stored_mb".to_owned(), 10.0, 10.0), "{path}");
    }
    assert_eq!(
        ask(&world, "GET", &format!("/conversations/{conversation}"), Value::Null).await.0,
        StatusCode::NOT_FOUND
    );
    assert_eq!(
        ask(&world, "POST", &format!("{one}/exec"), json!({"command": "true"})).await.0,
        StatusCode::OK
    );
    for path in [&one, &stopped] {
        let (status, answer) = ask(&world, "DELETE", path, Value::Null).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
    }
    world.stores.stored.set(world.other, place, (10 << 20) - 1).await.unwrap();
    assert_eq!(ask(&world, "POST", "/sandboxes", json!({})).await.0, StatusCode::CREATED);
}

/// Prompts, answers and events are stored bytes too.
#[tokio::test]
async fn k5_conversations_count_as_stored_bytes_and_deleting_them_makes_room() {
    let world = world(&[(Limit::StoredMb, 1)]).await;
    let path = "/conversations/new/sandbox/auto";
    // Its prompt, its event and its answer: 300 KiB and a little.
    let prompt = json!({"prompt": format!("say {}", "x".repeat(100 << 10))});
    for _ in 0..4 {
        world.sse("POST", path, &world.theirs, Some(prompt.clone())).await;
    }
    let (status, answer) = ask(&world, "POST", path, prompt.clone()).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{answer}");
    assert_eq!(told(&answer), ("stored_mb".to_owned(), 1.0, 2.0));
    assert!(answer["detail"].as_str().unwrap().contains("conversations are deleted"), "{answer}");
    let (_, usage) = ask(&world, "GET", "/account/usage", Value::Null).await;
    let stored = usage["limits"].as_array().unwrap().iter().find(|limit| limit["name"] == "stored_mb");
    assert_eq!(stored.unwrap()["used"].as_f64(), Some(2.0), "{usage}");
    // Others have their own.
    let (_, third) = world.tenant().await;
    world.sse("POST", path, &third, Some(prompt.clone())).await;
    let all = &world.stores.conversations;
    let found = all.list(world.other, &ConversationFilter::default(), &Page::first(9)).await.unwrap();
    assert_eq!(found.items.len(), 4, "nothing is stored of a turn that is refused");
    let (status, answer) =
        ask(&world, "DELETE", &format!("/conversations/{}", found.items[0].id), Value::Null).await;
    assert!(status.is_success(), "{answer}");
    world.sse("POST", path, &world.theirs, Some(prompt)).await;
}

/// A bucket that cannot be had: the mock's guest has no files.
async fn without_bucket(values: &[(Limit, u64)]) -> World {
    let bucket = Some(Arc::new(MemoryBucket::default()) as SharedBucket);
    let kept = Template { sync: SyncPart::default(), ..template("kept") };
    World::with(Setup { limits: limits(values), bucket, templates: vec![kept], ..Setup::default() }).await
}

async fn runs(world: &World, id: &str) -> bool {
    let boxes = world.mock.list().await.unwrap();
    boxes.iter().any(|found| found.id.to_string() == id && found.state == BoxState::Running)
}

/// What is started past the limits, to be saved, is stopped again.
#[tokio::test]
async fn k8_an_end_that_cannot_save_leaves_nothing_running() {
    let world = without_bucket(&[(Limit::RunningSandboxes, 1)]).await;
    let mut stopped = Vec::new();
    for _ in 0..6 {
        let (status, made) = ask(&world, "POST", "/sandboxes", json!({"template": "kept"})).await;
        assert_eq!(status, StatusCode::CREATED, "{made}");
        let id = made["id"].as_str().unwrap().to_owned();
        let (status, _) = ask(&world, "POST", &format!("/sandboxes/{id}/stop"), json!({"force": true})).await;
        assert_eq!(status, StatusCode::OK);
        stopped.push(id);
    }
    let ends = join_all(stopped.iter().map(async |id| {
        let (status, answer) = ask(&world, "DELETE", &format!("/sandboxes/{id}"), Value::Null).await;
        assert_eq!((status.is_success(), &answer["code"]), (false, &json!("sync_failed")), "{answer}");
        assert!(!runs(&world, id).await, "{id}");
    }));
    ends.await;
    let kept = format!("/sandboxes/{}?sync=false&volumes=keep", stopped[0]);
    let (status, answer) = ask(&world, "DELETE", &kept, Value::Null).await;
    assert_eq!((status, &answer["code"]), (StatusCode::FORBIDDEN, &json!("volumes_denied")));
    for id in &stopped {
        let (status, _) = ask(&world, "DELETE", &format!("/sandboxes/{id}?force=true"), Value::Null).await;
        assert_eq!(status, StatusCode::OK);
    }
    assert!(world.mock.volumes().await.unwrap().is_empty(), "nobody counts what tenants leave behind");
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

/// What nobody asks for is bounded too, and a setting that cannot be read is as little as there is.
#[tokio::test]
async fn k9_what_is_not_asked_for_is_within_the_limits() {
    let times = world(&[(Limit::IdleSeconds, 0), (Limit::LifetimeSeconds, 60)]).await;
    for asked in [json!({}), json!({"timeouts": {"idle_seconds": 0, "max_lifetime_seconds": 0}})] {
        let (status, made) = ask(&times, "POST", "/sandboxes", asked).await;
        assert_eq!(status, StatusCode::CREATED, "{made}");
        let expected = json!({"idle_seconds": 1, "max_lifetime_seconds": 60});
        assert_eq!(made["spec"]["timeouts"], expected, "{made}");
    }
    let long = json!({"timeouts": {"max_lifetime_seconds": 61}});
    let (status, answer) = ask(&times, "POST", "/sandboxes", long).await;
    assert_eq!((status, &answer["code"]), (StatusCode::FORBIDDEN, &json!("over_limit")), "{answer}");
    assert_eq!(told(&answer), ("lifetime_seconds".to_owned(), 60.0, 61.0));
    // The mock cannot hold a sandbox to it, so there is none.
    let disk = world(&[(Limit::SandboxDiskIoMbS, 50)]).await;
    let (status, answer) = ask(&disk, "POST", "/sandboxes", json!({})).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(answer["detail"].as_str().unwrap().contains("disk_io_mb_s"), "{answer}");
    let more = json!({"limits": {"disk_io_mb_s": 51}});
    let (status, answer) = ask(&disk, "POST", "/sandboxes", more).await;
    assert_eq!((status, &answer["code"]), (StatusCode::FORBIDDEN, &json!("over_limit")), "{answer}");
}

#[tokio::test]
async fn k8_usage_tells_of_every_limit_that_adds_up() {
    let world = world(&[(Limit::Streams, 3), (Limit::MemoryMb, 100)]).await;
    ask(&world, "POST", "/sandboxes", json!({})).await;
    let (_, usage) = ask(&world, "GET", "/account/usage", Value::Null).await;
    let told: Vec<&str> =
        usage["limits"].as_array().unwrap().iter().map(|limit| limit["name"].as_str().unwrap()).collect();
    let single = |limit: &Limit| limit.name().starts_with("sandbox_") || limit.name().ends_with("_seconds");
    let mut expected: Vec<&str> =
        Limit::ALL.iter().filter(|limit| !single(limit)).map(|limit| limit.name()).collect();
    let mut found = told.clone();
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
    let of =
        |name: &str| usage["limits"].as_array().unwrap().iter().find(|limit| limit["name"] == name).unwrap();
    assert_eq!((&of("streams")["value"], &of("streams")["used"]), (&json!(3.0), &json!(0.0)));
    assert_eq!((&of("sandboxes")["used"], &of("memory_mb")["value"]), (&json!(1.0), &json!(100.0)));
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

/// A tenant that makes and ends sandboxes with as much as fits into their records keeps no more of them than its limit.
#[tokio::test]
async fn k8_records_of_ended_sandboxes_take_no_more_than_their_limit() {
    let world = world(&[(Limit::EndedRecordsMb, 1)]).await;
    let env = json!({"A": "x".repeat(50_000)});
    for _ in 0..40 {
        let new = json!({"template": "shell", "env": env, "start": false});
        let (status, made) = ask(&world, "POST", "/sandboxes", new).await;
        assert_eq!(status, StatusCode::CREATED, "{made}");
        let path = format!("/sandboxes/{}", made["id"].as_str().unwrap());
        let (status, answer) = ask(&world, "DELETE", &path, Value::Null).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
    }
    let kept = world.stores.sandboxes.ended_bytes(world.other).await.unwrap();
    assert!((500_000..=(1 << 20) + 60_000).contains(&kept), "{kept} bytes");
    let (_, usage) = ask(&world, "GET", "/account/usage", Value::Null).await;
    let shown = usage["limits"].as_array().unwrap().iter().find(|limit| limit["name"] == "ended_records_mb");
    assert_eq!(shown.unwrap()["value"], 1.0, "{usage}");
}

#[tokio::test(start_paused = true)]
async fn k10_a_suspended_account_is_refused_and_stopped_until_it_is_resumed() {
    let world = World::new().await;
    let (_, made) = ask(&world, "POST", "/sandboxes", json!({})).await;
    let sandbox = format!("/sandboxes/{}", made["id"].as_str().unwrap());
    let (status, token) = ask(&world, "POST", &format!("{sandbox}/ports/3000/token"), json!({})).await;
    assert!(status.is_success(), "{token}");
    let preview =
        format!("{sandbox}/ports/3000/?{}", token["url"].as_str().unwrap().split_once('?').unwrap().1);
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
    let (status, answer) = world.json("GET", &preview, "none", None).await;
    assert_eq!((status, &answer["code"]), (StatusCode::FORBIDDEN, &json!("account_suspended")), "{answer}");
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
