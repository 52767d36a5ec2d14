//! A `box.json` that is damaged, empty or gone is the problem of one box.

use crate::native::{guest, is_root, run};
use futures::StreamExt;
use seawall_api::{
    AccountId, ErrorKind, SandboxId,
    sandbox::{EndReason, SandboxSpec},
};
use seawall_core::ports::{BoxEvent, BoxInfo, BoxState, Provider, Volumes};
use seawall_providers::native::{NativeProvider, NativeSettings};
use std::{fs, path::Path};

fn open(data: &Path) -> NativeProvider {
    NativeProvider::open(data, NativeSettings::default()).unwrap()
}

fn is_damaged(info: &BoxInfo) -> bool {
    info.state == BoxState::Damaged && info.reason == Some(EndReason::Failed("damaged".to_owned()))
}

fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

/// What becomes of a `box.json`. The last one takes the note of process 1 along: only its group tells that it lives.
fn damage(folder: &Path, how: usize) {
    let intent = folder.join("box.json");
    match how {
        0 => fs::write(intent, "").unwrap(),
        1 => fs::write(intent, "{\"version\": 1, \"id\"").unwrap(),
        2 => {
            let other = SandboxId::generate().to_string();
            let id = folder.file_name().unwrap().to_str().unwrap();
            let text = fs::read_to_string(&intent).unwrap().replace(id, &other);
            fs::write(intent, text).unwrap();
        }
        3 => fs::remove_file(intent).unwrap(),
        _ => {
            fs::write(intent, "").unwrap();
            fs::remove_file(folder.join("run")).unwrap();
        }
    }
}

#[tokio::test]
async fn a_damaged_intent_is_one_boxs_problem_and_kills_nothing() {
    if !is_root("a_damaged_intent_is_one_boxs_problem_and_kills_nothing") {
        return;
    }
    let data = tempfile::tempdir().unwrap();
    let first = open(data.path());
    let [damaged, well] = [SandboxId::generate(), SandboxId::generate()];
    for id in [damaged, well] {
        first.create(id, &SandboxSpec::default(), AccountId::LOCAL).await.unwrap();
    }
    first.start(well).await.unwrap();
    let folder = data.path().join("native/boxes").join(damaged.to_string());
    for how in 0..5 {
        let pid = first.start(damaged).await.unwrap().pid.unwrap();
        let whole = fs::read(folder.join("box.json")).unwrap();
        let run_note = fs::read(folder.join("run")).unwrap();
        damage(&folder, how);
        // Also for a process that is started now, and clears away what crashes left.
        for provider in [first.clone(), open(data.path())] {
            let mut listed = provider.list().await.unwrap();
            listed.sort_by_key(|info| info.id != damaged);
            assert!(is_damaged(&listed[0]) && listed[1].state == BoxState::Running, "{how}: {listed:?}");
            assert!(is_damaged(&provider.get(damaged).await.unwrap()), "{how}");
            let events = provider.watch().await.unwrap().take(3).map(Result::unwrap);
            let events: Vec<BoxEvent> = events.collect().await;
            assert!(matches!(events.last(), Some(BoxEvent::Ready)), "{how}: {events:?}");
            assert!(provider.volumes().await.unwrap().iter().all(|volume| volume.in_use), "{how}");
            for refused in [
                provider.create(damaged, &SandboxSpec::default(), AccountId::LOCAL).await.unwrap_err(),
                provider.start(damaged).await.unwrap_err(),
            ] {
                assert_eq!(refused.kind(), ErrorKind::Conflict, "{how}: {}", refused.chain());
            }
            assert_eq!(run(&guest(&provider, well), None, "echo well").await.1, "well\n");
        }
        assert!(runs(pid) && folder.exists(), "{how}");
        fs::write(folder.join("box.json"), whole).unwrap();
        fs::write(folder.join("run"), run_note).unwrap();
        assert_eq!(first.get(damaged).await.unwrap().state, BoxState::Running, "{how}");
        damage(&folder, how);
        if how == 4 {
            break;
        }
        // What does not run any more is made anew, over its files.
        first.stop(damaged, std::time::Duration::ZERO).await.unwrap();
        assert!(!runs(pid), "{how}");
        assert!(is_damaged(&first.get(damaged).await.unwrap()), "{how}");
        assert!(is_damaged(&open(data.path()).get(damaged).await.unwrap()), "{how}");
        first.create(damaged, &SandboxSpec::default(), AccountId::LOCAL).await.unwrap();
    }
    first.remove(damaged, Volumes::Delete).await.unwrap();
    assert!(!folder.exists() && !crate::native::lives(damaged));
    assert_eq!(first.list().await.unwrap().len(), 1);
    first.remove(well, Volumes::Delete).await.unwrap();
}

/// A folder that a crash left before anything ran in it goes, as ever.
#[tokio::test]
async fn what_never_was_a_box_is_still_cleared_away() {
    let data = tempfile::tempdir().unwrap();
    drop(open(data.path()));
    let folder = data.path().join("native/boxes").join(SandboxId::generate().to_string());
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("box.json"), "").unwrap();
    assert!(open(data.path()).list().await.unwrap().is_empty());
    assert!(!folder.exists());
}
