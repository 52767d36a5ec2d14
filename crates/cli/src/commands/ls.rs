//! `seawall ls`: the sandboxes there are.

use crate::{
    args::key_value,
    duration,
    output::{self, Table},
    session::Session,
};
use anyhow::Result;
use clap::Args;
use jiff::Timestamp;
use seawall_api::{
    http::List,
    sandbox::{Sandbox, SandboxInfo, SandboxState},
};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  seawall ls --label team=a --state running
  seawall rm -f $(seawall ls -q --template claude-code)")]
pub struct LsArgs {
    /// Only the ids, one per line
    #[arg(short = 'q', long)]
    pub quiet: bool,

    /// Only those with this label; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = key_value)]
    pub labels: Vec<(String, String)>,

    /// Only those in this state, e.g. running, stopped or terminated
    #[arg(long, value_name = "STATE", value_parser = parse_state)]
    pub state: Option<SandboxState>,

    /// Only those made from this template
    #[arg(long, value_name = "NAME")]
    pub template: Option<String>,
}

fn parse_state(text: &str) -> Result<SandboxState, String> {
    let parsed = serde_json::from_value(text.to_ascii_lowercase().into());
    parsed.map_err(|_| {
        format!("`{text}` is no state: running, stopped, paused, failed, lost or terminated are some")
    })
}

impl LsArgs {
    fn shows(&self, sandbox: &Sandbox) -> bool {
        let labels = &sandbox.info.spec.labels;
        self.labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.template.as_ref().is_none_or(|name| sandbox.template.as_ref() == Some(name))
    }
}

pub async fn ls(session: &Session, args: &LsArgs) -> Result<i32> {
    let mut all = session.all(args.state).await?;
    all.retain(|sandbox| args.shows(sandbox));
    if session.json {
        output::json(&List { items: all, next: None })?;
        return Ok(0);
    }
    let all: Vec<SandboxInfo> = all.into_iter().map(|sandbox| sandbox.info).collect();
    if args.quiet {
        let ids: String = all.iter().map(|info| format!("{}\n", info.id)).collect();
        output::raw(ids.as_bytes())?;
    } else {
        table(&all, Timestamp::now()).print()?;
    }
    Ok(0)
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
        sandbox::{Egress, EndReason, SandboxSpec},
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
