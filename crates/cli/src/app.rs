//! The composition root: everything that a command needs, wired from the settings.

use crate::{
    adopt,
    claims::FileClaims,
    commands::db,
    config::{Settings, machine, templates},
};
use anyhow::{Context, Result, anyhow};
use seawall_api::SandboxId;
use seawall_core::{
    Providers, Sandboxes,
    accounts::AccountCatalog,
    keys::{self, Keys},
    ports::{Claims, Provider, SystemClock, store::Stores},
    rows::RowRecords,
};
use seawall_providers::{
    local::LocalProvider,
    native::{NativeProvider, NativeSettings},
};
use seawall_stores::SqlStore;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

pub struct App {
    pub settings: Settings,
    pub sandboxes: Sandboxes,
    pub stores: Stores,
    pub claims: Arc<dyn Claims>,
    /// The name of this data folder.
    pub node: String,
    pub config: Option<PathBuf>,
    /// Programs read the output.
    pub json: bool,
}

impl App {
    pub async fn open(settings: Settings, json: bool) -> Result<App> {
        let data = &settings.data;
        make_data(data).with_context(|| unusable(data))?;
        let claims: Arc<dyn Claims> = Arc::new(FileClaims::open(data).with_context(|| unusable(data))?);
        let node = node(data).with_context(|| unusable(data))?;
        let stores = SqlStore::new(db::open(&settings).await?).stores();
        let records = RowRecords::new(stores.sandboxes.clone(), claims.clone(), Some(node.clone()));
        adopt::adopt(data, &records).await?;
        let local = LocalProvider::open(data).with_context(|| unusable(data))?;
        let native =
            NativeProvider::open(data, native_settings(&settings)?).with_context(|| unusable(data))?;
        // `mock` is for tests and is not offered here.
        let all: Vec<Arc<dyn Provider>> = vec![Arc::new(native), Arc::new(local)];
        let providers = Providers::new(&settings.provider, all)?;
        let sandboxes = Sandboxes::new(providers, Arc::new(records), Arc::new(SystemClock));
        let config = settings.file.clone();
        Ok(App { settings, sandboxes, stores, claims, node, config, json })
    }
}

impl App {
    /// The accounts of the database, with the limits of this machine where they have none of their own.
    pub fn catalog(&self) -> AccountCatalog {
        let limits = self.settings.accounts.limits(&machine(&self.settings.data));
        AccountCatalog::new(self.stores.accounts.clone(), limits)
    }

    /// Keys of accounts. Tokens are signed with what is in the data folder.
    pub fn keys(&self) -> Result<Keys> {
        let data = &self.settings.data;
        let secret = secret(data).with_context(|| unusable(data))?;
        Ok(Keys::new(self.stores.accounts.clone(), Arc::new(SystemClock), secret))
    }
}

/// What signs tokens. Made once, and readable by its user alone.
fn secret(data: &Path) -> Result<[u8; 32]> {
    let file = data.join("secret");
    let read = || -> Result<Option<[u8; 32]>> {
        match std::fs::read(&file) {
            Ok(bytes) => {
                let bytes = bytes.try_into();
                Ok(Some(bytes.map_err(|_| anyhow!("{} is damaged: remove it", file.display()))?))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    };
    if let Some(secret) = read()? {
        return Ok(secret);
    }
    private_file(data, "secret", &keys::random()?)?;
    read()?.ok_or_else(|| anyhow!("{} is gone again", file.display()))
}

/// Readable by its user alone, whole or not at all. Of two at once the first counts.
pub fn private_file(data: &Path, name: &str, body: &[u8]) -> std::io::Result<()> {
    use std::{io::Write, os::unix::fs::OpenOptionsExt};
    let draft = data.join(format!(".{name}-{}", SandboxId::generate()));
    let mut file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&draft)?;
    let written = file.write_all(body).and_then(|()| file.sync_all());
    let linked = written.and_then(|()| std::fs::hard_link(&draft, data.join(name)));
    std::fs::remove_file(&draft)?;
    match linked {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Others get through to what is theirs and list nothing; what is in it protects itself.
fn make_data(data: &std::path::Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o711).create(data)
}

/// The folders with agents' programs may be mounted: who names them is the operator.
fn native_settings(settings: &Settings) -> Result<NativeSettings> {
    let mut native = settings.native.clone();
    for template in templates(&settings.agents, &settings.data)?.all() {
        let named = template.agent.program.iter().cloned();
        let mounts = template.sandbox.mounts.iter().map(|mount| PathBuf::from(&mount.source));
        native.mounts.extend(named.chain(mounts).map(|path| path.canonicalize().unwrap_or(path)));
    }
    Ok(native)
}

/// The name of this data folder among all that share a database. Made once.
fn node(data: &Path) -> std::io::Result<String> {
    let file = data.join("node");
    let read = || std::fs::read_to_string(&file).map(|text| text.trim().to_owned());
    match read() {
        Ok(node) if !node.is_empty() => return Ok(node),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let draft = data.join(format!(".node-{}", SandboxId::generate()));
    std::fs::write(&draft, SandboxId::generate().to_string())?;
    // Of two at once the first counts.
    let linked = std::fs::hard_link(&draft, &file);
    std::fs::remove_file(&draft)?;
    match linked {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
        _ => read(),
    }
}

fn unusable(data: &std::path::Path) -> String {
    format!(
        "cannot use the data folder {}: see `seawall doctor`, or choose another with --data",
        data.display()
    )
}
