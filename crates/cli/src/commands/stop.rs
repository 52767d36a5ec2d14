//! `seawall stop`: ends the processes of sandboxes; the files stay.

use super::completions::sandboxes;
use super::{each, start::shown};
use crate::{duration, session::Session};
use anyhow::Result;
use clap::Args;
use seawall_api::http::StopSandbox;
use std::time::Duration;

#[derive(Debug, Args)]
pub struct StopArgs {
    /// Which ones: ids or names
    #[arg(required = true, value_name = "ID", add = sandboxes())]
    pub ids: Vec<String>,

    /// How long processes may take to end before they are killed, up to 60s [default: 5s, or seawall.toml]
    #[arg(long, value_name = "TIME", value_parser = duration::parse_grace)]
    pub grace: Option<Duration>,

    /// Also where it has work that its bucket lacks
    #[arg(short = 'f', long)]
    pub force: bool,
}

pub async fn stop(session: &Session, args: &StopArgs) -> Result<i32> {
    let grace = args.grace.unwrap_or(session.settings.stop_grace);
    let ask = StopSandbox { grace_ms: Some(duration::millis(grace)), force: args.force };
    each(session, &args.ids, async |reference| {
        let id = session.find_id(reference).await?;
        shown(session, &session.client.stop_sandbox(id, &ask).await?)
    })
    .await
}
