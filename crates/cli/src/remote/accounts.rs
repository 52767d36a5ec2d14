//! Keys and accounts of a server.

use super::{Remote, conversations::page};
use crate::{
    commands::{
        accounts::{self, AccountArgs, AccountsArgs, AccountsCommand, SettingsArgs},
        keys::{self, KeysArgs, KeysCommand},
    },
    exit::Usage,
    output,
};
use anyhow::{Result, bail};
use jiff::Timestamp;
use seawall_api::{
    AccountId,
    account::Account,
    http::{CreateAccount, RotateKey},
};
use seawall_client::Page;
use seawall_core::Error;

pub async fn keys(remote: &Remote, args: &KeysArgs) -> Result<i32> {
    let client = &remote.client;
    if args.account.is_some() && !matches!(args.what, KeysCommand::Create(_)) {
        let why = "a server shows and changes the keys of your own account: use a key of that account";
        bail!(Usage(why.to_owned()));
    }
    match &args.what {
        KeysCommand::Ls => keys::list(remote.json, &client.keys().await?.items),
        KeysCommand::Create(new) => {
            let ask = new.ask(Timestamp::now())?;
            let made = match args.account {
                Some(account) => client.create_key_of(account, &ask).await?,
                None => client.create_key(&ask).await?,
            };
            keys::made(remote.json, &made)
        }
        KeysCommand::Revoke { ids } => {
            for id in ids {
                client.revoke_key(*id).await?;
                keys::revoked(remote.json, *id)?;
            }
            Ok(0)
        }
        KeysCommand::Rotate { id, overlap } => {
            let ask = RotateKey { overlap_s: overlap.map(|overlap| overlap.as_secs()) };
            keys::made(remote.json, &client.rotate_key(*id, &ask).await?)
        }
    }
}

pub async fn accounts(remote: &Remote, args: &AccountsArgs) -> Result<i32> {
    let client = &remote.client;
    match &args.what {
        AccountsCommand::Ls { limit, after } => {
            let found = client.accounts(&page(*limit, *after)).await?;
            accounts::list(remote.json, &found.items, found.next)
        }
        AccountsCommand::Create { name, settings } => {
            let ask = CreateAccount { name: name.clone(), settings: settings.iter().cloned().collect() };
            accounts::made(remote.json, &client.create_account(&ask).await?)
        }
        AccountsCommand::Settings(args) => settings(remote, args).await,
        AccountsCommand::Suspend { id } => client.suspend_account(*id).await.map(|_| 0).map_err(Into::into),
        AccountsCommand::Resume { id } => client.resume_account(*id).await.map(|_| 0).map_err(Into::into),
        AccountsCommand::Rm { id, force } => {
            accounts::confirm(*force)?;
            client.delete_account(*id).await?;
            Ok(0)
        }
    }
}

pub async fn account(remote: &Remote, args: &AccountArgs) -> Result<i32> {
    let usage = match args.id {
        Some(id) => remote.client.usage_of_account(id).await?,
        None => remote.client.account_usage().await?,
    };
    accounts::usage(remote.json, &usage)
}

async fn settings(remote: &Remote, args: &SettingsArgs) -> Result<i32> {
    let client = &remote.client;
    let account = match args.id {
        Some(id) => find(remote, id).await?,
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
async fn find(remote: &Remote, id: AccountId) -> Result<Account> {
    let mut page = Page::first(1000);
    loop {
        let found = remote.client.accounts(&page).await?;
        if let Some(account) = found.items.into_iter().find(|account| account.id == id) {
            return Ok(account);
        }
        match found.next {
            Some(next) => page.after = Some(next),
            None => return Err(Error::not_found(format!("there is no account {id}")).into()),
        }
    }
}
