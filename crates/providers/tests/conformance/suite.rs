//! Cases, what they need, how one is run, and the count at the end.

use super::{
    crash, exec, exec_output, files, files_safety,
    fixture::{Fixture, MakeFixture},
    lifecycle, terminals, tunnels, users, watch,
};
use anyhow::{Result, anyhow, ensure};
use futures::future::BoxFuture;
use libtest_mimic::{Failed, Trial};
use seawall_core::{
    ports::{Capabilities, Provider, Volumes},
    testing::timed,
};
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{runtime, time::timeout};

const PATIENCE: Duration = Duration::from_secs(60);
const CLEANING: Duration = Duration::from_secs(30);

/// What a case has to work with: a provider on a substrate of its own.
#[derive(Clone)]
pub struct Cx {
    pub fixture: Arc<dyn Fixture>,
    pub provider: Arc<dyn Provider>,
}

pub type Run = fn(Cx) -> BoxFuture<'static, Result<()>>;

pub struct Case {
    pub group: &'static str,
    pub name: &'static str,
    pub needs: &'static [Need],
    pub run: Run,
}

/// Names functions as cases, with what they need: `cases!("exec"; a_case; another [Programs, Root];)`.
macro_rules! cases {
    ($group:literal; $($name:ident $([$($need:ident),+])?;)+) => {
        pub fn cases() -> Vec<$crate::conformance::suite::Case> {
            vec![$($crate::conformance::suite::Case {
                group: $group,
                name: stringify!($name),
                needs: &[$($($crate::conformance::suite::Need::$need),+)?],
                run: |cx| Box::pin($name(cx)),
            }),+]
        }
    };
}

pub(crate) use cases;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    Durable,
    Programs,
    Terminals,
    Tunnels,
    FileWatch,
    FileMeta,
    Users,
    /// The provider takes no image, so that one is refused.
    NoImages,
    /// The suite itself runs as root.
    Root,
    /// The box has python3.
    Python,
    /// The case may fill the machine.
    Room,
}

/// What the cases of a fixture can use.
struct Means {
    can: Capabilities,
    python: bool,
    room: bool,
}

impl Need {
    fn missing(self, means: &Means) -> Option<String> {
        let can = &means.can;
        let (met, name) = match self {
            Need::Durable => (can.durable, "durable"),
            Need::Programs => (can.programs, "programs"),
            Need::Terminals => (can.terminals, "terminals"),
            Need::Tunnels => (can.tunnels, "tunnels"),
            Need::FileWatch => (can.file_watch, "file_watch"),
            Need::FileMeta => (can.file_meta, "file_meta"),
            Need::Users => (can.users, "users"),
            Need::NoImages => return can.images.then(|| "it takes images".into()),
            Need::Root => return (!rustix::process::getuid().is_root()).then(|| "not root".into()),
            Need::Python => return (!means.python).then(|| "no python3".into()),
            Need::Room => return (!means.room).then(|| "`make test-docker` runs it".into()),
        };
        (!met).then(|| format!("capability: {name}"))
    }
}

/// A case that finds only while it runs that it cannot be shown here.
#[derive(Debug)]
pub struct Skip(String);

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "skipped: {}", self.0)
    }
}

impl std::error::Error for Skip {}

pub fn skip<T>(why: impl Into<String>) -> Result<T> {
    Err(Skip(why.into()).into())
}

#[derive(Default)]
struct Tally {
    passed: u32,
    failed: u32,
    /// Case and reason.
    skipped: Vec<(String, String)>,
}

static TALLIES: Mutex<BTreeMap<&'static str, Tally>> = Mutex::new(BTreeMap::new());

fn tally(provider: &'static str, change: impl FnOnce(&mut Tally)) {
    let mut tallies = TALLIES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    change(tallies.entry(provider).or_default());
}

/// Counts a finished case and says what the harness should hear of it.
pub fn verdict(provider: &'static str, name: String, result: Result<()>) -> Result<(), Failed> {
    match result {
        Ok(()) => {
            tally(provider, |tally| tally.passed += 1);
            Ok(())
        }
        Err(error) => match error.downcast_ref::<Skip>() {
            Some(Skip(why)) => {
                tally(provider, |tally| tally.skipped.push((name, why.clone())));
                Ok(())
            }
            None => {
                tally(provider, |tally| tally.failed += 1);
                Err(format!("{error:?}").into())
            }
        },
    }
}

