//! The same work without a sandbox, in the same run: what our figures are held against on any machine.

use super::{
    figures::percentile,
    measure::{CHUNK, CHUNKS, speed},
};
use anyhow::{Context, Result, ensure};
use std::{
    fs::File,
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

const ROUNDS: usize = 200;

/// Median milliseconds to start `true` from this process and wait for it.
pub fn spawn() -> Result<f64> {
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let status = Command::new("true").stdin(Stdio::null()).status().context("cannot run `true`")?;
        times.push(begun.elapsed().as_secs_f64() * 1000.0);
        ensure!(status.success(), "`true` {status}");
    }
    times.sort_by(f64::total_cmp);
    Ok(percentile(&times, 0.50))
}

/// MB/s of a program's output through a plain pipe.
pub fn pipe() -> Result<f64> {
    let begun = Instant::now();
    let mut child = Command::new("dd")
        .args(["if=/dev/zero", "bs=1M", "count=1024"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot run `dd`")?;
    let mut stdout = child.stdout.take().context("no stdout")?;
    let mut buffer = vec![0; CHUNK];
    let mut count = 0;
    while let n @ 1.. = stdout.read(&mut buffer)? {
        count += n;
    }
    child.wait()?;
    let result = speed(count, begun);
    ensure!(count == CHUNK * CHUNKS, "1 GiB was printed, and {count} bytes came");
    Ok(result)
}

/// MB/s of writing a file to the page cache, and of reading it through a plain socket.
pub fn file(dir: &Path) -> Result<(f64, f64)> {
    let path = dir.join("peer.bin");
    let chunk = vec![0x5a; CHUNK];
    let begun = Instant::now();
    let mut file = File::create(&path)?;
    for _ in 0..CHUNKS {
        file.write_all(&chunk)?;
    }
    let written = speed(CHUNK * CHUNKS, begun);
    drop(file);
    let read = through_a_socket(&path);
    std::fs::remove_file(&path)?;
    Ok((written, read?))
}

fn through_a_socket(path: &Path) -> Result<f64> {
    let (mut near, mut far) = UnixStream::pair()?;
    let mut file = File::open(path)?;
    let begun = Instant::now();
    let sender = std::thread::spawn(move || -> std::io::Result<()> {
        let mut buffer = vec![0; CHUNK];
        while let n @ 1.. = file.read(&mut buffer)? {
            far.write_all(&buffer[..n])?;
        }
        Ok(())
    });
    let (mut buffer, mut count) = (vec![0; CHUNK], 0);
    while let n @ 1.. = near.read(&mut buffer)? {
        count += n;
    }
    let result = speed(count, begun);
    ensure!(sender.join().is_ok_and(|sent| sent.is_ok()), "the sender failed");
    ensure!(count == CHUNK * CHUNKS, "1 GiB is there, and {count} bytes came");
    Ok(result)
}
