//! A version whose manifest is whatever it is: nothing is written outside the workspace, and what is written is what
//! the manifest says.

use seawall_sync::{
    bucket::{Bucket, MemoryBucket},
    disk::{Disk, LocalWorkspace, ScanAsk},
    engine::Engine,
    sums::Strong,
    testing::ManualClock,
    versions::{Record, VersionRecord, Versions, What},
};
use std::{fs, path::Path, sync::Arc};

/// What every pack has, whatever it is called.
const BODY: &[u8] = b"hello world, this is what lies in a pack";

pub fn restore(manifest: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(restored(manifest));
}

async fn restored(manifest: &[u8]) {
    let around = tempfile::tempdir_in("/dev/shm").expect("a folder");
    let inside = around.path().join("a/b/work");
    fs::create_dir_all(&inside).expect("a workspace");
    let bucket = Arc::new(MemoryBucket::default());
    let version = VersionRecord {
        seq: 1,
        id: "x".into(),
        timestamp: 1_700_000_000_000,
        manifest: "1700000000000/.sandbox-state".into(),
        manifest_hash: Strong::of(manifest),
        manifest_size: manifest.len() as u64,
        tree: Strong([0; 32]),
        files: 0,
        bytes: 0,
        began: 0,
        legacy: false,
    };
    let record = Record::new(1, "x".into(), "", What::Version(version.clone()));
    for (key, body) in [
        (".commits/00000000000000000001", record.to_json()),
        (".packs/p", BODY.to_vec()),
        (version.manifest.as_str(), manifest.to_vec()),
    ] {
        bucket.put(key, body.into()).await.expect("memory takes all");
    }
    let disk = Arc::new(Disk::open(&inside, None).expect("a disk"));
    let versions = Versions::new(bucket, ManualClock::at(1_700_000_000_001));
    let synced = Engine::new(&versions, &LocalWorkspace(disk.clone())).sync().await;
    let report = disk.scan(&ScanAsk { regenerate: true, ..ScanAsk::default() });
    if let Ok(synced) = synced {
        assert!(synced.version.is_some());
        // Every file's bytes are bytes of the pack.
        for (path, node) in &report.delta.changed {
            if node.size() > 0 {
                let name = std::ffi::OsStr::new(std::str::from_utf8(path.as_bytes()).unwrap_or("?"));
                let body = fs::read(inside.join(name)).unwrap_or_default();
                assert!(BODY.windows(body.len().max(1)).any(|part| part == body) || name == "?");
            }
        }
    }
    only(around.path(), "a");
    only(&around.path().join("a"), "b");
    only(&around.path().join("a/b"), "work");
}

/// Nothing else is there.
fn only(dir: &Path, name: &str) {
    let found: Vec<_> =
        fs::read_dir(dir).expect("a folder").flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(found, [name]);
}
