//! The handshake: the first bytes of every connection between a host and a guest.
//!
//! The host sends [`PREAMBLE`] and a [`Hello`]; the guest answers with a [`Welcome`] or a fault.

use crate::SandboxId;
use serde::{Deserialize, Serialize};

/// Says "this is ours" before anything is parsed. The last byte counts changes of the frames themselves.
pub const PREAMBLE: [u8; 8] = *b"SEAWALL\x01";

/// The versions of the messages that this build speaks.
pub const MIN_VERSION: u16 = 1;
pub const MAX_VERSION: u16 = 1;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The one that the guest may open streams on. The highest epoch wins; older ones are refused.
    Control { epoch: u64 },
    /// Only asks.
    Client,
    /// One request and its body, without multiplexing.
    Bulk,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub min_version: u16,
    pub max_version: u16,
    pub role: Role,
    /// Whom the host thinks it talks to.
    pub sandbox: SandboxId,
    /// The host's build, for error messages and logs.
    pub build: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    pub version: u16,
    pub build: String,
    /// Differs between two lives of one box, so that a host notices a restart.
    pub boot: String,
}

impl Hello {
    pub fn new(role: Role, sandbox: SandboxId) -> Self {
        Hello {
            min_version: MIN_VERSION,
            max_version: MAX_VERSION,
            role,
            sandbox,
            build: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// The newest version that both sides speak.
pub fn agree(hello: &Hello) -> Option<u16> {
    let version = hello.max_version.min(MAX_VERSION);
    (version >= hello.min_version && version >= MIN_VERSION).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(min: u16, max: u16) -> Hello {
        Hello { min_version: min, max_version: max, ..Hello::new(Role::Client, SandboxId::generate()) }
    }

    #[test]
    fn the_newest_common_version_is_taken() {
        assert_eq!(agree(&hello(MIN_VERSION, MAX_VERSION)), Some(MAX_VERSION));
        assert_eq!(agree(&hello(MIN_VERSION, MAX_VERSION + 5)), Some(MAX_VERSION));
        assert_eq!(agree(&hello(MAX_VERSION + 1, MAX_VERSION + 5)), None);
        assert_eq!(agree(&hello(0, 0)), None);
    }
}
