//! The standing attack suite: what a tenant tries, as data. An attempt is one call by the tenant's key, and the refusal that it
//! must get; nothing of the victim may have changed after all of them, and each attempt that names the victim's things must get
//! the very answer that things get which do not exist.
//!
//! A hole that is closed gets a row here. Attempts that need a kernel are in `crates/jail/tests/security`, those that need a
//! load in `scripts/hostile`.

mod attempts;
use crate::world;

use crate::world::{Setup, World};
use attempts::{ATTEMPTS, Attempt, FOREIGN};
use axum::http::StatusCode;
use seawall_api::account::KeyScope;
use seawall_core::{
    accounts::{AccountLimits, Limit},
    ports::Provider as _,
};
use serde_json::{Value, json};

/// The ids that attempts name.
struct Scene {
    world: World,
    /// The tenant's own key: everything but admin.
    key: String,
    names: Vec<(&'static str, String)>,
}

/// An id that nothing has.
const NOBODY: &str = "0190a5d0-7c1e-7b3a-9f00-00000000dead";

impl Scene {
    async fn new() -> Scene {
        let mut limits = AccountLimits::NONE;
        for (limit, value) in [
            (Limit::Sandboxes, 4),
            (Limit::RunningSandboxes, 4),
            (Limit::Conversations, 4),
            (Limit::SandboxMemoryMb, 4096),
            (Limit::SandboxCpus, 2000),
            (Limit::SandboxProcesses, 1024),
            (Limit::SandboxDiskMb, 10_000),
        ] {
            limits.set(limit, Some(value));
        }
        let world = World::with(Setup { limits, ..Setup::default() }).await;
        // The victim is the operator's account: everything of it is out of a tenant's reach.
        let victim = make(&world, &world.mine.clone()).await;
        let own = make(&world, &world.theirs.clone()).await;
        let key = tenant_key(&world).await;
        let names = vec![
            ("{sandbox}", victim.0),
            ("{conversation}", victim.1),
            ("{turn}", victim.2),
            ("{own}", own.0),
            ("{own_conversation}", own.1),
            ("{account}", world::ME.to_string()),
            ("{nobody}", NOBODY.to_owned()),
        ];
        Scene { world, key, names }
    }

    fn fill(&self, text: &str) -> String {
        self.names.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    }

    async fn ask(&self, method: &str, path: &str, body: &str) -> (StatusCode, Value) {
        let (path, body) = (self.fill(path), self.fill(body));
        let body = if body.is_empty() { None } else { Some(serde_json::from_str(&body).unwrap()) };
        let response = self.world.request(method, &path, &self.key, body).await;
        let status = response.status();
        let text = world::text(response).await;
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// What the victim has, as it sees it.
    async fn victim(&self) -> Value {
        let mut seen = Vec::new();
        for path in ["/sandboxes/{sandbox}", "/conversations/{conversation}", "/keys", "/account"] {
            let path = self.fill(path);
            let (_, mut found) = self.world.json("GET", &path, &self.world.mine, None).await;
            // Looking is no change.
            for item in found["items"].as_array_mut().into_iter().flatten() {
                item["last_used_at"] = Value::Null;
            }
            seen.push(found);
        }
        Value::Array(seen)
    }
}

/// A sandbox, a conversation and a turn of an account.
async fn make(world: &World, key: &str) -> (String, String, String) {
    let (_, sandbox) = world.json("POST", "/sandboxes", key, Some(json!({}))).await;
    let (_, conversation) = world.json("POST", "/conversations", key, Some(json!({}))).await;
    let text = |value: &Value| value["id"].as_str().unwrap().to_owned();
    let path = format!("/conversations/{}/sandbox/{}", text(&conversation), text(&sandbox));
    world.sse("POST", &path, key, Some(json!({"prompt": "echo hi"}))).await;
    world.quiet().await;
    let turns = format!("/conversations/{}/turns", text(&conversation));
    let (_, turns) = world.json("GET", &turns, key, None).await;
    (text(&sandbox), text(&conversation), text(&turns["items"][0]))
}

async fn tenant_key(world: &World) -> String {
    let scopes = [KeyScope::Read, KeyScope::Run].map(|scope| scope.as_str());
    let ask = json!({"name": "tenant", "scopes": scopes});
    let (status, key) = world.json("POST", "/keys", &world.theirs, Some(ask)).await;
    assert_eq!(status, StatusCode::CREATED, "{key}");
    key["secret"].as_str().unwrap().to_owned()
}

fn complaint(attempt: &Attempt, status: StatusCode, answer: &Value) -> Option<String> {
    let code = answer["code"].as_str().unwrap_or_default();
    let as_wanted = status.as_u16() == attempt.status && (attempt.code.is_empty() || attempt.code == code);
    (!as_wanted).then(|| format!("{}: {status} {answer}", attempt.name))
}

#[tokio::test(start_paused = true)]
async fn k5_every_attempt_of_a_tenant_is_refused_as_it_should_be() {
    let scene = Scene::new().await;
    let before = scene.victim().await;
    let boxes = scene.world.mock.list().await.unwrap().len();
    let mut wrong = Vec::new();
    for attempt in ATTEMPTS {
        let (status, answer) = scene.ask(attempt.method, attempt.path, attempt.body).await;
        wrong.extend(complaint(attempt, status, &answer));
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), ATTEMPTS.len(), wrong.join("\n"));
    assert_eq!(scene.victim().await, before, "something of the victim's changed");
    assert_eq!(scene.world.mock.list().await.unwrap().len(), boxes, "an attempt made or ended a box");
}

/// An answer without what differs between any two calls.
fn bare(answer: &Value, id: &str) -> String {
    let mut answer = answer.clone();
    answer["request_id"] = Value::Null;
    answer.to_string().replace(id, "ID")
}

#[tokio::test(start_paused = true)]
async fn k1_what_is_anothers_is_answered_like_what_is_not_there() {
    let scene = Scene::new().await;
    let before = scene.victim().await;
    for (method, path, body) in FOREIGN {
        let name = &path[path.find('{').unwrap()..=path.find('}').unwrap()];
        let there = scene.ask(method, path, body).await;
        let nowhere = scene.ask(method, &path.replace(name, "{nobody}"), body).await;
        let id = scene.fill(name);
        assert_eq!(
            (there.0, bare(&there.1, &id)),
            (nowhere.0, bare(&nowhere.1, NOBODY)),
            "{method} {path} tells whether the thing is there"
        );
        assert!(there.0.is_client_error(), "{method} {path}: {}", there.0);
    }
    assert_eq!(scene.victim().await, before, "something of the victim's changed");
}
