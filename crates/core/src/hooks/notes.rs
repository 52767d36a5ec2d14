//! V6: what hooks leave behind: metadata of their sandbox, and tokens among the totals of their conversation.

use super::{HookContext, Hooks};
use crate::{Error, ExecRequest, Result, persist::persist, ports::store::HookUsage};
use seawall_api::{ProcessId, conversation::Usage};
use serde::Deserialize;
use serde_json::{Map, Value};

/// Each file and a zero, which no JSON has. One that is too large is cut, and so no JSON.
const READ: &str = r#"for file; do [ -f "$file" ] && head -c 65536 "$file"; printf '\0'; done"#;
const MAX_READ: usize = 2 * (65536 + 1);
const SHAPE: &str =
    r#"$SEAWALL_USAGE is not like {"input_tokens": 1, "output_tokens": 2, "cache_tokens": 3}"#;

/// The files into which a command may write, for one run.
pub(super) struct Files {
    metadata: String,
    /// None: there is no conversation.
    usage: Option<String>,
}

/// What a hook left.
#[derive(Debug, Default)]
pub(super) struct Notes {
    pub metadata: Map<String, Value>,
    pub usage: Usage,
}

/// As a command writes it: what it does not name is none.
#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct Told {
    input_tokens: u64,
    output_tokens: u64,
    cache_tokens: u64,
}

impl Files {
    pub(super) fn new(context: &HookContext, process: ProcessId) -> Files {
        Files {
            metadata: format!("/tmp/.seawall-metadata-{process}"),
            usage: context.conversation.map(|_| format!("/tmp/.seawall-usage-{process}")),
        }
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        [Some(&self.metadata), self.usage.as_ref()].into_iter().flatten().map(String::as_str)
    }

    pub(super) fn environment(&self) -> impl Iterator<Item = (String, String)> {
        let metadata = ("SEAWALL_METADATA".to_owned(), self.metadata.clone());
        let usage = self.usage.iter().map(|file| ("SEAWALL_USAGE".to_owned(), file.clone()));
        std::iter::once(metadata).chain(usage)
    }
}

impl Hooks {
    /// What a command wrote into its files, and whether it wrote any. Read by a command too: where nothing is walled
    /// off, files that commands see are not those that the guest reads.
    pub(super) async fn noted(&self, context: &HookContext, files: &Files) -> (bool, Result<Notes>) {
        let mut request = ExecRequest::new(["/bin/sh", "-c", READ, "sh"].into_iter().chain(files.names()));
        request.max_output = MAX_READ;
        match self.sandboxes.exec(context.sandbox, request).await {
            Ok(output) => (output.stdout.iter().any(|byte| *byte != 0), parsed(&output.stdout)),
            Err(error) => (false, Err(error)),
        }
    }

    /// What stays hurts nobody.
    pub(super) async fn take_away(&self, context: &HookContext, files: &Files) {
        let request = ExecRequest::new(["/bin/rm", "-f"].into_iter().chain(files.names()));
        if let Err(error) = self.sandboxes.exec(context.sandbox, request).await {
            tracing::debug!(sandbox = %context.sandbox, error = %error.chain(), "notes of a hook stay");
        }
    }

    /// However long the database takes, within the hook's time. `run`: its name; what it used counts once.
    pub(super) async fn keep(&self, context: &HookContext, run: &str, notes: Notes) -> Result<()> {
        if let Some(key) = notes.metadata.keys().find(|key| is_own_key(key)) {
            return Err(Error::invalid(format!("`{key}` is the service's own; choose another key")));
        }
        if let Some(rows) = self.rows.as_ref().filter(|_| !notes.metadata.is_empty()) {
            persist(|| rows.merge_metadata(context.account, context.sandbox, &notes.metadata)).await?;
        }
        let (Some(conversations), Some(conversation_id)) = (&self.conversations, context.conversation) else {
            return Ok(());
        };
        if notes.usage == Usage::default() {
            return Ok(());
        }
        let used = HookUsage {
            conversation_id,
            sandbox_id: context.sandbox,
            name: run.to_owned(),
            usage: notes.usage,
            at: self.clock.now(),
        };
        persist(|| conversations.add_usage(context.account, &used)).await.map(drop)
    }
}

fn parsed(written: &[u8]) -> Result<Notes> {
    let mut written = written.split(|byte| *byte == 0);
    let metadata = object(written.next(), "$SEAWALL_METADATA is no JSON object of at most 64 KiB")?;
    let told = Value::Object(object(written.next(), SHAPE)?);
    let told: Told = serde_json::from_value(told).map_err(|error| unlike(SHAPE, error))?;
    let Told { input_tokens, output_tokens, cache_tokens } = told;
    Ok(Notes { metadata, usage: Usage { input_tokens, output_tokens, cache_tokens } })
}

/// Nothing where nothing was written.
fn object(bytes: Option<&[u8]>, shape: &str) -> Result<Map<String, Value>> {
    match bytes.unwrap_or_default().trim_ascii() {
        [] => Ok(Map::new()),
        bytes => serde_json::from_slice(bytes).map_err(|error| unlike(shape, error)),
    }
}

fn unlike(shape: &str, error: serde_json::Error) -> Error {
    Error::invalid(format!("what the hook wrote into {shape}")).with_source(error)
}

/// Keys of metadata that only the service sets.
pub(crate) fn is_own_key(key: &str) -> bool {
    matches!(
        key,
        "ready"
            | "last_synced_at"
            | "last_version"
            | "last_place"
            | "files_of"
            | "in_part"
            | "lives"
            | "template_image"
    ) || key.starts_with("total_")
}
