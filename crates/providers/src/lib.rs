//! How sandboxes are isolated: a folder per provider, the same file names in each.
//!
//! The contract is `seawall_core::ports::provider`; `tests/conformance` holds every provider to it.

mod boxes;
mod dial;
#[cfg(feature = "docker")]
pub mod docker;
#[cfg(feature = "local")]
pub mod local;
#[cfg(feature = "mock")]
pub mod mock;
#[cfg(feature = "native")]
pub mod native;
mod volumes;
mod watch;

use boxes::io_error;
pub use boxes::keeps_names;
use seawall_core::{Error, Result};
use std::{
    fs,
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    task::spawn_blocking,
};

/// The guest for this machine: one static program.
pub fn guest_binary() -> &'static [u8] {
    include_bytes!(concat!(env!("OUT_DIR"), "/seawall-guest"))
}

/// Writes the embedded guest out, once per version. All boxes run the same file, so they share its memory.
fn guest_file(data: &Path, guest: &[u8]) -> Result<PathBuf> {
    let dir = data.join("guest");
    let name = env!("SEAWALL_GUEST_NAME");
    let path = dir.join(name);
    let fits = |found: fs::Metadata| found.len() == guest.len() as u64 && found.mode() & 0o555 == 0o555;
    if fs::metadata(&path).is_ok_and(fits) {
        return Ok(path);
    }
    let temporary = dir.join(format!("{name}.{}", std::process::id()));
    let write = || -> io::Result<()> {
        fs::create_dir_all(&dir)?;
        let mut file =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o755).open(&temporary)?;
        file.write_all(guest)?;
        file.sync_all()?;
        drop(file);
        fs::rename(&temporary, &path)
    };
    write().map_err(|error| {
        // What could not be finished must not take the space that is missing.
        let _ = fs::remove_file(&temporary);
        io_error(&path, error)
    })?;
    Ok(path)
}

/// How often a program is tried that is still open for writing, and the pause between.
const BUSY_TRIES: u32 = 200;
const BUSY_PAUSE: Duration = Duration::from_millis(5);

/// Starts a program that this process may just have written.
///
/// The kernel refuses to execute a file that is open for writing. A child that another thread forked while the file was
/// written keeps it open until the child executes its own program.
fn spawn_written<T>(mut spawn: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 0..BUSY_TRIES {
        match spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => thread::sleep(BUSY_PAUSE),
            other => return other,
        }
    }
    spawn()
}

/// File work blocks, so it has threads of its own.
async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    spawn_blocking(work).await.map_err(|error| Error::internal("file work failed").with_source(error))?
}

/// As [`off_thread`], for work that is short and waits for nobody: where there is one thread for all and nobody else
/// is waiting, as in a command of the command line, another would only take longer.
async fn short_work<T: Send + 'static>(
    alone: bool,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::CurrentThread if alone => work(),
        _ => off_thread(work).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_program_that_is_still_open_for_writing_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let program = guest_file(dir.path(), guest_binary()).unwrap();
        let writer = fs::OpenOptions::new().append(true).open(&program).unwrap();
        let closed = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            drop(writer);
        });
        let mut command = Command::new(&program);
        let busy = command.arg("--version").spawn().unwrap_err();
        assert_eq!(busy.kind(), io::ErrorKind::ExecutableFileBusy);
        let ended = spawn_written(|| command.spawn()).unwrap().wait().unwrap();
        assert!(ended.success());
        closed.join().unwrap();
    }
}
