//! `seawall stop`: ends the processes of sandboxes; the files stay.

use super::each;
use crate::{app::App, duration, lookup, output};
use anyhow::Result;
use clap::Args;
use std::time::Duration;

#[derive(Debug, Args)]
pub struct StopArgs {
    /// Which ones: ids or names
    #[arg(required = true, value_name = "ID")]
    pub ids: Vec<String>,

    /// How long processes may take to end before they are killed, up to 60s [default: 5s, or seawall.toml]
    #[arg(long, value_name = "TIME", value_parser = duration::parse_grace)]
    pub grace: Option<Duration>,

    /// Also where it has work that its bucket lacks
    #[arg(short = 'f', long)]
    pub force: bool,
}

pub async fn stop(app: &App, args: &StopArgs) -> Result<i32> {
    let grace = args.grace.unwrap_or(app.settings.stop_grace);
    each(app, &args.ids, async |reference| {
        let id = lookup::sandbox(app, reference).await?.id;
        if args.force {
            app.sandboxes.give_up_unsynced(id).await?;
        }
        let info = app.sandboxes.stop(id, grace).await?;
        if app.json { output::json_line(&info) } else { output::line(info.id) }
    })
    .await
}
