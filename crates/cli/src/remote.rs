//! The commands through a server: the same words, the same output, and the server does the work.
//!
//! Commands that need a guest are those of this machine: they get one whose wire goes through the server. The others
//! have a branch here that calls the API.

mod accounts;
mod chat;
mod conversations;
mod find;
mod run;
mod sandboxes;
mod workspaces;

use crate::{
    args::Command,
    commands::{cp, exec, forward, kill, logs, serve, service, shell},
    config::Settings,
    exit::Usage,
    lookup::Place,
};
use anyhow::{Context, Result};
use async_trait::async_trait;
use seawall_api::{http::CreateSandbox, sandbox::SandboxInfo};
use seawall_client::{Client, is_on_this_machine};
use seawall_core::NewSandbox;
use seawall_wire::Guest;
use std::{io::ErrorKind, path::Path};

const ONLY_THERE: &str = "no server does this for others: run it on the server's own machine, as the server's user, \
                          without --server and SEAWALL_URL";

/// A server, and how its answers are shown.
pub struct Remote {
    pub client: Client,
    pub settings: Settings,
    pub json: bool,
}

#[async_trait(?Send)]
impl Place for Remote {
    fn json(&self) -> bool {
        self.json
    }

    fn settings(&self) -> &Settings {
        &self.settings
    }

    async fn guest(&self, reference: &str) -> Result<(SandboxInfo, Guest)> {
        let sandbox = self.find(reference).await?;
        let guest = self.client.guest(sandbox.info.id);
        Ok((sandbox.info, guest))
    }
}

/// Does what was asked through the server at `url`.
pub async fn dispatch(
    url: &str,
    key: Option<String>,
    settings: Settings,
    json: bool,
    command: Command,
) -> Result<i32> {
    let key = key_for(url, key, &settings.data)?;
    let has_key = key.is_some();
    let client = Client::new(url, key).map_err(|error| Usage(error.to_string()))?;
    let done = on(&Remote { client, settings, json }, command).await;
    done.map_err(|error| match is_unknown(&error) && !has_key {
        true => error.context("this server wants a key: give it with --key or SEAWALL_KEY"),
        false => error,
    })
}

async fn on(remote: &Remote, command: Command) -> Result<i32> {
    match command {
        Command::Run(args) => run::run(remote, &args).await,
        Command::Create(args) => sandboxes::create(remote, &args).await,
        Command::Start(args) => sandboxes::start(remote, &args).await,
        Command::Ls(args) => sandboxes::ls(remote, &args).await,
        Command::Exec(args) => exec::exec(remote, &args).await,
        Command::Shell(args) => shell::shell(remote, &args).await,
        Command::Cp(args) => cp::cp(remote, &args).await,
        Command::Logs(args) => logs::logs(remote, &args).await,
        Command::Kill(args) => kill::kill(remote, &args).await,
        Command::Stop(args) => sandboxes::stop(remote, &args).await,
        Command::Rm(args) => sandboxes::rm(remote, &args).await,
        Command::Inspect(args) => sandboxes::inspect(remote, &args).await,
        Command::Forward(args) => forward::forward(remote, &args).await,
        Command::Sync(args) => workspaces::sync(remote, &args).await,
        Command::Versions(args) => workspaces::versions(remote, &args).await,
        Command::Diff(args) => workspaces::diff(remote, &args).await,
        Command::Prune(args) => workspaces::prune(remote, &args).await,
        Command::Restore(args) => workspaces::restore(remote, &args).await,
        Command::Chat(args) => chat::chat(remote, &args).await,
        Command::Conversations(args) => conversations::conversations(remote, &args).await,
        Command::Messages(args) => conversations::messages(remote, &args).await,
        Command::Hooks(args) => conversations::hooks(remote, &args).await,
        Command::Templates(args) => conversations::templates(remote, &args).await,
        Command::Keys(args) => accounts::keys(remote, &args).await,
        Command::Accounts(args) => accounts::accounts(remote, &args).await,
        Command::Account(args) => accounts::account(remote, &args).await,
        Command::Providers => service::providers(remote).await,
        Command::Reconcile(args) => service::reconcile(remote, &args).await,
        // Volumes, verify, and what never gets here.
        _ => Err(Usage(ONLY_THERE.to_owned()).into()),
    }
}

/// What was said; else, of a server on this machine, the key that it left for its user.
fn key_for(url: &str, said: Option<String>, data: &Path) -> Result<Option<String>> {
    let tame = |key: String| Some(key.trim().to_owned()).filter(|key| !key.is_empty());
    if let Some(key) = said.and_then(tame) {
        return Ok(Some(key));
    }
    if !is_on_this_machine(url) {
        return Ok(None);
    }
    let file = data.join(serve::KEY_FILE);
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

/// The same wish, as the API has it.
fn wanted(new: NewSandbox, start: bool) -> CreateSandbox {
    let NewSandbox { id, name, template, provider, spec, .. } = new;
    CreateSandbox {
        id,
        name,
        template,
        provider,
        image: spec.image,
        env: spec.env,
        labels: spec.labels,
        user: spec.user,
        limits: spec.limits,
        timeouts: spec.timeouts,
        mounts: spec.mounts,
        command: spec.command,
        ports: spec.ports,
        read_only_root: spec.read_only_root.then_some(true),
        allow_network: spec.allow_network.then_some(true),
        network: spec.network,
        runtime: spec.runtime,
        project_id: spec.project_id,
        workspace_path: None,
        workspace_source: spec.workspace_source,
        start,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{args::Cli, exit};
    use clap::Parser;

    const HERE: &str = "http://127.0.0.1:7777";

    #[test]
    fn a_server_on_this_machine_has_left_its_key() {
        let data = tempfile::tempdir().unwrap();
        assert_eq!(key_for(HERE, None, data.path()).unwrap(), None);
        std::fs::write(data.path().join("key"), "sw_here\n").unwrap();
        let key = |url, said: Option<&str>| key_for(url, said.map(str::to_owned), data.path()).unwrap();
        assert_eq!(key(HERE, None).as_deref(), Some("sw_here"));
        assert_eq!(key(HERE, Some(" ")).as_deref(), Some("sw_here"));
        assert_eq!(key(HERE, Some("sw_mine")).as_deref(), Some("sw_mine"));
        // It is nobody else's business.
        assert_eq!(key("https://seawall.example", None), None);
    }

    #[tokio::test]
    async fn what_no_server_does_is_bad_usage() {
        let command = || Cli::parse_from(["seawall", "volumes"]).command;
        let key = || Some("k".to_owned());
        let bad = dispatch("nonsense", key(), Settings::default(), false, command()).await.unwrap_err();
        assert_eq!(exit::code_of(&bad, false), exit::USAGE);
        let there = dispatch(HERE, key(), Settings::default(), false, command()).await.unwrap_err();
        assert_eq!(exit::code_of(&there, false), exit::USAGE);
        assert!(there.to_string().contains("the server's own machine"), "{there}");
    }

    #[test]
    fn a_wish_is_the_same_for_a_server() {
        let mut new = NewSandbox { name: Some("demo".into()), ..NewSandbox::default() };
        new.spec.env.insert("A".into(), "b".into());
        new.spec.limits.memory_mb = Some(64);
        assert_eq!(
            serde_json::to_value(wanted(new, true)).unwrap(),
            serde_json::json!({ "name": "demo", "env": { "A": "b" }, "limits": { "memory_mb": 64 } })
        );
    }
}
