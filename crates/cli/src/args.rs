//! The command line: what there is to say, and help that teaches it.

use crate::commands::{
    accounts::{AccountArgs, AccountsArgs},
    chat::ChatArgs,
    conversations::{ConversationsArgs, MessagesArgs, TemplatesArgs},
    cp::CpArgs,
    create::CreateArgs,
    db::DbArgs,
    doctor::DoctorArgs,
    exec::ExecArgs,
    forward::ForwardArgs,
    hooks::HooksArgs,
    inspect::InspectArgs,
    keys::KeysArgs,
    kill::KillArgs,
    logs::LogsArgs,
    ls::LsArgs,
    restore::RestoreArgs,
    rm::RmArgs,
    run::RunArgs,
    serve::ServeArgs,
    server::ServerArgs,
    service::ReconcileArgs,
    shell::ShellArgs,
    start::StartArgs,
    stop::StopArgs,
    sync::SyncArgs,
    versions::{DiffArgs, PruneArgs, VerifyArgs, VersionsArgs},
    volumes::VolumesArgs,
};
use clap::{Parser, Subcommand};
use clap_complete::Shell;
use std::path::PathBuf;

mod process;
mod sandbox;

pub use process::{ProcessArgs, add_terminal};
pub use sandbox::SpecArgs;

const ABOUT: &str = "\
Sandboxes for AI agents: a place to run commands, keep files, and throw both away.

Try it:
  seawall doctor                              is everything here that is needed?
  seawall run -- python3 -c 'print(6*7)'      one command in a sandbox of its own, gone afterwards

Keep one:
  ID=$(seawall create --name demo)            make a sandbox and start it
  seawall exec $ID -- make test               run a command in it (demo works as well as the id)
  seawall shell demo                          look around
  seawall cp ./src demo:/work/src             files in, and with the sides swapped, out
  seawall ls                                  what there is
  seawall sync demo                           keep its files as a version that outlives it
  seawall rm -f --volumes demo                away with it, files included

Talk to an agent:
  seawall chat 'echo hello > greeting; ls'    a conversation: its files outlive its sandbox

The first command starts a server in the background, which ends when it is idle (see `seawall server`).
Through a server elsewhere:
  export SEAWALL_URL=http://127.0.0.1:7777    every command above works through it from now on

Wherever ID stands, an id, the unique beginning of one, or a name will do.";

const EXIT_CODES: &str = "\
Exit codes of run, exec and shell: the command's own; 124 its timeout was over, 125 seawall itself failed,
126 the command cannot be executed, 127 it was not found, 128+N signal N ended it. Others: 0 or 1; 2 bad usage.

Settings come from seawall.toml, then the environment (SEAWALL_...), then flags. SEAWALL_LOG=debug says more.";

#[derive(Debug, Parser)]
#[command(name = "seawall", version, about = "Sandboxes for AI agents", long_about = ABOUT, after_help = EXIT_CODES)]
pub struct Cli {
    /// Where sandboxes and their records live
    #[arg(long, global = true, value_name = "DIR", env = "SEAWALL_DATA", value_parser = possibly_empty, help_heading = "Everywhere")]
    pub data: Option<PathBuf>,

    /// The configuration file [default: ./seawall.toml, then ~/.config/seawall/seawall.toml]
    #[arg(long, global = true, value_name = "FILE", env = "SEAWALL_CONFIG", value_parser = possibly_empty, help_heading = "Everywhere")]
    pub config: Option<PathBuf>,

    /// JSON for programs instead of text for people
    #[arg(long, global = true, help_heading = "Everywhere")]
    pub json: bool,

    /// Work through the server at this address, e.g. http://127.0.0.1:7777
    #[arg(long, global = true, value_name = "URL", env = "SEAWALL_URL", help_heading = "Everywhere")]
    pub server: Option<String>,

