//! Sandboxes from before there was a database: a file of JSON each. They are taken over, once, and their boxes live on.

use seawall_api::ErrorKind;
use seawall_core::{
    Error, Result,
    ports::{Record, Records},
};
use std::{io, path::Path};

/// Brings what is left of `<data>/records/*.json` into the rows. A file goes when its row is durable.
pub async fn adopt(data: &Path, records: &dyn Records) -> Result<usize> {
    let folder = data.join("records");
    let mut adopted = 0;
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(failed(&folder, error)),
    };
    for entry in entries {
        let path = entry.map_err(|error| failed(&folder, error))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with('.') || !name.ends_with(".json") {
            continue;
        }
        match std::fs::read(&path) {
            // What a crash kept from being written, or another process has just adopted.
            Ok(body) if body.is_empty() => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(failed(&path, error)),
            Ok(body) => match serde_json::from_slice::<Record>(&body) {
                Ok(record) => adopted += take(records, record).await?,
                Err(error) => {
                    // Left where it is: somebody may mend it.
                    tracing::warn!(path = %path.display(), %error, "a record is damaged: mend it, or move it away to forget the sandbox");
                    continue;
                }
            },
        }
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(&path, error)),
            _ => {}
        }
    }
    Ok(adopted)
}

async fn take(records: &dyn Records, mut record: Record) -> Result<usize> {
    loop {
        match records.insert(&record).await {
            Ok(()) => {
                tracing::info!(sandbox = %record.id, "a sandbox from before the database was taken over");
                return Ok(1);
            }
            // By another process, or by one that died before the file was gone.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(0),
            // Its name is another's now: the box matters more.
            Err(error) if error.kind() == ErrorKind::Conflict && record.name.is_some() => {
                tracing::warn!(sandbox = %record.id, name = record.name, "its name is taken: it has none now");
                record.name = None;
            }
            Err(error) => return Err(error),
        }
    }
}

fn failed(path: &Path, error: io::Error) -> Error {
    Error::internal(format!("cannot read {}", path.display())).with_source(error)
}
