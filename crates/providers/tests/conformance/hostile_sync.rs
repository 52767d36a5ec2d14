//! The host against a guest that lies during a sync: it tells of too much, or too slowly, or of what nobody asked for.

use super::{
    hostile::{self, lies},
    hostile_guest::{Asked, by_connection, by_stream, entry, wait_for_end, welcome},
};
use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use seawall_api::{
    AccountId, ErrorKind,
    files::FileName,
    frame::{Frame, Kind},
    hello::Role,
    message::{Request, SyncOpened},
};
use seawall_core::workspaces::{Bounds, Session, SessionSettings, Slots};
use seawall_sync::{
    diff::Step,
    disk::{Refused, ScanAsk},
    protocol::codec::{Encoder, Item},
    state::CommitRef,
    sums::Strong,
    tree::{Delta, Mtime, Node},
    workspace::{Agree, Workspace},
};
use seawall_wire::{
    Guest,
    framed::{FrameReader, FrameWriter},
    handshake,
    mux::Mux,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{DuplexStream, ReadHalf, WriteHalf},
    time::{Instant, sleep},
};

lies!(
    k5_more_files_than_are_taken;
    k5_names_without_an_end;
    k5_a_scan_that_never_begins;
    k5_a_scan_that_trickles;
    k5_a_change_that_is_never_made;
    k5_an_agreement_that_trickles;
    k5_a_body_that_trickles;
    k5_a_state_file_larger_than_any;
    k5_a_state_file_that_trickles;
    more_refusals_than_steps;
    k5_a_large_scan_waits_for_its_turn_and_takes_no_room;
);

pub fn trials() -> Vec<Trial> {
    hostile::trials_of(LIES)
}

const BOUNDS: Bounds = Bounds { files: 5000, name_bytes: 200_000, hole_bytes: 1 << 20 };

async fn open(guest: Guest) -> Result<Session> {
    open_as(guest, AccountId::LOCAL, &Slots::default(), BOUNDS).await
}

async fn open_as(guest: Guest, account: AccountId, slots: &Slots, bounds: Bounds) -> Result<Session> {
    let held = Arc::new(slots.enter(account, "here").await?);
    let settings = SessionSettings { wait: Duration::ZERO, bounds, shared: false };
    Ok(Session::open(guest, settings, held).await?)
}

fn kind_of<T>(done: seawall_sync::Result<T>) -> Option<ErrorKind> {
    done.err().map(|error| error.kind())
}

