//! What is wrong with a template, as far as that can be known before it is used.

use super::{HookPart, Template};
use crate::{
    Error, Result,
    hooks::HookKind,
    repositories::is_address,
    sandboxes::check_spec,
    workspaces::{WorkspaceSettings, volumes},
};
use seawall_api::sandbox::SandboxSpec;

impl Template {
    /// What is wrong with it, as far as that can be known before it is used.
    pub fn check(&self) -> Result<()> {
        let wrong = |why: String| Err(Error::invalid(format!("the template `{}`: {why}", self.name)));
        let tame = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
        if self.name.is_empty() || self.name.len() > 63 || !self.name.chars().all(tame) {
            return wrong("its name must be 1 to 63 of a-z 0-9 - _".to_owned());
        }
        self.driver()?;
        if self.agent.timeout_seconds == 0 {
            return wrong("`agent.timeout_seconds` must be above 0".to_owned());
        }
        if self.agent.program.as_ref().is_some_and(|program| !program.is_absolute()) {
            return wrong("`agent.program` must be an absolute path".to_owned());
        }
        if let Err(why) = self.check_agent().and_then(|()| self.check_sync()) {
            return wrong(why);
        }
        for env in [&self.sandbox.env, &self.agent.env] {
            let spec =
                SandboxSpec { env: env.clone(), limits: self.sandbox.limits, ..SandboxSpec::default() };
            if let Err(error) = check_spec(&spec) {
                return wrong(error.chain());
            }
        }
        if let Err(why) = self.check_sandbox() {
            return wrong(why);
        }
        self.check_git()?;
        for kind in HookKind::ALL {
            for hook in self.hooks.of(kind) {
                if let Err(why) = hook.check() {
                    return wrong(format!("a hook of `hooks.{}`: {why}", kind.as_str()));
                }
            }
        }
        Ok(())
    }

    fn check_agent(&self) -> Result<(), String> {
        let agent = &self.agent;
        let texts = agent.args.iter().chain(&agent.model).chain(&agent.system_prompt);
        match texts.into_iter().any(|text| text.contains('\0')) {
            true => {
                Err("`agent.args`, `agent.model` and `agent.system_prompt` must not have a zero byte"
                    .to_owned())
            }
            false => Ok(()),
        }
    }

    fn check_sync(&self) -> Result<(), String> {
        let sync = &self.sync;
        if let Some(prefix) = &sync.key_prefix {
            WorkspaceSettings::check_prefix(prefix).map_err(|why| format!("`sync.key_prefix`: {why}"))?;
        }
        if sync.version.is_some_and(|version| version < 0) {
            return Err("`sync.version` must be a version's number or time".to_owned());
        }
        let Some(volume) = &sync.volume else { return Ok(()) };
        volumes::check(volume).map_err(|why| format!("`sync.volume`: {why}"))?;
        if let Some(prefix) = &sync.key_prefix {
            WorkspaceSettings::check_shared(prefix).map_err(|why| format!("`sync.key_prefix`: {why}"))?;
        }
        match sync.version {
            // It would bring everybody's files back to what they were, whenever one of them is made.
            Some(_) => Err("`sync.volume`: sandboxes that share one have no `sync.version`".to_owned()),
            None => Ok(()),
        }
    }

    fn check_sandbox(&self) -> Result<(), String> {
        let part = &self.sandbox;
        let odd = |text: &Option<String>| {
            text.as_ref().is_some_and(|t| t.is_empty() || t.contains(['\0', ' ', '\n']))
        };
        for (key, text) in [("provider", &part.provider), ("image", &part.image), ("user", &part.user)] {
            if odd(text) {
                return Err(format!("`sandbox.{key}` must be one word"));
            }
        }
        let whole = |path: &str| path.starts_with('/') && !path.split('/').any(|name| name == "..");
        match part.mounts.iter().find(|mount| !whole(&mount.source) || !whole(&mount.target)) {
            Some(mount) => Err(format!(
                "a mount of `{}` at `{}`: both must be absolute paths without `..`",
                mount.source, mount.target
            )),
            None => Ok(()),
        }
    }

    fn check_git(&self) -> Result<()> {
        let Some(git) = &self.git else { return Ok(()) };
        let wrong = |why: &str| Err(Error::invalid(format!("the template `{}`: {why}", self.name)));
        if !is_address(&git.repo) {
            return wrong(
                "`git.repo` must be an address such as https://github.com/owner/repo, without credentials",
            );
        }
        let odd = |name: &String| {
            name.is_empty()
                || name.starts_with('-')
                || name.contains(|c: char| c.is_whitespace() || c.is_control())
        };
        match (git.depth, &git.reference) {
            (Some(0), _) => wrong("`git.depth` must be above 0"),
            (_, Some(reference)) if odd(reference) => {
                wrong("`git.ref` must be a branch, a tag or a commit: one word that does not begin with `-`")
            }
            _ => Ok(()),
        }
    }
}

impl HookPart {
    fn check(&self) -> Result<(), &'static str> {
        match (&self.run, &self.webhook) {
            (Some(run), None) if run.contains('\0') => return Err("`run` must not have a zero byte"),
            (Some(run), None) if !run.trim().is_empty() => {}
            (None, Some(url)) if url.starts_with("https://") || url.starts_with("http://") => {}
            (None, Some(_)) => return Err("`webhook` must be an address of http or https"),
            _ => return Err("it needs one of `run` (a command) and `webhook` (an address)"),
        }
        match self.timeout_seconds {
            1..=86_400 => Ok(()),
            _ => Err("`timeout_seconds` must be 1 to 86400"),
        }
    }
}
