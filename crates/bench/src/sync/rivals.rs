//! Compares with rclone, `aws s3 sync` and restic on the same tree and the same server, in the same run.

use super::{Times, left_out, settle};
use crate::figures::{Bound, Report};
use anyhow::{Context, Result, ensure};
use seawall_api::SandboxId;
use seawall_cli::output;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

/// Seconds.
const SLOW: f64 = 20.0;

/// A program to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Rclone,
    Aws,
    Restic,
}

/// How its figures are called: push, restore, one file changed, nothing changed.
struct Names {
    keys: [&'static str; 4],
    names: [&'static str; 4],
    ratios: [(&'static str, &'static str); 3],
}

pub struct Rivals {
    scratch: PathBuf,
    bucket: String,
    there: Vec<(Who, Times)>,
}

impl Rivals {
    /// Keeps copies of the tree below `scratch`. Without `compare` there are no rivals.
    pub fn new(scratch: &Path, bucket: &str, compare: bool) -> Rivals {
        let scratch = scratch.join("rivals");
        let mut there = Vec::new();
        if compare {
            match bucket.strip_prefix("s3://") {
                Some(_) => {
                    there = [Who::Rclone, Who::Aws, Who::Restic].map(|who| (who, Times::never())).to_vec();
                }
                None => output::note("nothing to compare with: name an S3 bucket with SEAWALL_BENCH_BUCKET"),
            }
        }
        Rivals { scratch, bucket: bucket.trim_start_matches("s3://").to_owned(), there }
    }

    pub fn run(&mut self, source: &Path) -> Result<()> {
        for (who, best) in std::mem::take(&mut self.there) {
            // Once tells enough of one that is that slow.
            if best.push.is_finite() && best.push > SLOW {
                self.there.push((who, best));
                continue;
            }
            match self.measure(who, source) {
                Ok(times) => self.there.push((who, best.best(times))),
                Err(error) => left_out(who.program(), &error),
            }
        }
        Ok(())
    }

    fn measure(&self, who: Who, source: &Path) -> Result<Times> {
        // Each run has a new folder: deletions make the next writes slow.
        let scratch = self.scratch.join(SandboxId::generate().to_string());
        let (tree, back) = (scratch.join("tree"), scratch.join("back"));
        fs::create_dir_all(&back)?;
        copy(source, &tree)?;
        // Each run has a new prefix in the bucket.
        let place = format!("{}/{}-{}", self.bucket, who.program(), SandboxId::generate());
        let run = |task: Task| who.run(task, &place, &tree, &back, &scratch);
        run(Task::Prepare)?;
        let push = run(Task::Push)?;
        let unchanged = run(Task::Push)?;
        fs::write(tree.join("d0/f0"), "changed\n")?;
        let one_changed = run(Task::Push)?;
        let restore = run(Task::Restore)?;
        ensure!(back_is_there(&back), "nothing was restored");
        Ok(Times { push, restore, one_changed, unchanged })
    }

    /// Ours must be faster than restic's, which leaves the others far behind.
    pub fn report(&self, report: &mut Report, ours: Times) {
        for (who, times) in &self.there {
            let Names { keys, names, ratios } = who.names();
            let values = [times.push, times.restore, times.one_changed, times.unchanged];
            for ((key, name), value) in keys.into_iter().zip(names).zip(values) {
                report.told(key, name, "s", value);
            }
            let bounds = match who {
                Who::Restic => [Bound::AtLeast(1.5), Bound::AtLeast(1.5), Bound::AtLeast(10.0)],
                _ => [Bound::None; 3],
            };
            let faster =
                [times.push / ours.push, times.restore / ours.restore, times.one_changed / ours.one_changed];
            for (((key, name), value), bound) in ratios.into_iter().zip(faster).zip(bounds) {
                report.promise(key, name, "x", value, bound);
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Task {
    Prepare,
    Push,
    Restore,
}

impl Who {
    fn program(self) -> &'static str {
        match self {
            Who::Rclone => "rclone",
            Who::Aws => "aws",
            Who::Restic => "restic",
        }
    }

    fn names(self) -> Names {
        match self {
            Who::Rclone => Names {
                keys: ["rclone_push_s", "rclone_restore_s", "rclone_one_s", "rclone_unchanged_s"],
                names: ["rclone, 32 transfers: push", "  restore", "  one file changed", "  nothing changed"],
                ratios: [
                    ("rclone_push_ratio", "  rclone / ours: push"),
                    ("rclone_restore_ratio", "  rclone / ours: restore"),
                    ("rclone_one_ratio", "  rclone / ours: one file changed"),
                ],
            },
            Who::Aws => Names {
                keys: ["aws_push_s", "aws_restore_s", "aws_one_s", "aws_unchanged_s"],
                names: ["aws s3 sync: push", "  restore", "  one file changed", "  nothing changed"],
                ratios: [
                    ("aws_push_ratio", "  aws / ours: push"),
                    ("aws_restore_ratio", "  aws / ours: restore"),
                    ("aws_one_ratio", "  aws / ours: one file changed"),
                ],
            },
            Who::Restic => Names {
                keys: ["restic_push_s", "restic_restore_s", "restic_one_s", "restic_unchanged_s"],
                names: ["restic: push", "  restore", "  one file changed", "  nothing changed"],
                ratios: [
                    ("restic_push_ratio", "  restic / ours: push"),
                    ("restic_restore_ratio", "  restic / ours: restore"),
                    ("restic_one_ratio", "  restic / ours: one file changed"),
                ],
            },
        }
    }

    fn run(self, task: Task, place: &str, tree: &Path, back: &Path, scratch: &Path) -> Result<f64> {
        let Some(mut command) = self.command(task, place, tree, back, scratch)? else { return Ok(0.0) };
        // Debian's rclone refuses to start with this variable.
        command.env_remove("AWS_CA_BUNDLE").stdin(Stdio::null());
        settle();
        let begun = Instant::now();
        let ran = command.output().with_context(|| format!("cannot run {}", self.program()))?;
        let seconds = begun.elapsed().as_secs_f64();
        ensure!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr).trim());
        Ok(seconds)
    }

    fn command(
        self,
        task: Task,
        place: &str,
        tree: &Path,
        back: &Path,
        scratch: &Path,
    ) -> Result<Option<Command>> {
        let endpoint = std::env::var("AWS_ENDPOINT_URL").context("AWS_ENDPOINT_URL names no server")?;
        let region = std::env::var("AWS_REGION").unwrap_or_else(|_| "us-east-1".to_owned());
        let mut command = Command::new(self.program());
        match (self, task) {
            (Who::Rclone | Who::Aws, Task::Prepare) => return Ok(None),
            (Who::Rclone, _) => {
                let config = scratch.join("rclone.conf");
                fs::write(&config, "")?;
                command.arg("--config").arg(config).args(["copy", "--s3-provider", "Other", "--s3-env-auth"]);
                command.args(["--s3-endpoint", &endpoint, "--s3-region", &region]);
                command.args(["--s3-force-path-style", "--transfers", "32"]);
                from_to(&mut command, task, tree, back, &format!(":s3:{place}"));
            }
            (Who::Aws, _) => {
                command.args(["--endpoint-url", &endpoint, "--region", &region]);
                command.args(["s3", "sync", "--only-show-errors"]);
                from_to(&mut command, task, tree, back, &format!("s3://{place}"));
            }
            (Who::Restic, _) => {
                command
                    .env("RESTIC_PASSWORD", "bench")
                    .arg("-q")
                    .arg("--cache-dir")
                    .arg(scratch.join("cache"));
                command.args(["-r", &format!("s3:{endpoint}/{place}"), "-o", "s3.bucket-lookup=path"]);
                command.args(["-o", &format!("s3.region={region}")]).current_dir(tree);
                match task {
                    Task::Prepare => command.arg("init"),
                    Task::Push => command.args(["backup", "."]),
                    Task::Restore => command.args(["restore", "latest", "--target"]).arg(back),
                };
            }
        }
        Ok(Some(command))
    }
}

fn from_to(command: &mut Command, task: Task, tree: &Path, back: &Path, place: &str) {
    match task {
        Task::Restore => command.arg(place).arg(back),
        _ => command.arg(tree).arg(place),
    };
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy(&entry.path(), &target)?,
            false => drop(fs::copy(entry.path(), target)?),
        }
    }
    Ok(())
}

fn back_is_there(back: &Path) -> bool {
    fs::read_dir(back).is_ok_and(|mut entries| entries.next().is_some())
}
