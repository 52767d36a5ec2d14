//! Whole commands of the product, from start to exit, in turns with bwrap; and the server that they start.

use super::{
    figures::{Bound, Report, percentile},
    measure::process_status,
    product::{Product, timed},
    rivals::{bwrap, is_installed},
    scratch::Scratch,
};
use anyhow::Result;
use seawall_cli::output;
use std::{
    process::{Command, Stdio},
    time::Duration,
};

/// Commands of each kind in one run, after one that warms up.
const ROUNDS: usize = 40;
/// Commands that a server has answered before its memory is measured.
const FEW: usize = 5;
/// The time that a server has to become idle.
const REST: Duration = Duration::from_secs(2);
const MIB: f64 = (1 << 20) as f64;

/// Medians of one run, in milliseconds; or the best of several runs, each for itself.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Medians {
    exec: f64,
    run: f64,
    /// NaN or infinite without bwrap.
    bwrap: f64,
}

impl Medians {
    const WORST: Medians = Medians { exec: f64::INFINITY, run: f64::INFINITY, bwrap: f64::INFINITY };

    fn best(self, other: Medians) -> Medians {
        Medians {
            exec: self.exec.min(other.exec),
            run: self.run.min(other.run),
            bwrap: self.bwrap.min(other.bwrap),
        }
    }
}

/// `used` has a server during its measurement. `empty` starts its server anew in each run.
pub async fn all(used: &Product, empty: (&Scratch, &Product), runs: u32) -> Result<Report> {
    let mut report = Report::default();
    let peer = peer().await;
    let sandbox = used.run(&["create"]).await?.stdout;
    let mut best = Medians::WORST;
    for _ in 0..runs {
        best = best.best(medians(used, &sandbox, peer.as_deref()).await?);
    }
    report.told("cli_exec_p50_ms", "`seawall exec ID -- true`, start to exit, p50", "ms", best.exec);
    report.told("cli_run_p50_ms", "`seawall run -- true`, start to exit, p50", "ms", best.run);
    if peer.is_some() {
        report.told("cli_bwrap_p50_ms", "bwrap, p50", "ms", best.bwrap);
        report.ratio("cli_exec_ratio", "  exec / bwrap", best.exec / best.bwrap, 1.6);
        report.ratio("cli_run_ratio", "  run / bwrap", best.run / best.bwrap, 3.0);
    }
    let (mut first, mut memory) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..runs {
        let (time, mib) = started(empty.0, empty.1).await?;
        first = first.min(time);
        memory = memory.min(mib);
    }
    let name = "the first command in an empty data folder, server start included";
    report.reference("cli_first_ms", name, "ms", first, Bound::AtMost(200.0));
    let name = "anonymous memory of an idle server in the background";
    report.reference("cli_server_mib", name, "MiB", memory, Bound::AtMost(24.0));
    Ok(report)
}

/// The command of bwrap. `None` where bwrap is missing or fails.
async fn peer() -> Option<Vec<String>> {
    if !is_installed("bwrap") {
        output::note("bwrap is left out, and the ratios to it: it is not installed");
        return None;
    }
    let command = bwrap();
    match milliseconds(program(&command)).await {
        Ok(_) => Some(command),
        Err(error) => {
            output::note(format!("bwrap is left out, and the ratios to it: {error:#}"));
            None
        }
    }
}

/// One command of each kind after the other, so that all meet the same load of the machine.
async fn medians(product: &Product, sandbox: &str, peer: Option<&[String]>) -> Result<Medians> {
    let (mut exec, mut run, mut bwrap) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let peer = match peer {
            Some(command) => milliseconds(program(command)).await?,
            None => f64::NAN,
        };
        let in_sandbox = milliseconds(product.command(&["exec", sandbox, "--", "true"])).await?;
        let of_its_own = milliseconds(product.command(&["run", "--", "true"])).await?;
        // The first warms up.
        if round > 0 {
            bwrap.push(peer);
            exec.push(in_sandbox);
            run.push(of_its_own);
        }
    }
    Ok(Medians { exec: median(exec), run: median(run), bwrap: median(bwrap) })
}

/// The time of the first command in an empty data folder, in milliseconds, and the memory of the server that it started,
/// in MiB. The folder is empty again afterwards.
async fn started(folder: &Scratch, product: &Product) -> Result<(f64, f64)> {
    let time = milliseconds(product.command(&["run", "--", "true"])).await?;
    for _ in 1..FEW {
        product.run(&["run", "--", "true"]).await?;
    }
    let server = product.server_pid().await?;
    tokio::time::sleep(REST).await;
    let memory = process_status(server, "RssAnon")? / MIB;
    product.stop_server().await?;
    folder.wipe()?;
    Ok((time, memory))
}

fn program(words: &[String]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null());
    command
}

async fn milliseconds(command: Command) -> Result<f64> {
    Ok(timed(command).await?.time.as_secs_f64() * 1000.0)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    percentile(&times, 0.50)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_of_each_counts() {
        let one = Medians { exec: 4.0, run: 9.0, bwrap: 3.0 };
        let other = Medians { exec: 5.0, run: 8.0, bwrap: 3.5 };
        assert_eq!(Medians::WORST.best(one).best(other), Medians { exec: 4.0, run: 8.0, bwrap: 3.0 });
    }
}
