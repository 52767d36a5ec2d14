//! The server's HTTP on the loopback of a box: model APIs and git, with keys that the box never sees.
//!
//! One port for all. `/anthropic/…` and `/openai/…` go to the model APIs, `/git/…` to the one repository that the
//! sandbox may reach. Everything else is refused. Nothing that a box sends is believed: not its `Host`, not its
//! credentials, not its paths.

use crate::{budget::Budget, tokens::TurnTokens};
use async_trait::async_trait;
use seawall_api::{AccountId, ConversationId, SandboxId, TurnId, conversation::Usage};
use seawall_wire::Duplex;
use std::{fmt, sync::Arc};
use tokio::sync::watch;

/// A secret of the server. Never shown, not even by accident.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// For the request that needs it, and nothing else.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// What a box may reach, and for whom. Made for a turn or a cold start.
#[derive(Debug, Clone)]
pub struct Access {
    pub account: AccountId,
    pub sandbox: SandboxId,
    pub conversation: Option<ConversationId>,
    pub turn: Option<TurnId>,
    pub models: Option<ModelAccess>,
    pub git: Option<GitAccess>,
    pub meter: Arc<Meter>,
}

/// A model API, as an account may use it.
#[derive(Debug, Clone)]
pub struct ModelAccess {
    /// `/anthropic` or `/openai`.
    pub api: crate::agents::ModelApi,
    /// Patterns with `*`; none: all models.
    pub allowed: Option<Vec<String>>,
    /// Patterns with `*` that are refused in any case.
    pub denied: Vec<String>,
    /// The turn's part of the account's budget.
    pub tokens: TurnTokens,
}

/// The one repository that a sandbox may reach.
#[derive(Debug, Clone)]
pub struct GitAccess {
    /// Without a trailing slash, e.g. `https://github.com/owner/repo.git`.
    pub url: String,
    /// Added by the server. None: what anybody may read.
    pub token: Option<Secret>,
    pub may_push: bool,
}

/// What passed: the tokens that answers told of.
#[derive(Debug)]
pub struct Meter(watch::Sender<Metered>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Metered {
    pub requests: u64,
    pub usage: Usage,
}

impl Default for Meter {
    fn default() -> Meter {
        Meter::from(Usage::default())
    }
}

/// A meter that goes on from what was counted before.
impl From<Usage> for Meter {
    fn from(usage: Usage) -> Meter {
        Meter(watch::Sender::new(Metered { requests: 0, usage }))
    }
}

impl Meter {
    pub fn request(&self) {
        self.0.send_modify(|metered| metered.requests += 1);
    }

    pub fn add(&self, usage: &Usage) {
        self.0.send_modify(|metered| {
            let sum = &mut metered.usage;
            sum.input_tokens = sum.input_tokens.saturating_add(usage.input_tokens);
            sum.output_tokens = sum.output_tokens.saturating_add(usage.output_tokens);
            sum.cache_tokens = sum.cache_tokens.saturating_add(usage.cache_tokens);
        });
    }

    pub fn so_far(&self) -> Metered {
        *self.0.borrow()
    }

    /// Wakes whenever something passed.
    pub fn subscribe(&self) -> watch::Receiver<Metered> {
        self.0.subscribe()
    }
}

#[async_trait]
pub trait Gateway: Send + Sync {
    /// Serves one connection of a box, as many requests as it makes, until either side ends it.
    async fn serve(&self, connection: Box<dyn Duplex>, access: Arc<Access>);

    /// Whether the server has a key for an API; else what to do about it.
    fn check(&self, api: crate::agents::ModelApi) -> crate::Result<()>;

    /// Reserves the memory that requests of boxes hold from this budget, in the name of their accounts. A gateway that
    /// holds no bodies needs none.
    fn count_in(&self, _budget: &Budget) {}
}

/// A call to somebody else's server.
#[derive(Debug, Clone, PartialEq)]
pub struct WebhookCall {
    pub url: String,
    /// JSON.
    pub body: String,
    /// The key of the signature; none: unsigned.
    pub secret: Option<Secret>,
    /// The same for every try, so that a receiver can tell a repetition.
    pub id: String,
    /// Unix seconds: part of what is signed.
    pub sent_at: i64,
}

#[async_trait]
pub trait Webhooks: Send + Sync {
    /// Ends well when the receiver answered with 2xx.
    async fn call(&self, call: &WebhookCall) -> crate::Result<()>;
}
