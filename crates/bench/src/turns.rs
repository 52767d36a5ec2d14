//! How fast an answer begins: from the prompt to the first event with the agent's output.

use super::{
    figures::{Bound, Report},
    sync::settle,
};
use anyhow::{Context, Result, ensure};
use seawall_api::{AccountId, ConversationId, SandboxId, conversation::TurnState, event::Event};
use seawall_cli::{app::App, serving::services};
use seawall_core::{
    Turns,
    ports::Volumes,
    turns::{Choice, TurnAsk},
};
use std::time::{Duration, Instant};

const FILES: usize = 1000;
const WARM: usize = 60;
const COLD: usize = 7;

pub async fn all(app: &App) -> Result<Report> {
    let mut report = Report::default();
    let account = services::account(app).await?;
    let turns = services::services(app).await?.turns;
    let conversation = ConversationId::generate();
    let make = format!("for i in $(seq {FILES}); do echo file $i > f$i; done; echo made");
    first(&turns, account, conversation, &make).await?;
    let mut warm = Vec::new();
    for _ in 0..WARM {
        warm.push(first(&turns, account, conversation, "echo hello").await?);
    }
    let mut cold = Vec::new();
    for _ in 0..COLD {
        let linked = app.stores.conversations.get(account, conversation).await?.sandbox_id;
        let sandbox = linked.context("the conversation has no sandbox")?;
        lose(app, sandbox).await?;
        cold.push(first(&turns, account, conversation, "ls | wc -l").await?);
    }
    report.reference(
        "turn_first_ms",
        "prompt to first output, p50",
        "ms",
        median(&mut warm),
        Bound::AtMost(5.0),
    );
    let name = "the same, sandbox gone, 1,000 files to restore, p50";
    report.reference("turn_cold_ms", name, "ms", median(&mut cold), Bound::AtMost(150.0));
    Ok(report)
}

/// Removes the sandbox and moves its files away. They are not deleted: an ext4 without a journal is slow for a minute after
/// many deletions.
async fn lose(app: &App, id: SandboxId) -> Result<()> {
    app.sandboxes.give_up_unsynced(id).await?;
    app.sandboxes.remove(id, Volumes::Keep).await?;
    let volume = app.settings.data.join(app.settings.provider_name()).join("volumes").join(id.to_string());
    let aside = app.settings.data.join(format!("aside-{}", SandboxId::generate()));
    std::fs::rename(&volume, &aside).with_context(|| format!("cannot move {}", volume.display()))?;
    settle();
    Ok(())
}

fn median(times: &mut [Duration]) -> f64 {
    times.sort();
    times.get(times.len() / 2).map_or(f64::NAN, |time| time.as_secs_f64() * 1000.0)
}

/// From the prompt to the first output. The turn is over when this returns.
pub(super) async fn first(
    turns: &Turns,
    account: AccountId,
    conversation: ConversationId,
    prompt: &str,
) -> Result<Duration> {
    let ask = TurnAsk {
        conversation: Some(conversation),
        sandbox: Choice::Auto,
        prompt: prompt.to_owned(),
        ..TurnAsk::default()
    };
    let begun = Instant::now();
    let turn = turns.start(account, ask).await?.turn.id;
    let mut followed = turns.follow(account, turn, 0).await?;
    let mut seen = None;
    while let Some((_, event)) = followed.next().await? {
        match event {
            Event::Text { .. } => {
                seen.get_or_insert_with(|| begun.elapsed());
            }
            Event::TurnEnded { state, error, .. } => {
                ensure!(state == TurnState::Completed, "a turn ended as {state}: {error:?}");
            }
            _ => {}
        }
    }
    turns.idle().await;
    seen.context("a turn without output")
}
