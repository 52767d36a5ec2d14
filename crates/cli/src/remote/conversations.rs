//! Conversations, messages, runs of hooks and templates of a server.

use super::Remote;
use crate::{
    commands::{
        conversations::{self, ConversationsArgs, ConversationsCommand, MessagesArgs, TemplatesArgs},
        hooks::{self, HooksArgs},
    },
    output,
};
use anyhow::Result;
use seawall_client::{ListConversations, Page};
use seawall_core::ports::store::Cursor;
use serde_json::Value;

pub fn page(limit: u32, after: Option<Cursor>) -> Page {
    Page { limit: Some(limit), after: after.map(|after| after.to_string()) }
}

pub async fn conversations(remote: &Remote, args: &ConversationsArgs) -> Result<i32> {
    if let Some(ConversationsCommand::Rm { id, terminate }) = &args.what {
        remote.client.delete_conversation(*id, terminate.then_some(true)).await?;
        return conversations::removed(remote.json, *id);
    }
    let list = ListConversations { page: page(args.limit, args.after), ..ListConversations::default() };
    let found = remote.client.conversations(&list).await?;
    conversations::list(remote.json, &found.items, found.next)
}

pub async fn messages(remote: &Remote, args: &MessagesArgs) -> Result<i32> {
    let found = remote.client.messages(args.id, false, &page(args.limit, args.after)).await?;
    conversations::said(remote.json, &found.items, found.next)
}

pub async fn hooks(remote: &Remote, args: &HooksArgs) -> Result<i32> {
    let id = remote.find_id(&args.id).await?;
    let found = remote.client.hook_runs(id, &page(args.limit, args.after)).await?;
    hooks::show(remote.json, &found.items, found.next)
}

pub async fn templates(remote: &Remote, args: &TemplatesArgs) -> Result<i32> {
    if let Some(name) = &args.name {
        output::json(&remote.client.template(name).await?)?;
        return Ok(0);
    }
    let found = remote.client.templates().await?.items;
    if remote.json {
        output::json(&found)?;
        return Ok(0);
    }
    conversations::template_table(found.iter().map(row)).print()?;
    Ok(0)
}

fn row(template: &Value) -> [&str; 3] {
    let driver = &template["driver"];
    [&template["name"], driver, &template["description"]].map(|word| word.as_str().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_template_is_shown_by_three_words() {
        let template = json!({ "name": "shell", "driver": "sh", "description": "a shell" });
        assert_eq!(row(&template), ["shell", "sh", "a shell"]);
        assert_eq!(row(&json!({})), ["", "", ""]);
    }
}
