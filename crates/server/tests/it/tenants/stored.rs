//! What a tenant stores has a bound.

use crate::world::{ALL, Setup, World, ask};
use axum::http::StatusCode;
use futures::future::join_all;
use seawall_server::Options;
use serde_json::{Map, Value, json};

async fn made(world: &World) -> String {
    let (status, sandbox) = world.json("POST", "/sandboxes", &world.theirs, Some(json!({}))).await;
    assert_eq!(status, StatusCode::CREATED, "{sandbox}");
    format!("/sandboxes/{}", sandbox["id"].as_str().unwrap())
}

async fn refused(world: &World, method: &str, path: &str, body: Value) -> (u16, String) {
    let (status, problem) = world.json(method, path, &world.theirs, Some(body)).await;
    (status.as_u16(), problem["code"].as_str().unwrap_or_default().to_owned())
}

fn is(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

#[tokio::test(start_paused = true)]
async fn k5_metadata_has_64_kib_and_256_keys_whatever_comes_at_once() {
    let world = World::new().await;
    let one = made(&world).await;
    let large = "x".repeat(20 << 10);
    // Each alone fits; together they do not.
    let patches = (0..8).map(|number| {
        let body = json!({"metadata": {format!("key-{number}"): large}});
        world.json("PATCH", &one, &world.theirs, Some(body))
    });
    let done = join_all(patches).await;
    let good = done.iter().filter(|(status, _)| *status == StatusCode::OK).count();
    assert_eq!(good, 3);
    for (_, problem) in done.iter().filter(|(status, _)| *status != StatusCode::OK) {
        assert_eq!((&problem["status"], &problem["code"]), (&json!(413), &json!("metadata_too_large")));
    }
    let (_, found) = world.json("GET", &one, &world.theirs, None).await;
    assert!(found["metadata"].to_string().len() < 64 << 10);
    let many: Map<String, Value> = (0..300).map(|number| (format!("k{number}"), json!(1))).collect();
    let other = made(&world).await;
    let told = refused(&world, "PATCH", &other, json!({"metadata": many})).await;
    assert_eq!(told, is(413, "metadata_too_large"));
    let few: Map<String, Value> = many.into_iter().take(256).collect();
    assert_eq!(refused(&world, "PATCH", &other, json!({"metadata": few})).await.0, 200);
    assert_eq!(refused(&world, "PATCH", &other, json!({"metadata": {"more": 1}})).await.0, 413);
    assert_eq!(refused(&world, "PATCH", &other, json!({"metadata": {"k1": null, "more": 1}})).await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn k5_what_a_request_has_kept_with_a_sandbox_or_a_conversation_has_an_end() {
    let world = World::new().await;
    let map = |count: usize, bytes: usize| -> Map<String, Value> {
        (0..count).map(|number| (format!("N{number}"), json!("x".repeat(bytes)))).collect()
    };
    for ask in [
        json!({"env": map(257, 1)}),
        json!({"env": map(2, 40 << 10)}),
        json!({"labels": map(65, 1)}),
        json!({"labels": map(1, 17 << 10)}),
        json!({"image": "x".repeat(600)}),
        json!({"user": "x".repeat(600)}),
        json!({"mounts": vec![json!({"source": "/a", "target": "/b"}); 33]}),
    ] {
        let told = refused(&world, "POST", "/sandboxes", ask.clone()).await;
        assert_eq!(told, is(413, "too_large"), "{}", &ask.to_string()[..40]);
    }
    let named = json!({"name": "x".repeat(64)});
    assert_eq!(refused(&world, "POST", "/sandboxes", named).await.0, 400);
    for name in ["x".repeat(201), "a\u{1b}[2Jb".to_owned(), String::new()] {
        for field in ["organization_id", "agent_id"] {
            let told = refused(&world, "POST", "/conversations", json!({field: name})).await;
            assert_eq!(told, is(400, "invalid"), "{field}");
            let prompt = json!({"prompt": "say hi", field: name});
            let told = refused(&world, "POST", "/conversations/new/sandbox/auto", prompt).await;
            assert_eq!(told, is(400, "invalid"), "{field}");
        }
    }
    let one = made(&world).await;
    for (field, bytes) in [("tag", 257), ("user", 513), ("cwd", 4097)] {
        let ask = json!({"command": "say hi", field: "x".repeat(bytes)});
        let told = refused(&world, "POST", &format!("{one}/exec"), ask).await;
        assert_eq!(told, is(400, "invalid_command"), "{field}");
    }
    assert!(world.shell.scripts().is_empty());
}

#[tokio::test(start_paused = true)]
async fn k5_keys_of_an_account_have_a_number() {
    let world = World::new().await;
    let ask = json!({"name": "k", "scopes": ["read"]});
    let made =
        join_all((0..150).map(|_| world.json("POST", "/keys", &world.theirs, Some(ask.clone())))).await;
    let good = made.iter().filter(|(status, _)| *status == StatusCode::CREATED).count();
    assert_eq!(good, 99, "with the one that was there");
    let (status, problem) = made.iter().find(|(status, _)| *status != StatusCode::CREATED).unwrap();
    assert_eq!((status.as_u16(), &problem["code"]), (429, &json!("limit_reached")));
    let limit = &problem["limit"];
    assert_eq!(
        (&limit["name"], &limit["value"], &limit["used"]),
        (&json!("keys"), &json!(100.0), &json!(100.0))
    );
    // The operator makes keys for others within the same bound, and its own are not touched by it.
    let (status, _) = world.json("POST", "/keys", &world.mine, Some(ask.clone())).await;
    assert_eq!(status, StatusCode::CREATED);
    let path = format!("/accounts/{}/keys", world.other);
    let (status, _) = world.json("POST", &path, &world.mine, Some(ask)).await;
    assert_eq!(status.as_u16(), 429);
    // One that rotates its keys all day does not fill the store.
    let id = made.iter().find(|(status, _)| *status == StatusCode::CREATED).unwrap().1["key"]["id"].clone();
    let mut id = id.as_str().unwrap().to_owned();
    let mut refused = false;
    for _ in 0..1100 {
        let (status, key) = world.json("POST", &format!("/keys/{id}/rotate"), &world.theirs, None).await;
        if status.as_u16() == 429 {
            refused = true;
            break;
        }
        assert_eq!(status, StatusCode::OK, "{key}");
        id = key["key"]["id"].as_str().unwrap().to_owned();
    }
    assert!(refused);
    assert!(world.stores.accounts.keys(world.other).await.unwrap().len() <= 1000);
    assert_eq!(ALL.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn k5_answers_kept_for_repeats_do_not_fill_the_store() {
    let world = World::new().await;
    let one = made(&world).await;
    let words = "x".repeat(200_000);
    world.mock.on_command("much", {
        let words = words.clone();
        move |_| seawall_providers::mock::Script::stdout(words.clone())
    });
    let path = format!("{one}/exec");
    let call = async |key: &str| {
        let request = ask("POST", &path, &world.theirs).header("idempotency-key", key);
        world.send(request, Some(json!({"args": ["much"]}))).await.status().as_u16()
    };
    for number in 0..400 {
        assert_eq!(call(&format!("k{number}")).await, 200);
    }
    let (keys, bytes) = world.stores.idempotency.kept(world.other).await.unwrap();
    assert_eq!(keys, 400);
    assert!(bytes < 70 << 20, "{bytes}");
    assert_eq!(call("k0").await, 200, "what is kept is told again");
    assert_eq!(call("k399").await, 409, "what is not kept is not done again either");
}

// Real time: the audit file is written by a thread, which held time would not wait for.
#[tokio::test]
async fn k5_paths_in_the_audit_file_are_cut() {
    let folder = tempfile::tempdir().unwrap();
    let audit = Some(folder.path().join("audit"));
    let world =
        World::with(Setup { options: Options { audit, ..Options::default() }, ..Setup::default() }).await;
    let one = made(&world).await;
    let path = format!("{one}/ports/80/{}", "x".repeat(30_000));
    world.request("POST", &path, &world.theirs, None).await;
    let (_, list) = world.json("GET", "/audit", &world.theirs, None).await;
    let entries = list["items"].as_array().unwrap();
    assert!(entries.iter().any(|entry| entry["path"].as_str().unwrap().len() == 1024), "{}", entries.len());
    assert!(entries.iter().all(|entry| entry["path"].as_str().unwrap().len() <= 1024));
}
