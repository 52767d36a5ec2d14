//! `seawall start`: runs sandboxes that do not.

use super::completions::sandboxes;
use super::each;
use crate::{output, session::Session};
use anyhow::Result;
use clap::Args;
use seawall_api::sandbox::Sandbox;

#[derive(Debug, Args)]
pub struct StartArgs {
    /// Which ones: ids or names
    #[arg(required = true, value_name = "ID", add = sandboxes())]
    pub ids: Vec<String>,
}

pub async fn start(session: &Session, args: &StartArgs) -> Result<i32> {
    each(session, &args.ids, async |reference| {
        let id = session.find_id(reference).await?;
        shown(session, &session.client.start_sandbox(id).await?)
    })
    .await
}

/// The sandbox that a command was about: its id, or all of it for programs.
pub fn shown(session: &Session, sandbox: &Sandbox) -> Result<()> {
    match session.json {
        true => output::json_line(sandbox),
        false => output::line(sandbox.info.id),
    }
}
