//! The commands, a file each, and the way from the command line to them.

pub mod accounts;
pub mod chat;
pub mod completions;
pub mod conversations;
pub mod cp;
pub mod create;
pub mod db;
pub mod doctor;
pub mod exec;
pub mod forward;
pub mod hooks;
pub mod inspect;
pub mod keys;
pub mod kill;
pub mod logs;
pub mod ls;
pub mod restore;
pub mod rm;
pub mod run;
pub mod serve;
pub mod server;
pub mod service;
pub mod shell;
pub mod start;
pub mod stop;
pub mod sync;
pub mod versions;
pub mod volumes;

use crate::{
    args::{Cli, Command},
    config::{self, Flags},
    exit, output,
    session::{Session, Target},
};
use anyhow::Result;
use serve::Starter;

/// Runs the command and returns its exit code.
pub async fn dispatch(cli: Cli, starter: Option<Starter>) -> Result<i32> {
    let json = cli.json;
    if let Command::Completions { shell } = cli.command {
        return completions::completions(shell);
    }
    let flags = Flags { data: cli.data, config: cli.config, no_config: cli.no_config };
    let settings = match (config::load(&flags), starter.is_some()) {
        (Ok(settings), _) => settings,
        (Err(error), true) => return serve::failed_early(starter, error),
        (Err(error), false) => return Err(error),
    };
    let command = match (cli.command, starter) {
        (Command::Serve(_), Some(starter)) => return serve::background(settings, starter).await,
        (Command::Serve(args), None) => return serve::serve(settings, &args).await,
        (Command::Server(args), _) => return server::server(&settings, &args, json).await,
        // The doctor must work where nothing else does.
        (Command::Doctor(args), _) => return doctor::doctor(&settings, &args, json).await,
        (Command::Db(args), _) if args.is_offline() => return db::offline(&settings, &args, json).await,
        (command, _) => command,
    };
    let target = Target { url: cli.server, key: cli.key, account: cli.account };
    let session = Session::open(target, settings, json).await?;
    let done = on(&session, command).await.map_err(|error| session.explained(error));
    session.finish().await;
    done
}

async fn on(session: &Session, command: Command) -> Result<i32> {
    match command {
        Command::Run(args) => run::run(session, &args).await,
        Command::Create(args) => create::create(session, &args).await,
        Command::Start(args) => start::start(session, &args).await,
        Command::Ls(args) => ls::ls(session, &args).await,
        Command::Exec(args) => exec::exec(session, &args).await,
        Command::Shell(args) => shell::shell(session, &args).await,
        Command::Cp(args) => cp::cp(session, &args).await,
        Command::Logs(args) => logs::logs(session, &args).await,
        Command::Kill(args) => kill::kill(session, &args).await,
        Command::Stop(args) => stop::stop(session, &args).await,
        Command::Rm(args) => rm::rm(session, &args).await,
        Command::Volumes(args) => volumes::volumes(session, &args).await,
        Command::Inspect(args) => inspect::inspect(session, &args).await,
        Command::Forward(args) => forward::forward(session, &args).await,
        Command::Sync(args) => sync::sync(session, &args).await,
        Command::Versions(args) => versions::versions(session, &args).await,
        Command::Diff(args) => versions::diff(session, &args).await,
        Command::Restore(args) => restore::restore(session, &args).await,
        Command::Prune(args) => versions::prune(session, &args).await,
        Command::Verify(args) => versions::verify(session, &args).await,
        Command::Chat(args) => chat::chat(session, &args).await,
        Command::Conversations(args) => conversations::conversations(session, &args).await,
        Command::Messages(args) => conversations::messages(session, &args).await,
        Command::Hooks(args) => hooks::hooks(session, &args).await,
        Command::Templates(args) => conversations::templates(session, &args).await,
        Command::Providers => service::providers(session).await,
        Command::Reconcile(args) => service::reconcile(session, &args).await,
        Command::Keys(args) => keys::keys(session, &args).await,
        Command::Accounts(args) => accounts::accounts(session, &args).await,
        Command::Account(args) => accounts::account(session, &args).await,
        Command::Db(args) => db::db(session, &args).await,
        Command::Serve(_) | Command::Server(_) | Command::Doctor(_) | Command::Completions { .. } => Ok(0),
    }
}

/// Does all of them, also after one failed; each failure is reported, and any makes the code 1.
pub async fn each(
    session: &Session,
    references: &[String],
    work: impl AsyncFn(&str) -> Result<()>,
) -> Result<i32> {
    let mut code = 0;
    for reference in references {
        if let Err(error) = work(reference).await {
            if error.is::<output::Closed>() {
                return Err(error);
            }
            exit::report(&session.explained(error), session.json);
            code = exit::FAILED;
        }
    }
    Ok(code)
}
