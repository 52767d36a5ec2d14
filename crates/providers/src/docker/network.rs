//! Docker networks for sandboxes that reach public addresses, one for each account.
//!
//! A network of an account is a bridge of this machine, so that the names and addresses of its containers are known to the
//! account alone: the name server of a Docker network tells the names of all its containers. The rules of
//! [`seawall_jail::firewall`] hold for all bridges of the installation, and no two containers of a network reach each other.

use super::{
    daemon::{Daemon, is_conflict, is_missing},
    labels,
};
use crate::off_thread;
use bollard::{
    models::NetworkCreateRequest,
    query_parameters::{InspectNetworkOptions, ListContainersOptionsBuilder, ListNetworksOptionsBuilder},
};
use seawall_api::{
    AccountId, ErrorKind,
    sandbox::{Egress, SandboxSpec},
};
use seawall_core::{Error, Result};
use seawall_jail::firewall::{self, Rules};
use std::{collections::HashMap, net::Ipv4Addr};
use tokio::sync::Mutex;

/// Modes of Docker that are no networks of a container's own.
const NO_NETWORKS: [&str; 3] = ["host", "none", "default"];

/// The operator's settings for networks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NetworkSettings {
    /// Name servers of containers, whose addresses need not be public. If there are none, the daemon's are used.
    pub name_servers: Vec<Ipv4Addr>,
    /// Further ranges that sandboxes cannot reach.
    pub refused: Vec<(Ipv4Addr, u8)>,
    /// Whether the operator's sandboxes get a network although no rules can be set.
    pub unchecked: bool,
}

#[derive(Debug)]
pub struct Networks {
    settings: NetworkSettings,
    installation: String,
    rules: Rules,
    /// Held while a network is made or removed.
    changing: Mutex<()>,
}

/// The network of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Network {
    None,
    /// A network of Seawall's own, whether or not its rules hold there.
    Own {
        name: String,
        bridge: String,
        checked: bool,
    },
    /// A network of the operator's.
    Named(String),
}

impl Network {
    pub fn egress(&self) -> Egress {
        match self {
            Network::None => Egress::None,
            Network::Own { checked: true, .. } => Egress::Docker,
            Network::Own { .. } | Network::Named(_) => Egress::External,
        }
    }

    /// The name by which a container joins it.
    pub fn mode(&self) -> &str {
        match self {
            Network::None => "none",
            Network::Own { name, .. } | Network::Named(name) => name,
        }
    }
}

impl Networks {
    pub fn new(installation: &str, settings: NetworkSettings) -> Networks {
        let hash = short_hash(installation);
        let rules = Rules {
            table: format!("seawall-{hash}"),
            bridges: format!("sw{hash}"),
            name_servers: settings.name_servers.clone(),
            refused: settings.refused.clone(),
        };
        Networks { settings, installation: installation.to_owned(), rules, changing: Mutex::default() }
    }

    /// The name servers of containers.
    pub fn name_servers(&self) -> Vec<String> {
        self.settings.name_servers.iter().map(Ipv4Addr::to_string).collect()
    }

    /// The network that a specification wants. `is_local` means that the daemon's bridges are on this machine.
    pub fn of(&self, spec: &SandboxSpec, account: AccountId, is_local: bool) -> Result<Network> {
        if let Some(name) = &spec.network {
            // Networks of Seawall's own belong to accounts.
            if NO_NETWORKS.contains(&name.as_str()) || name.starts_with("seawall-") {
                let message =
                    format!("`{name}` is no network that a sandbox can join; see `docker network ls`");
                return Err(Error::invalid(message));
            }
            return Ok(Network::Named(name.clone()));
        }
        if !spec.allow_network {
            return Ok(Network::None);
        }
        let no_rules = no_rules(is_local);
        if let Some(why) = no_rules
            && !(self.settings.unchecked && account == AccountId::LOCAL)
        {
            let message = format!(
                "the provider `docker` cannot enforce `allow_network` here: {why}; leave it out, or accept a network without \
                 rules for the operator's own sandboxes by `unchecked_network = true` in section [docker]"
            );
            return Err(Error::new(ErrorKind::LimitUnenforceable, message));
        }
        Ok(self.own(account, no_rules.is_none()))
    }

    fn own(&self, account: AccountId, checked: bool) -> Network {
        let name = format!("seawall-{}-{account}", self.installation);
        let bridge = format!("{}{}", self.rules.bridges, short_hash(&account.to_string()));
        Network::Own { name, bridge, checked }
    }

    /// Makes sure that a network exists, and that its rules are in force, before a container joins it.
    pub async fn ready(&self, daemon: &Daemon, network: &Network, account: AccountId) -> Result<()> {
        match network {
            Network::None => Ok(()),
            Network::Named(name) => self.check_named(daemon, name).await,
            Network::Own { name, bridge, checked } => {
                let _alone = self.changing.lock().await;
                if *checked {
                    self.install().await?;
                }
                self.make(daemon, name, bridge, account).await?;
                match *checked && !firewall::has_bridge(bridge) {
                    true => Err(Error::new(
                        ErrorKind::LimitUnenforceable,
                        "the provider `docker` cannot enforce `allow_network` here: the daemon's networks are not in the \
                         network namespace of this server; leave it out",
                    )),
                    false => Ok(()),
                }
            }
        }
    }

    /// Puts the rules into force.
    pub async fn install(&self) -> Result<()> {
        let rules = self.rules.clone();
        let installed = off_thread(move || Ok(rules.install())).await?;
        installed.map_err(|error| {
            let message = "the provider `docker` cannot enforce `allow_network` here: the kernel takes no rules for \
                           packets (nf_tables); leave it out";
            Error::new(ErrorKind::LimitUnenforceable, message).with_source(error)
        })
    }

