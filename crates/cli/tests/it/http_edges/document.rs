//! The operations that the server's own document tells of, and how each is called.

use crate::http_edges::{
    client::Ask,
    server::{Server, text},
    socket::upgrade,
};
use serde_json::{Value, json};

const METHODS: [&str; 8] = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];

/// What goes with a call, at the least, so that it is a valid one.
enum With {
    Nothing,
    Json(&'static str),
    Bytes,
    WebSocket,
}

use With::{Bytes, Json, Nothing, WebSocket};

/// Every operation, with the query and the body that it needs. A new one has to be added here.
const CALLS: &[(&str, &str, With)] = &[
    ("list_conversations", "", Nothing),
    ("create_conversation", "", Json("{}")),
    ("get_conversation", "", Nothing),
    ("patch_conversation", "", Json(r#"{"template": "shell"}"#)),
    ("delete_conversation", "", Nothing),
    ("prompt", "", Json(r#"{"prompt": "true", "template": "shell"}"#)),
    ("prompt_singular", "", Json(r#"{"prompt": "true", "template": "shell"}"#)),
    ("claude", "", Json(r#"{"prompt": "true", "template": "shell"}"#)),
    ("list_turns", "", Nothing),
    ("get_turn", "", Nothing),
    ("follow_turn", "", Nothing),
    ("cancel_turn", "", Nothing),
    ("list_messages", "", Nothing),
    ("get_message", "", Nothing),
    ("list_sandboxes", "", Nothing),
    ("create_sandbox", "", Json("{}")),
    ("get_sandbox", "", Nothing),
    ("patch_sandbox", "", Json(r#"{"metadata": {"touched": true}}"#)),
    ("delete_sandbox", "", Nothing),
    ("start_sandbox", "", Nothing),
    ("stop_sandbox", "", Json("{}")),
    ("sandbox_metrics", "", Nothing),
    ("list_hook_runs", "", Nothing),
    ("exec", "", Json(r#"{"command": "touch /work/touched"}"#)),
    ("exec_stream", "", Json(r#"{"command": "touch /work/touched"}"#)),
    ("list_processes", "", Nothing),
    ("process_output", "?follow=false", Nothing),
    ("process_input", "", Bytes),
    ("signal_process", "", Json(r#"{"signal": 9}"#)),
    ("kill_process", "", Nothing),
    ("create_terminal", "", Json("{}")),
    ("attach_terminal", "", WebSocket),
    ("connect_wire", "", WebSocket),
    ("list_files", "", Nothing),
    ("remove_file", "?path=kept", Nothing),
    ("file_tree", "", Nothing),
    ("read_file", "?path=kept", Nothing),
    ("write_file", "?path=touched", Bytes),
    ("make_directory", "", Json(r#"{"path": "touched"}"#)),
    ("move_file", "", Json(r#"{"from": "kept", "to": "touched"}"#)),
    ("sync_files", "", Json("{}")),
    ("list_versions", "", Nothing),
    ("diff_versions", "?from=1", Nothing),
    ("restore_version", "", Json("{}")),
    ("create_port_token", "", Json("{}")),
    ("proxy_port", "", Nothing),
    ("proxy_port_put", "", Nothing),
    ("proxy_port_post", "", Nothing),
    ("proxy_port_delete", "", Nothing),
    ("proxy_port_options", "", Nothing),
    ("proxy_port_head", "", Nothing),
    ("proxy_port_patch", "", Nothing),
    ("proxy_port_root", "", Nothing),
    ("proxy_port_root_put", "", Nothing),
    ("proxy_port_root_post", "", Nothing),
    ("proxy_port_root_delete", "", Nothing),
    ("proxy_port_root_options", "", Nothing),
    ("proxy_port_root_head", "", Nothing),
    ("proxy_port_root_patch", "", Nothing),
    ("delete_version", "", Nothing),
    ("prune_versions", "", Json(r#"{"keep": 1}"#)),
    ("get_account", "", Nothing),
    ("get_account_usage", "", Nothing),
    ("get_usage_of_account", "", Nothing),
    ("suspend_account", "", Nothing),
    ("resume_account", "", Nothing),
    ("delete_account", "", Nothing),
    ("set_settings", "", Json(r#"{"settings": {}}"#)),
    ("list_keys", "", Nothing),
    ("create_key", "", Json(r#"{"name": "more", "scopes": ["read"]}"#)),
    ("revoke_key", "", Nothing),
    ("rotate_key", "", Json("{}")),
    ("list_accounts", "", Nothing),
    ("create_account", "", Json(r#"{"name": "more"}"#)),
    ("create_key_of_account", "", Json(r#"{"name": "more", "scopes": ["read"]}"#)),
    ("set_settings_of_account", "", Json(r#"{"settings": {}}"#)),
    ("list_audit", "", Nothing),
    ("list_templates", "", Nothing),
    ("get_template", "", Nothing),
    ("list_providers", "", Nothing),
    ("reconcile", "?dry_run=true", Nothing),
    ("get_metrics", "", Nothing),
    ("get_server", "", Nothing),
    // Another run of the server, so that this one goes on.
    ("stop_server", "", Json(r#"{"instance": "another"}"#)),
    ("list_volumes", "", Nothing),
    ("remove_volume", "", Nothing),
    ("check_database", "", Nothing),
    ("backup_database", "", Nothing),
    ("verify_versions", "", Nothing),
    ("sync_progress", "", Nothing),
];

pub struct Operation {
    pub id: String,
    pub method: String,
    /// With the names of its parameters.
    pub path: String,
    /// What a key must have; none: it is for everybody.
    pub scope: Option<String>,
}

/// All that the document has.
pub fn operations(server: &Server) -> Vec<Operation> {
    let document = server.anonymous("GET", "/openapi.json").send().is(200).json();
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in METHODS {
            let Some(operation) = item.get(method) else { continue };
            let (id, method) = (text(&operation["operationId"]), method.to_uppercase());
            all.push(Operation { id, method, path: path.clone(), scope: scope(operation) });
        }
    }
    all
}

/// Where anything but nothing is asked for, a key is needed, or what stands for one.
fn scope(operation: &Value) -> Option<String> {
    let asked = operation["security"].as_array().cloned().unwrap_or_default();
    asked.iter().find_map(|each| each.get("key")).map(|scopes| text(&scopes[0]))
}

impl Operation {
    /// A valid call about these things. An operation that is not listed above is an error.
    pub fn call(&self, server: &Server, things: &Things) -> Ask {
        let found = CALLS.iter().find(|(id, ..)| *id == self.id);
        let Some((_, query, with)) = found else {
            let (id, method, path) = (&self.id, &self.method, &self.path);
            panic!("{method} {path} ({id}) is new: add it to CALLS in tests/edges/document.rs");
        };
        let ask = server.anonymous(&self.method, &format!("{}{query}", things.fill(&self.path)));
        match with {
            Nothing => ask,
            Json(body) => ask.body("application/json", *body),
            Bytes => ask.body("application/octet-stream", "bytes"),
            WebSocket => upgrade(ask),
        }
    }

    /// Whether it is about something that has an owner.
    pub fn is_about_something(&self) -> bool {
        self.path.contains('{') && !["/templates/", "/volumes/"].iter().any(|of| self.path.starts_with(of))
    }
}

/// What an account has: one of each.
#[derive(Debug)]
pub struct Things {
    pub account: String,
    pub key: String,
    pub conversation: String,
    pub turn: String,
    pub message: String,
    pub sandbox: String,
    pub process: String,
}

impl Things {
    /// Those of the account `local`.
    pub fn make(server: &Server) -> Things {
        let told = server.turn("echo kept > kept");
        let first = &told[0];
        let sandbox = text(&first["sandbox_id"]);
        let opened = server.post(&format!("/sandboxes/{sandbox}/terminals"), &json!({})).is(201).json();
        Things {
            account: text(&server.get("/account").is(200).json()["id"]),
            key: text(&server.get("/keys").is(200).json()["items"][0]["id"]),
            conversation: text(&first["conversation_id"]),
            turn: text(&first["turn_id"]),
            message: text(&first["prompt_id"]),
            process: text(&opened["process"]),
            sandbox,
        }
    }

    fn fill(&self, path: &str) -> String {
        let id: &str = match path.split('/').nth(1) {
            Some("sandboxes") => &self.sandbox,
            Some("conversations" | "conversation") => &self.conversation,
            Some("accounts") => &self.account,
            _ => "",
        };
        let parts: [(&str, &str); 10] = [
            ("{id}", id),
            ("{sandbox}", &self.sandbox),
            ("{turn}", &self.turn),
            ("{message}", &self.message),
            ("{process}", &self.process),
            ("{key}", &self.key),
            ("{port}", "8000"),
            ("{path}", "some/page"),
            ("{name}", "shell"),
            ("{version}", "1700000000000"),
        ];
        let filled = parts.into_iter().fold(path.to_owned(), |path, (name, value)| path.replace(name, value));
        assert!(!filled.contains(['{', '}']), "{path} has a parameter that is not known here");
        filled
    }
}

#[test]
fn k1_every_operation_is_tested_and_few_are_for_everybody() {
    let server = Server::start();
    let all = operations(&server);
    let mut open: Vec<&str> =
        all.iter().filter(|each| each.scope.is_none()).map(|each| each.id.as_str()).collect();
    open.sort_unstable();
    assert_eq!(open, ["get_docs", "get_health", "get_openapi", "get_ready"]);
    let is_listed = |each: &&Operation| CALLS.iter().any(|call| call.0 == each.id);
    let new: Vec<&str> = all
        .iter()
        .filter(|each| each.scope.is_some() && !is_listed(each))
        .map(|each| each.id.as_str())
        .collect();
    assert!(new.is_empty(), "add these to CALLS: {new:?}");
    let gone: Vec<&str> =
        CALLS.iter().map(|call| call.0).filter(|id| !all.iter().any(|each| each.id == *id)).collect();
    assert!(gone.is_empty(), "these are not in the document any more: {gone:?}");
}
