//! SQLite: one file, one writer, many readers.
//!
//! **Group commit.** All writes of this process go to one task with one connection. It begins a transaction, runs
//! whatever waits, each in a savepoint of its own, commits once, and only then answers them all. A commit waits for
//! the disk, so sixteen writers together wait once instead of sixteen times.

use super::{
    db::{Tx, Work, sqlite_rows},
    errors::from_sqlx,
    gate::Gate,
    migrate::{self, Migrated},
    statement::Sql,
    value::{Row, Value},
};
use futures::{FutureExt, future::BoxFuture};
use seawall_api::ErrorKind;
use seawall_core::{Error, Result};
use sqlx::{
    ConnectOptions as _, Connection as _, Executor as _, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous},
};
use std::{
    collections::VecDeque,
    fs::File,
    os::unix::fs::OpenOptionsExt,
    panic::AssertUnwindSafe,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep},
};

/// How long to wait for another process that writes.
const PATIENCE: Duration = Duration::from_secs(20);
const AGAIN: Duration = Duration::from_millis(5);
const READERS: u32 = 4;
/// Writes of one commit, at the most.
const BATCH: usize = 128;
/// Writes that may wait.
const WAITING: usize = 1024;

#[derive(Debug, Clone)]
pub struct Sqlite {
    path: PathBuf,
    readers: SqlitePool,
    writer: mpsc::Sender<Box<dyn Job>>,
    gate: Gate,
    migrated: Migrated,
    /// Ends when the writer has.
    done: Arc<Mutex<Option<oneshot::Receiver<()>>>>,
    /// None where somebody else holds it for us.
    _lock: Option<Arc<File>>,
}

/// A write that waits.
trait Job: Send {
    /// Runs in the transaction. Whether to keep what it did, and how to answer when that has ended.
    fn run<'t>(self: Box<Self>, tx: &'t mut Tx) -> BoxFuture<'t, (bool, Answer)>
    where
        Self: 't;

    /// It was not run.
    fn fail(self: Box<Self>, error: &Error);

    /// Whether it need not be on the disk when it is answered.
    fn is_lazy(&self) -> bool;
}

/// With the error of the whole transaction, where it has one.
type Answer = Box<dyn FnOnce(Option<&Error>) + Send>;

struct Write<A, T, W> {
    args: A,
    work: W,
    lazy: bool,
    answer: oneshot::Sender<Result<T>>,
}

impl<A, T, W> Job for Write<A, T, W>
where
    A: Send + Sync + 'static,
    T: Send + 'static,
    W: Work<A, T>,
{
    fn run<'t>(self: Box<Self>, tx: &'t mut Tx) -> BoxFuture<'t, (bool, Answer)>
    where
        Self: 't,
    {
        Box::pin(async move {
            let Write { args, work, answer, .. } = *self;
            // One that panics must not take all others along.
            let done = AssertUnwindSafe(work(tx, &args)).catch_unwind().await;
            let done = done.unwrap_or_else(|_| Err(Error::internal("a write to the database panicked")));
            let keep = done.is_ok();
            let answer: Answer = Box::new(move |failed| {
                // Whoever asked may be gone.
                let _ = answer.send(failed.map_or(done, |error| Err(copy(error))));
            });
            (keep, answer)
        })
    }

    fn fail(self: Box<Self>, error: &Error) {
        let _ = self.answer.send(Err(copy(error)));
    }

    fn is_lazy(&self) -> bool {
        self.lazy
    }
}

/// For each of those who share it.
fn copy(error: &Error) -> Error {
    Error::new(error.kind(), error.chain())
}

impl Sqlite {
    /// Opens the file, makes it where it is missing, and brings it up to date.
    pub async fn open(path: &Path) -> Result<Sqlite> {
        let lock = lock_file(path)?;
        lock.try_lock_shared()
            .map_err(|_| Error::unavailable(format!("{} is just being restored", path.display())))?;
        Ok(Sqlite { _lock: Some(Arc::new(lock)), ..Sqlite::open_unlocked(path).await? })
    }

    /// For whoever holds the lock.
    pub(super) async fn open_unlocked(path: &Path) -> Result<Sqlite> {
        make_private(path)?;
        let connection = connect(path).await?;
        let mut tx = Tx::Sqlite(Box::new(connection));
        let migrated = migrate::sqlite(&mut tx).await?;
        let readers = SqlitePoolOptions::new()
            .max_connections(READERS)
            // A file does not hang up.
            .test_before_acquire(false)
            .connect_lazy_with(options(path).read_only(true));
        let (writer, jobs) = mpsc::channel(WAITING);
        let (end, done) = oneshot::channel();
        tokio::spawn(async move {
            write_all(tx, jobs).await;
            let _ = end.send(());
        });
        let done = Arc::new(Mutex::new(Some(done)));
        let gate = Gate::sqlite(READERS);
        Ok(Sqlite { path: path.to_owned(), readers, writer, gate, migrated, done, _lock: None })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) async fn rows(&self, sql: &'static Sql, values: Vec<Value>) -> Result<Vec<Row>> {
        let _share = self.gate.read().await;
        let mut connection = self.readers.acquire().await.map_err(from_sqlx)?;
        sqlite_rows(&mut connection, sql.sqlite, values).await.map_err(from_sqlx)
    }

