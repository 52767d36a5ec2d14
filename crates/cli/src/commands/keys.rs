//! `seawall keys`: the keys by which programs are known to a server.

use crate::{
    duration,
    output::{self, Table},
    session::Session,
};
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use jiff::{SignedDuration, Timestamp};
use seawall_api::{
    KeyId,
    account::{ApiKey, KeyScope},
    http::{CreateKey, List, NewKey, RotateKey},
};
use std::{collections::BTreeSet, time::Duration};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  KEY=$(seawall keys create --name ci --scope run)   a program that makes sandboxes and runs things in them
  seawall keys create --name me --scope admin        whoever looks after accounts and keys
  seawall keys rotate ID --overlap 1h                a new secret; the old one works for another hour
  seawall keys revoke ID

A secret is shown once, and stored nowhere. A key that may run may read; one that may do all is `admin`.")]
pub struct KeysArgs {
    #[command(subcommand)]
    pub what: KeysCommand,
}

#[derive(Debug, Subcommand)]
pub enum KeysCommand {
    /// List them, also those that were revoked
    Ls,
    /// Make one; prints its secret, this once
    Create(CreateKeyArgs),
    /// Make keys worthless, at once
    Revoke {
        /// Which ones
        #[arg(required = true, value_name = "ID")]
        ids: Vec<KeyId>,
    },
    /// Put a new one in the place of an old one; prints its secret, this once
    Rotate {
        /// Which one
        id: KeyId,

        /// The old one works for so long [default: not at all]
        #[arg(long, value_name = "TIME", value_parser = duration::parse)]
        overlap: Option<Duration>,
    },
}

#[derive(Debug, Args)]
pub struct CreateKeyArgs {
    /// What it is for
    #[arg(long)]
    pub name: String,

    /// What it is good for: read, run or admin; may be repeated
    #[arg(long = "scope", value_name = "SCOPE", value_parser = scope, default_value = "run")]
    pub scopes: Vec<KeyScope>,

    /// It works for so long [default: until it is revoked]
    #[arg(long, value_name = "TIME", value_parser = duration::parse_positive)]
    pub expires_in: Option<Duration>,
}

fn scope(text: &str) -> Result<KeyScope, String> {
    let all = [KeyScope::Read, KeyScope::Run, KeyScope::Admin];
    all.into_iter()
        .find(|scope| scope.as_str() == text)
        .ok_or_else(|| format!("`{text}` is no scope: read, run or admin"))
}

impl CreateKeyArgs {
    fn ask(&self, now: Timestamp) -> Result<CreateKey> {
        let until = |time: Duration| now.checked_add(SignedDuration::try_from(time)?);
        let expires_at = self.expires_in.map(until).transpose().context("--expires-in is too long")?;
        let scopes: BTreeSet<KeyScope> = self.scopes.iter().copied().collect();
        Ok(CreateKey { name: self.name.clone(), scopes, expires_at })
    }
}

pub async fn keys(session: &Session, args: &KeysArgs) -> Result<i32> {
    let client = &session.client;
    match &args.what {
        KeysCommand::Ls => list(session.json, &client.keys().await?),
        KeysCommand::Create(new) => {
            made(session.json, &client.create_key(&new.ask(Timestamp::now())?).await?)
        }
        KeysCommand::Revoke { ids } => {
            for id in ids {
                client.revoke_key(*id).await?;
                revoked(session.json, *id)?;
            }
            Ok(0)
        }
        KeysCommand::Rotate { id, overlap } => {
            let ask = RotateKey { overlap_s: overlap.map(|overlap| overlap.as_secs()) };
            made(session.json, &client.rotate_key(*id, &ask).await?)
        }
    }
}

fn list(json: bool, keys: &List<ApiKey>) -> Result<i32> {
    match json {
        true => output::json(keys)?,
        false => table(&keys.items, Timestamp::now()).print()?,
    }
    Ok(0)
}

fn table(keys: &[ApiKey], now: Timestamp) -> Table {
    let mut table = Table::new(&["KEY", "NAME", "BEGINS", "SCOPES", "USED", "STATE"]);
    let shown = |time: Timestamp| time.strftime("%Y-%m-%d %H:%M:%S").to_string();
    for key in keys {
        let scopes: Vec<&str> = key.scopes.iter().map(|scope| scope.as_str()).collect();
        let ends = key.revoked_at.into_iter().chain(key.expires_at).min();
        let state = match ends {
            None => "good".to_owned(),
            Some(at) if at > now => format!("good until {}", shown(at)),
            Some(_) if key.revoked_at.is_some_and(|at| at <= now) => "revoked".to_owned(),
            Some(_) => "expired".to_owned(),
        };
        table.row(vec![
            key.id.to_string(),
            key.name.clone(),
            key.prefix.clone(),
            scopes.join(","),
            key.last_used_at.map_or_else(|| "-".to_owned(), shown),
            state,
        ]);
    }
    table
}

/// The secret alone goes to stdout, so that a script has it.
fn made(json: bool, new: &NewKey) -> Result<i32> {
    if json {
        output::json(new)?;
        return Ok(0);
    }
    output::line(&new.secret)?;
    output::note(format!("key {} ({}): the secret is shown this once", new.key.id, new.key.name));
    Ok(0)
}

fn revoked(json: bool, id: KeyId) -> Result<()> {
    match json {
        true => output::json_line(&serde_json::json!({ "id": id, "revoked": true })),
        false => output::line(id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_api::AccountId;

    fn key(expires_at: Option<Timestamp>, revoked_at: Option<Timestamp>) -> ApiKey {
        ApiKey {
            id: KeyId::generate(),
            account_id: AccountId::LOCAL,
            name: "ci".into(),
            prefix: "sw_12345678".into(),
            scopes: BTreeSet::from([KeyScope::Read, KeyScope::Run]),
            created_at: Timestamp::UNIX_EPOCH,
            expires_at,
            revoked_at,
            last_used_at: None,
        }
    }

    #[test]
    fn the_state_says_what_a_key_is_worth() {
        let now = Timestamp::from_second(1000).unwrap();
        let (before, after) = (Timestamp::from_second(10).ok(), Timestamp::from_second(2000).ok());
        let state = |key: ApiKey| {
            let shown = format!("{:?}", table(&[key], now));
            ["good until", "good", "revoked", "expired"].into_iter().find(|word| shown.contains(word))
        };
        assert_eq!(state(key(None, None)), Some("good"));
        assert_eq!(state(key(after, None)), Some("good until"));
        assert_eq!(state(key(None, after)), Some("good until"));
        assert_eq!(state(key(after, before)), Some("revoked"));
        assert_eq!(state(key(before, None)), Some("expired"));
    }

    #[test]
    fn a_wish_has_its_end() {
        let now = Timestamp::from_second(1000).unwrap();
        let args = CreateKeyArgs {
            name: "ci".into(),
            scopes: vec![KeyScope::Run, KeyScope::Run],
            expires_in: Some(Duration::from_secs(60)),
        };
        let ask = args.ask(now).unwrap();
        assert_eq!((ask.scopes.len(), ask.expires_at), (1, Timestamp::from_second(1060).ok()));
        let args = CreateKeyArgs { expires_in: Some(Duration::MAX), ..args };
        assert!(args.ask(now).is_err());
        assert!(scope("root").unwrap_err().contains("admin"));
    }
}
