//! Copies of a SQLite database: made while it is used, and put back when it is not.

use super::{Check, Db, check, sqlite::Sqlite};
use seawall_core::{Error, Result};
use std::{
    fs::{self, File},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

fn failed(what: &str, path: &Path, error: io::Error) -> Error {
    Error::internal(format!("{what} {}", path.display())).with_source(error)
}

/// A whole copy of the database as it is now, looked at before this returns.
pub async fn backup(db: &Db, to: &Path) -> Result<Check> {
    let Db::Sqlite(sqlite) = db else {
        return Err(Error::invalid(
            "PostgreSQL has its own: pg_dump --format=custom --file FILE ADDRESS, and pg_restore to put it back",
        ));
    };
    if to.exists() {
        return Err(Error::conflict(format!("{} exists: name another file", to.display())));
    }
    // Under its name it is whole.
    let draft = with_ending(to, "making");
    remove(&draft);
    let copied = match sqlite.copy_to(&draft).await {
        Ok(()) => look(&draft).await,
        Err(error) => Err(error),
    };
    let found = copied.inspect_err(|_| remove(&draft))?;
    fs::rename(&draft, to).map_err(|error| failed("cannot name", to, error))?;
    sync_folder(to)?;
    Ok(found)
}

/// Puts a copy in the place of a database that nobody uses. Where the old one is kept, and what was found in the new.
pub async fn restore(path: &Path, from: &Path, stamp: &str) -> Result<(Option<PathBuf>, Check)> {
    let _lock = Sqlite::lock_alone(path)?;
    if fs::metadata(with_suffix(from, "-wal")).is_ok_and(|beside| beside.len() > 0) {
        let message = "it was copied while it was used, and is not whole without the file `-wal` beside it; use `seawall db backup`";
        return Err(Error::invalid(format!("{}: {message}", from.display())));
    }
    let draft = with_ending(path, "restoring");
    // What an attempt that was killed left would get into this one.
    remove(&draft);
    fs::copy(from, &draft).map_err(|error| failed("cannot copy", from, error))?;
    let private = fs::set_permissions(&draft, fs::Permissions::from_mode(0o600));
    private.map_err(|error| failed("cannot protect", &draft, error))?;
    let looked = match Sqlite::version_of(&draft).await {
        Ok(0) => Err(Error::invalid("it has no tables of seawall")),
        Ok(_) => look(&draft).await,
        Err(error) => Err(error),
    };
    let found = match looked {
        Ok(found) if found.wrong.is_empty() => found,
        Ok(found) => {
            remove(&draft);
            return Err(Error::invalid(format!("{} is damaged: {}", from.display(), found.wrong.join("; "))));
        }
        Err(error) => {
            remove(&draft);
            let message = format!("{} is no database of seawall", from.display());
            return Err(Error::invalid(message).with_source(error));
        }
    };
    let kept = keep_old(path, stamp).await?;
    fs::rename(&draft, path).map_err(|error| failed("cannot replace", path, error))?;
    sync_folder(path)?;
    Ok((kept, found))
}

/// Brought up to date, and whole.
async fn look(path: &Path) -> Result<Check> {
    let db = Db::Sqlite(Sqlite::open_unlocked(path).await?);
    let found = check(&db).await;
    db.close().await;
    let synced = File::open(path).and_then(|file| file.sync_all());
    synced.map_err(|error| failed("cannot sync", path, error))?;
    found
}

/// The old database under another name, in one file: what waits beside it must not get into the new one.
async fn keep_old(path: &Path, stamp: &str) -> Result<Option<PathBuf>> {
    if !path.exists() {
        return Ok(None);
    }
    match Sqlite::open_unlocked(path).await {
        Ok(sqlite) => Db::Sqlite(sqlite).close().await,
        // A damaged one is kept as it is.
        Err(error) => tracing::warn!(error = %error.chain(), "the old database cannot be opened"),
    }
    let kept = with_ending(path, &format!("before-{stamp}"));
    for ending in ["-wal", "-shm"] {
        let (beside, aside) = (with_suffix(path, ending), with_suffix(&kept, ending));
        match fs::rename(&beside, &aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("cannot move", &beside, error));
            }
            _ => {}
        }
    }
    // It stays in its place too until the new one is there: a crash must not leave nothing.
    fs::hard_link(path, &kept).map_err(|error| failed("cannot keep", path, error))?;
    Ok(Some(kept))
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    with_suffix(path, &format!(".{ending}"))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn remove(draft: &Path) {
    for suffix in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(with_suffix(draft, suffix));
    }
}

fn sync_folder(path: &Path) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|error| failed("cannot sync", folder, error))
}
