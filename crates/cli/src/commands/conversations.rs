//! `seawall conversations`, `messages` and `templates`.

use crate::{app::App, config::templates as load, output, turns};
use anyhow::Result;
use clap::{Args, Subcommand};
use seawall_api::{
    ConversationId,
    conversation::{Conversation, Message, Role},
};
use seawall_core::ports::store::{ConversationFilter, Cursor, Direction, Page};
use serde_json::json;

#[derive(Debug, Args)]
pub struct ConversationsArgs {
    #[command(subcommand)]
    pub what: Option<ConversationsCommand>,

    /// How many
    #[arg(short = 'n', long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub limit: u32,

    /// Where the list before this one ended
    #[arg(long, value_name = "CURSOR")]
    pub after: Option<Cursor>,
}

#[derive(Debug, Subcommand)]
pub enum ConversationsCommand {
    /// Delete a conversation with all that was said in it
    Rm {
        /// Which one
        id: ConversationId,

        /// Its sandbox too, whose files are saved first
        #[arg(long)]
        terminate: bool,
    },
}

#[derive(Debug, Args)]
pub struct MessagesArgs {
    /// The conversation
    pub id: ConversationId,

    /// How many, from the oldest on
    #[arg(short = 'n', long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub limit: u32,

    /// Where the list before this one ended
    #[arg(long, value_name = "CURSOR")]
    pub after: Option<Cursor>,
}

#[derive(Debug, Args)]
pub struct TemplatesArgs {
    /// One of them, in full
    pub name: Option<String>,
}

pub fn page(limit: u32, after: Option<Cursor>) -> Page {
    Page { limit, after }
}

pub async fn conversations(app: &App, args: &ConversationsArgs) -> Result<i32> {
    let account = turns::account(app).await?;
    if let Some(ConversationsCommand::Rm { id, terminate }) = &args.what {
        let terminate = *terminate || app.settings.server.delete_terminates_sandbox;
        turns::open(app).await?.delete_conversation(account, *id, terminate).await?;
        return removed(app.json, *id);
    }
    let filter = ConversationFilter::default();
    let found = app.stores.conversations.list(account, &filter, &page(args.limit, args.after)).await?;
    list(app.json, &found.items, found.next.map(|next| next.to_string()))
}

pub fn removed(json: bool, id: ConversationId) -> Result<i32> {
    match json {
        true => output::json(&json!({ "id": id, "removed": true }))?,
        false => output::line(id)?,
    }
    Ok(0)
}

pub fn list(json: bool, found: &[Conversation], next: Option<String>) -> Result<i32> {
    if json {
        output::json(&json!({ "conversations": found, "next": next }))?;
        return Ok(0);
    }
    let mut table =
        output::Table::new(&["CONVERSATION", "TEMPLATE", "MESSAGES", "TOKENS", "UPDATED", "SANDBOX"]);
    for each in found {
        let stats = &each.stats;
        let tokens = stats.total_input_tokens + stats.total_output_tokens + stats.total_cache_tokens;
        table.row(vec![
            each.id.to_string(),
            each.template.clone().unwrap_or_else(|| "-".to_owned()),
            stats.messages_exchanged.to_string(),
            tokens.to_string(),
            each.updated_at.strftime("%Y-%m-%d %H:%M:%S").to_string(),
            each.sandbox_id.map_or_else(|| "-".to_owned(), |id| id.to_string()),
        ]);
    }
    table.print()?;
    more(next);
    Ok(0)
}

pub async fn messages(app: &App, args: &MessagesArgs) -> Result<i32> {
    let account = turns::account(app).await?;
    app.stores.conversations.get(account, args.id).await?;
    let page = page(args.limit, args.after);
    let found = app.stores.messages.list(account, args.id, Direction::OldestFirst, &page).await?;
    said(app.json, &found.items, found.next.map(|next| next.to_string()))
}

pub fn said(json: bool, found: &[Message], next: Option<String>) -> Result<i32> {
    if json {
        output::json(&json!({ "messages": found, "next": next }))?;
        return Ok(0);
    }
    for message in found {
        let at = message.created_at.strftime("%Y-%m-%d %H:%M:%S");
        let who = match message.role {
            Role::User => "you",
            Role::Assistant => "agent",
            Role::System => "system",
        };
        output::line(format!("── {who}, {at}"))?;
        for call in &message.tool_calls {
            let called = format!("   {} {}: {:?}", call.name, call.input, call.status);
            output::line(output::printable(&called))?;
        }
        output::line(message.body.trim_end())?;
    }
    more(next);
    Ok(0)
}

pub fn more(next: Option<String>) {
    if let Some(next) = next {
        output::note(format!("there are more: --after {next}"));
    }
}

pub async fn templates(app: &App, args: &TemplatesArgs) -> Result<i32> {
    let all = load(&app.settings.agents, &app.settings.data)?;
    if let Some(name) = &args.name {
        output::json(all.get(name)?)?;
        return Ok(0);
    }
    if app.json {
        output::json(&all.all().collect::<Vec<_>>())?;
        return Ok(0);
    }
    template_table(all.all().map(|each| [&*each.name, &*each.agent.driver, &*each.description])).print()?;
    Ok(0)
}

/// Of names, drivers and descriptions.
pub fn template_table<'a>(rows: impl Iterator<Item = [&'a str; 3]>) -> output::Table {
    let mut table = output::Table::new(&["TEMPLATE", "AGENT", "WHAT IT IS"]);
    for row in rows {
        table.row(row.map(str::to_owned).to_vec());
    }
    table
}
