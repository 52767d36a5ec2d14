//! K5: what one tenant does to the server's memory and descriptors, on the real binary.

use crate::http_turns::{client::Client, http::ask, served::Served};
use serde_json::{Value, json};
use std::{net::TcpStream, time::Duration};

/// A key of a new account, made by whoever runs the server.
fn tenant(served: &Served, name: &str) -> Client {
    let account = served.done("POST", "/accounts", &json!({"name": name}));
    let path = format!("/accounts/{}/keys", account["id"].as_str().unwrap());
    let made = served.done("POST", &path, &json!({"name": name, "scopes": ["run"]}));
    Client { address: served.address.clone(), key: made["secret"].as_str().unwrap().to_owned() }
}

#[test]
fn k5_answers_of_zero_bytes_do_not_fill_the_servers_memory() {
    let served = Served::with("[server]\nmemory_budget_mb = 64\naccount_memory_budget_mb = 32\n", &[]);
    let (hostile, other) = (tenant(&served, "hostile"), tenant(&served, "other"));
    let (theirs, sandbox) = (hostile.make_sandbox(), other.make_sandbox());
    let before = served.most_memory();
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let (client, path) = (hostile.clone(), format!("/sandboxes/{theirs}/exec"));
            let body = json!({"command": "head -c 33554432 /dev/zero", "max_output": 64 << 20});
            std::thread::spawn(move || client.done("POST", &path, &body))
        })
        .collect();
    assert_eq!(other.exec(&sandbox, "echo meanwhile"), "meanwhile\n");
    for call in calls {
        let done = call.join().unwrap();
        let kept = done["stdout"].as_str().unwrap().len() as u64;
        assert_eq!(kept + done["stdout_truncated"].as_u64().unwrap(), 32 << 20);
    }
    let grown = served.most_memory() - before;
    // Eight answers of 32 MiB are 256 MiB of bytes, and 1.5 GiB of JSON.
    assert!(grown < 200, "it grew by {grown} MiB");
}

#[test]
fn k5_with_512_descriptors_a_tenant_leaves_enough_for_anothers_sandbox() {
    let served = Served::with_files("", 512);
    let (hostile, other) = (tenant(&served, "hostile"), tenant(&served, "other"));
    let theirs = hostile.make_sandbox();
    // As many streams as it gets, and as many connections that say nothing.
    let (mut streams, mut refused) = (Vec::new(), Value::Null);
    for _ in 0..600 {
        let ask = hostile
            .ask("POST", &format!("/sandboxes/{theirs}/exec/stream"))
            .json(&json!({"command": "echo on; sleep 300"}));
        let Ok(answer) = ask.send(&hostile.address) else { continue };
        match answer.status {
            200 => streams.push(answer),
            _ => refused = answer.json(),
        }
        if !refused.is_null() {
            break;
        }
    }
    assert_eq!((&refused["code"], &refused["limit"]["name"]), (&json!("limit_reached"), &json!("streams")));
    assert!(streams.len() >= 8, "{}", streams.len());
    let idle: Vec<_> = (0..600)
        .filter_map(|_| {
            let address = served.address.parse().unwrap();
            TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()
        })
        .collect();
    for _ in 0..5 {
        let sandbox = other.make_sandbox();
        assert_eq!(other.exec(&sandbox, "echo made"), "made\n");
    }
    assert_eq!(ask("GET", "/ready").send(&served.address).unwrap().status, 200);
    drop((streams, idle));
}
