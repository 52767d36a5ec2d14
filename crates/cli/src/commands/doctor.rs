//! `seawall doctor`: a line per prerequisite, ticked or not, with the next step.

use crate::{config::Settings, exit, output};
use anyhow::Result;
use clap::Args;
use serde::Serialize;

mod checks;

#[derive(Debug, Args)]
pub struct DoctorArgs {}

/// What came of looking at one thing.
#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    state: State,
    /// What was found.
    found: String,
    /// What to do, where it is not as it should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Ok,
    /// Needed, and not there.
    Missing,
    /// Nice to have, and not there.
    Optional,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Check { name, state: State::Ok, found: found.into(), next: None }
    }

    fn missing(name: &'static str, found: impl Into<String>, next: impl Into<String>) -> Self {
        Check { name, state: State::Missing, found: found.into(), next: Some(next.into()) }
    }

    fn optional(name: &'static str, found: impl Into<String>, next: impl Into<String>) -> Self {
        Check { state: State::Optional, ..Check::missing(name, found, next) }
    }

    fn line(&self) -> String {
        let mark = match self.state {
            State::Ok => "✓",
            State::Missing => "✗",
            State::Optional => "–",
        };
        match &self.next {
            None => format!("{mark} {}: {}", self.name, self.found),
            Some(next) => format!("{mark} {}: {}\n    {next}", self.name, self.found),
        }
    }
}

pub async fn doctor(settings: &Settings, _args: &DoctorArgs, json: bool) -> Result<i32> {
    let data = settings.data.clone();
    let mut checks = tokio::task::spawn_blocking(move || checks::all(&data)).await?;
    checks.push(checks::native(settings).await);
    checks.push(checks::docker(settings).await);
    let healthy = checks.iter().all(|check| check.state != State::Missing);
    if json {
        output::json(&serde_json::json!({ "ok": healthy, "checks": checks }))?;
    } else {
        for check in &checks {
            output::line(check.line())?;
        }
    }
    Ok(if healthy { 0 } else { exit::FAILED })
}
