//! The host against a guest that lies: each lie ends in a clean error, soon, and the host goes on.

use super::{
    hostile_guest::{
        Asked, CLEAN, anything, by_connection, by_output, by_stream, entry, raw_answer, wait_for_end, welcome,
    },
    kit::{Output, ensure_kind, error_of, from, guest_of, to},
    suite::verdict,
};
use anyhow::{Context, Result, anyhow, ensure};
use futures::future::BoxFuture;
use libtest_mimic::Trial;
use seawall_api::{
    AccountId, ErrorKind, ProcessId, SandboxId,
    exec::{OutputStream, ProcessEvent},
    files::{ChangeKind, FileChange, FileRef, ListDir, Listing, WatchDir},
    frame::{Frame, Kind, MAX_BODY},
    hello::Welcome,
    message::Started,
    sandbox::SandboxSpec,
};
use seawall_core::ports::Provider;
use seawall_providers::mock::MockProvider;
use seawall_wire::{Guest, LinkState, handshake, mux::Mux};
use std::{sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    runtime,
    time::timeout,
};

pub type Run = fn() -> BoxFuture<'static, Result<()>>;

macro_rules! lies {
    ($($name:ident;)+) => {
        const LIES: &[(&str, $crate::conformance::hostile::Run)] =
            &[$((stringify!($name), || Box::pin($name()))),+];
    };
}

pub(crate) use lies;

lies!(
    an_answer_that_is_not_ours;
    an_endless_greeting;
    a_version_that_nobody_speaks;
    a_hang_up_in_the_greeting;
    silence_in_the_greeting;
    silence_after_the_greeting;
    a_frame_of_four_gigabytes;
    a_frame_just_too_long;
    a_frame_of_an_unknown_kind;
    a_frame_that_is_cut_off;
    a_reply_of_another_type;
    a_frame_that_is_no_reply;
    an_answer_for_another_process;
    output_that_goes_back;
    output_that_jumps;
    output_at_the_end_of_numbers;
    a_gap_that_cannot_be;
    an_end_that_is_no_status;
    a_body_longer_than_its_file;
    a_body_without_an_end;
    a_body_that_never_ends;
    a_write_that_is_never_confirmed;
    names_that_lead_out;
    more_entries_than_asked_for;
    changes_that_lead_out;
    ten_thousand_streams_on_a_client_wire;
    noise_instead_of_streams;
);

pub fn trials() -> Vec<Trial> {
    trials_of(LIES)
}

pub fn trials_of(lies: &'static [(&'static str, Run)]) -> Vec<Trial> {
    let trial = |(name, run): &(&'static str, Run)| {
        let (name, run) = (format!("hostile::{name}"), *run);
        Trial::test(name.clone(), move || verdict("hostile", name, run_lie(run)))
    };
    lies.iter().map(trial).collect()
}

/// No lie keeps the host longer than this.
const LONGEST: Duration = Duration::from_secs(3600);

/// Time is paused, and jumps when all wait: patience of minutes is over at once, and a wait without an
/// end becomes a timeout here instead of a hang.
fn run_lie(run: Run) -> Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
    runtime.block_on(async {
        let task = tokio::spawn(run());
        let result = timeout(LONGEST, task).await;
        result.map_err(|_| anyhow!("the host waits without an end"))???;
        still_whole().await.context("the host does not go on")
    })
}

/// Another guest works as if nothing had been.
async fn still_whole() -> Result<()> {
    let provider: Arc<dyn Provider> = Arc::new(MockProvider::new());
    let id = SandboxId::generate();
    provider.create(id, &SandboxSpec::default(), AccountId::LOCAL).await?;
    provider.start(id).await?;
    let process = guest_of(&provider, id).start(anything()).await?;
    ensure!(Output::of(process).await?.status.success());
    Ok(())
}

async fn ensure_protocol<T>(call: impl Future<Output = Result<T, seawall_wire::Error>>) -> Result<()> {
    ensure_kind(call.await, &[ErrorKind::Protocol])
}

async fn ensure_clean<T>(call: impl Future<Output = Result<T, seawall_wire::Error>>) -> Result<()> {
    ensure_kind(call.await, &CLEAN)
}

/// What a process printed, up to the error that must come.
async fn ensure_output_is_refused(guest: Guest) -> Result<()> {
    let output = Output::of(guest.start(anything()).await?).await;
    let error = output.err().context("it was believed")?;
    let error = error.downcast::<seawall_wire::Error>()?;
    ensure!(error.kind() == ErrorKind::Protocol, "{}: {error}", error.kind());
    Ok(())
}

async fn hold_open(mut io: DuplexStream) {
    let mut sink = [0; 4096];
    while io.read(&mut sink).await.is_ok_and(|read| read > 0) {}
}

// The greeting

async fn an_answer_that_is_not_ours() -> Result<()> {
    let guest = by_connection(|mut io| async move {
        let _ = io.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        hold_open(io).await;
    });
    ensure_protocol(guest.info()).await
}