    /// The key for that server [default: of a server on this machine, that in its data folder]
    #[arg(
        long,
        global = true,
        value_name = "KEY",
        env = "SEAWALL_KEY",
        hide_env_values = true,
        help_heading = "Everywhere"
    )]
    pub key: Option<String>,

    /// Act for this account, by its name or id; for operators
    #[arg(long, global = true, value_name = "NAME", env = "SEAWALL_ACCOUNT", help_heading = "Everywhere")]
    pub account: Option<String>,

    /// No configuration file at all
    #[arg(long, global = true, hide = true, conflicts_with = "config")]
    pub no_config: bool,

    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run one command in a new sandbox, and remove it afterwards
    Run(RunArgs),
    /// Make a sandbox and start it; prints its id
    Create(CreateArgs),
    /// Start sandboxes that were stopped, or created with --no-start
    Start(StartArgs),
    /// List the sandboxes
    #[command(visible_alias = "list")]
    Ls(LsArgs),
    /// Run a command in a sandbox
    Exec(ExecArgs),
    /// Open a terminal in a sandbox
    Shell(ShellArgs),
    /// Copy files into a sandbox or out of it
    Cp(CpArgs),
    /// Show what a process printed, also after it ended
    Logs(LogsArgs),
    /// End a process and all its descendants, or send it a signal
    Kill(KillArgs),
    /// Stop sandboxes; their files stay
    Stop(StopArgs),
    /// Remove sandboxes
    Rm(RmArgs),
    /// List the data volumes, also of sandboxes that are gone, or remove them
    Volumes(VolumesArgs),
    /// All that is known of a sandbox, as JSON
    Inspect(InspectArgs),
    /// Bring a sandbox's files and its bucket to the same version
    Sync(SyncArgs),
    /// List the versions of a sandbox's files
    #[command(visible_alias = "log")]
    Versions(VersionsArgs),
    /// Show what changed from one version to another
    Diff(DiffArgs),
    /// Bring a version of the files back, or one file of it
    Restore(RestoreArgs),
    /// Drop old versions
    Prune(PruneArgs),
    /// Read every version again, and tell what is damaged
    Verify(VerifyArgs),
    /// Say something to an agent in a sandbox, and see its answer
    Chat(ChatArgs),
    /// List the conversations, the latest first, or delete one
    Conversations(ConversationsArgs),
    /// Show what was said in a conversation
    Messages(MessagesArgs),
    /// List what hooks did in a sandbox: which failed, and why
    Hooks(HooksArgs),
    /// List the kinds of agents, or show one
    Templates(TemplatesArgs),
    /// List the providers, and why one cannot be used
    Providers,
    /// Compare sandboxes with the boxes of all providers, and mend differences; a server does it each minute
    Reconcile(ReconcileArgs),
    /// Serve the HTTP API
    Serve(ServeArgs),
    /// Look after the server that commands start in the background
    Server(ServerArgs),
    /// Look after the keys by which programs are known to a server
    Keys(KeysArgs),
    /// Look after the accounts of a server
    Accounts(AccountsArgs),
    /// Show an account's limits, and what it uses of them
    Account(AccountArgs),
    /// Look after the database: bring it up to date, copy it, check it
    Db(DbArgs),
    /// Reach a port of a sandbox from this machine
    Forward(ForwardArgs),
    /// Check that this machine has what is needed, and say what to do where not
    Doctor(DoctorArgs),
    /// Print the completions of a shell, e.g. `seawall completions bash > /etc/bash_completion.d/seawall`
    Completions {
        /// Which shell
        shell: Shell,
    },
}

impl Command {
    /// Whether it is the server itself.
    pub fn is_service(&self) -> bool {
        matches!(self, Command::Serve(_))
    }

    /// Whether it is the server that a command started.
    pub fn is_background(&self) -> bool {
        matches!(self, Command::Serve(args) if args.background)
    }

    /// Whether our exit code is that of a command in a sandbox.
    pub fn is_attached(&self) -> bool {
        matches!(self, Command::Run(_) | Command::Exec(_) | Command::Shell(_))
    }
}

/// `KEY=VALUE`, for clap.
pub fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is not KEY=VALUE")),
    }
}

/// A variable that is set to nothing is as good as not set; the configuration sees to it.
fn possibly_empty(text: &str) -> Result<PathBuf, std::convert::Infallible> {
    Ok(PathBuf::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_command_keeps_its_own_flags() {
        for line in
            ["seawall exec --timeout 1s x -- ls -l --json", "seawall exec --timeout 1s x ls -l --json"]
        {
            let cli = Cli::try_parse_from(line.split(' ')).unwrap();
            assert!(!cli.json);
            let Command::Exec(exec) = cli.command else { panic!("not exec") };
            assert_eq!(exec.command, ["ls", "-l", "--json"]);
        }
    }

    #[test]
    fn a_conversation_is_deleted_by_its_id() {
        use crate::commands::conversations::ConversationsCommand;
        let id = "0190a5d0-7c1e-7b3a-9f00-3d2c1b0a9f8e";
        let parse = |line: &str| Cli::try_parse_from(line.split(' '));
        let cli = parse(&format!("seawall conversations rm {id} --terminate")).unwrap();
        let Command::Conversations(args) = cli.command else { panic!("not conversations") };
        assert!(matches!(args.what, Some(ConversationsCommand::Rm { terminate: true, .. })));
        let cli = parse("seawall conversations -n 5").unwrap();
        let Command::Conversations(args) = cli.command else { panic!("not conversations") };
        assert!(args.what.is_none() && args.limit == 5);
        assert!(parse("seawall conversations rm x").is_err());
    }

    #[test]
    fn the_server_may_be_named_anywhere() {
        let cli = Cli::try_parse_from(["seawall", "ls", "--server", "http://h", "--key", "k"]).unwrap();
        assert_eq!((cli.server.as_deref(), cli.key.as_deref()), (Some("http://h"), Some("k")));
        let line = "seawall keys create --name ci --scope read --scope run --account \
                    0190a5d0-7c1e-7b3a-9f00-3d2c1b0a9f8e";
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        let Command::Keys(keys) = cli.command else { panic!("not keys") };
        assert!(matches!(keys.what, crate::commands::keys::KeysCommand::Create(_)));
        assert!(cli.account.is_some());
    }

    #[test]
    fn values_may_hold_an_equals_sign() {
        assert_eq!(key_value("A=b=c"), Ok(("A".into(), "b=c".into())));
        assert!(key_value("=b").is_err());
        assert!(key_value("A").is_err());
    }
}
