//! `seawall serve`: the product on the network.

use crate::{
    app::{App, private_file},
    output,
    signals::Signals,
    turns,
};
use anyhow::{Context, Result, bail};
use clap::Args;
use seawall_api::{account::KeyScope, http::CreateKey};
use seawall_core::{Services, delivery::Courier, reaper::Reaper};
use seawall_server::Server;
use std::{collections::BTreeSet, net::SocketAddr, time::Duration};
use tokio::{net::TcpListener, time::sleep};
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

/// Between rounds of each.
const REAP: Duration = Duration::from_secs(5);
const SWEEP: Duration = Duration::from_secs(60);
const CARRY: Duration = Duration::from_secs(2);
const TAKE_UP: Duration = Duration::from_secs(10);
const EXPIRE: Duration = Duration::from_secs(600);

pub async fn serve(app: &App, args: &ServeArgs) -> Result<i32> {
    raise_open_files();
    let mut signals = Signals::listen()?;
    turns::account(app).await?;
    let listen = args.listen.unwrap_or(app.settings.server.listen);
    let _alone = alone(app)?;
    let services = turns::services(app).await?;
    // Nobody is at anything any more: this is the one server here.
    services.stores.idempotency.close_all(&seawall_server::cut_off()).await?;
    prepare_keys(app, &services, listen).await?;
    let listener = TcpListener::bind(listen)
        .await
        .with_context(|| format!("cannot listen on {listen}: choose another with --listen"))?;
    let address = listener.local_addr()?;
    let mut options = app.settings.server.options.clone();
    options.audit = Some(options.audit.unwrap_or_else(|| app.settings.data.join("audit.log")));
    options.data = Some(app.settings.data.clone());
    let grace = options.grace;
    let scheme = if options.tls.is_some() { "https" } else { "http" };
    let server = Server::new(services.clone(), options)?;
    let stop = CancellationToken::new();
    let rounds =
        tokio::spawn(rounds(app.sandboxes.clone(), services.clone(), turns::courier(app)?, stop.clone()));
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
    Ok(0)
}

/// One server on a data folder. The lock goes with the process.
fn alone(app: &App) -> Result<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    let path = app.settings.data.join("serve.lock");
    let mut options = std::fs::File::options();
    let file = options.create(true).truncate(false).write(true).mode(0o600).open(&path)?;
    match file.try_lock() {
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

/// What has to be done again and again, each at its own pace.
async fn rounds(
    sandboxes: seawall_core::Sandboxes,
    services: Services,
    courier: Courier,
    stop: CancellationToken,
) {
    // What was lost meanwhile is marked before anything is done about it.
    if let Err(error) = sandboxes.sweep().await {
        tracing::warn!(error = %error.chain(), "the first sweep failed");
    }
    let reaper = Reaper::new(services.sandboxes.clone(), services.turns.clone());
    let (turns, idempotency) = (services.turns.clone(), services.stores.idempotency.clone());
    let sweeping = every(SWEEP, "sweep", &stop, || {
        let sandboxes = sandboxes.clone();
        async move { sandboxes.sweep().await.map(drop) }
    });
    let watcher = reaper.clone();
    let reaping = every(REAP, "reaper", &stop, || {
        let reaper = reaper.clone();
        async move { reaper.round().await.map(drop) }
    });
    let watching = every(REAP, "watch", &stop, || {
        let watcher = watcher.clone();
        async move { watcher.attend().await }
    });
    let carrying = every(CARRY, "courier", &stop, || {
        let courier = courier.clone();
        async move { courier.round().await.map(drop) }
    });
    let taking_up = every(TAKE_UP, "turns", &stop, || {
        let turns = turns.clone();
        async move { turns.take_up().await.map(drop) }
    });
    let expiring = every(EXPIRE, "idempotency", &stop, || {
        let idempotency = idempotency.clone();
        async move { idempotency.expire(10_000).await.map(drop) }
    });
    let deleting = every(SWEEP, "deletions", &stop, || {
        let services = services.clone();
        async move { services.finish_deletions().await }
    });
    tokio::join!(sweeping, reaping, watching, carrying, taking_up, expiring, deleting);
}

/// Now, and then each time after a pause, until the end. What fails is told, and tried again.
async fn every<F: Future<Output = seawall_core::Result<()>>>(
    pause: Duration,
    what: &str,
    stop: &CancellationToken,
    work: impl Fn() -> F,
) {
    loop {
        let round = async {
            if let Err(error) = work().await {
                tracing::warn!(round = what, error = %error.chain(), "a round failed");
            }
            sleep(pause).await;
        };
        tokio::select! {
            () = round => {}
            () = stop.cancelled() => return,
        }
    }
}
