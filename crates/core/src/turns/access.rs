//! What an agent may reach through the server, by its account's settings and its template.

use super::Inner;
use crate::{
    Result,
    accounts::Limit,
    agents::ModelApi,
    ports::gateway::{Access, GitAccess, Meter, ModelAccess, Secret},
    templates::{GitPart, Template},
    tokens::TokenLimits,
};
use seawall_api::{AccountId, ConversationId, SandboxId, TurnId, conversation::Usage};
use std::sync::Arc;

impl Inner {
    /// The access of a turn. `None` where nothing of the server is needed. `counted` passed the gateway before this
    /// server took the turn up.
    pub(super) async fn access(
        &self,
        account: AccountId,
        (conversation, turn, sandbox): (ConversationId, TurnId, SandboxId),
        template: &Template,
        counted: Usage,
    ) -> Result<Option<Access>> {
        let api = template.driver()?.api();
        if api.is_none() && template.git.is_none() {
            return Ok(None);
        }
        let models = match api {
            Some(api) => Some(self.models(account, turn, api).await?),
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
            meter: Arc::new(Meter::from(counted)),
        }))
    }

    async fn models(&self, account: AccountId, turn: TurnId, api: ModelApi) -> Result<ModelAccess> {
        let settings = self.accounts.settings(account).await?;
        let limits = TokenLimits {
            per_day: settings.limits.get(Limit::TokensPerDay),
            per_month: settings.limits.get(Limit::TokensPerMonth),
        };
        let tokens = self.ledger.turn(account, turn, limits)?;
        let (allowed, denied) = (settings.models.clone(), settings.models_denied.clone());
        Ok(ModelAccess { api, allowed, denied, tokens })
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
        Ok(GitAccess { url: git.url(), token, may_push: git.push })
    }
}
