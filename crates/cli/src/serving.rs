//! The life of a server: it owns a data folder, listens, does its rounds, and ends in order.
//!
//! 1. [`Ownership`] is taken before anything else, and lasts as long as the process ([`owned`]).
//! 2. The local socket is bound before the database is opened: commands that come meanwhile wait in its backlog.
//! 3. `server.json` says who the server is ([`info`]); then it answers.
//! 4. At the end it refuses new clients, answers what is in flight, and leaves turns to the next server.

pub mod environment;
pub mod epoch;
pub mod info;
pub mod log;
pub mod owned;
mod rounds;
pub mod services;
mod single;
mod staged;

pub use owned::{Ownership, StartLock};

use crate::{
    app::{App, private_file},
    config::Settings,
    output,
};
use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use info::{Described, Stamp, own_environment};
use jiff::Timestamp;
use rounds::Rounds;
use seawall_api::{
    ProcessId,
    account::KeyScope,
    http::{CreateKey, DatabaseCheck, ServerInfo, ServerKind},
};
use seawall_core::{Services, ports::store::Database};
use seawall_server::{Instance, Listeners, Server, Stop, local::LocalSocket};
use seawall_stores::{Db, sql};
use single::Single;
use std::{collections::BTreeSet, net::SocketAddr, path::Path, sync::Arc, time::Duration};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// The file with the first key, in the data folder: a command that names a server of this machine finds it there.
pub const KEY_FILE: &str = "key";
/// How long a start waits for the first sweep.
const CLEAN_UP: Duration = Duration::from_secs(5);
/// How often the server looks whether its data folder is still there.
const LOOK_AT_FOLDER: Duration = Duration::from_secs(60);

/// How a server is started.
#[derive(Debug)]
pub struct How {
    pub kind: ServerKind,
    /// The address on the network. `None` means the local socket only.
    pub network: Option<SocketAddr>,
    /// Ends the server.
    pub stop: Stop,
    /// Released when the socket is bound. `None` if the starting process holds the lock.
    pub start: Option<StartLock>,
}

/// Runs a server until it is asked to stop, is idle, or fails. `ready` is called when it answers.
pub async fn serve(
    settings: Settings,
    owned: &Ownership,
    mut how: How,
    ready: impl FnOnce(&ServerInfo),
) -> Result<()> {
    raise_open_files();
    let data = settings.data.clone();
    let mut described = describe(&settings, &how);
    described.write(&data)?;
    let local = LocalSocket::bind(&data)
        .with_context(|| format!("cannot listen on the socket in {}", data.display()))?;
    drop(how.start.take());
    let network = match how.network {
        Some(address) => Some(listen(address).await?),
        None => None,
    };
    let app = App::open(settings, owned).await?;
    let single = Single::take(app.stores.leases.clone(), &app.node).await?;
    services::account(&app).await?;
    app.sandboxes.providers().choose().await;
    let services = services::services(&app).await?;
    clean_up(&app).await;
    // No other server runs calls: this is the one server of the database.
    services.stores.idempotency.close_all(&seawall_server::cut_off()).await?;
    if let Some(address) = how.network {
        prepare_keys(&app, &services, address).await?;
    }
    complete(&mut described, &app, &local, network.as_ref())?;
    described.write(&data)?;
    let server = server(&app, &services, &described.server, &how)?;
    let stop = CancellationToken::new();
    let rounds = Rounds {
        sandboxes: app.sandboxes.clone(),
        services: services.clone(),
        settings: app.settings.clone(),
        audit: audit_file(&app.settings),
    };
    let rounds = tokio::spawn(rounds.run(stop.clone()));
    tracing::info!(addresses = ?described.server.addresses, node = app.node, "serving");
    ready(&described.server);
    let listeners = Listeners { network, local: Some(local) };
    let ended = attend(server, listeners, &services, &how.stop, &single, owned).await;
    stop.cancel();
    let _ = rounds.await;
    app.sandboxes.flush().await;
    single.give_back().await;
    Described::remove(&data);
    tracing::info!("the server has ended");
    ended
}

/// Completes creations and removals that a crash interrupted, before the first request. Slow providers are left to the
/// rounds.
async fn clean_up(app: &App) {
    match tokio::time::timeout(CLEAN_UP, app.sandboxes.sweep()).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::warn!(error = %error.chain(), "the first sweep failed"),
        Err(_) => tracing::warn!("the first sweep takes long: it goes on in the background"),
    }
}

