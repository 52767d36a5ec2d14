//! `[retention]`: how long what grows is kept. A wrong value is an error: too short it deletes, too long it fills the disk.

use super::{Layers, section, whole};
use crate::duration;
use anyhow::{Result, anyhow};
use seawall_core::retention::Keep;
use seawall_server::KeepAudit;
use std::time::Duration;
use toml::{Table, Value};

const KEYS: [&str; 11] = [
    "events",
    "hook_runs",
    "ended_sandboxes",
    "leases",
    "sessions",
    "staged_objects",
    "audit",
    "audit_bytes",
    "conversations",
    "messages",
    "versions",
];
/// Nothing is kept for less: a round would remove what was made a moment ago.
const LEAST: Duration = Duration::from_secs(10);
const LEAST_AUDIT: u64 = 1 << 20;

#[derive(Debug, Clone, PartialEq)]
pub struct RetentionSettings {
    pub keep: Keep,
    pub audit: KeepAudit,
    /// Files that an upload into the bucket of the data folder left behind. `None`: for ever.
    pub staged_objects: Option<Duration>,
}

impl Default for RetentionSettings {
    fn default() -> Self {
        RetentionSettings {
            keep: Keep::default(),
            audit: KeepAudit::default(),
            staged_objects: Some(Duration::from_secs(86_400)),
        }
    }
}

impl Layers {
    pub(super) fn retention_file(&mut self, shown: &str, table: &Table) -> Result<()> {
        let Some(retention) = section(shown, table, "retention", &KEYS)? else { return Ok(()) };
        let time = |key: &str, slot: &mut Option<Duration>| -> Result<()> {
            if let Some(value) = retention.get(key) {
                *slot = period(shown, key, value)?;
            }
            Ok(())
        };
        let settings = &mut self.settings.retention;
        let keep = &mut settings.keep;
        time("events", &mut keep.events)?;
        time("hook_runs", &mut keep.hook_runs)?;
        time("ended_sandboxes", &mut keep.ended_sandboxes)?;
        time("leases", &mut keep.leases)?;
        time("sessions", &mut keep.sessions)?;
        time("conversations", &mut keep.conversations)?;
        time("messages", &mut keep.messages)?;
        time("versions", &mut keep.versions)?;
        time("staged_objects", &mut settings.staged_objects)?;
        time("audit", &mut settings.audit.age)?;
        if let Some(value) = retention.get("audit_bytes") {
            let bytes = whole(value).filter(|bytes| *bytes >= LEAST_AUDIT);
            settings.audit.bytes = bytes.ok_or_else(|| {
                anyhow!(
                    "{shown}: `retention.audit_bytes` must be a number from {LEAST_AUDIT} on, not {value}"
                )
            })?;
        }
        Ok(())
    }
}

/// `"7d"`, or `"off"`: for ever.
fn period(shown: &str, key: &str, value: &Value) -> Result<Option<Duration>> {
    let wrong = || {
        let least = LEAST.as_secs();
        anyhow!(
            "{shown}: `retention.{key}` must be a time of at least {least} s, e.g. \"7d\", or \"off\" for ever, not {value}"
        )
    };
    let text = value.as_str().ok_or_else(wrong)?;
    if text == "off" {
        return Ok(None);
    }
    let period = duration::parse(text).ok().filter(|period| *period >= LEAST);
    Ok(Some(period.ok_or_else(wrong)?))
}
