//! What an agent may reach through the server, by its account's settings and its template.

use super::{Inner, answer::plus};
use crate::{
    Result,
    agents::ModelApi,
    ports::gateway::{Access, GitAccess, Meter, ModelAccess, Secret},
    templates::{GitPart, Template},
};
use jiff::{Timestamp, ToSpan as _, tz::TimeZone};
use seawall_api::{AccountId, ConversationId, SandboxId, TurnId, conversation::Usage};
use serde_json::{Map, Value};
use std::sync::Arc;

/// What an account's settings say of models. None set: all is allowed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AccountLimits {
    pub models: Option<Vec<String>>,
    pub models_denied: Vec<String>,
    pub tokens_per_day: Option<u64>,
}

impl AccountLimits {
    pub fn of(settings: &Map<String, Value>) -> AccountLimits {
        let list = |key: &str| {
            let list = settings.get(key)?.as_array()?;
            Some(list.iter().filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>())
        };
        AccountLimits {
            models: list("models"),
            models_denied: list("models_denied").unwrap_or_default(),
            tokens_per_day: settings.get("tokens_per_day").and_then(Value::as_u64),
        }
    }
}

fn all(usage: &Usage) -> u64 {
    usage.input_tokens.saturating_add(usage.output_tokens).saturating_add(usage.cache_tokens)
}

/// Midnight, in UTC.
fn day_of(now: Timestamp) -> Timestamp {
    let zoned = now.to_zoned(TimeZone::UTC);
    zoned
        .start_of_day()
        .map(|day| day.timestamp())
        .unwrap_or_else(|_| now.saturating_sub(24.hours()).unwrap_or(now))
}

impl Inner {
    /// The access of a turn. None where nothing of the server is needed.
    pub(super) async fn access(
        &self,
        account: AccountId,
        (conversation, turn, sandbox): (ConversationId, TurnId, SandboxId),
        template: &Template,
    ) -> Result<Option<Access>> {
        let api = template.driver()?.api();
        if api.is_none() && template.git.is_none() {
            return Ok(None);
        }
        let models = match api {
            Some(api) => Some(self.models(account, api).await?),
            None => None,
        };
        let git = template.git.as_ref().map(|git| self.git(git)).transpose()?;
        Ok(Some(Access {
            account,
            sandbox,
            conversation: Some(conversation),
            turn: Some(turn),
            models,
            git,
            meter: Arc::new(Meter::default()),
        }))
    }

    async fn models(&self, account: AccountId, api: ModelApi) -> Result<ModelAccess> {
        let settings = match self.stores.accounts.get(account).await {
            Ok(account) => account.settings,
            // `local` has no row before its first key.
            Err(error) if error.kind() == seawall_api::ErrorKind::NotFound => Map::new(),
            Err(error) => return Err(error),
        };
        let limits = AccountLimits::of(&settings);
        let tokens_left = match limits.tokens_per_day {
            Some(most) => {
                let used = self.stores.turns.used_since(account, day_of(self.clock.now())).await?;
                Some(most.saturating_sub(all(&plus(&used, &Usage::default()))))
            }
            None => None,
        };
        Ok(ModelAccess { api, allowed: limits.models, denied: limits.models_denied, tokens_left })
    }

    fn git(&self, git: &GitPart) -> Result<GitAccess> {
        let token = match &git.token_env {
            Some(name) => Some(Secret::new((self.secrets)(name).ok_or_else(|| {
                crate::Error::invalid(format!(
                    "the token of the repository is missing: set {name} for the server"
                ))
            })?)),
            None => None,
        };
        let url = git.repo.trim_end_matches('/').to_owned();
        let url = if url.ends_with(".git") { url } else { format!("{url}.git") };
        Ok(GitAccess { url, token, may_push: git.push })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn settings_that_are_not_there_allow_all() {
        assert_eq!(AccountLimits::of(&Map::new()), AccountLimits::default());
        let settings = json!({"models": ["a*"], "models_denied": ["b", 3], "tokens_per_day": 5});
        let limits = AccountLimits::of(settings.as_object().unwrap());
        assert_eq!(limits.models, Some(vec!["a*".to_owned()]));
        assert_eq!((limits.models_denied, limits.tokens_per_day), (vec!["b".to_owned()], Some(5)));
    }

    #[test]
    fn a_day_begins_at_midnight() {
        let now: Timestamp = "2026-11-15T21:17:00Z".parse().unwrap();
        assert_eq!(day_of(now), "2026-11-15T00:00:00Z".parse().unwrap());
    }
}
