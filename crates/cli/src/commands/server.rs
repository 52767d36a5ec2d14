//! `seawall server`: the server of the data folder. Only `restart` starts one.

use crate::{
    app::prepare_data,
    client_of,
    config::Settings,
    output,
    serving::{Ownership, StartLock, info::Described, log::LOG},
    starting::{self, OnDemand},
};
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use seawall_api::http::{ServerKind, ServerStatus, StopServer};
use seawall_client::Client;
use std::{os::unix::fs::FileExt, path::Path, time::Duration};
use tokio::time::{sleep, timeout};

/// How long a server may take to answer a question about itself.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it may take to end: the grace of turns and requests, and a moment.
const END: Duration = Duration::from_secs(90);
const LOOK: Duration = Duration::from_millis(200);

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  seawall server status       which server runs on the data folder, and what it does
  seawall server stop         sandboxes run on; the next command starts a server, which continues turns
  seawall server restart      with the settings of now
  seawall server logs -f      what the server in the background says")]
pub struct ServerArgs {
    #[command(subcommand)]
    pub what: ServerCommand,
}

#[derive(Debug, Subcommand)]
pub enum ServerCommand {
    /// Show the server that runs, if one does
    Status,
    /// Stop the server in the background; sandboxes run on
    Stop,
    /// Start the server in the background again, with the settings of now
    Restart,
    /// Show the log of the server in the background
    Logs {
        /// Stay and print new lines
        #[arg(short = 'f', long)]
        follow: bool,
    },
}

pub async fn server(settings: &Settings, args: &ServerArgs, json: bool) -> Result<i32> {
    match args.what {
        ServerCommand::Status => status(settings, json).await,
        ServerCommand::Stop => {
            let was_running = stop(settings).await?;
            said(json, if was_running { "stopped" } else { "no server runs" })
        }
        ServerCommand::Restart => {
            prepare_data(&settings.data)?;
            stop(settings).await?;
            if let Some(mut start) = StartLock::try_take(&settings.data)? {
                start.set_failures("");
            }
            OnDemand::new(settings).ensure().await?;
            said(json, "restarted")
        }
        ServerCommand::Logs { follow } => logs(&settings.data, follow).await,
    }
}

fn said(json: bool, what: &str) -> Result<i32> {
    match json {
        true => output::json(&serde_json::json!({ "server": what }))?,
        false => output::line(what)?,
    }
    Ok(0)
}

/// The status of the server that listens. `None` where none does.
async fn running(data: &Path) -> Result<Option<(Client, ServerStatus)>> {
    if !data.exists() || !starting::listens(data)? {
        return Ok(None);
    }
    let client = client_of(data)?;
    let status = timeout(PATIENCE, client.server_status()).await.map_err(|_| silent(data))?;
    match status {
        Ok(status) => Ok(Some((client, status))),
        // The server has ended since the last check.
        Err(_) if !starting::listens(data)? => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn silent(data: &Path) -> anyhow::Error {
    let pid = Described::read(data).map_or("unknown".to_owned(), |found| found.server.pid.to_string());
    anyhow::anyhow!(
        "the server of {} (pid {pid}) does not answer within {} s: it is starting, or stuck; look at `seawall server logs`",
        data.display(),
        PATIENCE.as_secs()
    )
}

async fn status(settings: &Settings, json: bool) -> Result<i32> {
    let found = running(&settings.data).await?;
    if json {
        output::json(&found.map(|(_, status)| status))?;
        return Ok(0);
    }
    let Some((_, status)) = found else {
        output::line(format!("no server runs on {}", settings.data.display()))?;
        return Ok(0);
    };
    let server = &status.server;
    let kind = match server.kind {
        ServerKind::Foreground => "in the foreground (`seawall serve`)",
        ServerKind::Background => "in the background",
        ServerKind::Hosted => "inside another command",
    };
    output::line(format!(
        "pid {}, version {}, {kind}, since {:.0}",
        server.pid, server.version, server.started_at
    ))?;
    output::line(format!("data    {}", server.data))?;
    output::line(format!("config  {}", server.config.as_deref().unwrap_or("none")))?;
    for address in &server.addresses {
        output::line(format!("address {address}"))?;
    }
    output::line(format!(
        "work    {} sandboxes run, {} turns, {} connections",
        status.running_sandboxes,
        status.running_turns,
        status.connections.saturating_sub(1)
    ))?;
    Ok(0)
}

/// Stops the server and waits for its end. Returns whether a server was running.
async fn stop(settings: &Settings) -> Result<bool> {
    let data = &settings.data;
    let Some((client, status)) = running(data).await? else { return Ok(false) };
    let server = status.server;
    if server.kind == ServerKind::Foreground {
        bail!(
            "the server of {} (pid {}) runs in the foreground: stop it where it was started, with Ctrl-C or systemctl",
            data.display(),
            server.pid
        );
    }
    let ask = StopServer { instance: Some(server.instance), replaced: true };
    client.stop_server(&ask).await?;
    // The kernel gives the lock back when the process is gone.
    let _start = StartLock::take(data, END).await?;
    match Ownership::take_within(data, END).await? {
        Some(_) => Ok(true),
        None => bail!("the server (pid {}) does not end: look at `seawall server logs`", server.pid),
    }
}

async fn logs(data: &Path, follow: bool) -> Result<i32> {
    let path = data.join(LOG);
    let mut offset = 0;
    loop {
        match std::fs::File::open(&path) {
            Ok(file) => {
                // A shorter file is a new file.
                if file.metadata()?.len() < offset {
                    offset = 0;
                }
                offset += show(&file, offset)?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                if !follow {
                    output::note(format!("no server in the background has run on {}", data.display()));
                }
            }
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
        if !follow {
            return Ok(0);
        }
        sleep(LOOK).await;
    }
}

/// Prints the file from an offset on and returns the number of bytes.
fn show(file: &std::fs::File, offset: u64) -> Result<u64> {
    let mut shown = 0;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = file.read_at(&mut buffer, offset + shown)?;
        if count == 0 {
            return Ok(shown);
        }
        output::raw(output::printable_log(&String::from_utf8_lossy(&buffer[..count])).as_bytes())?;
        shown += count as u64;
    }
}
