//! `seawall chat` through a server, which runs the turn.

use super::Remote;
use crate::{
    commands::chat::{self, ChatArgs, View},
    exit,
    signals::Signals,
};
use anyhow::{Context, Result, bail, ensure};
use seawall_api::{ConversationId, conversation::Turn, http::Prompt};
use seawall_client::{Page, TurnEvents, TurnRequest};

pub async fn chat(remote: &Remote, args: &ChatArgs) -> Result<i32> {
    if args.cancel {
        return cancel(remote, args).await;
    }
    let prompt = chat::prompt(args).await?;
    let mut events = match (prompt.is_empty(), args.conversation) {
        (true, Some(conversation)) => {
            let turn = last_turn(remote, conversation).await?;
            remote.client.turn_events(conversation, turn.id, 0)
        }
        (true, None) => bail!(chat::nothing_said()),
        (false, _) => remote.client.prompt(&ask(args, prompt)).await?,
    };
    let mut signals = Signals::listen()?;
    let mut view = View::new(remote.json);
    tokio::select! {
        shown = all(&mut view, &mut events) => shown,
        signal = signals.next() => {
            view.end_line()?;
            if let Some((conversation, _)) = events.turn() {
                chat::goes_on(conversation);
            }
            Ok(exit::by_signal(signal))
        }
    }
}

async fn all(view: &mut View, events: &mut TurnEvents) -> Result<i32> {
    while let Some((number, event)) = events.next().await? {
        view.show(number, event)?;
    }
    Ok(view.code)
}

fn ask(args: &ChatArgs, prompt: String) -> TurnRequest {
    TurnRequest {
        conversation: args.conversation,
        sandbox: args.sandbox,
        relink: args.relink,
        wait: args.wait,
        prompt: Prompt {
            prompt,
            agent_id: args.agent.clone(),
            organization_id: None,
            template: args.template.clone(),
        },
    }
}

async fn last_turn(remote: &Remote, conversation: ConversationId) -> Result<Turn> {
    let turns = remote.client.turns(conversation, &Page::first(1)).await?;
    turns.items.into_iter().next().context("nothing was said in this conversation yet")
}

async fn cancel(remote: &Remote, args: &ChatArgs) -> Result<i32> {
    let Some(conversation) = args.conversation else { return Ok(exit::USAGE) };
    let turn = last_turn(remote, conversation).await?;
    let asked = remote.client.cancel_turn(conversation, turn.id).await?;
    ensure!(asked.cancelled, "no turn of this conversation runs");
    Ok(0)
}