async fn an_endless_greeting() -> Result<()> {
    let guest = by_connection(|mut io| async move {
        let mut head = vec![Kind::Welcome as u8];
        head.extend((MAX_BODY as u32).to_le_bytes());
        let _ = io.write_all(&head).await;
        while io.write_all(&[0; 4096]).await.is_ok() {}
    });
    ensure_protocol(guest.info()).await
}

async fn a_version_that_nobody_speaks() -> Result<()> {
    let guest = by_connection(|mut io| async move {
        let chosen = Welcome { version: 77, ..welcome() };
        if let Ok(frame) = Frame::message(Kind::Welcome, &chosen) {
            let _ = io.write_all(&frame.to_bytes()).await;
        }
        hold_open(io).await;
    });
    let error = error_of(guest.info().await)?;
    ensure!(error.kind() == ErrorKind::Protocol, "{error}");
    let ours = seawall_api::hello::MAX_VERSION.to_string();
    let text = error.to_string();
    ensure!(text.contains("77") && text.contains(&ours), "it does not name both: {text}");
    Ok(())
}

async fn a_hang_up_in_the_greeting() -> Result<()> {
    let guest = by_connection(|mut io| async move {
        let _ = io.write_all(&[Kind::Welcome as u8, 9, 0]).await;
    });
    ensure_clean(guest.info()).await
}

async fn silence_in_the_greeting() -> Result<()> {
    let guest = by_connection(hold_open);
    ensure_clean(guest.info()).await?;
    let state = guest.state().borrow().clone();
    ensure!(matches!(state, LinkState::Broken(_)), "{state:?}");
    Ok(())
}

async fn silence_after_the_greeting() -> Result<()> {
    let guest = by_stream(|asked| wait_for_end(asked.reader));
    let mut state = guest.state();
    let call = tokio::spawn(async move { guest.info().await });
    let broken = state.wait_for(|state| matches!(state, LinkState::Broken(_)));
    timeout(Duration::from_secs(60), broken).await.context("a dead wire is not noticed")??;
    ensure_kind(call.await?, &CLEAN)
}

// Frames

async fn a_frame_of_four_gigabytes() -> Result<()> {
    let guest = raw_answer([Kind::Reply as u8, 0xff, 0xff, 0xff, 0xff]);
    ensure_protocol(guest.info()).await?;
    ensure_protocol(guest.read_all(FileRef::new("x"), 10)).await
}

async fn a_frame_just_too_long() -> Result<()> {
    let mut head = vec![Kind::Reply as u8];
    head.extend((MAX_BODY as u32 + 1).to_le_bytes());
    ensure_protocol(raw_answer(head).info()).await
}

async fn a_frame_of_an_unknown_kind() -> Result<()> {
    ensure_protocol(raw_answer([99, 0, 0, 0, 0]).info()).await
}

async fn a_frame_that_is_cut_off() -> Result<()> {
    let guest = by_stream(|asked| async move {
        let mut io = asked.writer.into_inner();
        let _ = io.write_all(&[Kind::Reply as u8, 100, 0, 0, 0, 1, 2, 3]).await;
        let _ = io.shutdown().await;
    });
    ensure_clean(guest.info()).await
}

async fn a_reply_of_another_type() -> Result<()> {
    let guest = by_stream(|mut asked| async move {
        let _ = asked.writer.message(Kind::Reply, &"how do you do").await;
        wait_for_end(asked.reader).await;
    });
    ensure_protocol(guest.info()).await?;
    ensure_protocol(guest.processes()).await?;
    ensure_protocol(guest.stat(FileRef::new("x"), true)).await?;
    ensure_protocol(guest.start(anything())).await?;
    ensure_protocol(guest.read(from("x"))).await
}

async fn a_frame_that_is_no_reply() -> Result<()> {
    let guest = by_stream(|mut asked| async move {
        let _ = asked.writer.send(&Frame::new(Kind::Data, vec![0; 10])).await;
        wait_for_end(asked.reader).await;
    });
    ensure_protocol(guest.info()).await?;
    ensure_protocol(guest.read(from("x"))).await
}

// Processes

async fn an_answer_for_another_process() -> Result<()> {
    let guest = by_stream(|mut asked| async move {
        let other = Started { process: ProcessId::generate(), pid: 1, resumed: false };
        let _ = asked.writer.message(Kind::Reply, &other).await;
        wait_for_end(asked.reader).await;
    });
    ensure_protocol(guest.start(anything())).await
}

/// Prints five bytes at 0, as it should, and five more at `offset`, as it should not.
fn lying_at(offset: u64) -> Guest {
    by_output(move |mut asked| async move {
        let _ = asked.writer.output(OutputStream::Stdout, 0, b"hello").await;
        let _ = asked.writer.output(OutputStream::Stdout, offset, b"again").await;
        wait_for_end(asked.reader).await;
    })
}

async fn output_that_goes_back() -> Result<()> {
    ensure_output_is_refused(lying_at(2)).await
}

async fn output_that_jumps() -> Result<()> {
    ensure_output_is_refused(lying_at(1 << 40)).await
}

async fn output_at_the_end_of_numbers() -> Result<()> {
    ensure_output_is_refused(lying_at(u64::MAX - 1)).await
}

