//! Who is at a sandbox, among the processes on one data folder: locks, which a crash gives back.
//!
//! ```text
//! <data>/records/.claims   a byte for each id, locked while somebody makes or removes that sandbox, or runs a turn
//! <data>/records/.epoch    the counter of control epochs
//! ```
//!
//! Bytes of one file, and no files: making one takes a file system up to a millisecond, and each turn would.

use async_trait::async_trait;
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, fcntl},
    libc::{F_WRLCK, SEEK_SET, flock},
};
use seawall_api::SandboxId;
use seawall_core::{
    Error, Result,
    ports::{Claim, Claims},
    queues::Queues,
};
use sha2::{Digest, Sha256};
use std::{
    fs::{DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

const LOCK: &str = ".lock";
const EPOCH: &str = ".epoch";
const CLAIMS: &str = ".claims";

#[derive(Debug, Clone)]
pub struct FileClaims {
    folder: Arc<Folder>,
    /// Who waits for a claim in this process.
    queues: Queues,
}

#[derive(Debug)]
struct Folder {
    path: PathBuf,
}

impl FileClaims {
    pub fn open(data: &Path) -> Result<FileClaims> {
        let path = data.join("records");
        DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(failed("make", &path))?;
        Ok(FileClaims { folder: Arc::new(Folder { path }), queues: Queues::default() })
    }

    /// File IO blocks, so it has threads of its own.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Folder) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let folder = Arc::clone(&self.folder);
        let done = tokio::task::spawn_blocking(move || work(&folder)).await;
        done.map_err(|error| Error::internal("the work on the claims was cut off").with_source(error))?
    }
}

#[async_trait]
impl Claims for FileClaims {
    async fn claim(&self, id: SandboxId) -> Result<Claim> {
        // A claim is held for as long as a sandbox is made, ended or worked in: nobody's thread waits for it.
        let (turn, file) = self.queues.acquire(id, || self.folder.try_claim(id)).await?;
        // The lock first, so that who comes next finds it free.
        Ok(Box::new((file, turn)))
    }

    async fn try_claim(&self, id: SandboxId) -> Result<Option<Claim>> {
        let claimed = self.folder.try_claim(id)?;
        Ok(claimed.map(|claimed| Box::new(claimed) as Claim))
    }

    /// One counter for all sandboxes: larger than any given before is larger than any of this one.
    async fn next_epoch(&self, _id: SandboxId) -> Result<u64> {
        self.blocking(Folder::next_epoch).await
    }
}

impl Folder {
    fn try_claim(&self, id: SandboxId) -> Result<Option<File>> {
        if let Some((path, old)) = self.old_claim(id)? {
            match old.try_lock() {
                Ok(()) => drop(std::fs::remove_file(&path)),
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(failed("lock", &path)(error)),
            }
        }
        let file = self.open_claims()?;
        match fcntl(&file, FcntlArg::F_OFD_SETLK(&byte_of(id))) {
            Ok(_) => Ok(Some(file)),
            Err(Errno::EAGAIN | Errno::EACCES) => Ok(None),
            Err(errno) => Err(failed("lock", &self.path.join(CLAIMS))(errno.into())),
        }
    }

    /// What a version before this one holds while it lives, or left behind: a file for each id.
    fn old_claim(&self, id: SandboxId) -> Result<Option<(PathBuf, File)>> {
        let path = self.path.join(format!(".claim-{id}"));
        match OpenOptions::new().write(true).open(&path) {
            Ok(file) => Ok(Some((path, file))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("open", &path)(error)),
        }
    }

    /// Anew for each claim: it goes when this is closed.
    fn open_claims(&self) -> Result<File> {
        let path = self.path.join(CLAIMS);
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(false).write(true).mode(0o600).open(&path);
        file.map_err(failed("open", &path))
    }

    /// Held until the file is dropped, also by a crash.
    fn lock(&self) -> Result<File> {
        let file = self.open_lock()?;
        file.lock().map_err(failed("lock", &self.path.join(LOCK)))?;
        Ok(file)
    }

    fn open_lock(&self) -> Result<File> {
        let path = self.path.join(LOCK);
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(false).write(true).mode(0o600).open(&path);
        file.map_err(failed("open", &path))
    }

    fn next_epoch(&self) -> Result<u64> {
        let _lock = self.lock()?;
        let path = self.path.join(EPOCH);
        let last = match std::fs::read_to_string(&path) {
            Ok(text) => text.trim().parse().unwrap_or_else(|_| {
                tracing::warn!("{} is damaged: counting on from the time of day", path.display());
                milliseconds()
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(failed("read", &path)(error)),
        };
        let next: u64 = last + 1;
        self.replace(&path, next.to_string().as_bytes())?;
        Ok(next)
    }

    /// The new body or the old one, also after a loss of power. Under the lock.
    fn replace(&self, path: &Path, body: &[u8]) -> Result<()> {
        let beside = self.path.join(".new");
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(true).write(true).mode(0o600).open(&beside);
        let file = file.map_err(failed("make", &beside))?;
        let written = (&file).write_all(body).and_then(|()| file.sync_all());
        let moved = written.and_then(|()| std::fs::rename(&beside, path));
        let folder = || File::open(&self.path).and_then(|folder| folder.sync_all());
        moved.and_then(|()| folder()).map_err(failed("write", path))
    }
}

/// The byte of an id, of the nearly 2^63 that a file can have. Nobody can choose an id that has another's; whoever looks
/// for two of their own with the same one may find them, and they stand in each other's way.
fn byte_of(id: SandboxId) -> flock {
    let hash: [u8; 32] = Sha256::digest(id.as_uuid().as_bytes()).into();
    let number = hash.iter().take(8).fold(0_i64, |number, byte| number << 8 | i64::from(*byte));
    flock {
        l_type: F_WRLCK as i16,
        l_whence: SEEK_SET as i16,
        // One less than the largest, so that there is a byte to lock.
        l_start: number & (i64::MAX - 1),
        l_len: 1,
        l_pid: 0,
    }
}

/// More than any count of starts can have reached.
fn milliseconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX / 2)
}

fn failed(what: &str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let message = format!("cannot {what} {}", path.display());
    move |error| Error::internal(message).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn opened() -> (tempfile::TempDir, FileClaims) {
        let data = tempfile::tempdir().unwrap();
        let claims = FileClaims::open(data.path()).unwrap();
        (data, claims)
    }

    #[test]
    fn epochs_only_grow() {
        let (data, _claims) = opened();
        let given: Vec<Vec<u64>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    let claims = FileClaims::open(data.path()).unwrap();
                    scope.spawn(move || (0..125).map(|_| claims.folder.next_epoch().unwrap()).collect())
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(given.iter().all(|each| each.windows(2).all(|pair| pair[0] < pair[1])));
        let distinct: BTreeSet<u64> = given.into_iter().flatten().collect();
        assert_eq!(distinct.len(), 1000);
        assert_eq!(distinct.last(), Some(&1000));
    }

    #[test]
    fn a_damaged_counter_still_grows() {
        let (data, claims) = opened();
        assert_eq!(claims.folder.next_epoch().unwrap(), 1);
        std::fs::write(data.path().join("records/.epoch"), "nonsense").unwrap();
        let next = claims.folder.next_epoch().unwrap();
        assert!(next > 1_000_000);
        assert_eq!(claims.folder.next_epoch().unwrap(), next + 1);
    }

    #[tokio::test]
    async fn one_at_a_time() {
        let (data, claims) = opened();
        let id = SandboxId::generate();
        let held = claims.claim(id).await.unwrap();
        let other = FileClaims::open(data.path()).unwrap();
        assert!(other.try_claim(id).await.unwrap().is_none());
        drop(held);
        let held = other.try_claim(id).await.unwrap().unwrap();
        assert!(claims.try_claim(id).await.unwrap().is_none());
        // Others are others, also within a process, and one more given back gives back no other.
        let ids: Vec<SandboxId> = (0..100).map(|_| SandboxId::generate()).collect();
        for id in &ids {
            drop(claims.try_claim(*id).await.unwrap().unwrap());
        }
        assert!(claims.try_claim(id).await.unwrap().is_none());
        drop(held);
        assert!(claims.try_claim(id).await.unwrap().is_some());
    }

    /// Ids that differ in a single bit, as somebody may choose them.
    #[test]
    fn each_id_has_a_byte_of_its_own() {
        let with_bit = |bit: u32| format!("{:032x}", 0x0123_u128 | 1 << 127 | 1 << bit).parse::<SandboxId>();
        let ids = (0..128).map(with_bit);
        let bytes: BTreeSet<i64> = ids.map(|id| byte_of(id.unwrap()).l_start).collect();
        // Five of the bits are set already.
        assert_eq!(bytes.len(), 128 - 5 + 1);
        assert!(bytes.iter().all(|byte| (0..i64::MAX).contains(byte)));
    }

    /// A version before this one may still be at it.
    #[tokio::test]
    async fn a_claim_of_the_version_before_counts() {
        let (data, claims) = opened();
        let id = SandboxId::generate();
        let path = data.path().join(format!("records/.claim-{id}"));
        let old = File::create(&path).unwrap();
        old.lock().unwrap();
        assert!(claims.try_claim(id).await.unwrap().is_none());
        drop(old);
        assert!(claims.try_claim(id).await.unwrap().is_some());
        assert!(!path.exists());
    }

    /// With the one thread for files taken by those who wait, the next epoch would never come.
    #[test]
    fn waiting_for_a_claim_takes_no_thread() {
        let runtime =
            tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).enable_all().build();
        runtime.unwrap().block_on(async {
            let (data, claims) = opened();
            let id = SandboxId::generate();
            let held = claims.claim(id).await.unwrap();
            // One that stands in the same queue, and one that another process could be.
            let other = FileClaims::open(data.path()).unwrap();
            let mut waiting = tokio::task::JoinSet::new();
            for claims in [claims.clone(), other] {
                for _ in 0..50 {
                    let claims = claims.clone();
                    waiting.spawn(async move { claims.claim(id).await.map(drop) });
                }
            }
            tokio::task::yield_now().await;
            let next = tokio::time::timeout(std::time::Duration::from_secs(10), claims.next_epoch(id)).await;
            assert_eq!(next.unwrap().unwrap(), 1);
            assert!(waiting.try_join_next().is_none());
            drop(held);
            assert_eq!(waiting.join_all().await.len(), 100);
        });
    }

    #[tokio::test]
    async fn whoever_waits_gets_it_next() {
        let (data, claims) = opened();
        let id = SandboxId::generate();
        let held = claims.claim(id).await.unwrap();
        let other = FileClaims::open(data.path()).unwrap();
        let waiting = tokio::spawn(async move { other.claim(id).await.map(drop) });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(held);
        waiting.await.unwrap().unwrap();
    }
}
