//! `[sync]`: where versions of workspaces go, and what is taken.

use super::{Layers, Number, Settings, Surroundings, section, whole};
use anyhow::{Result, anyhow};
use seawall_core::workspaces::{Bounds, KEY_PREFIX, WorkspaceSettings};
use seawall_sync::state::Limits;
use std::{path::Path, time::Duration};
use toml::Table;

const KEYS: [&str; 7] = [
    "bucket",
    "key_prefix",
    "stale_threshold_seconds",
    "max_file_size_bytes",
    "max_files",
    "max_name_bytes",
    "max_hole_bytes",
];
const BUCKET_VAR: &str = "SEAWALL_SYNC_BUCKET";
/// The name that the seeds use.
const OLD_BUCKET_VAR: &str = "S3_BUCKET_AGENT_DOCS";
const STALE_VAR: &str = "SANDBOX_SYNC_STALE_THRESHOLD";

#[derive(Debug, Clone, PartialEq)]
pub struct SyncSettings {
    /// An address, or the name of an S3 bucket. None: files in the data folder.
    pub bucket: Option<String>,
    pub key_prefix: String,
    pub stale_after: Duration,
    pub limits: Limits,
    /// What is taken from a sandbox.
    pub bounds: Bounds,
}

impl Default for SyncSettings {
    fn default() -> Self {
        SyncSettings {
            bucket: None,
            key_prefix: KEY_PREFIX.to_owned(),
            stale_after: Duration::from_secs(3600),
            limits: Limits::default(),
            bounds: Bounds::default(),
        }
    }
}

impl SyncSettings {
    pub fn bucket(&self, data: &Path) -> String {
        match &self.bucket {
            Some(bucket) => bucket.clone(),
            // A plain path: an address would have to be escaped.
            None => data.join("bucket").display().to_string(),
        }
    }
}

impl Layers {
    pub(super) fn sync_file(&mut self, shown: &str, table: &Table) -> Result<()> {
        let Some(sync) = section(shown, table, "sync", &KEYS)? else { return Ok(()) };
        let text = |key: &str| -> Result<Option<String>> {
            let Some(value) = sync.get(key) else { return Ok(None) };
            let text = value.as_str().filter(|text| !text.is_empty());
            text.map(|text| Some(text.to_owned()))
                .ok_or_else(|| anyhow!("{shown}: `sync.{key}` must be text, e.g. \"s3://bucket\""))
        };
        if let Some(bucket) = text("bucket")? {
            self.settings.sync.bucket = Some(bucket);
        }
        if let Some(prefix) = text("key_prefix")? {
            // Not replaced by a default: versions would go where nobody looks for them.
            WorkspaceSettings::check_prefix(&prefix)
                .map_err(|why| anyhow!("{shown}: `sync.key_prefix` cannot be {prefix:?}: {why}"))?;
            self.settings.sync.key_prefix = prefix;
        }
        let number = |key: &str| sync.get(key).map(|value| (whole(value), value.to_string()));
        self.stale(&format!("{shown}: `sync.stale_threshold_seconds`"), number("stale_threshold_seconds"));
        self.file_size(&format!("{shown}: `sync.max_file_size_bytes`"), number("max_file_size_bytes"));
        self.bounds(shown, number)
    }

    /// K9: a bound that cannot be read is no bound that could be guessed.
    fn bounds(&mut self, shown: &str, number: impl Fn(&str) -> Option<Number>) -> Result<()> {
        let bound = |key: &str| -> Result<Option<u64>> {
            match number(key) {
                None => Ok(None),
                Some((Some(value), _)) if value > 0 => Ok(Some(value)),
                Some((_, text)) => {
                    Err(anyhow!("{shown}: `sync.{key}` must be a number above 0, and not {text}"))
                }
            }
        };
        let bounds = &mut self.settings.sync.bounds;
        if let Some(files) = bound("max_files")? {
            // More than a manifest can list.
            let most = Limits::default().max_entries;
            bounds.files = usize::try_from(files).unwrap_or(usize::MAX).min(most);
        }
        bounds.name_bytes = bound("max_name_bytes")?.unwrap_or(bounds.name_bytes);
        bounds.hole_bytes = bound("max_hole_bytes")?.unwrap_or(bounds.hole_bytes);
        Ok(())
    }

    pub(super) fn sync_environment(&mut self, around: &Surroundings<'_>) {
        let text = |name: &str| {
            let text = (around.var)(name)?.to_string_lossy().trim().to_owned();
            (!text.is_empty()).then_some(text)
        };
        if let Some(bucket) = text(BUCKET_VAR).or_else(|| text(OLD_BUCKET_VAR)) {
            self.settings.sync.bucket = Some(bucket);
        }
        self.stale(STALE_VAR, text(STALE_VAR).map(|text| (text.parse().ok(), text)));
    }

    fn stale(&mut self, place: &str, value: Option<Number>) {
        match value {
            None => {}
            Some((Some(seconds), _)) => self.settings.sync.stale_after = Duration::from_secs(seconds),
            Some((_, shown)) => {
                self.replaced(place, &shown, "a number of seconds", "one hour", |settings| {
                    settings.sync.stale_after = Settings::default().sync.stale_after;
                });
            }
        }
    }

    fn file_size(&mut self, place: &str, value: Option<Number>) {
        match value {
            None => {}
            Some((Some(bytes), _)) if bytes > 0 => self.settings.sync.limits.max_file_size = bytes,
            Some((_, shown)) => {
                self.replaced(place, &shown, "a number of bytes above 0", "the default", |settings| {
                    settings.sync.limits = Settings::default().sync.limits;
                });
            }
        }
    }
}
