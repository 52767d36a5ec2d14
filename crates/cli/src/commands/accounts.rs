//! `seawall accounts`: who owns conversations and sandboxes, for operators.

use super::conversations::more;
use crate::{app::App, output, turns};
use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use seawall_api::{
    AccountId,
    account::{Account, AccountUsage},
};
use seawall_core::{
    accounts::AccountSettings,
    ports::{
        Clock as _, SystemClock,
        store::{Cursor, Page},
    },
};
use serde_json::{Map, Value, json};

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
    pub fn changed(&self, mut settings: Map<String, Value>) -> Option<Map<String, Value>> {
        if self.changes.is_empty() && self.unset.is_empty() {
            return None;
        }
        settings.retain(|name, _| !self.unset.contains(name));
        settings.extend(self.changes.iter().cloned());
        Some(settings)
    }
}

pub async fn accounts(app: &App, args: &AccountsArgs) -> Result<i32> {
    let own = turns::account(app).await?;
    let store = &app.stores.accounts;
    match &args.what {
        AccountsCommand::Ls { limit, after } => {
            let found = store.list(&Page { limit: *limit, after: *after }).await?;
            list(app.json, &found.items, found.next.map(|next| next.to_string()))
        }
        AccountsCommand::Create { name, settings } => {
            if name.trim().is_empty() {
                bail!(crate::exit::Usage("an account needs a name".to_owned()));
            }
            let settings = settings.iter().cloned().collect();
            AccountSettings::check(&settings)?;
            let account = Account::new(AccountId::generate(), name.clone(), settings, SystemClock.now());
            store.create(&account).await?;
            made(app.json, &account)
        }
        AccountsCommand::Suspend { id } => {
            turns::services(app).await?.suspend_account(*id).await?;
            Ok(0)
        }
        AccountsCommand::Resume { id } => {
            turns::services(app).await?.resume_account(*id).await?;
            Ok(0)
        }
        AccountsCommand::Rm { id, force } => {
            confirm(*force)?;
            turns::services(app).await?.delete_account(*id).await?;
            Ok(0)
        }
        AccountsCommand::Settings(args) => {
            let mut account = store.get(args.id.unwrap_or(own)).await?;
            if let Some(changed) = args.changed(account.settings.clone()) {
                AccountSettings::check(&changed)?;
                store.set_settings(account.id, &changed).await?;
                account.settings = changed;
            }
            output::json(&account.settings)?;
            Ok(0)
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

pub async fn account(app: &App, args: &AccountArgs) -> Result<i32> {
    let own = turns::account(app).await?;
    let account = args.id.unwrap_or(own);
    app.stores.accounts.get(account).await?;
    usage(app.json, &turns::services(app).await?.account_usage(account).await?)
}

/// A line for each limit.
pub fn usage(json: bool, usage: &AccountUsage) -> Result<i32> {
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
pub fn confirm(force: bool) -> Result<()> {
    match force {
        true => Ok(()),
        false => bail!(crate::exit::Usage(
            "this deletes the account's sandboxes, versions and conversations for good: say --force"
                .to_owned()
        )),
    }
}

pub fn list(json: bool, accounts: &[Account], next: Option<String>) -> Result<i32> {
    if json {
        output::json(&json!({ "accounts": accounts, "next": next }))?;
        return Ok(0);
    }
    let mut table = output::Table::new(&["ACCOUNT", "NAME", "STATE", "MADE"]);
    for each in accounts {
        let made = each.created_at.strftime("%Y-%m-%d %H:%M:%S").to_string();
        let state = if each.suspended_at.is_some() { "suspended" } else { "active" };
        table.row(vec![each.id.to_string(), each.name.clone(), state.to_owned(), made]);
    }
    table.print()?;
    more(next);
    Ok(0)
}

pub fn made(json: bool, account: &Account) -> Result<i32> {
    match json {
        true => output::json(account)?,
        false => output::line(account.id)?,
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

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
