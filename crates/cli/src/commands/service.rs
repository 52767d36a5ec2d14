//! `seawall providers` and `seawall reconcile`: the state of a server, seen by its operator.

use crate::{
    output::{self, Table},
    session::Session,
};
use anyhow::Result;
use clap::Args;
use seawall_api::http::{ProviderInfo, Reconciliation};

#[derive(Debug, Args)]
pub struct ReconcileArgs {
    /// Report what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
}

pub async fn providers(session: &Session) -> Result<i32> {
    let found = session.client.providers().await?;
    if session.json {
        output::json(&found)?;
        return Ok(0);
    }
    let mut table = Table::new(&["PROVIDER", "DEFAULT", "USABLE", "WHY NOT"]);
    for provider in found.items {
        table.row(row(provider));
    }
    table.print()?;
    Ok(0)
}

fn row(provider: ProviderInfo) -> Vec<String> {
    let yes = |flag: bool| if flag { "yes" } else { "no" }.to_owned();
    vec![provider.name, yes(provider.default), yes(provider.usable), provider.why.unwrap_or_default()]
}

pub async fn reconcile(session: &Session, args: &ReconcileArgs) -> Result<i32> {
    let found = session.client.reconcile(args.dry_run).await?;
    if session.json {
        output::json(&found)?;
        return Ok(0);
    }
    for line in lines(&found) {
        output::line(line)?;
    }
    Ok(0)
}

fn lines(found: &Reconciliation) -> Vec<String> {
    let verb = |done: &'static str, would: &'static str| if found.dry_run { would } else { done };
    let kinds = [
        (verb("removed", "would remove"), "the box has no record; its volume is kept", &found.removed),
        (verb("removed", "would remove"), "its removal was cut short", &found.finished),
        (verb("forgot", "would forget"), "its creation was cut short", &found.unmade),
        (verb("marked as lost", "would mark as lost"), "its box is gone", &found.lost),
        (verb("rebuilt", "would rebuild"), "its template names another image", &found.rebuilt),
    ];
    let each = kinds
        .into_iter()
        .flat_map(|(what, why, ids)| ids.iter().map(move |id| format!("{what} {id}: {why}")));
    let outdated = found.outdated.iter().map(|(id, why)| format!("outdated {id}: {why}"));
    let silent = found
        .unavailable
        .iter()
        .map(|name| format!("provider {name} does not answer; its sandboxes are left alone"));
    let lines: Vec<String> = each.chain(outdated).chain(silent).collect();
    if lines.is_empty() { vec!["nothing to do".to_owned()] } else { lines }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_api::SandboxId;

    #[test]
    fn a_dry_run_says_what_would_be_done() {
        let id = SandboxId::generate();
        let found = Reconciliation { dry_run: true, lost: vec![id], ..Reconciliation::default() };
        assert_eq!(lines(&found), [format!("would mark as lost {id}: its box is gone")]);
        assert_eq!(lines(&Reconciliation::default()), ["nothing to do"]);
    }
}
