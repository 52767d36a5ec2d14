//! `seawall hooks`: what hooks did in a sandbox.

use crate::{
    app::App,
    commands::{
        conversations::{more, page},
        versions::workspace,
    },
    output, turns,
};
use anyhow::Result;
use clap::Args;
use seawall_api::hook::HookRun;
use seawall_core::ports::store::Cursor;
use serde_json::json;

#[derive(Debug, Args)]
pub struct HooksArgs {
    /// The sandbox: an id or a name; the whole id where it is gone
    #[arg(value_name = "ID")]
    pub id: String,

    /// How many, from the newest on
    #[arg(short = 'n', long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub limit: u32,

    /// Where the list before this one ended
    #[arg(long, value_name = "CURSOR")]
    pub after: Option<Cursor>,
}

pub async fn hooks(app: &App, args: &HooksArgs) -> Result<i32> {
    let account = turns::account(app).await?;
    let id = workspace(app, &args.id).await?;
    let found = app.stores.hook_runs.list(account, Some(id), &page(args.limit, args.after)).await?;
    if found.items.is_empty() {
        // Of one that could not be made nothing is left but its runs.
        app.stores.sandboxes.get(account, id).await?;
    }
    let runs: Vec<HookRun> = found.items.into_iter().map(|run| run.told_to(account)).collect();
    show(app.json, &runs, found.next.map(|next| next.to_string()))
}

pub fn show(json: bool, runs: &[HookRun], next: Option<String>) -> Result<i32> {
    if json {
        output::json(&json!({ "runs": runs, "next": next }))?;
        return Ok(0);
    }
    let mut table = output::Table::new(&["BEGAN", "HOOK", "TOOK", "WHICH", "RESULT"]);
    for run in runs {
        let took = run
            .ended_at
            .map_or(String::new(), |ended| format!("{} ms", ended.duration_since(run.began_at).as_millis()));
        let result = match (&run.error, run.ended_at) {
            (Some(error), _) => format!("failed: {error}"),
            (None, Some(_)) => "ok".to_owned(),
            (None, None) => "not ended".to_owned(),
        };
        table.row(vec![
            run.began_at.strftime("%Y-%m-%d %H:%M:%S").to_string(),
            run.kind.clone(),
            took,
            run.name.clone().unwrap_or_else(|| "-".to_owned()),
            result,
        ]);
    }
    table.print()?;
    more(next);
    Ok(0)
}
