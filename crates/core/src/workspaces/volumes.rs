//! S12: the names of volumes that sandboxes share.
//!
//! Invariant: a name begins with its account's, which has no dot, and a dot. So no two accounts have a volume in common,
//! whatever their agents are called, and none is taken for a sandbox's own, which is called by its id.
//!
//! The name is part of a sandbox's spec and is decided when the sandbox is made. A box notes its intent before it
//! makes a shared volume, and one lock covers making and removing (`providers/volumes.rs`). Removing a box never
//! removes a shared volume: core does, on request, when no other record names it. A volume has one history in the
//! bucket, under its name.

use super::{Names, account_name, fill, unknown_placeholder};
use crate::{sandboxes::LONGEST_VOLUME, templates::SyncPart};
use seawall_api::{AccountId, SandboxId};
use sha2::{Digest, Sha256};

/// Of a setting: the rest of a name is an account's, a conversation's, a sandbox's and an agent's, each once.
const LONGEST_PATTERN: usize = 100;
/// Of an agent's id in a name.
const LONGEST_AGENT: usize = 40;

/// Why a setting cannot be used.
pub fn check(pattern: &str) -> Result<(), String> {
    if let Some(why) = unknown_placeholder(pattern) {
        return Err(why);
    }
    let tame = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '{' | '}');
    if pattern.is_empty() || pattern.len() > LONGEST_PATTERN || !pattern.chars().all(tame) {
        return Err(format!("it must be 1 to {LONGEST_PATTERN} of a-z A-Z 0-9 - _ . and placeholders"));
    }
    let sample = Names {
        account: AccountId::generate(),
        conversation: Some(SandboxId::generate().to_string()),
        agent: Some("a".repeat(LONGEST_AGENT + 1)),
        volume: None,
    };
    let volume = Some(pattern.to_owned());
    let elsewhere = SyncPart { volume, bucket: Some(String::new()), ..SyncPart::default() };
    match name(&elsewhere, &sample, SandboxId::generate()) {
        Some(name) if name.len() <= LONGEST_VOLUME => Ok(()),
        _ => Err("with all that it names it becomes too long".to_owned()),
    }
}

/// None where the setting is not made, or something that it names is not there: then the sandbox has a volume of its own.
pub fn name(sync: &SyncPart, names: &Names, sandbox: SandboxId) -> Option<String> {
    let pattern = sync.volume.as_deref()?;
    let account = account_name(names.account);
    let needs = |placeholder: &str, value: &Option<String>| !pattern.contains(placeholder) || value.is_some();
    if !needs("{conversation}", &names.conversation) || !needs("{agent}", &names.agent) {
        return None;
    }
    let agent = names.agent.as_deref().map(of_agent).unwrap_or_default();
    let conversation = names.conversation.clone().unwrap_or_default();
    let filled = fill(pattern, &account, &sandbox.to_string(), &conversation, &agent);
    // Files that go elsewhere have another history, so they are no files of this volume.
    let place = match (&sync.bucket, &sync.key_prefix) {
        (None, None) => String::new(),
        (bucket, prefix) => format!(".{}", digest(format!("{bucket:?} {prefix:?}").as_bytes(), 6)),
    };
    Some(format!("{account}.{filled}{place}"))
}

/// An agent's id is the caller's: what cannot be in a name is told apart by its digest. No id that can be has a dot.
fn of_agent(agent: &str) -> String {
    let tame = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if !agent.is_empty() && agent.len() <= LONGEST_AGENT && agent.chars().all(tame) {
        return agent.to_owned();
    }
    // 160 bits: nobody finds two that are the same.
    format!(".{}", digest(agent.as_bytes(), 20))
}

fn digest(of: &[u8], bytes: usize) -> String {
    Sha256::digest(of).iter().take(bytes).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(agent: Option<&str>) -> Names {
        Names { account: AccountId::LOCAL, conversation: None, agent: agent.map(str::to_owned), volume: None }
    }

    fn team(volume: &str) -> SyncPart {
        SyncPart { volume: Some(volume.to_owned()), ..SyncPart::default() }
    }

    #[test]
    fn s12_a_volume_is_named_by_its_account_and_the_setting() {
        let id = SandboxId::generate();
        let name = |pattern: &str, agent: Option<&str>| name(&team(pattern), &names(agent), id);
        assert_eq!(name("all", None).unwrap(), "local.all");
        assert_eq!(name("a-{agent}", Some("bob")).unwrap(), "local.a-bob");
        assert_eq!(name("{account}-{sandbox}", None).unwrap(), format!("local.local-{id}"));
        // What is not there names nothing.
        assert_eq!(name("a-{agent}", None), None);
        assert_eq!(name("{conversation}", Some("bob")), None);
    }

    #[test]
    fn s12_files_that_go_elsewhere_are_in_another_volume() {
        let id = SandboxId::generate();
        let of = |bucket: Option<&str>, prefix: Option<&str>| {
            let (bucket, key_prefix) = (bucket.map(str::to_owned), prefix.map(str::to_owned));
            name(&SyncPart { bucket, key_prefix, ..team("all") }, &names(None), id).unwrap()
        };
        let all = [of(None, None), of(Some("a"), None), of(None, Some("a")), of(Some("a"), Some("a"))];
        assert_eq!(std::collections::BTreeSet::from(all).len(), 4);
        assert_eq!(of(Some("a"), None), of(Some("a"), None));
    }

    #[test]
    fn s12_agents_that_differ_have_volumes_that_differ() {
        let all = ["", "a/b", "a_b", "../a", "{sandbox}", "ä", &"a".repeat(41), &"a".repeat(42)];
        let digest = super::digest(b"a/b", 20);
        let all: Vec<&str> = all.into_iter().chain([digest.as_str()]).collect();
        let made: std::collections::BTreeSet<String> = all
            .iter()
            .map(|agent| name(&team("{agent}"), &names(Some(agent)), SandboxId::generate()).unwrap())
            .collect();
        assert_eq!(made.len(), all.len());
        for name in made {
            crate::sandboxes::check_spec(&seawall_api::sandbox::SandboxSpec {
                volume: Some(name),
                ..Default::default()
            })
            .unwrap();
        }
    }

    #[test]
    fn s12_settings_that_name_no_folder_are_refused() {
        for good in ["all", "custom-{agent}", "{account}.{conversation}.{sandbox}.{agent}", "a.b"] {
            check(good).unwrap();
        }
        let long = "a".repeat(101);
        for bad in
            ["", "a/b", "a b", "{user}", "{agent", "agent}", &long, "{agent}{agent}{agent}{agent}{sandbox}"]
        {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
