//! What one caller may take: requests in a second, requests at once. Whose pages may call.

use crate::http_edges::server::Server;
use crate::world::{World, eventually};
use serde_json::json;
use std::time::{Duration, Instant};

/// An account and a key of it, without a call of the server.
fn other_account(world: &World) -> String {
    let id = world.ok(["accounts", "create", "others"]).trim().to_owned();
    world.ok(["keys", "create", "--account", &id, "--name", "first", "--scope", "admin"]).trim().to_owned()
}

#[test]
fn k5_too_many_in_a_second_are_told_when_to_come_again() {
    let server = Server::with("rate_per_second = 5\nrate_burst = 5\n");
    let other = other_account(&server.world);
    let begun = Instant::now();
    let answers: Vec<_> = (0..30).map(|_| server.get("/account")).collect();
    let seconds = begun.elapsed().as_secs_f64();
    let let_in = answers.iter().filter(|answer| answer.status == 200).count();
    // Five at once, and five a second while it lasted.
    assert!(let_in >= 5 && (let_in as f64) <= 6.0 + 5.0 * seconds, "{let_in} in {seconds} s");
    let refused = answers.iter().find(|answer| answer.status != 200).expect("nobody was refused");
    assert_eq!(refused.refused(429, "rate_limited")["retryable"], true);
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=2).contains(&wait), "{wait}");
    // Nobody else is to blame, and whoever watches is answered.
    server.anonymous("GET", "/account").key(&other).send().is(200);
    for _ in 0..20 {
        server.anonymous("GET", "/health").send().is(200);
    }
    std::thread::sleep(Duration::from_secs(wait));
    server.get("/account").is(200);
}

#[test]
fn k5_whoever_has_no_key_is_counted_by_address() {
    let server = Server::with("rate_per_second = 5\nrate_burst = 5\n");
    let answers: Vec<_> = (0..30).map(|_| server.anonymous("GET", "/account").send()).collect();
    assert!(answers.iter().any(|answer| answer.status == 401));
    answers.iter().find(|answer| answer.status == 429).unwrap().refused(429, "rate_limited");
    // Those with a key have their own share.
    server.get("/account").is(200);
}

#[test]
fn k5_too_many_at_once_are_refused() {
    let server = Server::with("concurrency = 2\n");
    let id = server.sandbox();
    let slow = server
        .ask("POST", &format!("/sandboxes/{id}/exec"))
        .json(&json!({ "command": "touch /work/began-$$; while [ ! -e /work/go ]; do sleep 0.1; done" }));
    let open: Vec<_> = (0..2)
        .map(|_| {
            let slow = slow.clone();
            std::thread::spawn(move || slow.send())
        })
        .collect();
    // The server's user at the socket is counted apart.
    let began =
        || server.world.ok(["exec", &id, "--", "sh", "-c", "ls /work | grep -c began || true"]) == "2\n";
    eventually("both are at it", began).unwrap();
    let refused = server.get("/account");
    refused.refused(429, "too_many_requests");
    assert!(refused.header("retry-after").is_some());
    server.anonymous("GET", "/health").send().is(200);
    server.world.ok(["exec", &id, "--", "touch", "/work/go"]);
    for each in open {
        each.join().unwrap().is(200);
    }
    server.get("/account").is(200);
}

#[test]
fn k7_pages_of_others_may_call_only_where_it_is_set() {
    let page = "https://app.example.com";
    let closed = Server::start();
    let answer = closed.ask("GET", "/account").header("origin", page).send().is(200);
    assert_eq!(answer.header("access-control-allow-origin"), None);
    let open = Server::with(&format!("cors_origins = [\"{page}\"]\n"));
    let answer = open.ask("GET", "/account").header("origin", page).send().is(200);
    assert_eq!(answer.header("access-control-allow-origin"), Some(page));
    assert!(answer.header("access-control-expose-headers").unwrap().contains("x-request-id"));
    // Keys are sent by the page itself, not by the browser.
    assert_eq!(answer.header("access-control-allow-credentials"), None);
    // Also errors are for the page to read.
    let refused = open.anonymous("GET", "/account").header("origin", page).send();
    refused.refused(401, "key_missing");
    assert_eq!(refused.header("access-control-allow-origin"), Some(page));
    let stranger = open.ask("GET", "/account").header("origin", "https://evil.example.com").send().is(200);
    assert_ne!(stranger.header("access-control-allow-origin"), Some("https://evil.example.com"));
    assert_ne!(stranger.header("access-control-allow-origin"), Some("*"));
}

#[test]
fn k7_browsers_ask_before_they_send() {
    let page = "https://app.example.com";
    let server = Server::with(&format!("cors_origins = [\"{page}\"]\n"));
    let answer = server
        .anonymous("OPTIONS", "/conversations")
        .header("origin", page)
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "authorization,content-type,idempotency-key")
        .send()
        .is(200);
    assert_eq!(answer.header("access-control-allow-origin"), Some(page));
    assert!(answer.header("access-control-allow-methods").unwrap().contains("POST"));
    let allowed = answer.header("access-control-allow-headers").unwrap();
    assert!(allowed.contains("authorization") && allowed.contains("idempotency-key"), "{allowed}");
    assert_eq!(answer.header("access-control-max-age"), Some("3600"));
    let any = Server::with("cors_origins = [\"*\"]\n");
    let answer = any.ask("GET", "/account").header("origin", page).send().is(200);
    assert_eq!(answer.header("access-control-allow-origin"), Some("*"));
}
