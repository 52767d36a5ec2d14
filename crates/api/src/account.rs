//! Accounts, and the keys by which their programs are known.

use crate::{AccountId, KeyId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::{collections::BTreeSet, fmt};

/// Who owns conversations and sandboxes. Nobody sees another's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Account {
    pub id: AccountId,
    pub name: String,
    /// What the account chose, by name.
    #[serde(default)]
    pub settings: Map<String, Value>,
    pub created_at: Timestamp,
    /// Since when its keys are refused. Absent where the account is in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended_at: Option<Timestamp>,
    /// Since when it is being deleted, with all that is its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleting_at: Option<Timestamp>,
}

impl Account {
    /// An account that is in use.
    pub fn new(id: AccountId, name: String, settings: Map<String, Value>, created_at: Timestamp) -> Account {
        Account { id, name, settings, created_at, suspended_at: None, deleting_at: None }
    }
}

/// A limit of an account, and what the account uses of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LimitUse {
    /// The name of the setting.
    pub name: String,
    /// Absent where there is no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// Absent where it is held to the limit and not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<f64>,
}

/// What an account uses of each of its limits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AccountUsage {
    pub account_id: AccountId,
    pub limits: Vec<LimitUse>,
}

/// A process at the local socket, as the kernel names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LocalPeer {
    pub uid: u32,
    pub pid: u32,
}

/// What a key is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum KeyScope {
    /// Look.
    Read,
    /// Make sandboxes and run things in them.
    Run,
    /// Accounts and keys.
    Admin,
}

/// A key without its secret, of which only a hash is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ApiKey {
    pub id: KeyId,
    pub account_id: AccountId,
    pub name: String,
    /// The beginning of the secret, by which people tell keys apart.
    pub prefix: String,
    pub scopes: BTreeSet<KeyScope>,
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<Timestamp>,
}

impl KeyScope {
    pub fn as_str(self) -> &'static str {
        match self {
            KeyScope::Read => "read",
            KeyScope::Run => "run",
            KeyScope::Admin => "admin",
        }
    }
}

impl fmt::Display for KeyScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
