//! What passed, what failed, what could not be shown, and the count at the end.

use anyhow::Result;
use libtest_mimic::Failed;
use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// A case that finds while it runs that it cannot be shown here.
#[derive(Debug)]
struct Skip(String);

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "skipped: {}", self.0)
    }
}

impl std::error::Error for Skip {}

pub fn skip<T>(why: impl Into<String>) -> Result<T> {
    Err(Skip(why.into()).into())
}

struct Tally {
    passed: u32,
    failed: u32,
    /// Names and reasons.
    skipped: Vec<(String, String)>,
    /// Refused in the box, as it must be, and without a control on this host.
    alone: Vec<(String, String)>,
}

static TALLY: Mutex<Tally> =
    Mutex::new(Tally { passed: 0, failed: 0, skipped: Vec::new(), alone: Vec::new() });

fn tally() -> MutexGuard<'static, Tally> {
    TALLY.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn skipped(name: &str, why: &str) {
    tally().skipped.push((name.to_owned(), why.to_owned()));
}

pub fn without_control(name: &str, why: &str) {
    tally().alone.push((name.to_owned(), why.to_owned()));
}

/// Counts a finished case and says what the harness should hear of it.
pub fn verdict(name: &str, result: Result<()>) -> Result<(), Failed> {
    match result {
        Ok(()) => {
            tally().passed += 1;
            Ok(())
        }
        Err(error) => match error.downcast_ref::<Skip>() {
            Some(Skip(why)) => {
                skipped(name, why);
                Ok(())
            }
            None => {
                tally().failed += 1;
                Err(format!("{error:?}").into())
            }
        },
    }
}

pub fn print_summary() {
    let tally = tally();
    let Tally { passed, failed, skipped, alone } = &*tally;
    for (name, why) in alone {
        println!("without control security::{name}: {why}");
    }
    for (name, why) in skipped {
        println!("skipped security::{name}: {why}");
    }
    println!("security: {passed} passed, {failed} failed, {} skipped", skipped.len());
}
