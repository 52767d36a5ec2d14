//! `seawall start`: runs sandboxes that do not.

use super::each;
use crate::{app::App, lookup, output};
use anyhow::Result;
use clap::Args;

#[derive(Debug, Args)]
pub struct StartArgs {
    /// Which ones: ids or names
    #[arg(required = true, value_name = "ID")]
    pub ids: Vec<String>,
}

pub async fn start(app: &App, args: &StartArgs) -> Result<i32> {
    each(app, &args.ids, async |reference| {
        let id = lookup::sandbox(app, reference).await?.id;
        let info = app.sandboxes.start(id).await?;
        if app.json { output::json_line(&info) } else { output::line(info.id) }
    })
    .await
}