/// A line of counts per provider, and a line for each case that was not shown.
pub fn print_summary() {
    let tallies = TALLIES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    for (provider, tally) in tallies.iter() {
        let mut reasons: BTreeMap<&str, u32> = BTreeMap::new();
        for (_, why) in &tally.skipped {
            *reasons.entry(why).or_default() += 1;
        }
        let reasons: Vec<String> = reasons.into_iter().map(|(why, count)| format!("{why} {count}")).collect();
        let because = match reasons.is_empty() {
            true => String::new(),
            false => format!(" ({})", reasons.join(", ")),
        };
        let Tally { passed, failed, skipped } = tally;
        for (case, why) in skipped {
            println!("skipped {case}: {why}");
        }
        let skipped = skipped.len();
        println!("conformance {provider}: {passed} passed, {failed} failed, {skipped} skipped{because}");
    }
}

fn all_cases() -> Vec<Case> {
    let groups = [
        lifecycle::cases(),
        exec::cases(),
        exec_output::cases(),
        terminals::cases(),
        files::cases(),
        files_safety::cases(),
        watch::cases(),
        tunnels::cases(),
        users::cases(),
        crash::cases(),
    ];
    groups.into_iter().flatten().collect()
}

pub fn trials(provider: &'static str, make: MakeFixture) -> Vec<Trial> {
    let means = match means(make) {
        Ok(found) => found,
        Err(error) => return vec![broken(provider, &error)],
    };
    let trial = |case: Case| {
        let name = format!("{provider}::{}::{}", case.group, case.name);
        let missing = case.needs.iter().find_map(|need| need.missing(&means));
        let (id, ignored) = (name.clone(), missing.is_some());
        if let Some(why) = missing {
            tally(provider, |tally| tally.skipped.push((name.clone(), why)));
        }
        // `--include-ignored` must not make a case run that cannot.
        let run = move || match ignored {
            true => Ok(()),
            false => timed(&name.clone(), || verdict(provider, name, run_case(case.run, make))),
        };
        Trial::test(id, run).with_ignored_flag(ignored)
    };
    all_cases().into_iter().map(trial).collect()
}

/// A provider that cannot even be opened is one failed case, not a crash of the suite.
fn broken(provider: &'static str, error: &anyhow::Error) -> Trial {
    let name = format!("{provider}::opens");
    let message = format!("{error:?}");
    Trial::test(name.clone(), move || verdict(provider, name, Err(anyhow!(message))))
}

fn workers() -> Result<runtime::Runtime> {
    Ok(runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

fn means(make: MakeFixture) -> Result<Means> {
    workers()?.block_on(async {
        let fixture = make()?;
        let can = fixture.provider().capabilities();
        Ok(Means { can, python: fixture.has_python(), room: fixture.has_room() })
    })
}

fn run_case(run: Run, make: MakeFixture) -> Result<()> {
    let runtime = workers()?;
    let result = runtime.block_on(attempt(run, make));
    runtime.shutdown_timeout(Duration::from_secs(5));
    result
}

async fn attempt(run: Run, make: MakeFixture) -> Result<()> {
    let fixture = make()?;
    let provider = fixture.provider();
    let cx = Cx { fixture, provider };
    // A task of its own, so that a panic is caught and the boxes are removed all the same.
    let task = tokio::spawn(run(cx.clone()));
    let abort = task.abort_handle();
    let result = match timeout(PATIENCE, task).await {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => Err(anyhow!("{panic}")),
        Err(_) => {
            abort.abort();
            Err(anyhow!("not done after {} s", PATIENCE.as_secs()))
        }
    };
    let cleaned = timeout(CLEANING, clean(cx.provider.as_ref())).await;
    result?;
    cleaned.map_err(|_| anyhow!("its boxes could not be removed in time"))?
}

pub async fn clean(provider: &dyn Provider) -> Result<()> {
    for info in provider.list().await? {
        provider.remove(info.id, Volumes::Delete).await?;
    }
    let left = provider.list().await?;
    ensure!(left.is_empty(), "boxes are left after they were removed: {left:?}");
    Ok(())
}
