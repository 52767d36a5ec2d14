//! Work on all sandboxes of an account, however many there are and whatever is in their records (K3, K10).

use crate::turns::world::{Setup, World, error, template, wanted};
use seawall_api::{
    AccountId, ErrorKind, SandboxId,
    account::Account,
    sandbox::{EndReason, SandboxSpec, SandboxState},
};
use seawall_core::{
    ports::store::{Page, SandboxFilter, SandboxRow, WHOLE_ROWS},
    service::{EndSandbox, Wanted},
    templates::{SyncPart, Template},
};
use serde_json::{Map, json};

const ENDED: u32 = 3 * WHOLE_ROWS;

async fn account(world: &World) -> AccountId {
    let id = AccountId::generate();
    let tenant = Account::new(id, "tenant".to_owned(), Map::new(), world.now());
    world.stores.accounts.create(&tenant).await.unwrap();
    id
}

fn ended(world: &World, account_id: AccountId) -> SandboxRow {
    SandboxRow {
        id: SandboxId::generate(),
        account_id,
        name: None,
        provider: "mock".to_owned(),
        node: Some("one".to_owned()),
        template: Some("shared".to_owned()),
        spec: SandboxSpec::default(),
        state: SandboxState::Terminated,
        reason: Some(EndReason::Terminated),
        removing: None,
        unsynced: None,
        metadata: Map::from_iter([("large".to_owned(), json!("x".repeat(1000)))]),
        created_at: world.now(),
        started_at: None,
        last_used_at: world.now(),
        version: 1,
    }
}

/// A page of whole rows is as large as their owner likes: 1000 of them were 144 MB, and all of an account's were in
/// memory when it was deleted.
#[tokio::test(start_paused = true)]
async fn k3_work_on_all_sandboxes_of_an_account_reads_small_pages() {
    let sync = SyncPart { volume: Some("docs".to_owned()), ..SyncPart::default() };
    let shared = Template { sync, ..template("shared") };
    let world = World::with(Setup { templates: vec![shared.clone()], ..Setup::default() });
    let (services, account) = (&world.services, account(&world).await);
    let mut lives = Vec::new();
    for _ in 0..2 {
        let id = SandboxId::generate();
        world.service.ensure(&Wanted { account, ..wanted(id, &shared) }).await.unwrap();
        lives.push(id);
    }
    for _ in 0..ENDED {
        world.stores.sandboxes.insert(&ended(&world, account)).await.unwrap();
    }
    // The volume is another's too.
    let how = EndSandbox { sync: false, force: false, volumes: None, delete_versions: true };
    let refused = error(world.service.end(account, lives[0], &how).await);
    assert_eq!((refused.kind(), refused.code()), (ErrorKind::Conflict, "volume_in_use"));
    services.suspend_account(account).await.unwrap();
    assert!(lives.iter().all(|id| world.mock.running(*id) == 0), "its boxes are stopped");
    services.delete_account(account).await.unwrap();
    let page = Page::first(9);
    for state in [None, Some(SandboxState::Terminated)] {
        let filter = SandboxFilter { state, name: None };
        assert!(world.stores.sandboxes.list(account, &filter, &page).await.unwrap().items.is_empty());
    }
    assert!(world.stores.accounts.get(account).await.is_err());
    assert!(world.memory.widest_page() <= WHOLE_ROWS, "{} whole rows at once", world.memory.widest_page());
}
