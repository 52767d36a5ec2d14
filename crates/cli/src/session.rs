//! One command's connection to its server: the server of the data folder, through its socket, or the one that `--server` names.

mod find;

use crate::{
    app::prepare_data,
    config::Settings,
    exit::Usage,
    output,
    serving::{KEY_FILE, info::Described},
    starting::{self, OnDemand},
};
use anyhow::{Context, Result};
use seawall_api::http::{ServerKind, StopServer};
use seawall_client::{Client, Credentials, LocalServer, is_on_this_machine};
use std::{io::ErrorKind, path::Path, sync::Arc};

/// The server that a command uses, and the identity that it uses there.
#[derive(Debug, Clone, Default)]
pub struct Target {
    /// `None` means the server of the data folder.
    pub url: Option<String>,
    pub key: Option<String>,
    /// The account that the operator acts for.
    pub account: Option<String>,
}

/// A server, and how its answers are shown.
pub struct Session {
    pub client: Client,
    pub settings: Settings,
    pub json: bool,
    has_key: bool,
    starter: Option<Arc<OnDemand>>,
}

impl Session {
    /// A session with the target's server. No server is started before the first request needs one.
    pub async fn open(target: Target, settings: Settings, json: bool) -> Result<Session> {
        let Target { url, key, account } = target;
        let account = account.filter(|name| !name.trim().is_empty());
        if let Some(url) = url.filter(|url| !url.trim().is_empty()) {
            let key = key_for(&url, key, &settings.data)?;
            let has_key = key.is_some();
            let client = Client::new(&url, Credentials { key, account });
            let client = client.map_err(|error| Usage(error.to_string()))?;
            return Ok(Session { client, settings, json, has_key, starter: None });
        }
        prepare_data(&settings.data)?;
        replace_older(&settings).await;
        let starter = Arc::new(OnDemand::new(&settings));
        let server = LocalServer::new(&settings.data).with_starter(starter.clone());
        let key = key.and_then(tame);
        let has_key = key.is_some();
        let client = Client::local(server, Credentials { key, account })?;
        Ok(Session { client, settings, json, has_key, starter: Some(starter) })
    }

    /// Ends the server that this process hosts, if it does.
    pub async fn finish(&self) {
        if let Some(starter) = &self.starter {
            starter.finish().await;
        }
    }

    /// The same error, with what to do where the server did not know who asked.
    pub fn explained(&self, error: anyhow::Error) -> anyhow::Error {
        match is_unknown(&error) && !self.has_key {
            true => error.context("this server wants a key: give it with --key or SEAWALL_KEY"),
            false => error,
        }
    }
}

/// Compares this command with the description of the folder's server. An older background server is stopped, so that the next
/// request starts this version. A server with other settings stays, and the command prints the difference.
async fn replace_older(settings: &Settings) {
    let Some(found) = Described::read(&settings.data).filter(|found| found.is_ready) else { return };
    let server = &found.server;
    let is_older = crate::is_older(&server.version, &crate::version());
    if is_older && server.kind == ServerKind::Background {
        let ask = StopServer { instance: Some(server.instance.clone()), replaced: true };
        let stopped = async { anyhow::Ok(crate::client_of(&settings.data)?.stop_server(&ask).await?) };
        match stopped.await {
            Ok(()) => output::note(format!(
                "the server in the background was version {}; this one, {}, takes its place",
                server.version,
                crate::version()
            )),
            // The server has ended by itself, or another command was quicker.
            Err(error) => tracing::debug!(error = %format!("{error:#}"), "the older server was not stopped"),
        }
        return;
    }
    let differences = found.differences(settings.file.as_ref());
    // A server that was killed has left its description behind.
    if !differences.is_empty() && starting::listens(&settings.data).unwrap_or(false) {
        let next = match server.kind {
            ServerKind::Background => "`seawall server restart` takes these over",
            ServerKind::Foreground | ServerKind::Hosted => "start the server again to change them",
        };
        output::note(format!("the running server has other settings: {}; {next}", differences.join("; ")));
    }
}

fn tame(key: String) -> Option<String> {
    Some(key.trim().to_owned()).filter(|key| !key.is_empty())
}

/// The key that was given; else, of a server on this machine, the key that it left for its user.
fn key_for(url: &str, given: Option<String>, data: &Path) -> Result<Option<String>> {
    if let Some(key) = given.and_then(tame) {
        return Ok(Some(key));
    }
    if !is_on_this_machine(url) {
        return Ok(None);
    }
    let file = data.join(KEY_FILE);
    match std::fs::read_to_string(&file) {
        Ok(key) => Ok(tame(key)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error)
            .with_context(|| format!("cannot read {}: give a key with --key or SEAWALL_KEY", file.display())),
    }
}

/// Whether the server did not know who asked.
fn is_unknown(error: &anyhow::Error) -> bool {
    let refused = |error: &seawall_client::Error| error.status == Some(401);
    error.chain().any(|cause| cause.downcast_ref::<seawall_client::Error>().is_some_and(refused))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit;

    const HERE: &str = "http://127.0.0.1:7777";

    #[test]
    fn a_server_on_this_machine_has_left_its_key() {
        let data = tempfile::tempdir().unwrap();
        assert_eq!(key_for(HERE, None, data.path()).unwrap(), None);
        std::fs::write(data.path().join("key"), "sw_here\n").unwrap();
        let key = |url, given: Option<&str>| key_for(url, given.map(str::to_owned), data.path()).unwrap();
        assert_eq!(key(HERE, None).as_deref(), Some("sw_here"));
        assert_eq!(key(HERE, Some(" ")).as_deref(), Some("sw_here"));
        assert_eq!(key(HERE, Some("sw_mine")).as_deref(), Some("sw_mine"));
        // A server elsewhere is not given it.
        assert_eq!(key("https://seawall.example", None), None);
    }

    #[tokio::test]
    async fn a_wrong_address_is_bad_usage() {
        let target = Target { url: Some("nonsense".to_owned()), key: Some("k".to_owned()), account: None };
        let bad = Session::open(target, Settings::default(), false).await.map(drop).unwrap_err();
        assert_eq!(exit::code_of(&bad, false), exit::USAGE);
    }
}
