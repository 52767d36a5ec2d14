//! `seawall accounts`: who owns conversations and sandboxes, for operators.

use super::conversations::{more, page};
use crate::{output, session::Session};
use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use seawall_api::{
    AccountId,
    account::{Account, AccountUsage},
    http::{CreateAccount, List},
};
use seawall_client::Page;
use seawall_core::{Error, ports::store::Cursor};
use serde_json::{Map, Value};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ID=$(seawall accounts create team-a)
  seawall keys create --account $ID --name first --scope admin    its first key
  seawall accounts settings $ID --set tokens_per_day=500000 --set 'models=[\"claude-*\"]'
  seawall accounts settings                                       your own")]
pub struct AccountsArgs {
    #[command(subcommand)]
    pub what: AccountsCommand,
}

#[derive(Debug, Subcommand)]
pub enum AccountsCommand {
    /// List them, the oldest first
    Ls {
        /// How many
        #[arg(short = 'n', long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,

        /// Where the list before this one ended
        #[arg(long, value_name = "CURSOR")]
        after: Option<Cursor>,
    },
    /// Make one; prints its id
    Create {
        /// What it is called
        name: String,

        /// A setting; may be repeated
        #[arg(long = "set", value_name = "NAME=VALUE", value_parser = setting)]
        settings: Vec<(String, Value)>,
    },
    /// Show the settings of an account, or change some
    Settings(SettingsArgs),
    /// Refuse an account's keys, end its turns, and stop its sandboxes
    Suspend { id: AccountId },
    /// Let a suspended account in again
    Resume { id: AccountId },
    /// Delete an account with all that is its own; there is no way back
    Rm {
        id: AccountId,

        /// Yes, all of it
        #[arg(short, long)]
        force: bool,
    },
}

#[derive(Debug, Args)]
pub struct SettingsArgs {
    /// Which one [default: your own]
    pub id: Option<AccountId>,

    /// Set this one; may be repeated
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = setting)]
    pub changes: Vec<(String, Value)>,

    /// Take this one away; may be repeated
    #[arg(long, value_name = "NAME")]
    pub unset: Vec<String>,
}

/// What is no JSON is text.
fn setting(text: &str) -> Result<(String, Value), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => {
            let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
            Ok((name.to_owned(), value))
        }
        _ => Err(format!("`{text}` is not NAME=VALUE")),
    }
}

impl SettingsArgs {
    /// The settings as they shall be; none: they stay as they are.
    fn changed(&self, mut settings: Map<String, Value>) -> Option<Map<String, Value>> {
        if self.changes.is_empty() && self.unset.is_empty() {
            return None;
        }
        settings.retain(|name, _| !self.unset.contains(name));
        settings.extend(self.changes.iter().cloned());
        Some(settings)
    }
}

pub async fn accounts(session: &Session, args: &AccountsArgs) -> Result<i32> {
    let client = &session.client;
    match &args.what {
        AccountsCommand::Ls { limit, after } => {
            list(session.json, &client.accounts(&page(*limit, *after)).await?)
        }
        AccountsCommand::Create { name, settings } => {
            let ask = CreateAccount { name: name.clone(), settings: settings.iter().cloned().collect() };
            made(session.json, &client.create_account(&ask).await?)
        }
        AccountsCommand::Settings(args) => settings(session, args).await,
        AccountsCommand::Suspend { id } => client.suspend_account(*id).await.map(|_| 0).map_err(Into::into),
        AccountsCommand::Resume { id } => client.resume_account(*id).await.map(|_| 0).map_err(Into::into),
        AccountsCommand::Rm { id, force } => {
            confirm(*force)?;
            client.delete_account(*id).await?;
            Ok(0)
        }
    }
}