    pub(super) async fn run(&self, sql: &'static Sql, values: Vec<Value>) -> Result<u64> {
        self.write(values, move |tx, values| Box::pin(tx.run(sql, values.clone())), false).await
    }

    /// `lazy`: others see it when this returns, and a killed process does not take it back, but a loss of power may,
    /// until a later write that is not lazy has been answered.
    pub(super) async fn write<A, T>(&self, args: A, work: impl Work<A, T>, lazy: bool) -> Result<T>
    where
        A: Send + Sync + 'static,
        T: Send + 'static,
    {
        let _share = self.gate.write().await;
        let (answer, receive) = oneshot::channel();
        let job = Box::new(Write { args, work, lazy, answer });
        let closed = || Error::unavailable("the database was closed");
        self.writer.send(job).await.map_err(|_| closed())?;
        receive.await.map_err(|_| closed())?
    }

    pub(super) async fn plan(&self, sql: &'static Sql) -> Result<Vec<String>> {
        let mut connection = self.readers.acquire().await.map_err(from_sqlx)?;
        let text = sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {}", sql.sqlite));
        let rows = connection.fetch_all(sqlx::query(text)).await.map_err(from_sqlx)?;
        rows.into_iter().map(|row| Row::Sqlite(row).text(3)).collect()
    }

    /// Of a file that may be anything. Zero: none of ours.
    pub(super) async fn version_of(path: &Path) -> Result<u64> {
        let mut connection = options(path).connect().await.map_err(|error| cannot_open(path, error))?;
        let tables = "SELECT COUNT(*) FROM sqlite_master WHERE name IN ('schema_versions', 'conversations')";
        let rows = sqlite_rows(&mut connection, tables, Vec::new()).await.map_err(from_sqlx)?;
        if rows.first().map_or(Ok(0), |row| row.int(0))? < 2 {
            return Ok(0);
        }
        let version = "SELECT CAST(COALESCE(MAX(version), 0) AS BIGINT) FROM schema_versions";
        let rows = sqlite_rows(&mut connection, version, Vec::new()).await.map_err(from_sqlx)?;
        rows.first().map_or(Ok(0), |row| row.count(0))
    }

    /// What SQLite itself finds wrong with the file.
    pub(super) async fn damage(&self) -> Result<Vec<String>> {
        let mut connection = self.readers.acquire().await.map_err(from_sqlx)?;
        let rows =
            sqlite_rows(&mut connection, "PRAGMA integrity_check", Vec::new()).await.map_err(from_sqlx)?;
        let said = rows.iter().map(|row| row.text(0)).collect::<Result<Vec<_>>>()?;
        Ok(said.into_iter().filter(|line| line != "ok").collect())
    }

    /// A copy, and on disk.
    pub(super) async fn copy_to(&self, to: &Path) -> Result<()> {
        let text =
            to.to_str().ok_or_else(|| Error::invalid("the name of a backup has to be UTF-8"))?.to_owned();
        // SQLite takes an empty file, and leaves it as private as it is.
        make_private(to)?;
        let mut connection = self.readers.acquire().await.map_err(from_sqlx)?;
        sqlx::query("VACUUM INTO $1").bind(text).execute(&mut *connection).await.map_err(from_sqlx)?;
        let synced = std::fs::File::open(to).and_then(|file| file.sync_all());
        synced.map_err(|error| Error::internal("the backup was not synced").with_source(error))
    }

    pub(super) fn migrated(&self) -> Migrated {
        self.migrated
    }

    /// Finishes what was begun. Afterwards everything is in the one file.
    pub(super) async fn close(self) {
        let Sqlite { readers, writer, done, .. } = self;
        readers.close().await;
        drop(writer);
        // Others who have a clone write on.
        let done = done.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(done) = done {
            let _ = done.await;
        }
    }

    /// For whoever replaces the file. Refused while anybody has it open.
    pub(super) fn lock_alone(path: &Path) -> Result<File> {
        let lock = lock_file(path)?;
        lock.try_lock().map_err(|_| {
            let message =
                format!("{} is in use: stop the server and other `seawall` commands first", path.display());
            Error::conflict(message)
        })?;
        Ok(lock)
    }
}

