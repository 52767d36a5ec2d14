//! How a case is run: alone or beside others, on an installation of its own, with a control for each attempt.

use super::{
    attempts::GROUPS,
    kit::{Cell, Yard, read_outcome},
    probe::{Attempt, Control, Facts, Outcome},
    tally,
    world::{self, Victim, wire_of},
};
use anyhow::{Context, Result, anyhow, bail, ensure};
use libtest_mimic::Trial;
use seawall_api::sandbox::SandboxSpec;
use std::{
    fs,
    path::Path,
    pin::Pin,
    process::Command,
    sync::{PoisonError, RwLock},
    time::Duration,
};
use tokio::{runtime, task::spawn_blocking, time::timeout};

const PATIENCE: Duration = Duration::from_secs(180);
const CLEANING: Duration = Duration::from_secs(60);

/// Whom a box is attacked as.
const USERS: [&str; 2] = ["root", "user"];

pub type Work = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

pub type Run = Box<dyn FnOnce(Yard, Facts) -> Work + Send>;

pub struct Case {
    pub name: String,
    /// Nothing else runs meanwhile: it takes so much that others would feel it, or measures the host.
    pub alone: bool,
    pub run: Run,
}

/// Names functions as cases: `cases!("bombs", alone; a_case; another;)`.
macro_rules! cases {
    ($group:literal, $alone:expr; $($name:ident;)+) => {
        pub fn cases() -> Vec<$crate::security::runner::Case> {
            vec![$($crate::security::runner::Case {
                name: format!("{}{}::{}", if $alone { "alone::" } else { "" }, $group, stringify!($name)),
                alone: $alone,
                run: Box::new(|yard, facts| Box::pin($name(yard, facts))),
            }),+]
        }
    };
}

pub(crate) use cases;

/// A case for each attempt.
pub fn attempts() -> Vec<Case> {
    let case = |group: &str, attempt: &'static Attempt| {
        let name = format!("{group}::{}", attempt.name);
        let shown = name.clone();
        let run: Run = Box::new(move |yard, facts| Box::pin(show(shown, attempt, yard, facts)));
        Case { name, alone: false, run }
    };
    GROUPS.iter().flat_map(|(group, attempts)| attempts.iter().map(move |each| case(group, each))).collect()
}

/// Why nothing can be shown here.
fn missing() -> Option<&'static str> {
    (!rustix::process::geteuid().is_root())
        .then_some("capability: root (for the controls, and boxes with users)")
}

pub fn trial(case: Case) -> Trial {
    let Case { name, alone, run } = case;
    let missing = missing();
    if let Some(why) = missing {
        tally::skipped(&name, why);
    }
    let shown = name.clone();
    // `--include-ignored` must not make a case run that cannot.
    let test = move || match missing {
        Some(_) => Ok(()),
        None => seawall_core::testing::timed(&name, || tally::verdict(&name, perform(alone, run))),
    };
    Trial::test(shown, test).with_ignored_flag(missing.is_some())
}

static CROWD: RwLock<()> = RwLock::new(());

fn perform(alone: bool, run: Run) -> Result<()> {
    let world = world::get()?;
    let _beside_others = (!alone).then(|| CROWD.read().unwrap_or_else(PoisonError::into_inner));
    let _alone = alone.then(|| CROWD.write().unwrap_or_else(PoisonError::into_inner));
    let runtime = runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(in_a_yard(run, world.facts.clone()));
    runtime.shutdown_timeout(Duration::from_secs(5));
    result
}

async fn in_a_yard(run: Run, facts: Facts) -> Result<()> {
    let yard = Yard::new()?;
    fs::write(yard.path().join("canary"), facts.get("secret"))?;
    let facts = facts.with("data", yard.path().display()).with("guest", guest_program(yard.path())?);
    // A task of its own, so that a panic is caught and the boxes are removed all the same.
    let task = tokio::spawn(run(yard.clone(), facts));
    let abort = task.abort_handle();
    let result = match timeout(PATIENCE, task).await {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => Err(anyhow!("{panic}")),
        Err(_) => {
            abort.abort();
            Err(anyhow!("not done after {} s", PATIENCE.as_secs()))
        }
    };
    let cleaned = timeout(CLEANING, yard.clean()).await;
    result?;
    cleaned.map_err(|_| anyhow!("its boxes could not be removed in time"))?
}

/// The program that all boxes of an installation begin with.
fn guest_program(data: &Path) -> Result<String> {
    let mut programs = fs::read_dir(data.join("guest"))?.flatten();
    let first = programs.next().context("an installation has a program for its boxes")?;
    Ok(first.path().display().to_string())
}

/// Refused to root of a box and to a user of it, and not to root of the host.
async fn show(name: String, attempt: &'static Attempt, yard: Yard, facts: Facts) -> Result<()> {
    let cell = yard.cell(&SandboxSpec::default()).await?;
    let facts = facts.with("wire", wire_of(&yard, &cell).display());
    for user in USERS {
        let said = cell.try_to(attempt.name, user, &facts.clone().with("target", 1)).await?;
        judge(attempt, user, said.outcome()?)?;
    }
    control(&name, attempt, &cell, facts).await
}

fn judge(attempt: &Attempt, user: &str, outcome: Outcome) -> Result<()> {
    let (expected, why) = match &attempt.control {
        Control::None { errno, why } => (std::slice::from_ref(errno), *why),
        _ => (attempt.errnos, "it works on the host"),
    };
    match outcome {
        Outcome::Won(text) => bail!("as {user} it WORKED in the box: {text}"),
        Outcome::Untried(why) => tally::skip(format!("as {user}: {why}")),
        Outcome::Refused(errno, text) => {
            ensure!(
                expected.contains(&errno),
                "as {user} refused, and not as expected: {text}; {errno} is not in {expected:?} ({why})"
            );
            Ok(())
        }
    }
}

async fn control(name: &str, attempt: &'static Attempt, cell: &Cell, facts: Facts) -> Result<()> {
    let namespaces = match attempt.control {
        Control::None { .. } => return Ok(()),
        Control::Host => 0,
        Control::Apart(namespaces) => namespaces,
    };
    // Its own: two tracers cannot have the same.
    let victim = Victim::new()?;
    let facts = facts.with("target", victim.pid()).with("victim", victim.pid()).with("apart", namespaces);
    let place = cell.yard.path().join("scratch");
    fs::create_dir_all(&place)?;
    let outcome = spawn_blocking(move || on_host(attempt.name, &facts, &place)).await??;
    match outcome {
        Outcome::Won(_) => {}
        Outcome::Untried(why) => tally::without_control(name, &why),
        Outcome::Refused(errno, text) if LACKING.contains(&errno) => {
            tally::without_control(name, &format!("this host has no such thing: {text}"));
        }
        Outcome::Refused(_, text) => bail!("the control: root of the host was refused as well: {text}"),
    }
    Ok(())
}

/// What a kernel answers that was built without something.
const LACKING: [i32; 4] = [libc::ENOSYS, libc::EAFNOSUPPORT, libc::ENODEV, libc::EOPNOTSUPP];

fn on_host(name: &str, facts: &Facts, place: &Path) -> Result<Outcome> {
    let output = Command::new(std::env::current_exe()?)
        .args(["--attempt", name])
        .args(facts.args())
        .current_dir(place)
        .env("TMPDIR", place)
        .output()?;
    let code = output.status.code().with_context(|| format!("the control ended with {}", output.status))?;
    read_outcome(code, &String::from_utf8_lossy(&output.stdout))
}