async fn a_gap_that_cannot_be() -> Result<()> {
    for (from, to) in [(0, 0), (5, 2), (3, 9), (u64::MAX, 1)] {
        let guest = by_output(move |mut asked| async move {
            let _ = asked.writer.message(Kind::Event, &ProcessEvent::Gap { from, to }).await;
            wait_for_end(asked.reader).await;
        });
        ensure_output_is_refused(guest).await.with_context(|| format!("{from} to {to}"))?;
    }
    Ok(())
}

async fn an_end_that_is_no_status() -> Result<()> {
    let guest = by_output(|mut asked| async move {
        let _ = asked.writer.message(Kind::End, &"bye").await;
        wait_for_end(asked.reader).await;
    });
    ensure_output_is_refused(guest).await
}

// Files

/// Announces a file of ten bytes, then sends this many pieces of four.
fn file_in_pieces(pieces: usize, end: bool) -> Guest {
    by_stream(move |mut asked| async move {
        let _ = asked.writer.message(Kind::Reply, &entry(b"x", 10)).await;
        for _ in 0..pieces {
            if asked.writer.body(b"four").await.is_err() {
                return;
            }
        }
        if end {
            let _ = asked.writer.send(&Frame::empty(Kind::End)).await;
        }
        let _ = asked.writer.close().await;
    })
}

async fn a_body_longer_than_its_file() -> Result<()> {
    ensure_protocol(file_in_pieces(3, true).read_all(FileRef::new("x"), 1000)).await
}

async fn a_body_without_an_end() -> Result<()> {
    ensure_clean(file_in_pieces(2, false).read_all(FileRef::new("x"), 1000)).await
}

async fn a_body_that_never_ends() -> Result<()> {
    ensure_protocol(file_in_pieces(usize::MAX, true).read_all(FileRef::new("x"), 1000)).await
}

async fn a_write_that_is_never_confirmed() -> Result<()> {
    let guest = by_stream(|mut asked| async move {
        while let Ok(Some(frame)) = asked.reader.next().await {
            if frame.kind == Kind::End {
                break;
            }
        }
        let _ = asked.writer.close().await;
    });
    ensure_clean(guest.write_all(to("x"), &[7; 300_000])).await
}

fn listing_of(names: &[&[u8]]) -> Guest {
    let entries = names.iter().map(|name| entry(name, 0)).collect();
    let listing = Arc::new(Listing { entries, next: None, unreadable: Vec::new() });
    by_stream(move |mut asked: Asked| {
        let listing = listing.clone();
        async move {
            let _ = asked.writer.message(Kind::Reply, &*listing).await;
            wait_for_end(asked.reader).await;
        }
    })
}

fn ask_for(limit: u32) -> ListDir {
    ListDir { dir: FileRef::new("/work"), depth: 1, after: None, limit }
}

async fn names_that_lead_out() -> Result<()> {
    let names: [&[u8]; 8] = [b"..", b"../x", b"/etc/passwd", b"a/../../x", b"a\0b", b"", b"a//b", b"."];
    for name in names {
        let guest = listing_of(&[b"fine", name]);
        let refused = ensure_protocol(guest.list(ask_for(10))).await;
        refused.with_context(|| String::from_utf8_lossy(name).into_owned())?;
    }
    Ok(())
}

async fn more_entries_than_asked_for() -> Result<()> {
    let guest = listing_of(&[b"a", b"b", b"c"]);
    ensure_protocol(guest.list(ask_for(2))).await
}

async fn changes_that_lead_out() -> Result<()> {
    let guest = by_stream(|mut asked| async move {
        let _ = asked.writer.message(Kind::Reply, &()).await;
        let change = FileChange { path: "../../x".into(), kind: ChangeKind::Write };
        let _ = asked.writer.message(Kind::Event, &change).await;
        wait_for_end(asked.reader).await;
    });
    let watch = WatchDir { dir: FileRef::new("/work"), recursive: true };
    let mut watch = guest.watch(watch).await?;
    ensure_protocol(watch.next()).await
}

// The wire itself

/// Greets, opens streams that nobody asked for, and never answers anything.
async fn open_streams(mut io: DuplexStream) {
    if handshake::accept(&mut io, |_| Ok(welcome())).await.is_err() {
        return;
    }
    let (mux, _incoming, driver) = Mux::server(io);
    let flood = async {
        for _ in 0..10_000 {
            let Ok(mut stream) = mux.open().await else { return };
            let _ = stream.write_all(b"let me in").await;
            let _ = stream.flush().await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! { _ = driver => {}, () = flood => {} }
}

async fn ten_thousand_streams_on_a_client_wire() -> Result<()> {
    let guest = by_connection(open_streams);
    ensure_clean(guest.info()).await
}

async fn noise_instead_of_streams() -> Result<()> {
    let guest = by_connection(|mut io| async move {
        if handshake::accept(&mut io, |_| Ok(welcome())).await.is_ok() {
            while io.write_all(&[0xa5; 1000]).await.is_ok() {}
        }
    });
    ensure_clean(guest.stat(FileRef::new("x"), true)).await
}
