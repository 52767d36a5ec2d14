//! How fast workspaces are pushed and restored, as a user sees it: whole commands of the product, from start to exit.

use super::{
    args::SyncArgs,
    figures::{Bound, Report},
    measure::{parse_size, process_status},
    product::Product,
};
use anyhow::{Context, Result, ensure};
use seawall_api::{SandboxId, http::SyncFiles};
use seawall_cli::output;
use seawall_sync::engine::SyncReport;
use std::{path::Path, time::Instant};
use toml::Table;

mod rivals;
mod tree;

const MIB: f64 = (1 << 20) as f64;
const LARGE: u64 = 2 << 30;
const MANY: usize = 100_000;
const SCANS: usize = 5;

/// The measured steps of one program, in seconds.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    pub push: f64,
    pub restore: f64,
    pub one_changed: f64,
    pub unchanged: f64,
}

impl Times {
    fn never() -> Times {
        Times {
            push: f64::INFINITY,
            restore: f64::INFINITY,
            one_changed: f64::INFINITY,
            unchanged: f64::INFINITY,
        }
    }

    /// The best of each.
    fn best(self, other: Times) -> Times {
        Times {
            push: self.push.min(other.push),
            restore: self.restore.min(other.restore),
            one_changed: self.one_changed.min(other.one_changed),
            unchanged: self.unchanged.min(other.unchanged),
        }
    }
}

/// The bucket that the product and its peers push to.
pub fn bucket(args: &SyncArgs, data: &Path) -> String {
    let named = args.bucket.clone().filter(|bucket| !bucket.is_empty());
    named.unwrap_or_else(|| data.join("bucket").display().to_string())
}

/// The settings of the measured server.
pub fn settings(provider: &str, bucket: &str) -> Table {
    let sync = Table::from_iter([("bucket".to_owned(), bucket.into())]);
    Table::from_iter([("provider".to_owned(), provider.into()), ("sync".to_owned(), sync.into())])
}

pub async fn all(product: &Product, bucket: &str, args: &SyncArgs) -> Result<Report> {
    let mut report = Report::default();
    let source = product.data().join("tree");
    tree::make(&source, args.files)?;
    let mut ours = Times::never();
    let mut peers = rivals::Rivals::new(product.data(), bucket, args.compare);
    // In turns, so that all meet the same load of the machine.
    for _ in 0..args.runs {
        ours = ours.best(own(product, &source).await?);
        peers.run(&source)?;
    }
    report.told("push_s", "first push", "s", ours.push);
    report.told("restore_s", "restore into an empty sandbox", "s", ours.restore);
    report.told("push_one_changed_s", "push after one file changed", "s", ours.one_changed);
    report.told("push_unchanged_s", "nothing changed", "s", ours.unchanged);
    peers.report(&mut report, ours);
    if !args.quick {
        many(product, &mut report).await?;
        large(product, &mut report).await?;
    }
    Ok(report)
}

/// A new sandbox without files.
async fn create(product: &Product) -> Result<String> {
    Ok(product.run(&["create"]).await?.stdout)
}

/// Removes a sandbox and keeps its volume: an ext4 without a journal is slow for a minute after many deletions.
async fn remove(product: &Product, id: &str) -> Result<()> {
    product.run(&["rm", "-f", id]).await?;
    Ok(())
}

/// The time of a command, in seconds.
async fn measured(product: &Product, args: &[&str]) -> Result<f64> {
    settle();
    Ok(product.run(args).await?.time.as_secs_f64())
}

/// Writes all files to the disk, so that no step pays for the writes of the step before it.
pub fn settle() {
    rustix::fs::sync();
}

async fn own(product: &Product, source: &Path) -> Result<Times> {
    let id = filled(product, source).await?;
    let push = measured(product, &["sync", &id]).await?;
    let unchanged = measured(product, &["sync", &id]).await?;
    product.run(&["exec", &id, "--", "sh", "-c", "echo changed > /work/d0/f0"]).await?;
    let one_changed = measured(product, &["sync", &id]).await?;
    remove(product, &id).await?;
    let other = create(product).await?;
    let restore = measured(product, &["restore", &other, "--from", &id]).await?;
    product.run(&["exec", &other, "--", "grep", "-qx", "changed", "/work/d0/f0"]).await?;
    remove(product, &other).await?;
    Ok(Times { push, restore, one_changed, unchanged })
}