fn describe(settings: &Settings, how: &How) -> Described {
    let config = settings.file.as_ref();
    Described {
        server: ServerInfo {
            instance: ProcessId::generate().to_string(),
            version: crate::version(),
            kind: how.kind,
            pid: std::process::id(),
            started_at: Timestamp::now(),
            data: settings.data.display().to_string(),
            addresses: Vec::new(),
            config: config.map(|file| file.display().to_string()),
            environment: own_environment(&[]),
        },
        is_ready: false,
        named: Vec::new(),
        stamp: config.and_then(|file| Stamp::of(file)),
    }
}

/// Fills in the fields that need open parts.
fn complete(
    described: &mut Described,
    app: &App,
    local: &LocalSocket,
    network: Option<&TcpListener>,
) -> Result<()> {
    described.named = environment::named_by(&app.templates);
    described.server.environment = own_environment(&described.named);
    described.server.addresses.push(format!("unix:{}", local.path().display()));
    if let Some(network) = network {
        let scheme = if app.settings.server.options.tls.is_some() { "https" } else { "http" };
        described.server.addresses.push(format!("{scheme}://{}", network.local_addr()?));
    }
    described.is_ready = true;
    Ok(())
}

fn audit_file(settings: &Settings) -> std::path::PathBuf {
    settings.server.options.audit.clone().unwrap_or_else(|| settings.data.join("audit.log"))
}

fn server(app: &App, services: &Services, info: &ServerInfo, how: &How) -> Result<Server> {
    let mut options = app.settings.server.options.clone();
    options.audit = Some(audit_file(&app.settings));
    options.keep_audit = app.settings.retention.audit.clone();
    options.data = Some(app.settings.data.clone());
    let database: Arc<dyn Database> = Arc::new(Maintenance(app.database.clone()));
    let instance = Instance { info: info.clone(), stop: how.stop.clone(), database: Some(database) };
    let server = Server::new(services.clone(), options)?.with_instance(instance);
    Ok(match how.kind {
        ServerKind::Background => server.until_idle(app.settings.server.background_idle),
        ServerKind::Foreground | ServerKind::Hosted => server,
    })
}

/// Serves until the end, and watches for every event that ends a server.
async fn attend(
    server: Server,
    listeners: Listeners,
    services: &Services,
    stop: &Stop,
    single: &Single,
    owned: &Ownership,
) -> Result<()> {
    let ending = CancellationToken::new();
    let ended = ending.clone();
    let grace = server.grace();
    let listening = server.run(listeners, async move { ended.cancelled().await });
    tokio::pin!(listening);
    tokio::select! {
        done = &mut listening => return Ok(done?),
        () = single.lost() => {
            ending.cancel();
            bail!("another server has taken this database over: this one has stopped; only one may serve a database");
        }
        () = loses_folder(owned) => {
            tracing::error!("the data folder was deleted or replaced: this server ends");
            ending.cancel();
        }
        () = stop.asked() => ending.cancel(),
    }
    // The next server continues the running turns. A replacing server does so at once.
    let turns = async {
        if !stop.is_replaced() {
            let _ = tokio::time::timeout(grace, services.turns.idle()).await;
        }
    };
    let ending = async {
        let (ended, ()) = tokio::join!(&mut listening, turns);
        ended
    };
    tokio::select! {
        ended = ending => Ok(ended?),
        // A second request to stop means not to wait.
        () = stop.asked_again() => Ok(()),
    }
}

async fn loses_folder(owned: &Ownership) {
    while owned.holds() {
        tokio::time::sleep(LOOK_AT_FOLDER).await;
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener> {
    let bound = TcpListener::bind(address).await;
    bound.with_context(|| format!("cannot listen on {address}: choose another with --listen"))
}

/// A descriptor for each connection, and some for each sandbox.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    // A refused limit leaves the old one in force.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum });
}

/// The first start on the network makes a key. A server that other machines can reach must have one already.
async fn prepare_keys(app: &App, services: &Services, listen: SocketAddr) -> Result<()> {
    let account = services::account(app).await?;
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
    // The key of an earlier database is useless.
    match std::fs::remove_file(&file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    private_file(&app.settings.data, KEY_FILE, made.secret.as_bytes())
        .with_context(|| format!("cannot write {}", file.display()))?;
    output::note(format!("made a first key; it is in {}", file.display()));
    Ok(())
}

/// The maintenance of a database, for operators.
struct Maintenance(Db);

#[async_trait]
impl Database for Maintenance {
    async fn check(&self) -> seawall_core::Result<DatabaseCheck> {
        Ok(checked(sql::check(&self.0).await?))
    }

    async fn backup(&self, to: &Path) -> seawall_core::Result<DatabaseCheck> {
        Ok(checked(sql::backup(&self.0, to).await?))
    }
}

pub fn checked(found: sql::Check) -> DatabaseCheck {
    let sql::Check { conversations, turns, wrong } = found;
    DatabaseCheck { ok: wrong.is_empty(), conversations, turns, wrong }
}
