//! `seawall volumes`: the data volumes, also of sandboxes that are gone.

use crate::{
    output::{self, Table},
    session::Session,
};
use anyhow::Result;
use clap::{Args, Subcommand};
use seawall_api::http::VolumeInfo;

#[derive(Debug, Args)]
pub struct VolumesArgs {
    #[command(subcommand)]
    pub what: Option<VolumesCommand>,
}

#[derive(Debug, Subcommand)]
pub enum VolumesCommand {
    /// List them [default]
    Ls {
        /// Only the names of those that no sandbox uses, one per line
        #[arg(short = 'q', long)]
        quiet: bool,
    },
    /// Remove volumes that no sandbox uses, with all their files
    Rm {
        /// Which ones: the ids of the sandboxes that had them, or the names that they were shared by
        #[arg(required = true, value_name = "VOLUME")]
        ids: Vec<String>,
    },
}

pub async fn volumes(session: &Session, args: &VolumesArgs) -> Result<i32> {
    match &args.what {
        Some(VolumesCommand::Rm { ids }) => {
            super::each(session, ids, async |id| {
                session.client.remove_volume(id).await?;
                match session.json {
                    true => output::json_line(&serde_json::json!({ "id": id, "removed": true })),
                    false => output::line(id),
                }
            })
            .await
        }
        Some(VolumesCommand::Ls { quiet }) => list(session, *quiet).await,
        None => list(session, false).await,
    }
}

async fn list(session: &Session, quiet: bool) -> Result<i32> {
    let found = session.client.volumes().await?;
    if session.json {
        output::json(&found)?;
    } else if quiet {
        let free = found.items.iter().filter(|volume| !volume.in_use);
        for volume in free {
            output::line(output::printable(&volume.name))?;
        }
    } else {
        table(&found.items).print()?;
    }
    Ok(0)
}

fn table(all: &[VolumeInfo]) -> Table {
    let mut table = Table::new(&["VOLUME", "IN USE", "SIZE", "PLACE"]);
    for volume in all {
        let in_use = if volume.in_use { "yes" } else { "no" };
        let size = format!("{:.1} MiB", volume.bytes as f64 / (1 << 20) as f64);
        table.row(vec![volume.name.clone(), in_use.to_owned(), size, volume.place.clone()]);
    }
    table
}
