//! Waiting takes no thread: who waits for one box keeps nobody from another.

use crate::native::{guest, run};
use seawall_api::{AccountId, SandboxId, exec::StartProcess, sandbox::SandboxSpec};
use seawall_core::ports::{Provider, Volumes};
use seawall_providers::native::{NativeProvider, NativeSettings};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{runtime::Builder, task::JoinSet, time::timeout};

const STOPS: usize = 600;
const GRACE: Duration = Duration::from_secs(60);
/// Far longer than a box takes, and shorter than the grace.
const PATIENCE: Duration = Duration::from_secs(30);

async fn made(provider: &NativeProvider) -> SandboxId {
    let id = SandboxId::generate();
    provider.create(id, &SandboxSpec::default(), AccountId::LOCAL).await.unwrap();
    provider.start(id).await.unwrap();
    id
}

/// 600 stops of a process that ignores SIGTERM, on a runtime with four threads for files, while others work.
#[test]
fn k5_whoever_waits_for_a_stop_holds_up_nobody_else() {
    let runtime = Builder::new_multi_thread().worker_threads(2).max_blocking_threads(4).enable_all().build();
    runtime.unwrap().block_on(async {
        let data = tempfile::tempdir().unwrap();
        let provider = NativeProvider::open(data.path(), NativeSettings::default()).unwrap();
        let (stubborn, other) = (made(&provider).await, made(&provider).await);
        let script = "trap '' TERM HUP; echo ready; while :; do sleep 1000; done";
        let process = guest(&provider, stubborn).start(StartProcess::new(["sh", "-c", script])).await;
        let mut process = process.unwrap();
        // It has its trap when it says so.
        process.next().await.unwrap();
        // A second provider stands for another process on the same data folder.
        let second = NativeProvider::open(data.path(), NativeSettings::default()).unwrap();
        let begun = Arc::new(AtomicUsize::new(0));
        let mut stops = JoinSet::new();
        for number in 0..STOPS {
            let provider = if number % 10 == 9 { second.clone() } else { provider.clone() };
            let begun = begun.clone();
            stops.spawn(async move {
                begun.fetch_add(1, Ordering::Relaxed);
                provider.stop(stubborn, GRACE).await
            });
        }
        while begun.load(Ordering::Relaxed) < STOPS {
            tokio::task::yield_now().await;
        }
        let others = async {
            assert_eq!(run(&guest(&provider, other), None, "echo still").await.1, "still\n");
            let new = made(&provider).await;
            assert_eq!(run(&guest(&provider, new), None, "echo new").await.1, "new\n");
            provider.stop(new, Duration::from_secs(1)).await.unwrap();
            provider.remove(new, Volumes::Delete).await.unwrap();
            assert!(provider.list().await.unwrap().len() == 2);
        };
        timeout(PATIENCE, others).await.expect("others wait for somebody's stops");
        assert!(stops.try_join_next().is_none(), "the process did not ignore the signal");
        stops.shutdown().await;
        for id in [stubborn, other] {
            timeout(PATIENCE, provider.remove(id, Volumes::Delete)).await.unwrap().unwrap();
        }
    });
}
