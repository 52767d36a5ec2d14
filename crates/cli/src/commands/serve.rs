//! `seawall serve`: the server on the network, and the server that commands start in the background.

use crate::{
    app::prepare_data,
    client_of,
    config::Settings,
    output,
    serving::{self, How, Ownership, StartLock, info::Described},
    signals::{SIGHUP, Signals},
    starting,
};
use anyhow::{Result, bail};
use clap::Args;
use seawall_api::http::{ServerInfo, ServerKind, StopServer};
use seawall_server::Stop;
use std::{fs::File, io::Write, net::SocketAddr, os::fd::OwnedFd, path::Path, time::Duration};

/// How long a background server may take to give the data folder back.
const HANDOVER: Duration = Duration::from_secs(60);
/// How long `serve` waits for another command that is starting a server.
const START: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  seawall serve                                    on 127.0.0.1:7777; the first start makes a key
  seawall serve --listen 127.0.0.1:0 --print-url   on a port that the kernel chooses
  curl -H \"Authorization: Bearer $(cat DATA/key)\" http://127.0.0.1:7777/sandboxes

A server that a command started in the background is replaced; its sandboxes and turns continue.
/docs is the API to browse, /openapi.json the same for programs.")]
pub struct ServeArgs {
    /// Where to listen [default: 127.0.0.1:7777, or seawall.toml]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,

    /// Print the address on stdout as soon as the service answers there
    #[arg(long)]
    pub print_url: bool,

    /// Started by a command: only the local socket, and an end when idle
    #[arg(long, hide = true)]
    pub background: bool,
}

/// The server with its addresses on the network, until a signal.
pub async fn serve(settings: Settings, args: &ServeArgs) -> Result<i32> {
    prepare_data(&settings.data)?;
    let mut signals = Signals::listen()?;
    let start = StartLock::take(&settings.data, START).await?;
    let owned = take(&settings.data, &start).await?;
    let stop = Stop::default();
    let network = Some(args.listen.unwrap_or(settings.server.listen));
    let how = How { kind: ServerKind::Foreground, network, stop: stop.clone(), start: Some(start) };
    let print_url = args.print_url;
    let serving = serving::serve(settings, &owned, how, |server| announce(server, print_url));
    tokio::pin!(serving);
    loop {
        tokio::select! {
            ended = &mut serving => return ended.map(|()| 0),
            _ = signals.next() => {
                output::note("going down; turns that run get a moment, and continue after the next start".to_owned());
                stop.ask(false);
            }
        }
    }
}

fn announce(server: &ServerInfo, print_url: bool) {
    for address in server.addresses.iter().filter(|address| address.starts_with("http")) {
        output::note(format!("seawall serves {address} (API: {address}/docs)"));
        if print_url {
            // The reader of stdout may be gone. The server does not need it.
            let _ = output::line(address);
        }
    }
}

/// Takes ownership of the folder. A background server is asked to give it up.
async fn take(data: &Path, _start: &StartLock) -> Result<Ownership> {
    if let Some(owned) = Ownership::take(data).await? {
        return Ok(owned);
    }
    if starting::listens(data)? {
        let client = client_of(data)?;
        let server = client.server_status().await?.server;
        if server.kind == ServerKind::Foreground {
            bail!("{}", refusal(data, &server));
        }
        output::note(format!("taking over from the server in the background (pid {})", server.pid));
        let ask = StopServer { instance: Some(server.instance), replaced: true };
        client.stop_server(&ask).await?;
    }
    // An owner without a socket is starting or ending.
    match Ownership::take_within(data, HANDOVER).await? {
        Some(owned) => Ok(owned),
        None => match Described::read(data) {
            Some(found) => bail!("{}", refusal(data, &found.server)),
            None => bail!("another process uses {}, and does not give it back", data.display()),
        },
    }
}

fn refusal(data: &Path, server: &ServerInfo) -> String {
    format!(
        "another `seawall serve` runs on {} (pid {}, {}): stop it first, or choose another folder with --data",
        data.display(),
        server.pid,
        server.addresses.join(", ")
    )
}

/// The pipe to the command that started this server.
pub struct Starter(OwnedFd);

impl Starter {
    /// One line. The command may have been interrupted, which is no concern of the server.
    pub fn tell(self, line: &str) {
        let _ = File::from(self.0).write_all(format!("{}\n", line.replace('\n', " ")).as_bytes());
    }
}

/// Leaves the session, the folder and the descriptors of the command that started this process. Before any thread exists.
pub fn detach() -> Result<Starter> {
    seawall_jail::process::close_inherited()?;
    // Fails if the process already leads a session.
    let _ = rustix::process::setsid();
    // Directories of sandboxes must be readable by other users. Private files have explicit modes.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let starter = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    rustix::stdio::dup2_stdout(File::options().write(true).open("/dev/null")?)?;
    Ok(Starter(starter))
}

/// The server that a command started. It ends by itself when it is idle.
pub async fn background(settings: Settings, starter: Starter) -> Result<i32> {
    let owned = match Ownership::take(&settings.data).await {
        Ok(Some(owned)) => owned,
        Ok(None) => {
            starter.tell(&format!("{}another process owns the data folder", starting::FAILED));
            return Ok(0);
        }
        Err(error) => return failed(starter, error),
    };
    let stop = Stop::default();
    let how = How { kind: ServerKind::Background, network: None, stop: stop.clone(), start: None };
    let mut starter = Some(starter);
    let mut signals = Signals::listen()?;
    let done = {
        let serving = serving::serve(settings, &owned, how, |_| {
            if let Some(starter) = starter.take() {
                starter.tell(starting::READY);
            }
        });
        tokio::pin!(serving);
        loop {
            tokio::select! {
                ended = &mut serving => break ended,
                signal = signals.next() => match signal {
                    // The session has no terminal, so a hang-up means nothing.
                    SIGHUP => {}
                    _ => stop.ask(false),
                },
            }
        }
    };
    match (done, starter) {
        (Ok(()), _) => Ok(0),
        (Err(error), Some(starter)) => failed(starter, error),
        (Err(error), None) => Err(error),
    }
}

fn failed(starter: Starter, error: anyhow::Error) -> Result<i32> {
    starter.tell(&format!("{}{}", starting::FAILED, crate::exit::message_of(&error)));
    Err(error)
}

/// Tells the command that started this server why its settings cannot be used.
pub fn failed_early(starter: Option<Starter>, error: anyhow::Error) -> Result<i32> {
    match starter {
        Some(starter) => failed(starter, error),
        None => Err(error),
    }
}
