//! Compares the provider `docker` with the same steps by the daemon's own API.

use super::{
    figures::{Bound, Report, percentile},
    measure::{CHUNK, round_trips, sandbox, speed},
};
use anyhow::{Context, Result, bail, ensure};
use seawall_api::files::{FileRef, ReadFile, WriteFile, WriteMode};
use seawall_cli::app::App;
use seawall_core::ports::Volumes;
use seawall_wire::Guest;
use serde_json::{Value, json};
use std::{env, time::Instant};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

const WARM_UP: usize = 2;
const ROUNDS: usize = 15;
const EXECS: usize = 30;
/// The size of the file, in chunks of 1 MiB.
const FILE_CHUNKS: usize = 100;
const FILE: &str = "/work/bench.bin";
const DEFAULT_SOCKET: &str = "/var/run/docker.sock";

pub async fn all(app: &App, runs: u32) -> Result<Report> {
    let daemon = Daemon::of(app)?;
    let mut report = Report::default();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..WARM_UP + ROUNDS {
        let begun = Instant::now();
        let id = sandbox(app).await?;
        let made = begun.elapsed().as_secs_f64() * 1e3;
        let peer = daemon.container().await?;
        app.sandboxes.remove(id, Volumes::Delete).await?;
        if round >= WARM_UP {
            ours.push(made);
            theirs.push(peer);
        }
    }
    let (ours, theirs) = (median(ours), median(theirs));
    report.told("docker_create_p50_ms", "create and start, p50", "ms", ours);
    report.told("docker_api_create_p50_ms", "  a container by the daemon's API, p50", "ms", theirs);
    report.reference(
        "docker_overhead_ms",
        "  not spent in the daemon",
        "ms",
        ours - theirs,
        Bound::AtMost(15.0),
    );
    used(app, &daemon, runs, &mut report).await?;
    Ok(report)
}

/// Commands and files in a container that runs.
async fn used(app: &App, daemon: &Daemon, runs: u32, report: &mut Report) -> Result<()> {
    let id = sandbox(app).await?;
    let guest = app.sandboxes.guest(id).await?;
    let exec = percentile(&round_trips(&guest).await?, 0.50);
    let theirs = daemon.execs(&format!("seawall-{id}")).await?;
    report.reference("docker_exec_p50_ms", "exec `true`, p50", "ms", exec, Bound::AtMost(4.0));
    report.told("docker_api_exec_p50_ms", "  exec by the daemon's API, p50", "ms", theirs);
    report.promise("docker_exec_ratio", "  exec / by the API", "x", exec / theirs, Bound::AtMost(0.25));
    let (mut into, mut out) = (0.0, 0.0);
    for _ in 0..runs {
        into = f64::max(into, write(&guest).await?);
        out = f64::max(out, read(&guest).await?);
    }
    report.reference("docker_write_mb_s", "a file of 100 MiB in", "MB/s", into, Bound::AtLeast(300.0));
    report.reference("docker_read_mb_s", "a file of 100 MiB out", "MB/s", out, Bound::AtLeast(300.0));
    app.sandboxes.remove(id, Volumes::Delete).await?;
    Ok(())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    percentile(&times, 0.50)
}

async fn write(guest: &Guest) -> Result<f64> {
    let chunk = vec![0x5a; CHUNK];
    let write = WriteFile {
        file: FileRef::new(FILE),
        mode: WriteMode::Replace,
        permissions: None,
        mtime: None,
        parents: false,
        max_size: None,
    };
    let begun = Instant::now();
    let mut writer = guest.write_bulk(write).await?;
    for _ in 0..FILE_CHUNKS {
        writer.write(&chunk).await?;
    }
    writer.finish().await?;
    Ok(speed(CHUNK * FILE_CHUNKS, begun))
}

async fn read(guest: &Guest) -> Result<f64> {
    let begun = Instant::now();
    let mut reader = guest.read_bulk(ReadFile { file: FileRef::new(FILE), offset: 0, length: None }).await?;
    let mut bytes = 0;
    while let Some(part) = reader.next().await? {
        bytes += part.len();
    }
    ensure!(bytes == CHUNK * FILE_CHUNKS, "{bytes} bytes came");
    Ok(speed(bytes, begun))
}

/// The daemon's API over its socket, without a library between: the peer.
struct Daemon {
    socket: String,
    image: String,
}

impl Daemon {
    fn of(app: &App) -> Result<Daemon> {
        let settings = &app.settings.docker;
        let address = settings.host.clone().or_else(|| env::var("DOCKER_HOST").ok());
        let address = address.unwrap_or_else(|| format!("unix://{DEFAULT_SOCKET}"));
        let socket =
            address.strip_prefix("unix://").context("only a daemon with a local socket is measured")?;
        let image = settings.image.clone().context("`image` of section [docker] is not set")?;
        Ok(Daemon { socket: socket.to_owned(), image })
    }

    /// Creates and starts a container. Returns the milliseconds; removing it does not count.
    async fn container(&self) -> Result<f64> {
        let body = json!({
            "Image": self.image, "Entrypoint": ["sleep", "1000"], "Cmd": [],
            "HostConfig": {"NetworkMode": "none"},
        });
        let begun = Instant::now();
        let made = self.call("POST", "/containers/create", &body).await?;
        let id = made["Id"].as_str().context("an id")?.to_owned();
        self.call("POST", &format!("/containers/{id}/start"), &Value::Null).await?;
        let took = begun.elapsed().as_secs_f64() * 1e3;
        self.call("DELETE", &format!("/containers/{id}?force=1&v=1"), &Value::Null).await?;
        Ok(took)
    }

    /// The median of commands that the daemon runs in a container.
    async fn execs(&self, container: &str) -> Result<f64> {
        let mut times = Vec::new();
        for _ in 0..EXECS {
            let begun = Instant::now();
            let body = json!({"AttachStdout": true, "AttachStderr": true, "Cmd": ["true"]});
            let made = self.call("POST", &format!("/containers/{container}/exec"), &body).await?;
            let id = made["Id"].as_str().context("an id")?.to_owned();
            self.call("POST", &format!("/exec/{id}/start"), &json!({"Detach": false, "Tty": false})).await?;
            times.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        Ok(median(times))
    }

    /// One call. An answer that is no JSON is null.
    async fn call(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let head = format!(
            "{method} {path} HTTP/1.0\r\nHost: docker\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let mut stream = UnixStream::connect(&self.socket).await?;
        stream.write_all(format!("{head}{body}").as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        let text = String::from_utf8_lossy(&answer);
        let (head, body) = text.split_once("\r\n\r\n").context("the daemon sent no answer")?;
        let status = head.split_whitespace().nth(1).unwrap_or_default();
        if !status.starts_with('2') {
            bail!("{method} {path}: {}", text.lines().next().unwrap_or_default());
        }
        Ok(serde_json::from_str(body.trim()).unwrap_or_default())
    }
}
