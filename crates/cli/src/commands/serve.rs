//! `seawall serve`: the product on the network.

mod rounds;
mod single;
mod staged;

use crate::{
    app::{App, private_file},
    output,
    signals::Signals,
    turns,
};
use anyhow::{Context, Result, bail};
use clap::Args;
use rounds::Rounds;
use seawall_api::{account::KeyScope, http::CreateKey};
use seawall_core::Services;
use seawall_server::Server;
use single::Single;
use std::{collections::BTreeSet, net::SocketAddr};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// The file with the first key, in the data folder: the command line on this machine finds it there.
pub const KEY_FILE: &str = "key";

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  seawall serve                                    on 127.0.0.1:7777; the first start makes a key
  seawall serve --listen 127.0.0.1:0 --print-url   on a port that the kernel chooses
  curl -H \"Authorization: Bearer $(cat DATA/key)\" http://127.0.0.1:7777/sandboxes

/docs is the API to browse, /openapi.json the same for programs.")]
pub struct ServeArgs {
    /// Where to listen [default: 127.0.0.1:7777, or seawall.toml]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,

    /// Print the address on stdout as soon as the service answers there
    #[arg(long)]
    pub print_url: bool,
}

pub async fn serve(app: &App, args: &ServeArgs) -> Result<i32> {
    raise_open_files();
    let mut signals = Signals::listen()?;
    turns::account(app).await?;
    let listen = args.listen.unwrap_or(app.settings.server.listen);
    let _alone = alone(app)?;
    let single = Single::take(app.stores.leases.clone(), &app.node).await?;
    app.sandboxes.providers().choose().await;
    let services = turns::services(app).await?;
    // No other server runs calls: this is the one server of the database.
    services.stores.idempotency.close_all(&seawall_server::cut_off()).await?;
    prepare_keys(app, &services, listen).await?;
    let listener = TcpListener::bind(listen)
        .await
        .with_context(|| format!("cannot listen on {listen}: choose another with --listen"))?;
    let address = listener.local_addr()?;
    let mut options = app.settings.server.options.clone();
    let audit = options.audit.unwrap_or_else(|| app.settings.data.join("audit.log"));
    options.audit = Some(audit.clone());
    options.keep_audit = app.settings.retention.audit.clone();
    options.data = Some(app.settings.data.clone());
    let grace = options.grace;
    let scheme = if options.tls.is_some() { "https" } else { "http" };
    let server = Server::new(services.clone(), options)?;
    let stop = CancellationToken::new();
    let rounds = Rounds {
        sandboxes: app.sandboxes.clone(),
        services: services.clone(),
        settings: app.settings.clone(),
        audit,
    };
    let rounds = tokio::spawn(rounds.run(stop.clone()));
    tracing::info!(%address, node = app.node, "serving");
    output::note(format!("seawall serves {scheme}://{address} (API: {scheme}://{address}/docs)"));
    if args.print_url {
        output::line(format!("{scheme}://{address}"))?;
    }
    let stopped = stop.clone();
    let listening = server.run(listener, async move { stopped.cancelled().await });
    tokio::pin!(listening);
    tokio::select! {
        ended = &mut listening => ended?,
        () = single.lost() => {
            stop.cancel();
            bail!("another server has taken this database over: this one has stopped; only one may serve a database");
        }
        _ = signals.next() => {
            output::note("going down; turns that run get a moment, and go on after the next start".to_owned());
            stop.cancel();
            let ending = async {
                let (ended, _) = tokio::join!(&mut listening, tokio::time::timeout(grace, services.turns.idle()));
                ended
            };
            tokio::select! {
                ended = ending => ended?,
                // Whoever asks twice means it.
                _ = signals.next() => {}
            }
        }
    }
    stop.cancel();
    let _ = rounds.await;
    single.give_back().await;
    Ok(0)
}

/// One server on a data folder. The lock goes with the process.
fn alone(app: &App) -> Result<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    let path = app.settings.data.join("serve.lock");
    let mut options = std::fs::File::options();
    let file = options.create(true).truncate(false).write(true).mode(0o600).open(&path)?;
    // A program that a server was about to execute when it was killed shares its lock for a moment.
    let mut locked = file.try_lock();
    for _ in 0..100 {
        if !matches!(locked, Err(std::fs::TryLockError::WouldBlock)) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        locked = file.try_lock();
    }
    match locked {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => bail!(
            "another `seawall serve` runs on {}: stop it first, or choose another folder with --data",
            app.settings.data.display()
        ),
        Err(std::fs::TryLockError::Error(error)) => Err(error).context("cannot lock the data folder"),
    }
}

/// A descriptor for each connection, and some for each sandbox.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    // Where it is refused, the old limit does.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum });
}

/// The first start makes a key. Who listens to others must have one already.
async fn prepare_keys(app: &App, services: &Services, listen: SocketAddr) -> Result<()> {
    let account = turns::account(app).await?;
    let now = services.clock.now();
    let keys = services.keys.list(account).await?;
    let good = |key: &seawall_api::account::ApiKey| {
        key.scopes.contains(&KeyScope::Admin)
            && key.revoked_at.is_none_or(|at| at > now)
            && key.expires_at.is_none_or(|at| at > now)
    };
    if keys.iter().any(good) {
        return Ok(());
    }
    if !listen.ip().is_loopback() {
        bail!(
            "{listen} can be reached from other machines, and there is no key with the scope admin yet: make one with \
             `seawall keys create --name NAME --scope admin`, or start once on 127.0.0.1"
        );
    }
    let file = app.settings.data.join(KEY_FILE);
    let ask =
        CreateKey { name: "first".to_owned(), scopes: BTreeSet::from([KeyScope::Admin]), expires_at: None };
    let made = services.keys.create(account, &ask).await?;
    // One of a former life is worth nothing any more.
    match std::fs::remove_file(&file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    private_file(&app.settings.data, KEY_FILE, made.secret.as_bytes())
        .with_context(|| format!("cannot write {}", file.display()))?;
    output::note(format!("made a first key; it is in {}", file.display()));
    Ok(())
}
