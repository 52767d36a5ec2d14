//! The command line of `seawall-bench`.

use clap::{Args, Parser, Subcommand};
use std::{convert::Infallible, path::PathBuf};

const ABOUT: &str = "\
Measures what SPECIFICATION.md promises.

Without a subcommand it measures making, using and removing sandboxes, their memory, and 500 alive at once. Every
measurement has data folders of its own below $TMPDIR. The measured `seawall` is the file of that name beside this binary.";

#[derive(Debug, Parser)]
#[command(name = "seawall-bench", version, about = "Measures what SPECIFICATION.md promises.", long_about = ABOUT)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// The configuration file of sandboxes in this process [default: as of `seawall`]
    #[arg(long, global = true, value_name = "FILE", env = "SEAWALL_CONFIG", value_parser = possibly_empty)]
    pub config: Option<PathBuf>,

    /// JSON for programs instead of text for people
    #[arg(long, global = true)]
    pub json: bool,

    #[command(subcommand)]
    pub what: Option<Bench>,

    #[command(flatten)]
    pub boxes: BoxesArgs,
}

#[derive(Debug, Args)]
pub struct BoxesArgs {
    #[command(flatten)]
    pub common: ExecArgs,

    /// Compare with bwrap, runc, crun, docker and podman, if they are installed
    #[arg(long)]
    pub compare: bool,
}

#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Whole commands of `seawall`, from start to exit, compared with bwrap; and the server in the background
    Cli(CliArgs),
    /// Commands, output, files, and the guest's size, in new sandboxes
    Exec(ExecArgs),
    /// Containers, compared with the same steps by the Docker daemon's API
    Docker(DockerArgs),
    /// Messages and lists in the databases
    Stores(StoresArgs),
    /// Pushing and restoring workspaces
    Sync(SyncArgs),
    /// The time from a prompt to the first output
    Turns(TurnsArgs),
    /// A server: its reads, its memory with many listeners, and what HTTP adds
    Http(HttpArgs),
}

#[derive(Debug, Args)]
pub struct CliArgs {
    /// The best of so many runs counts
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,

    /// Exit with 1 when a promise is not kept that holds on any machine
    #[arg(long)]
    pub check: bool,
}

#[derive(Debug, Args)]
pub struct TurnsArgs {
    /// Exit with 1 when a promise is not kept that holds on any machine
    #[arg(long)]
    pub check: bool,
}

#[derive(Debug, Args)]
pub struct DockerArgs {
    /// Throughputs are the best of so many runs
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,

    /// The image; it must have `sleep` and `true` [default: `image` of section [docker]]
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,

    /// Exit with 1 when a promise is not kept that holds on any machine
    #[arg(long)]
    pub check: bool,
}

#[derive(Debug, Args)]
pub struct HttpArgs {
    /// The best of so many runs counts, for reads
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,

    /// Exit with 1 when a promise is not kept that holds on any machine
    #[arg(long)]
    pub check: bool,
}

#[derive(Debug, Clone, Args)]
pub struct SyncArgs {
    /// The best of so many runs counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,

    /// Files of 4 KiB on average
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub files: usize,

    /// Exit with 1 when a promise is not kept that holds on any machine
    #[arg(long)]
    pub check: bool,

    /// Compare with rclone, aws and restic on the same bucket, if they are installed
    #[arg(long)]
    pub compare: bool,

    /// Leave out the 100,000 files and the file of 2 GiB
    #[arg(long)]
    pub quick: bool,

    /// The bucket to push to, e.g. s3://bucket [default: files]
    #[arg(long, value_name = "URL", env = "SEAWALL_BENCH_BUCKET")]
    pub bucket: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub struct StoresArgs {
    /// The best of so many runs counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,

    /// Exit with 1 when a promise is not kept that holds on any machine
    #[arg(long)]
    pub check: bool,

    /// An empty database of PostgreSQL to measure too, and pgbench with it; tables are made in it
    #[arg(long, value_name = "URL", env = "SEAWALL_BENCH_POSTGRES")]
    pub postgres: Option<String>,
}

#[derive(Debug, Args)]
pub struct ExecArgs {
    /// Throughputs are the best of so many runs
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,

    /// Exit with 1 when a promise is not kept that holds on any machine
    #[arg(long)]
    pub check: bool,

    /// On which provider [default: `provider` of seawall.toml]
    #[arg(long, value_name = "NAME", env = "SEAWALL_PROVIDER")]
    pub provider: Option<String>,
}

/// A path from a variable that may be set to nothing, which counts as not set.
fn possibly_empty(text: &str) -> Result<PathBuf, Infallible> {
    Ok(PathBuf::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_makefiles_commands_are_understood() {
        for line in [
            "exec --provider local --check",
            "--compare --check",
            "cli --runs 1 --check --json",
            "turns --check",
            "http --check",
            "docker --image seawall-test/debian --check",
            "stores --check",
            "sync --compare --check",
        ] {
            let words = std::iter::once("seawall-bench").chain(line.split(' '));
            assert!(Cli::try_parse_from(words).is_ok(), "{line}");
        }
        assert!(Cli::try_parse_from(["seawall-bench", "--check", "exec"]).is_err(), "the flag would be lost");
    }
}
