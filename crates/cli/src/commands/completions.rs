//! `seawall completions`: registers a shell's completions. The shell then calls this program for the names of sandboxes.

use crate::{
    args::Cli,
    config::{self, Flags},
    exit::Usage,
    output, starting,
};
use anyhow::{Result, anyhow};
use clap::CommandFactory;
use clap_complete::{
    CompleteEnv, Shell,
    engine::{ArgValueCandidates, CompletionCandidate},
    env::Shells,
};
use seawall_client::{ListSandboxes, Page};
use std::time::Duration;

/// The variable that a shell sets to request completions.
const ASKED: &str = "COMPLETE";
/// The longest time that a key press waits.
const PATIENCE: Duration = Duration::from_millis(500);

/// Answers a request for completions and exits. Returns at once for any other call.
pub fn answer() {
    CompleteEnv::with_factory(Cli::command).var(ASKED).bin("seawall").complete();
}

pub fn completions(shell: Shell) -> Result<i32> {
    let shells = Shells::builtins();
    let completer = shells.completer(&shell.to_string());
    let completer = completer.ok_or_else(|| Usage(format!("there are no completions for {shell}")))?;
    let mut script = Vec::new();
    let written = completer.write_registration(ASKED, "seawall", "seawall", "seawall", &mut script);
    written.map_err(|error| anyhow!("the completions cannot be written: {error}"))?;
    output::raw(&script)?;
    Ok(0)
}

/// Completes the names of the caller's sandboxes, and the ids of those without one.
pub fn sandboxes() -> ArgValueCandidates {
    ArgValueCandidates::new(|| names().unwrap_or_default())
}

/// Lists the sandboxes of a running server. A completion never starts a server.
fn names() -> Option<Vec<CompletionCandidate>> {
    let settings = config::load(&Flags::of_environment()).ok()?;
    if !starting::listens(&settings.data).ok()? {
        return None;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let listed = runtime.block_on(async {
        let client = crate::client_of(&settings.data).ok()?;
        let list = ListSandboxes { page: Page::first(200), ..ListSandboxes::default() };
        tokio::time::timeout(PATIENCE, client.sandboxes(&list)).await.ok()?.ok()
    })?;
    let named = listed.items.into_iter().map(|sandbox| {
        let (id, state) = (sandbox.info.id.to_string(), sandbox.info.state.to_string());
        CompletionCandidate::new(sandbox.info.name.unwrap_or(id)).help(Some(state.into()))
    });
    Some(named.collect())
}
