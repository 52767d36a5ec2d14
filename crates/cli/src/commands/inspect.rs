//! `seawall inspect`: all that is known of a sandbox.

use crate::{app::App, lookup, output};
use anyhow::Result;
use clap::Args;
use seawall_core::service::shown as shown_metadata;

#[derive(Debug, Args)]
pub struct InspectArgs {
    /// Which one: an id or a name
    pub id: String,
}

pub async fn inspect(app: &App, args: &InspectArgs) -> Result<i32> {
    let id = lookup::sandbox(app, &args.id).await?.id;
    let mut shown = serde_json::to_value(app.sandboxes.inspect(id).await?)?;
    let row = app.stores.sandboxes.find(id).await?;
    if let (Some(row), Some(fields)) = (row, shown.as_object_mut()) {
        fields.insert("metadata".to_owned(), shown_metadata(row.metadata).into());
        fields.insert("template".to_owned(), row.template.into());
        fields.insert("unsynced".to_owned(), row.unsynced.into());
    }
    output::json(&shown)?;
    Ok(0)
}
