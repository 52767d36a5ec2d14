//! The commands, a file each, and the way from the command line to them.

pub mod accounts;
pub mod bench;
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
pub mod service;
pub mod shell;
pub mod start;
pub mod stop;
pub mod sync;
pub mod versions;
pub mod volumes;

use crate::{
    app::App,
    args::{Cli, Command},
    config::{self, Flags},
    exit,
    lookup::Place,
    output, remote, turns,
};
use anyhow::Result;

/// Does what was asked; the exit code where it went well.
pub async fn dispatch(cli: Cli) -> Result<i32> {
    let json = cli.json;
    if let Command::Completions { shell } = cli.command {
        return completions::completions(shell);
    }
    let settings = config::load(&Flags { data: cli.data, config: cli.config })?;
    let command = match cli.command {
        // These two must work where nothing else does, or elsewhere.
        Command::Doctor(args) => return doctor::doctor(&settings, &args, json).await,
        Command::Bench(args) => return bench::bench(settings, &args, json).await,
        Command::Db(args) => return db::db(&settings, &args, json).await,
        command => command,
    };
    // A variable that is set to nothing is as good as not set.
    if let Some(url) = cli.server.filter(|url| !url.trim().is_empty())
        && !command.is_local()
    {
        return remote::dispatch(&url, cli.key, settings, json, command).await;
    }
    let app = App::open(settings, json).await?;
    if !command.is_local() {
        turns::take_up(&app).await?;
    }
    let done = on(&app, command).await;
    app.sandboxes.flush().await;
    done
}

async fn on(app: &App, command: Command) -> Result<i32> {
    match command {
        Command::Run(args) => run::run(app, &args).await,
        Command::Serve(args) => serve::serve(app, &args).await,
        Command::Create(args) => create::create(app, &args).await,
        Command::Start(args) => start::start(app, &args).await,
        Command::Ls(args) => ls::ls(app, &args).await,
        Command::Exec(args) => exec::exec(app, &args).await,
        Command::Shell(args) => shell::shell(app, &args).await,
        Command::Cp(args) => cp::cp(app, &args).await,
        Command::Logs(args) => logs::logs(app, &args).await,
        Command::Kill(args) => kill::kill(app, &args).await,
        Command::Stop(args) => stop::stop(app, &args).await,
        Command::Rm(args) => rm::rm(app, &args).await,
        Command::Volumes(args) => volumes::volumes(app, &args).await,
        Command::Inspect(args) => inspect::inspect(app, &args).await,
        Command::Forward(args) => forward::forward(app, &args).await,
        Command::Sync(args) => sync::sync(app, &args).await,
        Command::Versions(args) => versions::versions(app, &args).await,
        Command::Diff(args) => versions::diff(app, &args).await,
        Command::Restore(args) => restore::restore(app, &args).await,
        Command::Prune(args) => versions::prune(app, &args).await,
        Command::Verify(args) => versions::verify(app, &args).await,
        Command::Chat(args) => chat::chat(app, &args).await,
        Command::RunTurn(args) => chat::run_turn(app, &args).await,
        Command::Conversations(args) => conversations::conversations(app, &args).await,
        Command::Messages(args) => conversations::messages(app, &args).await,
        Command::Hooks(args) => hooks::hooks(app, &args).await,
        Command::Templates(args) => conversations::templates(app, &args).await,
        Command::Keys(args) => keys::keys(app, &args).await,
        Command::Accounts(args) => accounts::accounts(app, &args).await,
        Command::Account(args) => accounts::account(app, &args).await,
        Command::Providers | Command::Reconcile(_) => Err(service::needs_server()),
        Command::Doctor(_) | Command::Bench(_) | Command::Db(_) | Command::Completions { .. } => Ok(0),
    }
}

/// Does all of them, also after one failed; each failure is told, and any makes the code 1.
pub async fn each(
    app: &dyn Place,
    references: &[String],
    work: impl AsyncFn(&str) -> Result<()>,
) -> Result<i32> {
    let mut code = 0;
    for reference in references {
        if let Err(error) = work(reference).await {
            if error.is::<output::Closed>() {
                return Err(error);
            }
            exit::report(&error, app.json());
            code = exit::FAILED;
        }
    }
    Ok(code)
}
