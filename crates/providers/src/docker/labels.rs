//! Names and labels of what this provider makes.

use super::network::Network;
use seawall_api::{AccountId, SandboxId, hello::MAX_VERSION, sandbox::SandboxSpec};
use seawall_core::{Error, Result};
use std::collections::HashMap;

pub const SANDBOX: &str = "seawall.sandbox";
pub const SESSION: &str = "seawall.session";
pub const ACCOUNT: &str = "seawall.account";
pub const INSTALLATION: &str = "seawall.installation";
pub const SPEC: &str = "seawall.spec";
pub const PROJECT: &str = "seawall.project";
/// The network of Seawall's own that a container has.
pub const NETWORK: &str = "seawall.network";
/// By what a container reaches other machines.
pub const EGRESS: &str = "seawall.egress";
/// The newest version of the wire's protocol that the guest of a container speaks.
pub const PROTOCOL: &str = "seawall.protocol";
/// The name of the volume as the service uses it.
pub const VOLUME: &str = "seawall.volume";
/// The path at which the sandboxes of an account have a cache volume.
pub const CACHE: &str = "seawall.cache";
/// Marks the volumes that hold guests. They belong to no installation.
pub const GUEST: &str = "seawall.guest";

pub type Labels = HashMap<String, String>;

pub fn container_name(id: SandboxId) -> String {
    format!("seawall-{id}")
}

/// The data volume with the name that [`SandboxSpec::volume_of`] returns. Ids are unique on a daemon that several
/// installations use. The names of volumes that sandboxes share are not, so they carry the installation.
pub fn volume_name(volume: &str, installation: &str) -> String {
    match volume.parse::<SandboxId>() {
        Ok(_) => format!("seawall-data-{volume}"),
        Err(_) => format!("seawall-data-{installation}-{volume}"),
    }
}

/// The volume in which the sandboxes of an account keep the cache of a package manager.
pub fn cache_name(path: &str, account: AccountId, installation: &str) -> String {
    let hash = blake3::hash(path.as_bytes()).to_hex();
    format!("seawall-cache-{installation}-{account}-{}", &hash[..8])
}

/// The labels of a cache volume.
pub fn of_cache(path: &str, account: AccountId, installation: &str) -> Labels {
    let labels =
        [(CACHE, path.to_owned()), (ACCOUNT, account.to_string()), (INSTALLATION, installation.to_owned())];
    labels.map(|(key, value)| (key.to_owned(), value)).into()
}

/// The labels of a sandbox's container: the user's, and ours.
pub fn of_container(
    id: SandboxId,
    spec: &SandboxSpec,
    account: AccountId,
    installation: &str,
    network: &Network,
) -> Result<Labels> {
    let spec_text = serde_json::to_string(spec)
        .map_err(|error| Error::internal("the specification of a sandbox").with_source(error))?;
    let ours = [
        (SANDBOX, id.to_string()),
        (SESSION, id.to_string()),
        (ACCOUNT, account.to_string()),
        (INSTALLATION, installation.to_owned()),
        (SPEC, spec_text),
    ];
    let egress = serde_json::to_value(network.egress()).ok().and_then(|word| Some(word.as_str()?.to_owned()));
    let more = [
        (PROJECT, spec.project_id.clone()),
        (NETWORK, matches!(network, Network::Own { .. }).then(|| network.mode().to_owned())),
        (EGRESS, egress),
        (PROTOCOL, Some(MAX_VERSION.to_string())),
    ];
    let more = more.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    // Other programs on the daemon act on labels, so only the operator's own reach the container.
    let users = spec.labels.iter().filter(|_| account == AccountId::LOCAL);
    let users = users.map(|(key, value)| (key.clone(), value.clone()));
    Ok(users.chain(more).chain(ours.map(|(key, value)| (key.to_owned(), value))).collect())
}

/// The labels of a data volume.
pub fn of_volume(volume: &str, account: AccountId, installation: &str) -> Labels {
    let labels = [
        (VOLUME, volume.to_owned()),
        (ACCOUNT, account.to_string()),
        (INSTALLATION, installation.to_owned()),
    ];
    labels.map(|(key, value)| (key.to_owned(), value)).into()
}

/// Whether the rules of Seawall hold for the network of a container.
pub fn has_rules(labels: &Labels) -> bool {
    labels.contains_key(NETWORK) && labels.get(EGRESS).is_some_and(|egress| egress == "docker")
}

/// The filter for what belongs to an installation.
pub fn filter(installation: &str) -> HashMap<String, Vec<String>> {
    HashMap::from([("label".to_owned(), vec![format!("{INSTALLATION}={installation}")])])
}
