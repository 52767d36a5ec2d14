//! The flags that say how a command runs, shared by `run` and `exec`.

use super::key_value;
use crate::{config::Settings, duration, exit::Usage, input, terminal};
use anyhow::Result;
use clap::Args;
use seawall_api::exec::{StartProcess, WhenFull};
use std::time::Duration;

#[derive(Debug, Default, Args)]
pub struct ProcessArgs {
    /// Give it a terminal; without a command: the shell of the sandbox
    #[arg(short = 't', long)]
    pub tty: bool,

    /// Forward stdin also from a terminal (from a pipe or file it always is)
    #[arg(short = 'i', long)]
    pub interactive: bool,

    /// Set a variable of its environment; may be repeated
    #[arg(short = 'e', long = "env", value_name = "KEY=VALUE", value_parser = key_value)]
    pub env: Vec<(String, String)>,

    /// The directory to run it in [default: /work]
    #[arg(short = 'w', long, value_name = "DIR")]
    pub workdir: Option<String>,

    /// The user to run it as: a name, UID or UID:GID
    #[arg(short = 'u', long, value_name = "USER")]
    pub user: Option<String>,

    /// End it and all its descendants after this time, with exit code 124: 500ms, 5s, 2m, 1h
    #[arg(long, value_name = "TIME", value_parser = duration::parse_positive)]
    pub timeout: Option<Duration>,

    /// Throw away what it prints beyond this many bytes
    #[arg(long, value_name = "BYTES")]
    pub output_limit: Option<u64>,

    /// Let it wait when nobody reads its output, instead of dropping the oldest
    #[arg(long)]
    pub block: bool,

    /// A name to find the process by, e.g. with `seawall logs`
    #[arg(long, value_name = "NAME")]
    pub tag: Option<String>,
}

impl ProcessArgs {
    /// The process that these flags, the settings and the command line describe.
    pub fn start(&self, settings: &Settings, command: &[String], detach: bool) -> Result<StartProcess> {
        if command.is_empty() && !self.tty {
            let hint = "name a command, e.g. `-- python3 -c 'print(6*7)'`, or ask for a shell with -t";
            return Err(Usage(hint.to_owned()).into());
        }
        let mut start = StartProcess::new(command.iter().cloned());
        start.env = self.env.clone();
        start.cwd = self.workdir.clone();
        start.user = self.user.clone();
        start.stdin = !detach && (self.tty || self.interactive || !input::is_terminal());
        start.when_full = if self.block { WhenFull::Block } else { WhenFull::DropOldest };
        start.timeout_ms = self.timeout.or(settings.exec_timeout).map(duration::millis);
        start.output_limit = self.output_limit.or(settings.output_limit);
        start.tag = self.tag.clone();
        start.detach = detach;
        if self.tty {
            add_terminal(&mut start);
        }
        Ok(start)
    }
}

/// A terminal of the size of ours, which also says what it understands.
pub fn add_terminal(start: &mut StartProcess) {
    start.tty = Some(terminal::size());
    let given = start.env.iter().any(|(key, _)| key == "TERM");
    if let (false, Ok(term)) = (given, std::env::var("TERM")) {
        start.env.push(("TERM".to_owned(), term));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_win_over_settings() {
        let settings = Settings { exec_timeout: Some(Duration::from_secs(9)), ..Settings::default() };
        let command = ["true".to_owned()];
        let plain = ProcessArgs::default().start(&settings, &command, false).unwrap();
        assert_eq!(plain.timeout_ms, Some(9000));
        let args = ProcessArgs { timeout: Some(Duration::from_secs(1)), ..ProcessArgs::default() };
        assert_eq!(args.start(&settings, &command, false).unwrap().timeout_ms, Some(1000));
    }

    #[test]
    fn no_command_needs_a_terminal() {
        let settings = Settings::default();
        let error = ProcessArgs::default().start(&settings, &[], false).unwrap_err();
        assert!(error.is::<Usage>());
        let args = ProcessArgs { tty: true, ..ProcessArgs::default() };
        let start = args.start(&settings, &[], false).unwrap();
        assert!(start.tty.is_some() && start.stdin);
    }
}
