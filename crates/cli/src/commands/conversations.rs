//! `seawall conversations`, `messages` and `templates`.

use crate::{output, session::Session};
use anyhow::Result;
use clap::{Args, Subcommand};
use futures::{StreamExt, stream};
use seawall_api::{
    ConversationId,
    conversation::{Conversation, Role},
    http::List,
};
use seawall_client::{ListConversations, Page};
use seawall_core::ports::store::Cursor;
use serde_json::{Value, json};

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
    Page { limit: Some(limit), after: after.map(|after| after.to_string()) }
}

pub async fn conversations(session: &Session, args: &ConversationsArgs) -> Result<i32> {
    if let Some(ConversationsCommand::Rm { id, terminate }) = &args.what {
        session.client.delete_conversation(*id, terminate.then_some(true)).await?;
        return removed(session.json, *id);
    }
    let list = ListConversations { page: page(args.limit, args.after), ..ListConversations::default() };
    let found = session.client.conversations(&list).await?;
    if session.json {
        output::json(&found)?;
        return Ok(0);
    }
    let titles = stream::iter(&found.items).map(|each| title(session, each.id)).buffered(AT_ONCE);
    show(&found, &titles.collect::<Vec<_>>().await)
}

/// Titles that are looked up at the same time.
const AT_ONCE: usize = 8;
/// Characters of a title.
const TITLE: usize = 40;

/// The beginning of the first prompt. A conversation without one, or whose messages cannot be read, has none.
async fn title(session: &Session, id: ConversationId) -> String {
    let first = session.client.messages(id, false, &Page::first(1)).await;
    let first = first.ok().and_then(|found| found.items.into_iter().next());
    let line = first.map(|message| message.body.trim().lines().next().unwrap_or_default().to_owned());
    shortened(&line.unwrap_or_default())
}

fn shortened(line: &str) -> String {
    match line.char_indices().nth(TITLE) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line.to_owned(),
    }
}

fn removed(json: bool, id: ConversationId) -> Result<i32> {
    match json {
        true => output::json(&json!({ "id": id, "removed": true }))?,
        false => output::line(id)?,
    }
    Ok(0)
}

fn show(found: &List<Conversation>, titles: &[String]) -> Result<i32> {
    let mut table = output::Table::new(&[
        "CONVERSATION",
        "TEMPLATE",
        "MESSAGES",
        "TOKENS",
        "UPDATED",
        "SANDBOX",
        "TITLE",
    ]);
    for (each, title) in found.items.iter().zip(titles) {
        let stats = &each.stats;
        let tokens = stats.total_input_tokens + stats.total_output_tokens + stats.total_cache_tokens;
        table.row(vec![
            each.id.to_string(),
            each.template.clone().unwrap_or_else(|| "-".to_owned()),
            stats.messages_exchanged.to_string(),
            tokens.to_string(),
            each.updated_at.strftime("%Y-%m-%d %H:%M:%S").to_string(),
            each.sandbox_id.map_or_else(|| "-".to_owned(), |id| id.to_string()),
            title.clone(),
        ]);
    }
    table.print()?;
    more(found.next.as_deref());
    Ok(0)
}

pub async fn messages(session: &Session, args: &MessagesArgs) -> Result<i32> {
    let found = session.client.messages(args.id, false, &page(args.limit, args.after)).await?;
    if session.json {
        output::json(&found)?;
        return Ok(0);
    }
    for message in &found.items {
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
    more(found.next.as_deref());
    Ok(0)
}

/// Prints how to get the next page, if a next page exists.
pub fn more(next: Option<&str>) {
    if let Some(next) = next {
        output::note(format!("there are more: --after {next}"));
    }
}

pub async fn templates(session: &Session, args: &TemplatesArgs) -> Result<i32> {
    if let Some(name) = &args.name {
        output::json(&session.client.template(name).await?)?;
        return Ok(0);
    }
    let found = session.client.templates().await?;
    if session.json {
        output::json(&found)?;
        return Ok(0);
    }
    let mut table = output::Table::new(&["TEMPLATE", "AGENT", "WHAT IT IS"]);
    for template in &found.items {
        table.row(row(template).map(str::to_owned).to_vec());
    }
    table.print()?;
    Ok(0)
}

/// Returns a template's name, driver and description.
fn row(template: &Value) -> [&str; 3] {
    let driver = &template["driver"];
    [&template["name"], driver, &template["description"]].map(|word| word.as_str().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_shown_by_three_words() {
        let template = json!({ "name": "shell", "driver": "sh", "description": "a shell" });
        assert_eq!(row(&template), ["shell", "sh", "a shell"]);
        assert_eq!(row(&json!({})), ["", "", ""]);
    }

    #[test]
    fn a_long_prompt_makes_a_short_title() {
        assert_eq!(shortened("write a poem"), "write a poem");
        assert_eq!(shortened(&"ä".repeat(50)), "ä".repeat(TITLE) + "…");
    }
}
