//! Whether the process lives, and whether it can do its work.

use crate::state::AppState;
use seawall_api::{
    AccountId, ErrorKind,
    http::{Health, HealthStatus},
};
use seawall_core::host_paths::redact;
use std::{collections::BTreeMap, time::Duration};

/// A store that takes longer is as good as away.
const PATIENCE: Duration = Duration::from_secs(2);

/// It lives, or nobody would say so.
pub fn alive() -> Health {
    told(BTreeMap::new())
}

/// Part by part.
pub async fn ready(state: &AppState) -> Health {
    let mut wrong = BTreeMap::new();
    if state.shutdown().is_cancelled() {
        wrong.insert("server".to_owned(), "it goes down".to_owned());
    }
    if let Err(why) = store(state).await {
        wrong.insert("store".to_owned(), why);
    }
    told(wrong)
}

async fn store(state: &AppState) -> Result<(), String> {
    let asked = state.services().stores.accounts.get(AccountId::LOCAL);
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Ok(_)) => Ok(()),
        // It answered.
        Ok(Err(error)) if error.kind() == ErrorKind::NotFound => Ok(()),
        Ok(Err(error)) => {
            tracing::warn!(error = error.chain(), "the store is not ready");
            Err(redact(&error.to_string()).into_owned())
        }
        Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
    }
}

fn told(checks: BTreeMap<String, String>) -> Health {
    let status = if checks.is_empty() { HealthStatus::Ok } else { HealthStatus::Unready };
    Health { status, version: env!("CARGO_PKG_VERSION").to_owned(), checks }
}
