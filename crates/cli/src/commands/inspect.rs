//! `seawall inspect`: all that is known of a sandbox.

use crate::{app::App, lookup, output};
use anyhow::Result;
use clap::Args;

#[derive(Debug, Args)]
pub struct InspectArgs {
    /// Which one: an id or a name
    pub id: String,
}

pub async fn inspect(app: &App, args: &InspectArgs) -> Result<i32> {
    let id = lookup::sandbox(app, &args.id).await?.id;
    output::json(&app.sandboxes.inspect(id).await?)?;
    Ok(0)
}