/// Conversations are nobody else's business. What SQLite puts beside the file is as private as the file is.
fn make_private(path: &Path) -> Result<()> {
    let made = File::options().create_new(true).write(true).mode(0o600).open(path);
    match made {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(Error::internal(format!("cannot make {}", path.display())).with_source(error))
        }
        _ => Ok(()),
    }
}

/// Beside the database; whoever uses that shares it.
fn lock_file(path: &Path) -> Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let open = File::options().create(true).truncate(false).write(true).mode(0o600).open(&name);
    open.map_err(|error| {
        let kind = match error.kind() {
            std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::Internal,
        };
        Error::new(kind, format!("cannot open {}", Path::new(&name).display())).with_source(error)
    })
}

fn options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(PATIENCE)
        .foreign_keys(true)
        .disable_statement_logging()
}

/// Whoever closes the file as the last one has it alone for a moment, and SQLite itself does not wait for that.
async fn connect(path: &Path) -> Result<SqliteConnection> {
    let give_up = Instant::now() + PATIENCE;
    loop {
        match options(path).connect().await.map_err(|error| cannot_open(path, error)) {
            Err(error) if error.is_retryable() && Instant::now() < give_up => sleep(AGAIN).await,
            other => return other,
        }
    }
}

fn cannot_open(path: &Path, error: sqlx::Error) -> Error {
    let found = from_sqlx(error);
    Error::new(found.kind(), format!("the database {} cannot be opened", path.display())).with_source(found)
}

/// Until nobody can write any more.
async fn write_all(mut tx: Tx, mut jobs: mpsc::Receiver<Box<dyn Job>>) {
    let mut batch = Vec::with_capacity(BATCH);
    // How it was opened.
    let mut lazy = false;
    while jobs.recv_many(&mut batch, BATCH).await > 0 {
        commit(&mut tx, std::mem::take(&mut batch).into(), &mut jobs, &mut lazy).await;
    }
    if let Tx::Sqlite(connection) = tx {
        let _ = connection.close().await;
    }
}

/// Runs them, and whatever comes meanwhile, in one transaction. `was_lazy`: how the last one was.
async fn commit(
    tx: &mut Tx,
    mut batch: VecDeque<Box<dyn Job>>,
    jobs: &mut mpsc::Receiver<Box<dyn Job>>,
    was_lazy: &mut bool,
) {
    let mut answers = Vec::new();
    // Only where all are: nobody who waits for the disk is answered without it.
    let lazy = batch.iter().all(|job| job.is_lazy());
    let outcome = async {
        begin(tx, lazy, was_lazy).await?;
        loop {
            let next = batch.pop_front().or_else(|| match answers.len() < BATCH && !lazy {
                true => jobs.try_recv().ok(),
                false => None,
            });
            let Some(job) = next else { break };
            // Mostly one is alone, and what it did is undone with all.
            let alone = answers.is_empty() && batch.is_empty();
            run(tx, job, &mut answers, alone).await?;
        }
        tx.raw("COMMIT").await
    };
    let failed = outcome.await.err();
    if let Some(error) = &failed {
        tracing::warn!(error = %error.chain(), "a commit failed");
        // Where nothing was begun, or SQLite has undone it, there is nothing to undo.
        let _ = tx.raw("ROLLBACK").await;
        batch.into_iter().for_each(|job| job.fail(error));
    }
    for answer in answers {
        answer(failed.as_ref());
    }
}

/// Immediate: one that begins as a reader may be refused when it writes.
async fn begin(tx: &mut Tx, lazy: bool, was_lazy: &mut bool) -> Result<()> {
    match (lazy, *was_lazy) {
        (true, false) => tx.raw("PRAGMA synchronous = NORMAL; BEGIN IMMEDIATE").await?,
        (false, true) => tx.raw("PRAGMA synchronous = FULL; BEGIN IMMEDIATE").await?,
        _ => tx.raw("BEGIN IMMEDIATE").await?,
    }
    *was_lazy = lazy;
    Ok(())
}

/// One of them, so that its failure undoes nothing but itself.
async fn run(tx: &mut Tx, job: Box<dyn Job>, answers: &mut Vec<Answer>, alone: bool) -> Result<()> {
    if !alone && let Err(error) = tx.raw("SAVEPOINT one").await {
        job.fail(&error);
        return Err(error);
    }
    let (keep, answer) = job.run(tx).await;
    answers.push(answer);
    match (keep, alone) {
        (true, true) => Ok(()),
        (true, false) => tx.raw("RELEASE one").await,
        (false, true) => tx.raw("ROLLBACK; BEGIN IMMEDIATE").await.map_err(full_disk),
        // A full disk undoes everything at once, and then there is no such savepoint.
        (false, false) => tx.raw("ROLLBACK TO one; RELEASE one").await.map_err(full_disk),
    }
}

fn full_disk(error: Error) -> Error {
    Error::unavailable("the database could not go on: is its disk full?").with_source(error)
}
