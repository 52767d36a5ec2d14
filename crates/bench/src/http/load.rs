//! How many small reads the server answers in a second: by wrk, or where the machine has none, by a loader that does
//! the same.

use super::raw::{Target, head};
use crate::{
    figures::{Bound, Report},
    rivals::is_installed,
};
use anyhow::{Context, Result, anyhow, bail, ensure};
use seawall_cli::output;
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const THREADS: usize = 2;
const CONNECTIONS: usize = 32;
const SECONDS: u64 = 5;
/// Bytes that one connection can buffer. An answer is much smaller.
const BUFFER: usize = 16 << 10;
/// No answer takes so long, however many wait.
const PATIENCE: Duration = Duration::from_secs(10);

pub async fn reads(target: &Target, path: &str, runs: u32, report: &mut Report) -> Result<()> {
    let (by_wrk, mut best) = (is_installed("wrk"), 0.0_f64);
    let by = if by_wrk { "wrk" } else { "a loader of our own, as there is no wrk" };
    output::note(format!("reads are asked for by {by}: {THREADS} threads, {CONNECTIONS} connections"));
    for _ in 0..runs {
        let (target, path) = (target.clone(), path.to_owned());
        let load = move || if by_wrk { wrk(&target, &path) } else { own(&target, &path) };
        best = best.max(tokio::task::spawn_blocking(load).await??);
    }
    let name = match by_wrk {
        true => "conversation reads per second, 32 connections, by wrk",
        false => "conversation reads per second, 32 connections, by a loader of our own",
    };
    report.reference("http_reads", name, "/s", best, Bound::AtLeast(10_000.0));
    Ok(())
}

fn wrk(target: &Target, path: &str) -> Result<f64> {
    let (threads, connections) = (THREADS.to_string(), CONNECTIONS.to_string());
    let (time, key) = (format!("{SECONDS}s"), format!("authorization: Bearer {}", target.key));
    let ran = Command::new("wrk")
        .args(["-t", &threads, "-c", &connections, "-d", &time, "-H", &key])
        .arg(format!("http://{}{path}", target.address))
        .stdin(Stdio::null())
        .output()
        .context("cannot run wrk")?;
    ensure!(ran.status.success(), "wrk: {}", String::from_utf8_lossy(&ran.stderr).trim());
    rate(&String::from_utf8_lossy(&ran.stdout))
}

/// Answers that are no answers must not count.
fn rate(said: &str) -> Result<f64> {
    let lines = || said.lines().map(str::trim);
    if let Some(bad) = lines().find(|line| line.starts_with("Non-2xx") || line.starts_with("Socket errors")) {
        bail!("wrk: {bad}");
    }
    let rate = lines().find_map(|line| line.strip_prefix("Requests/sec:")).context("wrk tells no figure")?;
    Ok(rate.trim().parse()?)
}

fn own(target: &Target, path: &str) -> Result<f64> {
    let (address, request) = (target.address, target.request("GET", path, None));
    let begun = Instant::now();
    let count: u64 = thread::scope(|scope| {
        let all: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| load(address, &request))).collect();
        let count = |one: thread::ScopedJoinHandle<'_, Result<u64>>| -> Result<u64> {
            one.join().map_err(|_| anyhow!("a thread of the loader panicked"))?
        };
        all.into_iter().map(count).sum::<Result<u64>>()
    })?;
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}

/// One request in flight on each connection, all the time.
fn load(address: SocketAddr, request: &[u8]) -> Result<u64> {
    let open = (0..CONNECTIONS / THREADS).map(|_| Line::open(address));
    let mut lines = open.collect::<Result<Vec<_>>>()?;
    let begun = Instant::now();
    for line in &mut lines {
        line.stream.write_all(request)?;
    }
    let mut count = 0;
    while begun.elapsed() < Duration::from_secs(SECONDS) {
        for line in &mut lines {
            line.answer()?;
            line.stream.write_all(request)?;
            count += 1;
        }
    }
    Ok(count)
}

struct Line {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Line {
    fn open(address: SocketAddr) -> Result<Line> {
        let stream = TcpStream::connect(address).context("the server cannot be reached")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Line { stream, buffer: vec![0; BUFFER] })
    }

    fn answer(&mut self) -> Result<()> {
        let mut filled = 0;
        loop {
            let count = self.stream.read(&mut self.buffer[filled..]).context("no answer")?;
            ensure!(count > 0, "the server hung up, or an answer is too long");
            filled += count;
            match length(&self.buffer[..filled])? {
                Some(whole) if whole == filled => return Ok(()),
                Some(whole) => ensure!(whole > filled, "more came than was asked for"),
                None => {}
            }
        }
    }
}

/// The length of an answer with its head. `None` while the head is incomplete.
fn length(bytes: &[u8]) -> Result<Option<usize>> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let head = head(std::str::from_utf8(&bytes[..end])?)?;
    ensure!(head.status == 200, "{}", String::from_utf8_lossy(bytes));
    let body = head.length.context("an answer does not say how long it is")?;
    Ok(Some(end + 4 + body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrk_is_understood() {
        let said =
            "Running 5s test\n  2 threads and 32 connections\nRequests/sec:  12345.67\nTransfer/sec: 1MB\n";
        assert_eq!(rate(said).unwrap(), 12_345.67);
        assert!(rate(&format!("{said}  Non-2xx or 3xx responses: 7\n")).is_err());
        assert!(rate("unable to connect").is_err());
    }

    #[test]
    fn answers_are_whole_or_not() {
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc";
        assert_eq!(length(answer).unwrap(), Some(answer.len()));
        assert_eq!(length(&answer[..20]).unwrap(), None);
        assert!(length(b"HTTP/1.1 429 Slow\r\ncontent-length: 0\r\n\r\n").is_err());
    }
}
