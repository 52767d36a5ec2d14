//! The same attempts in a container of the provider `docker`.
//!
//! A container is confined by the daemon, so the kernel's answers differ from those in a native box, and what counts is
//! that an attempt does not succeed. [`BY_DESIGN`] lists those that succeed in every container of Docker, with the
//! reason; SECURITY.md has the same list. The controls are those of native boxes.

use super::{
    attempts::GROUPS,
    kit::Yard,
    probe::{Attempt, Facts, Outcome},
    runner::Case,
};
use anyhow::{Result, ensure};
use seawall_api::{SandboxId, sandbox::SandboxSpec};
use seawall_providers::docker::{DockerProvider, DockerSettings};
use std::{env, sync::Arc};

/// Root of the container, and a user of the test image.
const USERS: [&str; 2] = ["root", "nobody"];
const IMAGE: &str = "seawall-test/debian";

/// Attempts that succeed in a container, and why that is no escape.
const BY_DESIGN: [(&str, &str); 8] = [
    ("shadow", "it is the image's file"),
    ("write_usr", "it is the container's own file system"),
    ("change_usr", "it is the container's own file system"),
    ("change_etc", "it is the container's own file system"),
    ("descriptors_of_process_1", "root may list their numbers, and can open none"),
    ("oom_score_of_process_1", "the guest of the container itself, among its own processes"),
    ("foreign_user", "a container has all ids of the machine, unless the daemon maps them"),
    ("file_of_a_foreign_user", "a container has all ids of the machine, unless the daemon maps them"),
];

/// A case for each group of attempts. None without a daemon.
pub fn cases() -> Vec<Case> {
    if env::var_os("SEAWALL_TEST_DOCKER").is_none() {
        return Vec::new();
    }
    let case = |group: &str, attempts: &'static [Attempt]| Case {
        name: format!("docker::{group}"),
        alone: false,
        run: Box::new(move |yard, facts| Box::pin(all(yard, facts, attempts))),
    };
    GROUPS.iter().map(|(group, attempts)| case(group, attempts)).collect()
}

async fn all(yard: Yard, facts: Facts, attempts: &'static [Attempt]) -> Result<()> {
    let settings = DockerSettings {
        host: env::var("SEAWALL_TEST_DOCKER").ok(),
        image: Some(IMAGE.to_owned()),
        ..DockerSettings::default()
    };
    let installation = SandboxId::generate().to_string();
    let provider = DockerProvider::open(yard.path(), &installation, settings)?;
    let yard = Yard { provider: Arc::new(provider), data: yard.data.clone() };
    let tried = in_one_container(&yard, &facts, attempts).await;
    yard.clean().await?;
    let wrong = tried?;
    ensure!(wrong.is_empty(), "not as expected in a container:\n{}", wrong.join("\n"));
    Ok(())
}

/// Makes each attempt in one container. Returns those that came out otherwise than expected.
async fn in_one_container(yard: &Yard, facts: &Facts, attempts: &'static [Attempt]) -> Result<Vec<String>> {
    let cell = yard.cell(&SandboxSpec::default()).await?;
    let wires = yard.path().join("docker/boxes").join(cell.id.to_string()).join("wires");
    let facts = facts.clone().with("wire", wires.display()).with("target", 1);
    let mut wrong = Vec::new();
    for attempt in attempts {
        let mut won = Vec::new();
        for user in USERS {
            let said = cell.try_to(attempt.name, user, &facts).await?;
            if let Outcome::Won(text) = said.outcome()? {
                won.push(format!("as {user}: {text}"));
            }
        }
        let known = BY_DESIGN.iter().any(|(name, _)| *name == attempt.name);
        match (known, won.is_empty()) {
            (false, false) => wrong.push(format!("{} WORKED, {}", attempt.name, won.join("; "))),
            (true, true) => wrong.push(format!("{} no longer works; take it out of BY_DESIGN", attempt.name)),
            _ => {}
        }
    }
    Ok(wrong)
}
