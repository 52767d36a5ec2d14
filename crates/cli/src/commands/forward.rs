//! `seawall forward`: a port of a sandbox, on this machine, until Ctrl-C.

use super::completions::sandboxes;
use crate::{output, session::Session, signals::Signals};
use anyhow::{Context, Result};
use clap::Args;
use seawall_core::tunnels;
use std::net::{Ipv4Addr, SocketAddr};

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  seawall forward demo 8000 --local 8000    then open http://127.0.0.1:8000"
)]
pub struct ForwardArgs {
    /// Of which sandbox: an id or a name
    #[arg(add = sandboxes())]
    pub id: String,

    /// The port in the sandbox
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,

    /// The port on this machine [default: any free one]
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    pub local: u16,
}

pub async fn forward(session: &Session, args: &ForwardArgs) -> Result<i32> {
    let mut signals = Signals::listen()?;
    let (id, guest) = session.guest(&args.id).await?;
    // Loopback only: whoever wants more says so to a real proxy.
    let bind = SocketAddr::from((Ipv4Addr::LOCALHOST, args.local));
    let forward = tunnels::forward(guest, args.port, bind).await;
    let forward = forward.with_context(|| format!("cannot forward {bind}"))?;
    if session.json {
        output::json(&serde_json::json!({ "local": forward.local, "port": args.port }))?;
    } else {
        output::line(forward.local)?;
        output::note(format!("leads to port {} of {}; Ctrl-C ends it", args.port, id));
    }
    signals.next().await;
    Ok(0)
}
