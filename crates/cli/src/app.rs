//! The parts of a server, wired from the settings: the database, the providers, the records of sandboxes.

use crate::{
    commands::db,
    config::{Settings, templates},
    serving::{Ownership, epoch},
};
use anyhow::{Context, Result, anyhow};
use seawall_api::SandboxId;
use seawall_core::{
    Providers, Sandboxes,
    claims::HostClaims,
    host_paths, keys,
    ports::{Claims, Provider, SystemClock, store::Stores},
    rows::RowRecords,
    templates::Templates,
};
use seawall_providers::{
    docker::{DockerProvider, DockerSettings},
    local::LocalProvider,
    native::{MountRoot, Mounts, NativeProvider, NativeSettings},
};
use seawall_stores::{Db, SqlStore};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

pub struct App {
    pub settings: Settings,
    pub sandboxes: Sandboxes,
    pub stores: Stores,
    pub claims: Arc<dyn Claims>,
    pub templates: Templates,
    pub database: Db,
    /// The name of this data folder.
    pub node: String,
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App").field("data", &self.settings.data).finish_non_exhaustive()
    }
}

impl App {
    /// Opens the database and the providers of a data folder that this process owns.
    pub async fn open(settings: Settings, owned: &Ownership) -> Result<App> {
        let data = &settings.data;
        let claims: Arc<dyn Claims> = Arc::new(HostClaims::after_epoch(epoch::reserve(owned)?));
        let node = node(data).with_context(|| unusable(data))?;
        let database = db::open(&settings).await?;
        let stores = SqlStore::new(database.clone()).stores();
        let records = RowRecords::new(stores.sandboxes.clone(), claims.clone(), Some(node.clone()));
        let local = LocalProvider::open(data).with_context(|| unusable(data))?;
        let templates = templates(&settings.agents, data)?;
        let boxes = native_settings(&settings, &templates);
        hide_paths(&settings, &templates, &boxes.mounts);
        let docker = DockerSettings {
            defaults: boxes.defaults,
            mounts: boxes.mounts.clone(),
            ..settings.docker.clone()
        };
        let docker = DockerProvider::open(data, &node, docker).with_context(|| unusable(data))?;
        host_paths::hide_text(docker.address().to_owned());
        let native = NativeProvider::open(data, boxes).with_context(|| unusable(data))?;
        // `mock` is for tests and is not offered here.
        let all: Vec<Arc<dyn Provider>> = vec![Arc::new(native), Arc::new(docker), Arc::new(local)];
        let providers = match &settings.provider {
            Some(name) => Providers::new(name, all)?,
            None => Providers::undecided(all),
        };
        let sandboxes = Sandboxes::new(providers, Arc::new(records), Arc::new(SystemClock));
        Ok(App { settings, sandboxes, stores, claims, templates, database, node })
    }

    /// Returns the secret of the data folder that signs tokens.
    pub fn secret(&self) -> Result<[u8; 32]> {
        let data = &self.settings.data;
        secret(data).with_context(|| unusable(data))
    }
}

/// Makes a data folder, and refuses one that others could change.
pub fn prepare_data(data: &Path) -> Result<()> {
    make_data(data).and_then(|()| check_data(data)).with_context(|| unusable(data))
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

/// Readable by its user alone, in place of an older one.
pub fn private_file_over(data: &Path, name: &str, body: &[u8]) -> std::io::Result<()> {
    use std::{io::Write, os::unix::fs::OpenOptionsExt};
    let draft = data.join(format!(".{name}-{}", std::process::id()));
    let mut options = std::fs::File::options();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    file.write_all(body)?;
    std::fs::rename(&draft, data.join(name))
}

/// Others get through to what is theirs and list nothing; what is in it protects itself.
fn make_data(data: &std::path::Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o711).create(data)
}

/// Programs are run from the data folder, and what stands in it is believed: whoever else can write it is as good as the
/// user that runs this.
pub fn check_data(data: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let found = std::fs::metadata(data)?;
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let why = match found.mode() {
        _ if ![0, user].contains(&found.uid()) => format!("it belongs to another user ({})", found.uid()),
        mode if mode & 0o002 != 0 => "everybody can write it: chmod o-w".to_owned(),
        mode if mode & 0o020 != 0 && ![0, group].contains(&found.gid()) => {
            format!("the group {} can write it: chmod g-w", found.gid())
        }
        _ => return Ok(()),
    };
    Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, why))
}

/// What stays the operator's, whatever an error says.
fn hide_paths(settings: &Settings, templates: &Templates, mounts: &Mounts) {
    host_paths::hide(&settings.data);
    settings.file.iter().for_each(|file| host_paths::hide(file));
    mounts.programs.iter().chain(&mounts.kept).for_each(|folder| host_paths::hide(folder));
    mounts.furnished.iter().for_each(|root| host_paths::hide(&root.path));
    let buckets = templates.all().filter_map(|template| template.sync.bucket.as_ref());
    for bucket in buckets.chain(&settings.sync.bucket) {
        // As errors name it: a plain name is that of an S3 bucket, and would be found in other words.
        let is_address = bucket.contains(':') || bucket.starts_with('/');
        host_paths::hide_text(if is_address { bucket.clone() } else { format!("s3://{bucket}") });
    }
}

/// The folders that boxes may be given: those that requests may name, and those that templates bring along.
fn native_settings(settings: &Settings, templates: &Templates) -> NativeSettings {
    let granted = settings.mounts.iter();
    let mut mounts = Mounts {
        granted: granted
            .map(|grant| MountRoot { path: grant.path.clone(), writable: grant.writable })
            .collect(),
        kept: bucket_folder(settings.sync.bucket.as_deref()).collect(),
        ..Mounts::default()
    };
    for template in templates.all() {
        mounts.programs.extend(template.agent.program.clone());
        mounts.kept.extend(bucket_folder(template.sync.bucket.as_deref()));
        let named = template.sandbox.mounts.iter();
        mounts.furnished.extend(
            named.map(|mount| MountRoot { path: PathBuf::from(&mount.source), writable: mount.writable }),
        );
    }
    NativeSettings { mounts, ..settings.native.clone() }
}

/// The folder of this machine that a bucket is.
fn bucket_folder(address: Option<&str>) -> impl Iterator<Item = PathBuf> {
    address.and_then(seawall_sync::stores::folder).into_iter()
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown};

    #[test]
    fn a_data_folder_that_others_can_write_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let checked = |mode: u32| {
            std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            check_data(folder.path()).map_err(|error| error.to_string())
        };
        for mode in [0o700, 0o711, 0o755, 0o775] {
            assert_eq!(checked(mode), Ok(()), "{mode:o}");
        }
        for mode in [0o777, 0o703, 0o1777] {
            assert!(checked(mode).unwrap_err().contains("everybody can write it"), "{mode:o}");
        }
        if rustix::process::geteuid().is_root() {
            chown(folder.path(), Some(0), Some(4321)).unwrap();
            assert!(checked(0o775).unwrap_err().contains("the group 4321"));
            assert_eq!(checked(0o755), Ok(()));
            chown(folder.path(), Some(4321), Some(0)).unwrap();
            assert!(checked(0o700).unwrap_err().contains("another user (4321)"));
        }
    }
}
