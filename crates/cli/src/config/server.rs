//! `[server]`, `[sandboxes]`, `[conversations]`: the service on the network, and when things end by themselves.

use super::{Background, Layers, Surroundings, section, whole};
use crate::duration;
use anyhow::{Result, anyhow, bail};
use seawall_api::sandbox::Timeouts;
use seawall_server::{Options, Tls};
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};
use toml::{Table, Value};

const SERVER_KEYS: [&str; 21] = [
    "listen",
    "background",
    "background_idle",
    "public_url",
    "cors_origins",
    "tls_certificate",
    "tls_key",
    "body_limit_bytes",
    "request_timeout_seconds",
    "rate_per_second",
    "rate_burst",
    "concurrency",
    "connections",
    "memory_budget_mb",
    "account_memory_budget_mb",
    "shutdown_grace_seconds",
    "audit_log",
    "public_metrics",
    "trust_forwarded",
    "otlp_endpoint",
    "trusted_previews",
];
const SANDBOX_KEYS: [&str; 2] = ["idle_timeout", "max_lifetime"];
const CONVERSATION_KEYS: [&str; 1] = ["delete_terminates_sandbox"];
/// With less, one request of the largest size would not pass.
const LEAST_MEMORY_MB: u64 = 8;
const LISTEN_VAR: &str = "SEAWALL_LISTEN";
const BACKGROUND_VAR: &str = "SEAWALL_BACKGROUND";
/// How long a background server stays; for tests.
const BACKGROUND_IDLE_VAR: &str = "SEAWALL_TEST_BACKGROUND_IDLE";
/// The names that the seeds use.
const IDLE_VAR: &str = "SANDBOX_SESSION_IDLE_TIMEOUT";
const LIFETIME_VAR: &str = "SANDBOX_SESSION_MAX_LIFETIME";
/// The name that every collector's documentation uses.
const OTLP_VAR: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

#[derive(Debug, Clone, PartialEq)]
pub struct ServerSettings {
    pub listen: SocketAddr,
    pub options: Options,
    /// How long a background server stays without a client and without work.
    pub background_idle: Duration,
    /// Where traces go. None: nowhere.
    pub otlp: Option<String>,
    /// T5.
    pub timeouts: Timeouts,
    /// C5.
    pub delete_terminates_sandbox: bool,
}

impl Default for ServerSettings {
    fn default() -> Self {
        ServerSettings {
            listen: SocketAddr::from(([127, 0, 0, 1], 7777)),
            options: Options::default(),
            background_idle: Duration::from_secs(600),
            otlp: None,
            timeouts: Timeouts { idle_seconds: Some(1800), max_lifetime_seconds: Some(14_400) },
            delete_terminates_sandbox: false,
        }
    }
}

impl Layers {
    pub(super) fn server_file(&mut self, file: &Path, shown: &str, table: &Table) -> Result<()> {
        if let Some(server) = section(shown, table, "server", &SERVER_KEYS)? {
            self.server_section(file, shown, server)?;
        }
        if let Some(sandboxes) = section(shown, table, "sandboxes", &SANDBOX_KEYS)? {
            for key in SANDBOX_KEYS {
                let text = sandboxes.get(key).map(|value| match value {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                });
                self.timeout_of(key, &format!("{shown}: `sandboxes.{key}`"), text);
            }
        }
        let conversations = section(shown, table, "conversations", &CONVERSATION_KEYS)?;
        if let Some(value) = conversations.and_then(|section| section.get("delete_terminates_sandbox")) {
            let flag = value.as_bool();
            self.settings.server.delete_terminates_sandbox = flag.ok_or_else(|| {
                anyhow!("{shown}: `conversations.delete_terminates_sandbox` must be true or false")
            })?;
        }
        Ok(())
    }

    fn server_section(&mut self, file: &Path, shown: &str, server: &Table) -> Result<()> {
        let text = |key: &str| -> Result<Option<String>> {
            let Some(value) = server.get(key) else { return Ok(None) };
            let text = value.as_str().filter(|text| !text.is_empty());
            Ok(Some(text.ok_or_else(|| anyhow!("{shown}: `server.{key}` must be text"))?.to_owned()))
        };
        let flag = |key: &str| -> Result<Option<bool>> {
            let Some(value) = server.get(key) else { return Ok(None) };
            let flag = value.as_bool();
            Ok(Some(flag.ok_or_else(|| anyhow!("{shown}: `server.{key}` must be true or false"))?))
        };
        let path = |text: String| file.parent().unwrap_or(Path::new(".")).join(text);
        if let Some(listen) = text("listen")? {
            self.settings.server.listen = address(&format!("{shown}: `server.listen`"), &listen)?;
        }
        if let Some(value) = server.get("background") {
            self.settings.background = match value {
                Value::Boolean(true) => Background::Auto,
                Value::Boolean(false) => Background::Never,
                _ => bail!("{shown}: `server.background` must be true or false"),
            };
        }
        if let Some(value) = server.get("background_idle") {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            match duration::parse_positive(&text) {
                Ok(time) => self.settings.server.background_idle = time,
                Err(_) => self.warnings.push(format!(
                    "{shown}: `server.background_idle` is {value}, not a time such as 10m: using 10m"
                )),
            }
        }
        self.settings.server.otlp = text("otlp_endpoint")?;
        let options = &mut self.settings.server.options;
        options.public_url = text("public_url")?.map(|url| url.trim_end_matches('/').to_owned());
        options.tls = tls(shown, text("tls_certificate")?.map(path), text("tls_key")?.map(path))?;
        options.audit = text("audit_log")?.map(path);
        options.public_metrics = flag("public_metrics")?.unwrap_or(options.public_metrics);
        options.trust_forwarded = flag("trust_forwarded")?.unwrap_or(options.trust_forwarded);
        options.proxy_trusted = flag("trusted_previews")?.unwrap_or(options.proxy_trusted);
        if let Some(value) = server.get("cors_origins") {
            options.cors_origins = origins(shown, value)?;
        }
        self.server_numbers(shown, server);
        Ok(())
    }

