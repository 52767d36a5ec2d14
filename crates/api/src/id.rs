//! Ids: newtypes over any UUID but the zero one. Ours are version 7, so they sort by time.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};
use uuid::Uuid;

/// Why a text is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidId {
    #[error("`{0}` is not a UUID (expected 32 hex digits, e.g. 0190a5d0-7c1e-7b3a-9f00-3d2c1b0a9f8e)")]
    Malformed(String),
    #[error("the zero UUID is not an id")]
    Zero,
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "Uuid", into = "Uuid")]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(value_type = String, format = Uuid))]
        pub struct $name(Uuid);

        impl $name {
            /// A new, time-ordered id.
            pub fn generate() -> Self {
                Self(Uuid::now_v7())
            }

            pub fn as_uuid(&self) -> Uuid {
                self.0
            }
        }

        impl TryFrom<Uuid> for $name {
            type Error = InvalidId;
            fn try_from(uuid: Uuid) -> Result<Self, InvalidId> {
                if uuid.is_nil() { Err(InvalidId::Zero) } else { Ok(Self(uuid)) }
            }
        }

        impl From<$name> for Uuid {
            fn from(id: $name) -> Uuid {
                id.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                let uuid = Uuid::from_str(text.trim())
                    .map_err(|_| InvalidId::Malformed(text.to_owned()))?;
                Self::try_from(uuid)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// A sandbox, for its whole life: the box behind it may be replaced, the id stays.
    SandboxId
);
id!(
    /// A process in a sandbox. The host chooses it, so that asking twice starts once.
    ProcessId
);

id!(
    /// Who owns things.
    AccountId
);
id!(
    /// An API key. Not the secret itself.
    KeyId
);
id!(
    /// A conversation: what is durable.
    ConversationId
);
id!(
    /// One prompt and all that follows from it.
    TurnId
);
id!(
    /// One prompt or one answer.
    MessageId
);
id!(
    /// One run of a hook.
    HookRunId
);

impl SandboxId {
    /// The box that a provider starts and removes to find out whether it can be used.
    pub const PROBE: SandboxId = SandboxId(Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0002));
}

impl AccountId {
    /// The account `local`: that of the command line, and of a server's first key.
    pub const LOCAL: AccountId = AccountId(Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0001));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_refused_everywhere() {
        let zero = "00000000-0000-0000-0000-000000000000";
        assert_eq!(SandboxId::from_str(zero), Err(InvalidId::Zero));
        assert!(serde_json::from_str::<SandboxId>(&format!("\"{zero}\"")).is_err());
    }

    #[test]
    fn any_other_uuid_is_taken() {
        let v4 = "f47ac10b-58cc-4372-a567-0e02b2c3d479";
        assert_eq!(SandboxId::from_str(v4).unwrap().to_string(), v4);
        assert!(SandboxId::from_str("nope").unwrap_err().to_string().contains("nope"));
    }

    #[test]
    fn ours_sort_by_time() {
        let ids: Vec<_> = (0..100).map(|_| ProcessId::generate()).collect();
        assert!(ids.windows(2).all(|w| w[0] < w[1]));
    }
}
