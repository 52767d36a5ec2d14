//! `seawall ls`: the sandboxes there are.

use crate::{
    app::App,
    duration,
    output::{self, Table},
};
use anyhow::Result;
use clap::Args;
use jiff::Timestamp;
use seawall_api::sandbox::SandboxInfo;

#[derive(Debug, Args)]
pub struct LsArgs {
    /// Only the ids, one per line
    #[arg(short = 'q', long)]
    pub quiet: bool,
}

pub async fn ls(app: &App, args: &LsArgs) -> Result<i32> {
    // What a crash left half made or half removed goes first. Where that fails the list is still worth seeing.
    if let Err(error) = app.sandboxes.sweep().await {
        output::note(format!("cleaning up: {}", error.chain()));
    }
    let all = app.sandboxes.list().await?;
    match app.json {
        true => output::json(&all)?,
        false => text(&all, args)?,
    }
    Ok(0)
}

/// For people.
pub fn text(all: &[SandboxInfo], args: &LsArgs) -> Result<()> {
    if args.quiet {
        let ids: String = all.iter().map(|info| format!("{}\n", info.id)).collect();
        return output::raw(ids.as_bytes());
    }
    table(all, Timestamp::now()).print()
}

fn table(all: &[SandboxInfo], now: Timestamp) -> Table {
    let mut table = Table::new(&["ID", "NAME", "PROVIDER", "STATE", "AGE"]);
    for info in all {
        table.row(vec![
            info.id.to_string(),
            info.name.clone().unwrap_or_default(),
            info.provider.clone(),
            state(info),
            duration::age(now.duration_since(info.created_at).as_secs()),
        ]);
    }
    table
}

/// With the reason, where it says more than the state.
fn state(info: &SandboxInfo) -> String {
    match info.reason.as_ref().map(ToString::to_string) {
        Some(reason) if reason != info.state.as_str() => format!("{} ({reason})", info.state),
        _ => info.state.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_api::{
        SandboxId,
        sandbox::{Egress, EndReason, SandboxSpec, SandboxState},
    };

    #[test]
    fn the_reason_stands_beside_the_state() {
        let mut info = SandboxInfo {
            id: SandboxId::generate(),
            name: None,
            provider: "local".into(),
            state: SandboxState::Stopped,
            reason: Some(EndReason::Idle),
            spec: SandboxSpec::default(),
            created_at: Timestamp::UNIX_EPOCH,
            started_at: None,
            egress: Egress::None,
        };
        assert_eq!(state(&info), "stopped (idle)");
        info.reason = Some(EndReason::Stopped);
        assert_eq!(state(&info), "stopped");
    }
}
