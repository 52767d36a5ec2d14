//! The attempts. `{sandbox}`, `{conversation}` and `{turn}` are the victim's, `{own}` and `{own_conversation}` the tenant's own,
//! `{nobody}` is an id that nothing has.

/// One call, and the refusal that it must get.
pub struct Attempt {
    pub name: &'static str,
    pub method: &'static str,
    pub path: &'static str,
    /// JSON; empty where there is none.
    pub body: &'static str,
    pub status: u16,
    /// Empty where the status says enough.
    pub code: &'static str,
}

const fn attempt(
    name: &'static str,
    (method, path, body): (&'static str, &'static str, &'static str),
    status: u16,
    code: &'static str,
) -> Attempt {
    Attempt { name, method, path, body, status, code }
}

const SETTINGS: &str = r#"{"settings": {"sandboxes": "unlimited"}}"#;

pub const ATTEMPTS: &[Attempt] = &[
    // More than the account may have.
    attempt(
        "100 GB of memory",
        ("POST", "/sandboxes", r#"{"limits": {"memory_mb": 100000}}"#),
        403,
        "over_limit",
    ),
    attempt("64 processors", ("POST", "/sandboxes", r#"{"limits": {"cpus": 64}}"#), 403, "over_limit"),
    attempt(
        "a million processes",
        ("POST", "/sandboxes", r#"{"limits": {"max_processes": 1000000}}"#),
        403,
        "over_limit",
    ),
    attempt(
        "a petabyte of disk",
        ("POST", "/sandboxes", r#"{"limits": {"disk_mb": 1000000000}}"#),
        403,
        "over_limit",
    ),
    attempt("no memory at all", ("POST", "/sandboxes", r#"{"limits": {"memory_mb": 0}}"#), 400, ""),
    attempt("negative processors", ("POST", "/sandboxes", r#"{"limits": {"cpus": -1}}"#), 400, ""),
    attempt("processors as text", ("POST", "/sandboxes", r#"{"limits": {"cpus": "all"}}"#), 400, ""),
    attempt("a limit that is not there", ("POST", "/sandboxes", r#"{"limits": {"gpus": 1}}"#), 400, ""),
    // What is the operator's.
    attempt("settings of its own", ("PUT", "/account/settings", SETTINGS), 403, "scope_missing"),
    attempt(
        "settings of the operator",
        ("PUT", "/accounts/{account}/settings", SETTINGS),
        403,
        "scope_missing",
    ),
    attempt("accounts", ("GET", "/accounts", ""), 403, "scope_missing"),
    attempt("a new account", ("POST", "/accounts", r#"{"name": "x"}"#), 403, "scope_missing"),
    attempt(
        "a key of the operator",
        ("POST", "/accounts/{account}/keys", r#"{"name": "x", "scopes": ["admin"]}"#),
        403,
        "scope_missing",
    ),
    attempt(
        "a key with more scopes",
        ("POST", "/keys", r#"{"name": "x", "scopes": ["admin"]}"#),
        403,
        "scope_missing",
    ),
    attempt("suspending the operator", ("POST", "/accounts/{account}/suspend", ""), 403, "scope_missing"),
    attempt("deleting the operator", ("DELETE", "/accounts/{account}", ""), 403, "scope_missing"),
    attempt("usage of the operator", ("GET", "/accounts/{account}/usage", ""), 403, "scope_missing"),
    attempt("the audit log", ("GET", "/audit", ""), 403, "scope_missing"),
    // What is the host's.
    attempt(
        "a mount of the host's root",
        ("POST", "/sandboxes", r#"{"mounts": [{"source": "/", "target": "/data"}]}"#),
        400,
        "",
    ),
    attempt(
        "a mount with a way up",
        ("POST", "/sandboxes", r#"{"mounts": [{"source": "/srv/../etc", "target": "/data"}]}"#),
        400,
        "",
    ),
    attempt(
        "a mount that can be written",
        ("POST", "/sandboxes", r#"{"mounts": [{"source": "/srv", "target": "/data", "writable": true}]}"#),
        403,
        "",
    ),
    attempt("a provider that isolates nothing", ("POST", "/sandboxes", r#"{"provider": "local"}"#), 400, ""),
    attempt(
        "a template that is not there",
        ("POST", "/sandboxes", r#"{"template": "../shell"}"#),
        400,
        "invalid_config",
    ),
    // What is the service's own.
    attempt(
        "a label of the service",
        ("POST", "/sandboxes", r#"{"labels": {"seawall.account": "x"}}"#),
        400,
        "",
    ),
    attempt(
        "the service's metadata",
        ("PATCH", "/sandboxes/{own}", r#"{"metadata": {"ready": true}}"#),
        400,
        "",
    ),
    attempt(
        "the service's other metadata",
        ("PATCH", "/sandboxes/{own}", r#"{"metadata": {"last_place": "x"}}"#),
        400,
        "",
    ),
    attempt("a name that is a path", ("POST", "/sandboxes", r#"{"name": "../../etc"}"#), 400, ""),
    attempt("a name that is an id", ("POST", "/sandboxes", r#"{"name": "{sandbox}"}"#), 400, ""),
    attempt(
        "an environment with a zero byte",
        ("POST", "/sandboxes", r#"{"env": {"A": "a\u0000b"}}"#),
        400,
        "",
    ),
    attempt(
        "an environment name with an equals sign",
        ("POST", "/sandboxes", r#"{"env": {"A=B": "c"}}"#),
        400,
        "",
    ),
    // Time.
    attempt("an hour of grace", ("POST", "/sandboxes/{own}/stop", r#"{"grace_ms": 3600000}"#), 400, ""),
    attempt("a negative grace", ("POST", "/sandboxes/{own}/stop", r#"{"grace_ms": -1}"#), 400, ""),
    attempt(
        "waiting for ever",
        ("POST", "/conversations/{own_conversation}/sandbox/auto?wait=99999999", r#"{"prompt": "true"}"#),
        400,
        "",
    ),
    // Size.
    attempt(
        "more output than is kept",
        ("POST", "/sandboxes/{own}/exec", r#"{"command": "true", "max_output": 99999999999}"#),
        400,
        "invalid_max_output",
    ),
    attempt("a page of a million", ("GET", "/sandboxes?limit=1000000", ""), 400, ""),
    attempt("a page of nothing", ("GET", "/conversations?limit=0", ""), 400, ""),
    attempt("a cursor that is none", ("GET", "/sandboxes?after=%00", ""), 400, ""),
    attempt("a query that is not there", ("GET", "/sandboxes?account={account}", ""), 400, ""),
    // Ids.
    attempt("the id of nothing", ("GET", "/sandboxes/00000000-0000-0000-0000-000000000000", ""), 400, ""),
    attempt("an id that is a path", ("GET", "/sandboxes/..%2f..%2fkeys", ""), 400, ""),
    attempt(
        "the victim's id for its own",
        ("POST", "/sandboxes", r#"{"id": "{sandbox}"}"#),
        404,
        "not_found",
    ),
    attempt(
        "the victim's sandbox in its own conversation",
        ("POST", "/conversations/{own_conversation}/sandbox/{sandbox}?relink=true", r#"{"prompt": "true"}"#),
        404,
        "",
    ),
    // Fields that mean another account.
    attempt("an account in a body", ("POST", "/sandboxes", r#"{"account_id": "{account}"}"#), 400, ""),
    attempt(
        "an owner of a conversation",
        ("POST", "/conversations", r#"{"account_id": "{account}"}"#),
        400,
        "",
    ),
    attempt("a volume of another", ("POST", "/sandboxes", r#"{"volume": "local.work"}"#), 400, ""),
];

/// Calls that name something of the victim's: method, path, body.
pub const FOREIGN: &[(&str, &str, &str)] = &[
    ("GET", "/sandboxes/{sandbox}", ""),
    ("PATCH", "/sandboxes/{sandbox}", r#"{"metadata": {"a": 1}}"#),
    ("DELETE", "/sandboxes/{sandbox}", ""),
    ("DELETE", "/sandboxes/{sandbox}?force=true&volumes=delete", ""),
    ("POST", "/sandboxes/{sandbox}/start", ""),
    ("POST", "/sandboxes/{sandbox}/stop", r#"{"force": true}"#),
    ("GET", "/sandboxes/{sandbox}/metrics", ""),
    ("GET", "/sandboxes/{sandbox}/hooks", ""),
    ("POST", "/sandboxes/{sandbox}/exec", r#"{"command": "true"}"#),
    ("POST", "/sandboxes/{sandbox}/exec/stream", r#"{"command": "true"}"#),
    ("GET", "/sandboxes/{sandbox}/processes", ""),
    ("GET", "/sandboxes/{sandbox}/files?path=.", ""),
    ("GET", "/sandboxes/{sandbox}/versions", ""),
    ("POST", "/sandboxes/{sandbox}/sync", "{}"),
    ("POST", "/sandboxes/{sandbox}/restore", "{}"),
    ("POST", "/sandboxes/{sandbox}/ports/80/token", "{}"),
    ("GET", "/conversations/{conversation}", ""),
    ("PATCH", "/conversations/{conversation}", r#"{"template": "other"}"#),
    ("GET", "/conversations/{conversation}/messages", ""),
    ("GET", "/conversations/{conversation}/turns", ""),
];