async fn settings(session: &Session, args: &SettingsArgs) -> Result<i32> {
    let client = &session.client;
    let account = match args.id {
        Some(id) => find(session, id).await?,
        None => client.account().await?,
    };
    let account = match (args.changed(account.settings.clone()), args.id) {
        (None, _) => account,
        (Some(changed), Some(id)) => client.set_settings_of(id, &changed).await?,
        (Some(changed), None) => client.set_settings(&changed).await?,
    };
    output::json(&account.settings)?;
    Ok(0)
}

/// There are few, and a server lists them all.
async fn find(session: &Session, id: AccountId) -> Result<Account> {
    let mut page = Page::first(1000);
    loop {
        let found = session.client.accounts(&page).await?;
        if let Some(account) = found.items.into_iter().find(|account| account.id == id) {
            return Ok(account);
        }
        match found.next {
            Some(next) => page.after = Some(next),
            None => return Err(Error::not_found(format!("there is no account {id}")).into()),
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  seawall account                 your own
  seawall account $ID --json      another's, for operators")]
pub struct AccountArgs {
    /// Which one [default: your own]
    pub id: Option<AccountId>,
}

pub async fn account(session: &Session, args: &AccountArgs) -> Result<i32> {
    let found = match args.id {
        Some(id) => session.client.usage_of_account(id).await?,
        None => session.client.account_usage().await?,
    };
    usage(session.json, &found)
}

/// A line for each limit.
fn usage(json: bool, usage: &AccountUsage) -> Result<i32> {
    if json {
        output::json(usage)?;
        return Ok(0);
    }
    let mut table = output::Table::new(&["LIMIT", "VALUE", "IN USE"]);
    for limit in &usage.limits {
        let value = limit.value.map_or("unlimited".to_owned(), |value| value.to_string());
        table.row(vec![
            limit.name.clone(),
            value,
            limit.used.map_or_else(|| "-".to_owned(), |used| used.to_string()),
        ]);
    }
    table.print()?;
    Ok(0)
}

/// Everything of the account goes, so a slip of the hand must not do it.
fn confirm(force: bool) -> Result<()> {
    match force {
        true => Ok(()),
        false => bail!(crate::exit::Usage(
            "this deletes the account's sandboxes, versions and conversations for good: say --force"
                .to_owned()
        )),
    }
}

fn list(json: bool, found: &List<Account>) -> Result<i32> {
    if json {
        output::json(found)?;
        return Ok(0);
    }
    let mut table = output::Table::new(&["ACCOUNT", "NAME", "STATE", "MADE"]);
    for each in &found.items {
        let made = each.created_at.strftime("%Y-%m-%d %H:%M:%S").to_string();
        let state = if each.suspended_at.is_some() { "suspended" } else { "active" };
        table.row(vec![each.id.to_string(), each.name.clone(), state.to_owned(), made]);
    }
    table.print()?;
    more(found.next.as_deref());
    Ok(0)
}

fn made(json: bool, account: &Account) -> Result<i32> {
    match json {
        true => output::json(account)?,
        false => output::line(account.id)?,
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_json_or_text() {
        assert_eq!(setting("seats=5").unwrap(), ("seats".to_owned(), json!(5)));
        assert_eq!(setting("plan=pro=1").unwrap(), ("plan".to_owned(), json!("pro=1")));
        assert_eq!(setting("on=true").unwrap().1, json!(true));
        assert!(setting("=x").is_err() && setting("x").is_err());
    }

    #[test]
    fn only_what_is_named_changes() {
        let now = Map::from_iter([("a".to_owned(), json!(1)), ("b".to_owned(), json!(2))]);
        let mut args = SettingsArgs { id: None, changes: vec![], unset: vec![] };
        assert_eq!(args.changed(now.clone()), None);
        args.changes = vec![("c".to_owned(), json!(3))];
        args.unset = vec!["a".to_owned()];
        let wanted = Map::from_iter([("b".to_owned(), json!(2)), ("c".to_owned(), json!(3))]);
        assert_eq!(args.changed(now), Some(wanted));
    }
}
