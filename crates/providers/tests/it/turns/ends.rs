//! The end of a sandbox loses nothing, whatever is written meanwhile.

use crate::turns::world::{World, template, wanted};
use seawall_api::{ErrorKind, SandboxId};
use seawall_core::{service::EndSandbox, templates::HookPart};

const SAVED: EndSandbox = EndSandbox { sync: true, force: false, volumes: None, delete_versions: false };

/// A process goes on writing, and others are let in until the very end.
#[tokio::test]
async fn v2_what_is_written_while_a_sandbox_is_ended_is_saved() {
    let world = World::new("local", Vec::new());
    let wanted = wanted(SandboxId::generate(), &template("shell"));
    let id = wanted.sandbox;
    world.service.ensure(&wanted).await.unwrap();
    world.sh(id, "i=0; while [ $i -lt 400 ]; do head -c 50000 /dev/urandom > big$i; i=$((i+1)); done").await;
    let (service, account) = (world.service.clone(), wanted.account);
    let ending = tokio::spawn(async move { service.end(account, id, &SAVED).await });
    // Each that was told to be there must be there later.
    let mut written = 0;
    while !ending.is_finished() {
        tokio::task::yield_now().await;
        let Ok(guest) = world.service.guest(account, id).await else { continue };
        let write = seawall_api::files::WriteFile {
            file: seawall_api::files::FileRef::new(format!("late{written}").as_str()),
            mode: seawall_api::files::WriteMode::Replace,
            permissions: None,
            mtime: None,
            parents: false,
            max_size: None,
        };
        if guest.write_all(write, b"late").await.is_ok() {
            written += 1;
        }
    }
    ending.await.unwrap().unwrap();
    assert!(written > 0, "nothing was written meanwhile, so nothing is shown");
    assert!(world.is_terminated(id).await);
    assert_eq!(world.service.guest(account, id).await.unwrap_err().kind(), ErrorKind::Gone);
    world.service.ensure(&wanted).await.unwrap();
    // The one after them may be there too: written, and cut off before it was told.
    let check = format!(
        "i=0; while [ $i -lt {written} ]; do [ \"$(cat late$i)\" = late ] || echo $i; i=$((i+1)); done"
    );
    assert_eq!(world.sh(id, &check).await, "", "told to be there, and lost");
    world.end().await;
}

#[tokio::test]
async fn v2_several_ends_at_once_are_one() {
    let world = World::new("local", Vec::new());
    let wanted = wanted(SandboxId::generate(), &template("shell"));
    world.service.ensure(&wanted).await.unwrap();
    world.sh(wanted.sandbox, "echo kept > a").await;
    let end = || world.service.end(wanted.account, wanted.sandbox, &SAVED);
    let (a, b, c) = tokio::join!(end(), end(), end());
    for ended in [a, b, c] {
        assert_eq!(ended.unwrap().info.state, seawall_api::sandbox::SandboxState::Terminated);
    }
    world.service.ensure(&wanted).await.unwrap();
    assert_eq!(world.sh(wanted.sandbox, "cat a").await, "kept\n");
    world.end().await;
}

/// Asked for by two processes, or again after a crash: the second waits for what runs.
#[tokio::test]
async fn h4_a_terminate_hook_does_not_run_beside_itself() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let run = format!("echo start >> {0}; sleep 1; echo end >> {0}", log.display());
    let mut last = template("last");
    last.hooks.terminate = vec![HookPart { run: Some(run), ..HookPart::default() }];
    let world = World::new("local", vec![last.clone()]);
    let wanted = wanted(SandboxId::generate(), &last);
    world.service.ensure(&wanted).await.unwrap();
    let (_, other) = world.again(vec![last]);
    // At once: what the first is just starting is in no list yet.
    let first = world.service.end(wanted.account, wanted.sandbox, &SAVED);
    let second = other.end(wanted.account, wanted.sandbox, &SAVED);
    let (first, second) = tokio::join!(first, second);
    assert!(first.is_ok() || second.is_ok(), "{first:?} {second:?}");
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "start\nend\n");
    assert!(world.is_terminated(wanted.sandbox).await);
    world.end().await;
}
