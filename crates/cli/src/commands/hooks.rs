//! `seawall hooks`: what hooks did in a sandbox.

use super::completions::sandboxes;
use super::conversations::{more, page};
use crate::{output, session::Session};
use anyhow::Result;
use clap::Args;
use seawall_core::ports::store::Cursor;

#[derive(Debug, Args)]
pub struct HooksArgs {
    /// The sandbox: an id or a name; the whole id where it is gone
    #[arg(value_name = "ID", add = sandboxes())]
    pub id: String,

    /// How many, from the newest on
    #[arg(short = 'n', long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub limit: u32,

    /// Where the list before this one ended
    #[arg(long, value_name = "CURSOR")]
    pub after: Option<Cursor>,
}

pub async fn hooks(session: &Session, args: &HooksArgs) -> Result<i32> {
    let id = session.find_id(&args.id).await?;
    let found = session.client.hook_runs(id, &page(args.limit, args.after)).await?;
    if session.json {
        output::json(&found)?;
        return Ok(0);
    }
    let mut table = output::Table::new(&["BEGAN", "HOOK", "TOOK", "WHICH", "RESULT"]);
    for run in &found.items {
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
    more(found.next.as_deref());
    Ok(0)
}