    fn server_numbers(&mut self, shown: &str, server: &Table) {
        let default = Options::default();
        let mut number = |key: &str, least: u64, instead: u64| -> u64 {
            let Some(value) = server.get(key) else { return instead };
            match whole(value).filter(|number| *number >= least) {
                Some(number) => number,
                None => {
                    self.warnings.push(format!(
                        "{shown}: `server.{key}` is {value}, not a number from {least} on: using {instead}"
                    ));
                    instead
                }
            }
        };
        let seconds = |value: u64| Duration::from_secs(value);
        let body_limit = number("body_limit_bytes", 1024, default.body_limit as u64);
        let timeout = number("request_timeout_seconds", 1, default.request_timeout.as_secs());
        let rate = number("rate_per_second", 0, default.rate.into());
        let burst = number("rate_burst", 1, default.burst.into());
        let concurrency = number("concurrency", 0, default.concurrency as u64);
        let connections = number("connections", 1, default.connections as u64);
        let grace = number("shutdown_grace_seconds", 0, default.grace.as_secs());
        // Zero is what nobody can name: the default, which follows from the machine.
        let memory = number("memory_budget_mb", LEAST_MEMORY_MB, 0);
        let account_memory = number("account_memory_budget_mb", LEAST_MEMORY_MB, 0);
        let options = &mut self.settings.server.options;
        options.body_limit = usize::try_from(body_limit).unwrap_or(usize::MAX);
        options.request_timeout = seconds(timeout);
        options.rate = u32::try_from(rate).unwrap_or(u32::MAX);
        options.burst = u32::try_from(burst).unwrap_or(u32::MAX);
        options.concurrency = usize::try_from(concurrency).unwrap_or(usize::MAX);
        options.connections = usize::try_from(connections).unwrap_or(usize::MAX);
        options.grace = seconds(grace);
        let bytes = |mb: u64| (mb > 0).then(|| mb.saturating_mul(1 << 20));
        options.memory_budget = bytes(memory);
        options.account_memory_budget = bytes(account_memory);
    }

    pub(super) fn server_environment(&mut self, around: &Surroundings<'_>) -> Result<()> {
        let text = |name: &str| {
            let text = (around.var)(name)?.to_string_lossy().trim().to_owned();
            (!text.is_empty()).then_some(text)
        };
        if let Some(listen) = text(LISTEN_VAR) {
            self.settings.server.listen = address(LISTEN_VAR, &listen)?;
        }
        if let Some(endpoint) = text(OTLP_VAR) {
            self.settings.server.otlp = Some(endpoint);
        }
        match text(BACKGROUND_VAR).as_deref() {
            None => {}
            Some("never") => self.settings.background = Background::Never,
            Some("auto") => self.settings.background = Background::Auto,
            Some(other) => bail!("{BACKGROUND_VAR} must be auto or never, not {other:?}"),
        }
        if let Some(time) = text(BACKGROUND_IDLE_VAR).and_then(|text| duration::parse_positive(&text).ok()) {
            self.settings.server.background_idle = time;
        }
        self.timeout_of("idle_timeout", IDLE_VAR, text(IDLE_VAR));
        self.timeout_of("max_lifetime", LIFETIME_VAR, text(LIFETIME_VAR));
        Ok(())
    }

    /// T5: `30m`, `4h` or seconds; 0 is never.
    fn timeout_of(&mut self, key: &str, place: &str, text: Option<String>) {
        let Some(text) = text else { return };
        let default = ServerSettings::default().timeouts;
        let timeouts = &mut self.settings.server.timeouts;
        let (slot, default) = match key {
            "idle_timeout" => (&mut timeouts.idle_seconds, default.idle_seconds),
            _ => (&mut timeouts.max_lifetime_seconds, default.max_lifetime_seconds),
        };
        match duration::parse(&text) {
            Ok(time) => *slot = Some(time.as_secs()),
            Err(_) => {
                *slot = default;
                let shown = default.unwrap_or_default();
                self.warnings
                    .push(format!("{place} is {text}, not a time such as 30m or 4h: using {shown} s"));
            }
        }
    }
}

/// Not replaced by a default: the service would be where nobody looks for it, or where it must not be.
fn address(place: &str, text: &str) -> Result<SocketAddr> {
    text.parse()
        .map_err(|_| anyhow!("{place} must be an address and a port, e.g. 127.0.0.1:7777, not {text:?}"))
}

fn tls(shown: &str, certificate: Option<PathBuf>, key: Option<PathBuf>) -> Result<Option<Tls>> {
    match (certificate, key) {
        (Some(certificate), Some(key)) => Ok(Some(Tls { certificate, key })),
        (None, None) => Ok(None),
        _ => {
            Err(anyhow!("{shown}: `server.tls_certificate` and `server.tls_key` belong together: name both"))
        }
    }
}

fn origins(shown: &str, value: &Value) -> Result<Vec<String>> {
    let wrong =
        || anyhow!("{shown}: `server.cors_origins` must be a list such as [\"https://app.example.com\"]");
    let all = value.as_array().ok_or_else(wrong)?;
    all.iter().map(|origin| origin.as_str().map(str::to_owned).ok_or_else(wrong)).collect()
}
