//! `seawall volumes`: the data volumes, also of sandboxes that are gone.

use crate::{
    app::App,
    output::{self, Table},
};
use anyhow::Result;
use clap::{Args, Subcommand};
use seawall_core::ports::VolumeInfo;

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

pub async fn volumes(app: &App, args: &VolumesArgs) -> Result<i32> {
    // What a crash left half removed is no volume to keep.
    if let Err(error) = app.sandboxes.sweep().await {
        output::note(format!("cleaning up: {}", error.chain()));
    }
    match &args.what {
        Some(VolumesCommand::Rm { ids }) => {
            super::each(app, ids, async |id| {
                app.sandboxes.remove_volume(id).await?;
                if app.json { output::json(&serde_json::json!({ "removed": id })) } else { output::line(id) }
            })
            .await
        }
        Some(VolumesCommand::Ls { quiet }) => list(app, *quiet).await,
        None => list(app, false).await,
    }
}

async fn list(app: &App, quiet: bool) -> Result<i32> {
    let all = app.sandboxes.volumes().await?;
    if app.json {
        output::json(&all)?;
    } else if quiet {
        let free = all.iter().filter(|volume| !volume.in_use);
        for volume in free {
            output::line(output::printable(&volume.name))?;
        }
    } else {
        table(&all).print()?;
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
