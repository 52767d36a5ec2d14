//! `seawall completions`: the completions of a shell.

use crate::{args::Cli, output};
use anyhow::Result;
use clap::CommandFactory;
use clap_complete::Shell;

pub fn completions(shell: Shell) -> Result<i32> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "seawall", &mut script);
    output::raw(&script)?;
    Ok(0)
}