/// A new sandbox with a copy of these files.
async fn filled(product: &Product, source: &Path) -> Result<String> {
    let id = create(product).await?;
    product.run(&["cp", &format!("{}/.", source.display()), &format!("{id}:/work/")]).await?;
    Ok(id)
}

/// A sync of very many unchanged files: a scan, and one list of the bucket. The server runs, and so does its client.
async fn many(product: &Product, report: &mut Report) -> Result<()> {
    let source = product.data().join("many");
    tree::make_small(&source, MANY)?;
    let name = filled(product, &source).await?;
    let (id, client): (SandboxId, _) = (name.parse()?, product.client()?);
    client.sync(id, &SyncFiles::default()).await?;
    // The first scan after a push reads again the files that changed within the clock's resolution.
    client.sync(id, &SyncFiles::default()).await?;
    let mut best = f64::INFINITY;
    for _ in 0..SCANS {
        let begun = Instant::now();
        let answer = client.sync(id, &SyncFiles::default()).await?;
        best = best.min(begun.elapsed().as_secs_f64() * 1000.0);
        let synced: SyncReport = serde_json::from_value(answer)?;
        ensure!(synced.stats.hashed == 0, "{} files were read again", synced.stats.hashed);
    }
    report.reference("scan_100k_ms", "nothing changed, 100,000 files", "ms", best, Bound::AtMost(400.0));
    remove(product, &name).await
}

/// The memory that a large file takes on its way out and in, in a new server and in the guests.
async fn large(product: &Product, report: &mut Report) -> Result<()> {
    let id = create(product).await?;
    let make = format!("head -c {LARGE} /dev/urandom > /work/large");
    product.run(&["exec", &id, "--", "sh", "-c", &make]).await?;
    product.run(&["server", "restart"]).await?;
    product.run(&["sync", &id]).await?;
    let out = guest_peak(product, &id).await;
    product.run(&["rm", "-f", "--volumes", &id]).await?;
    let other = create(product).await?;
    product.run(&["restore", &other, "--from", &id]).await?;
    let back = guest_peak(product, &other).await;
    // The most of this server's life.
    let host = process_status(product.server_pid().await?, "VmHWM")?;
    product.run(&["rm", "-f", "--volumes", &other]).await?;
    report.promise(
        "large_host_mib",
        "2 GiB file out and in: memory of the server",
        "MiB",
        host / MIB,
        Bound::AtMost(64.0),
    );
    match out.and_then(|out| Ok(out.max(back?) / MIB)) {
        Ok(guest) => report.promise("large_guest_mib", "  of the guest", "MiB", guest, Bound::AtMost(64.0)),
        Err(error) => left_out("the guest's memory", &error),
    }
    Ok(())
}

/// The most memory that a sandbox's guest has used, in bytes. With the provider `native` the guest is process 1.
async fn guest_peak(product: &Product, id: &str) -> Result<f64> {
    let status = product.run(&["exec", id, "--", "cat", "/proc/1/status"]).await?.stdout;
    let is_guest = status.lines().next().is_some_and(|line| line.ends_with("seawall-guest"));
    ensure!(is_guest, "process 1 of the sandbox is not the guest");
    parse_size(&status, "VmHWM").context("the guest's status has no peak of its memory")
}

/// Notes that something is not measured, and why.
pub fn left_out(name: &str, why: &anyhow::Error) {
    output::note(format!("{name} is left out: {why:#}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_name_the_bucket() {
        let text = toml::to_string(&settings("native", "/a \"b\"/bucket")).unwrap();
        let table: Table = toml::from_str(&text).unwrap();
        assert_eq!(table["provider"].as_str(), Some("native"));
        assert_eq!(table["sync"]["bucket"].as_str(), Some("/a \"b\"/bucket"));
    }
}
