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