    async fn check_named(&self, daemon: &Daemon, name: &str) -> Result<()> {
        match daemon.docker().await?.inspect_network(name, None::<InspectNetworkOptions>).await {
            Ok(_) => Ok(()),
            Err(error) if is_missing(&error) => Err(Error::invalid(format!(
                "the Docker daemon has no network `{name}`; see `docker network ls`"
            ))),
            Err(error) => Err(daemon.failed(&format!("the network {name}"), error)),
        }
    }

    async fn make(&self, daemon: &Daemon, name: &str, bridge: &str, account: AccountId) -> Result<()> {
        let docker = daemon.docker().await?;
        match docker.inspect_network(name, None::<InspectNetworkOptions>).await {
            Ok(_) => return Ok(()),
            Err(error) if is_missing(&error) => {}
            Err(error) => return Err(daemon.failed(&format!("the network {name}"), error)),
        }
        let options = HashMap::from([("com.docker.network.bridge.name".to_owned(), bridge.to_owned())]);
        let labels =
            [(labels::INSTALLATION, self.installation.clone()), (labels::ACCOUNT, account.to_string())];
        let request = NetworkCreateRequest {
            name: name.to_owned(),
            driver: Some("bridge".to_owned()),
            enable_ipv6: Some(false),
            options: Some(options),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value)).into()),
            ..NetworkCreateRequest::default()
        };
        match docker.create_network(request).await {
            Ok(_) => Ok(()),
            // Another host process made it.
            Err(error) if is_conflict(&error) => Ok(()),
            Err(error) => {
                let what = "making a network (Docker has about 30 unless `default-address-pools` of its daemon.json names more)";
                Err(daemon.failed(what, error))
            }
        }
    }

    /// Separates the containers of a network from each other. To be called after one has started.
    pub async fn isolate(&self, network: &Network) -> Result<()> {
        let Network::Own { bridge, checked: true, .. } = network else { return Ok(()) };
        let bridge = bridge.clone();
        let isolated = off_thread(move || Ok(firewall::isolate_ports(&bridge))).await?;
        match isolated {
            Ok(0) => Err(Error::new(
                ErrorKind::LimitUnenforceable,
                "the provider `docker` cannot enforce `allow_network` here: the container is on no bridge of this machine",
            )),
            Ok(_) => Ok(()),
            Err(error) => {
                let message = "the provider `docker` cannot enforce `allow_network` here: the ports of a bridge cannot be isolated";
                Err(Error::new(ErrorKind::LimitUnenforceable, message).with_source(error))
            }
        }
    }

    /// Removes the network of an account that has no container left there, and the rules with the last network.
    pub async fn release(&self, daemon: &Daemon, account: AccountId) -> Result<()> {
        let _alone = self.changing.lock().await;
        let docker = daemon.docker().await?;
        let failed = |error| daemon.failed("the networks", error);
        let Network::Own { name, .. } = self.own(account, true) else { return Ok(()) };
        let mut filters = labels::filter(&self.installation);
        let wanted = format!("{}={name}", labels::NETWORK);
        filters.entry("label".to_owned()).or_default().push(wanted);
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        if !docker.list_containers(Some(options)).await.map_err(failed)?.is_empty() {
            return Ok(());
        }
        match docker.remove_network(&name).await {
            Err(error) if !is_missing(&error) => return Err(failed(error)),
            _ => {}
        }
        let filters = labels::filter(&self.installation);
        let options = ListNetworksOptionsBuilder::default().filters(&filters).build();
        if docker.list_networks(Some(options)).await.map_err(failed)?.is_empty() && no_rules(true).is_none() {
            let rules = self.rules.clone();
            if let Err(error) = off_thread(move || Ok(rules.remove())).await? {
                tracing::warn!(%error, "the rules of networks that are gone stay");
            }
        }
        Ok(())
    }
}

/// Why no rules can be set for the daemon's networks.
fn no_rules(is_local: bool) -> Option<&'static str> {
    match () {
        () if !is_local => Some("the Docker daemon is on another machine"),
        () if !rustix::process::geteuid().is_root() => Some("seawall does not run as root"),
        () => None,
    }
}

/// A short name for a long one. Names of bridges have at most 15 bytes.
fn short_hash(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex()[..6].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_needs_rules_or_the_operators_acceptance() {
        let spec = SandboxSpec { allow_network: true, ..SandboxSpec::default() };
        let networks =
            |unchecked| Networks::new("one", NetworkSettings { unchecked, ..NetworkSettings::default() });
        let refused = networks(false).of(&spec, AccountId::LOCAL, false).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::LimitUnenforceable);
        assert!(refused.to_string().contains("on another machine"), "{refused}");
        let accepted = networks(true).of(&spec, AccountId::LOCAL, false).unwrap();
        assert_eq!(accepted.egress(), Egress::External);
        assert!(networks(true).of(&spec, AccountId::generate(), false).is_err());
        let none = networks(false).of(&SandboxSpec::default(), AccountId::LOCAL, false).unwrap();
        assert_eq!((none.mode(), none.egress()), ("none", Egress::None));
    }

    #[test]
    fn the_hosts_network_cannot_be_joined() {
        let networks = Networks::new("one", NetworkSettings::default());
        for name in NO_NETWORKS {
            let spec = SandboxSpec { network: Some(name.to_owned()), ..SandboxSpec::default() };
            assert!(networks.of(&spec, AccountId::LOCAL, true).is_err(), "{name}");
        }
    }

    #[test]
    fn names_of_bridges_fit() {
        let Network::Own { bridge, .. } =
            Networks::new("one", NetworkSettings::default()).own(AccountId::LOCAL, true)
        else {
            panic!("no network of its own")
        };
        assert!(bridge.len() <= 15, "{bridge}");
    }
}