/// A guest that lets its workspace be locked, and answers the first call so. It answers pings, so that it is not by its
/// silence on the wire that it is known.
fn by_call<F>(answer: impl Fn(Asked) -> F + Send + Sync + 'static) -> Guest
where
    F: Future<Output = ()> + Send + 'static,
{
    let answer = Arc::new(answer);
    by_stream(move |mut asked: Asked| {
        let answer = answer.clone();
        async move {
            match asked.request {
                Request::Sync { .. } => {}
                Request::Ping => return pong(asked).await,
                _ => return,
            }
            let opened = asked.writer.message(Kind::Reply, &SyncOpened { session: 1 }).await;
            if opened.is_ok() && matches!(asked.reader.next().await, Ok(Some(_))) {
                answer(asked).await;
            }
        }
    })
}

async fn pong(mut asked: Asked) {
    while let Ok(Some(frame)) = asked.reader.next().await {
        if asked.writer.send(&Frame::new(Kind::Pong, frame.body)).await.is_err() {
            return;
        }
    }
}

/// Items as one frame.
fn frame(items: impl Iterator<Item = Item>) -> Frame {
    let mut encoder = Encoder::default();
    for item in items {
        assert_eq!(encoder.add(&item), None);
    }
    Frame::new(Kind::Event, encoder.finish().unwrap_or_default())
}

fn directory(name: String) -> Item {
    Item::Entry(FileName::from(name.as_str()), Node::Dir { mode: Some(0o755), mtime: Mtime::default() })
}

/// Tells of such directories, a frame of a hundred after the other, until the host hangs up. Counts them.
fn endless(name: fn(usize) -> String, told: &Arc<AtomicUsize>) -> Guest {
    let told = told.clone();
    by_call(move |mut asked| {
        let told = told.clone();
        async move {
            loop {
                let first = told.fetch_add(100, Ordering::Relaxed);
                let part = frame((first..first + 100).map(|number| directory(name(number))));
                if asked.writer.send(&part).await.is_err() {
                    return;
                }
            }
        }
    })
}

async fn k5_more_files_than_are_taken() -> Result<()> {
    let told = Arc::new(AtomicUsize::new(0));
    let session = open(endless(|number| number.to_string(), &told)).await?;
    ensure!(kind_of(session.scan(ScanAsk::default()).await) == Some(ErrorKind::TooLarge));
    drop(session);
    // What is on its way is little: the wire has a window.
    let told = told.load(Ordering::Relaxed);
    ensure!(told < 5000 + 40_000, "{told} were told before the host said no");
    Ok(())
}

async fn k5_names_without_an_end() -> Result<()> {
    let told = Arc::new(AtomicUsize::new(0));
    let long = |number: usize| format!("{}/{number}", vec!["n".repeat(200); 8].join("/"));
    let session = open(endless(long, &told)).await?;
    ensure!(kind_of(session.scan(ScanAsk::default()).await) == Some(ErrorKind::TooLarge));
    Ok(())
}

/// Until it was given up, which is not too late.
async fn given_up<T>(work: impl Future<Output = seawall_sync::Result<T>>, most: u64) -> Result<()> {
    let began = Instant::now();
    let kind = kind_of(work.await);
    ensure!(kind == Some(ErrorKind::Timeout), "{kind:?}");
    ensure!(began.elapsed() <= Duration::from_secs(most), "after {:?}", began.elapsed());
    Ok(())
}

async fn k5_a_scan_that_never_begins() -> Result<()> {
    let session = open(by_call(|asked| async move { wait_for_end(asked.reader).await })).await?;
    given_up(session.scan(ScanAsk::default()), 1801).await
}

async fn k5_a_scan_that_trickles() -> Result<()> {
    let session = open(by_call(|mut asked| async move {
        for number in 0.. {
            if asked.writer.send(&frame([directory(number.to_string())].into_iter())).await.is_err() {
                return;
            }
            sleep(Duration::from_secs(50)).await;
        }
    }))
    .await?;
    given_up(session.scan(ScanAsk::default()), 1000).await
}

async fn k5_a_change_that_is_never_made() -> Result<()> {
    let session = open(by_call(|asked| async move { wait_for_end(asked.reader).await })).await?;
    let step = Step::Remove { path: FileName::from("a") };
    given_up(session.apply(vec![step]), 601).await
}

/// Each answer comes just in time, and there is one sync after the other in one session.
async fn k5_an_agreement_that_trickles() -> Result<()> {
    let session = open(by_call(|mut asked| async move {
        loop {
            sleep(Duration::from_secs(590)).await;
            let Ok(()) = asked.writer.message(Kind::Reply, &Some(1u64)).await else { return };
        }
    }))
    .await?;
    let commit =
        CommitRef { seq: 1, id: "x".into(), timestamp: 1, tree: Strong([0; 32]), seen: None, partial: false };
    let agree = || Agree { commit: commit.clone(), now: 1, from_base: false, delta: Delta::default() };
    session.agree(agree()).await?;
    given_up(session.agree(agree()), 600).await
}

/// A guest that also has connections for bodies, which it treats so.
fn with_bulk<F>(
    bulk: impl Fn(FrameReader<ReadHalf<DuplexStream>>, FrameWriter<WriteHalf<DuplexStream>>) -> F
    + Send
    + Sync
    + 'static,
) -> Guest
where
    F: Future<Output = ()> + Send + 'static,
{
    let bulk = Arc::new(bulk);
    by_connection(move |mut io| {
        let bulk = bulk.clone();
        async move {
            let Ok((hello, _)) = handshake::accept(&mut io, |_| Ok(welcome())).await else { return };
            if hello.role == Role::Bulk {
                let (read, write) = tokio::io::split(io);
                let mut reader = FrameReader::new(read);
                if matches!(reader.next().await, Ok(Some(_))) {
                    bulk(reader, FrameWriter::new(write)).await;
                }
                return;
            }
            let (_mux, mut incoming, driver) = Mux::server(io);
            let serve = async {
                while let Some(stream) = incoming.next().await {
                    tokio::spawn(async move {
                        let (read, write) = tokio::io::split(stream);
                        let (reader, mut writer) = (FrameReader::new(read), FrameWriter::new(write));
                        let _ = writer.message(Kind::Reply, &SyncOpened { session: 1 }).await;
                        wait_for_end(reader).await;
                    });
                }
            };
            tokio::select! { _ = driver => {}, () = serve => {} }
        }
    })
}

async fn k5_a_body_that_trickles() -> Result<()> {
    let session = open(with_bulk(|_reader, mut writer| async move {
        while writer.body(b"x").await.is_ok() && writer.flush().await.is_ok() {
            sleep(Duration::from_secs(50)).await;
        }
    }))
    .await?;
    let bodies = async {
        let mut bodies = session.collect(vec![FileName::from("a")]).await?;
        while let Some(piece) = futures::StreamExt::next(&mut bodies).await {
            piece?;
        }
        Ok(())
    };
    given_up(bodies, 1000).await
}

async fn k5_a_state_file_larger_than_any() -> Result<()> {
    let session = open(with_bulk(|reader, mut writer| async move {
        let _ = writer.message(Kind::Reply, &entry(b".sandbox-state", 1 << 30)).await;
        wait_for_end(reader).await;
    }))
    .await?;
    ensure!(session.base().await?.is_none());
    Ok(())
}

async fn k5_a_state_file_that_trickles() -> Result<()> {
    let session = open(with_bulk(|_reader, mut writer| async move {
        let _ = writer.message(Kind::Reply, &entry(b".sandbox-state", 1_000_000)).await;
        while writer.body(b" ").await.is_ok() && writer.flush().await.is_ok() {
            sleep(Duration::from_secs(50)).await;
        }
    }))
    .await?;
    given_up(session.base(), 1000).await
}

async fn more_refusals_than_steps() -> Result<()> {
    let session = open(by_call(|mut asked| async move {
        let refused = || Item::Refused(Refused { path: FileName::from("a"), why: "no".into() });
        while asked.writer.send(&frame([refused(), refused()].into_iter())).await.is_ok() {}
    }))
    .await?;
    let step = Step::Remove { path: FileName::from("a") };
    ensure!(kind_of(session.apply(vec![step]).await) == Some(ErrorKind::Protocol));
    Ok(())
}

/// An account has one sync of many files at a time. What a second one tells is not taken before.
async fn k5_a_large_scan_waits_for_its_turn_and_takes_no_room() -> Result<()> {
    let (slots, account) = (Slots::default(), AccountId::generate());
    let first = slots.enter(account, "there").await?;
    first.large().await?;
    let told = Arc::new(AtomicUsize::new(0));
    let bounds = Bounds { files: 1_000_000, ..Bounds::default() };
    let session = open_as(endless(|number| number.to_string(), &told), account, &slots, bounds).await?;
    let kind = kind_of(session.scan(ScanAsk::default()).await);
    ensure!(kind == Some(ErrorKind::Unavailable), "{kind:?}");
    let told = told.load(Ordering::Relaxed);
    ensure!(told < 20_000 + 40_000, "{told} were told meanwhile");
    Ok(())
}
