//! `seawall inspect`: all that is known of a sandbox.

use super::completions::sandboxes;
use crate::{output, session::Session};
use anyhow::Result;
use clap::Args;
use seawall_api::sandbox::SandboxState;

#[derive(Debug, Args)]
pub struct InspectArgs {
    /// Which one: an id or a name
    #[arg(add = sandboxes())]
    pub id: String,
}

pub async fn inspect(session: &Session, args: &InspectArgs) -> Result<i32> {
    let id = session.find_id(&args.id).await?;
    // A list of sandboxes omits published ports; a single sandbox has them.
    let sandbox = session.client.sandbox(id).await?;
    let mut shown = serde_json::to_value(&sandbox)?;
    // A guest that does not answer now leaves the rest worth seeing.
    if sandbox.info.state == SandboxState::Running
        && let Ok(metrics) = session.client.metrics(sandbox.info.id).await
        && let Some(fields) = shown.as_object_mut()
    {
        fields.insert("metrics".to_owned(), serde_json::to_value(metrics)?);
    }
    output::json(&shown)?;
    Ok(0)
}
