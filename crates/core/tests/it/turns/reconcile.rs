//! Reconciliation: boxes follow the images of their templates, and a dry run changes nothing.

use crate::turns::world::{ME, World, error, runs, template, wanted};
use seawall_api::{
    ErrorKind, SandboxId,
    http::{CreateSandbox, Reconciliation},
    sandbox::SandboxState,
};
use seawall_core::{
    ports::{Provider, Volumes},
    templates::Template,
    testing::Op,
};

/// A template with an image, whose cold start prints something.
fn with_image(image: &str) -> Template {
    let mut made = template("imaged");
    made.sandbox.image = Some(image.to_owned());
    made.hooks.cold_start = vec![runs("say ready")];
    made
}

/// A world whose provider has two images, and a sandbox of the first.
async fn imaged() -> (World, SandboxId) {
    let world = World::of([with_image("one")]);
    world.mock.add_image("one");
    world.mock.add_image("two");
    let id = SandboxId::generate();
    world.service.ensure(&wanted(id, &with_image("one"))).await.unwrap();
    (world, id)
}

async fn image_of(world: &World, id: SandboxId) -> Option<String> {
    world.mock.get(id).await.unwrap().spec.image
}

#[tokio::test(start_paused = true)]
async fn p8_a_box_is_made_again_when_its_template_names_another_image() {
    let (mut world, id) = imaged().await;
    world.change_templates([with_image("two")]);
    let host = world.another();
    // It runs, so its processes go on.
    let found = host.service.reconcile(false).await.unwrap();
    assert_eq!((found.rebuilt.len(), found.outdated.contains_key(&id)), (0, true), "{found:?}");
    assert_eq!(image_of(&world, id).await.as_deref(), Some("one"));
    host.service.stop(ME, id, None, false).await.unwrap();
    let planned = host.service.reconcile(true).await.unwrap();
    let wanted_plan = Reconciliation { dry_run: true, rebuilt: vec![id], ..Reconciliation::default() };
    assert_eq!(planned, wanted_plan);
    assert_eq!(image_of(&world, id).await.as_deref(), Some("one"), "a dry run changes nothing");
    let found = host.service.reconcile(false).await.unwrap();
    assert_eq!(found, Reconciliation { rebuilt: vec![id], ..Reconciliation::default() });
    assert_eq!(image_of(&world, id).await.as_deref(), Some("two"));
    assert_eq!(host.service.reconcile(false).await.unwrap(), Reconciliation::default());
    // What ran before can have left work in its volume, so it is no new sandbox.
    assert_eq!(host.sandboxes.get(id).await.unwrap().state, SandboxState::Stopped);
    // Its root file system is new, so the next start is a cold one.
    let ready = host.service.ensure(&wanted(id, &with_image("two"))).await.unwrap();
    assert!(ready.cold);
    assert_eq!(world.shell.times("say ready"), 2);
}

#[tokio::test(start_paused = true)]
async fn p8_an_image_that_cannot_be_had_leaves_the_old_box() {
    let (mut world, id) = imaged().await;
    world.service.stop(ME, id, None, false).await.unwrap();
    world.change_templates([with_image("gone")]);
    let host = world.another();
    let found = host.service.reconcile(false).await.unwrap();
    assert!(found.outdated[&id].contains("gone"), "{found:?}");
    assert_eq!(image_of(&world, id).await.as_deref(), Some("one"));
    assert_eq!(host.service.start(ME, id).await.unwrap().info.state, SandboxState::Running);
}

#[tokio::test(start_paused = true)]
async fn p8_an_image_of_the_request_does_not_follow_the_template() {
    let mut world = World::of([with_image("one")]);
    world.mock.add_image("one");
    world.mock.add_image("two");
    let image = Some("one".to_owned());
    let ask = CreateSandbox {
        image,
        template: Some("imaged".to_owned()),
        start: false,
        ..CreateSandbox::default()
    };
    let id = world.service.create(ME, &ask).await.unwrap().info.id;
    world.change_templates([with_image("two")]);
    assert_eq!(world.another().service.reconcile(false).await.unwrap(), Reconciliation::default());
    assert_eq!(image_of(&world, id).await.as_deref(), Some("one"));
}

#[tokio::test(start_paused = true)]
async fn p8_a_dry_run_reports_orphans_and_losses_and_changes_nothing() {
    let (world, lost) = imaged().await;
    let orphan = SandboxId::generate();
    world.mock.create(orphan, &Default::default(), ME).await.unwrap();
    world.mock.remove(lost, Volumes::Keep).await.unwrap();
    let (removed, gone) = (vec![orphan], vec![lost]);
    let found = world.service.reconcile(true).await.unwrap();
    let report = Reconciliation { dry_run: true, removed, lost: gone, ..Reconciliation::default() };
    assert_eq!(found, report);
    assert!(world.mock.get(orphan).await.is_ok());
    let found = world.service.reconcile(false).await.unwrap();
    assert_eq!(found, Reconciliation { dry_run: false, ..report });
    assert!(world.mock.get(orphan).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn p8_a_provider_that_does_not_answer_leaves_its_sandboxes_alone() {
    let (world, id) = imaged().await;
    world.faults.fail(Op::List, 1, ErrorKind::Unavailable);
    let found = world.service.reconcile(false).await.unwrap();
    assert_eq!(found, Reconciliation { unavailable: vec!["mock".to_owned()], ..Reconciliation::default() });
    assert_eq!(world.sandboxes.get(id).await.unwrap().state, SandboxState::Running);
    world.faults.fail(Op::List, 1, ErrorKind::Unavailable);
    assert_eq!(error(world.sandboxes.sweep().await).kind(), ErrorKind::Unavailable);
}
