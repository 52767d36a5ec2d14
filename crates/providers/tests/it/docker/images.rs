//! Images: what they set, the smallest there is, and those that are missing.

use super::world::{DEBIAN, STATIC, World, run, sh};
use seawall_api::{
    AccountId, ErrorKind, SandboxId,
    files::{FileRef, WriteFile, WriteMode},
    sandbox::SandboxSpec,
};
use seawall_core::ports::Provider;
use seawall_providers::docker::DockerSettings;
use std::time::Duration;

/// An image made from another, with settings of its own.
fn image(world: &World, name: &str, changes: &[&str]) -> String {
    let container = format!("seawall-test-{}", SandboxId::generate());
    world.docker(&["create", "--name", &container, DEBIAN, "true"]);
    let mut args = vec!["commit"];
    changes.iter().for_each(|change| args.extend(["--change", change]));
    args.extend([container.as_str(), name]);
    world.docker(&args);
    world.docker(&["rm", &container]);
    name.to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn p2_the_images_environment_user_and_directory_are_honoured() {
    let Some(world) = World::new("p2_the_images_settings_are_honoured") else { return };
    let changes = [
        "ENV FLAVOUR=plain",
        "USER nobody",
        "WORKDIR /opt/app",
        "ENTRYPOINT [\"/bin/sh\", \"-c\"]",
        "CMD [\"pwd > /work/by-image; id -un >> /work/by-image\"]",
        "VOLUME /data",
        "HEALTHCHECK --interval=1s CMD touch /work/checked",
    ];
    let name = image(&world, "seawall-test/settings", &changes);
    let spec = SandboxSpec { image: Some(name.clone()), ..SandboxSpec::default() };
    let (id, guest) = world.sandbox(spec.clone()).await;
    let (_, out) =
        sh(&guest, None, "echo $FLAVOUR; id -un; pwd; echo $HOME; ls /work; stat -c %U /work").await;
    assert_eq!(out, "plain\nnobody\n/opt/app\n/nonexistent\nnobody\n", "the entrypoint is not run");
    world.remove(id).await;
    let (id, guest) = world.sandbox(SandboxSpec { command: Some(Vec::new()), ..spec.clone() }).await;
    let wait =
        "until test $(wc -l < /work/by-image) = 2; do sleep 0.01; done 2>/dev/null; cat /work/by-image";
    assert_eq!(sh(&guest, None, wait).await.1, "/opt/app\nnobody\n");
    world.remove(id).await;
    let env = [("FLAVOUR".to_owned(), "own".to_owned())].into();
    let (id, guest) = world.sandbox(SandboxSpec { env, user: Some("root".to_owned()), ..spec }).await;
    assert_eq!(sh(&guest, None, "echo $FLAVOUR $HOME; id -un").await.1, "own /root\nroot\n");
    world.remove(id).await;
    // Neither the volume that the image asks for nor anything else is left.
    assert_eq!(
        world
            .docker(&["volume", "ls", "-q", "--filter", "dangling=true"])
            .lines()
            .filter(|name| name.len() == 64)
            .count(),
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_with_a_single_static_program_works() {
    let Some(world) = World::new("an_image_with_a_single_static_program_works") else { return };
    let (id, guest) =
        world.sandbox(SandboxSpec { image: Some(STATIC.to_owned()), ..SandboxSpec::default() }).await;
    assert_eq!(run(&guest, None, &["/busybox", "echo", "alone"]).await, (Some(0), "alone\n".to_owned()));
    assert_eq!(run(&guest, Some("root"), &["/busybox", "id", "-u"]).await.1, "0\n");
    assert_eq!(run(&guest, Some("1000"), &["/busybox", "id", "-u"]).await.1, "1000\n");
    let write = WriteFile {
        file: FileRef::new("note"),
        mode: WriteMode::Replace,
        permissions: None,
        mtime: None,
        parents: false,
        max_size: None,
    };
    guest.write_all(write, b"bytes").await.unwrap();
    assert_eq!(run(&guest, None, &["/busybox", "cat", "/work/note"]).await.1, "bytes");
    assert_eq!(guest.read_all(FileRef::new("note"), 100).await.unwrap(), b"bytes");
    world.provider.stop(id, Duration::from_secs(1)).await.unwrap();
    world.remove(id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p2_a_missing_image_is_named_with_what_to_do() {
    let Some(world) = World::new("p2_a_missing_image_is_named") else { return };
    for name in ["127.0.0.1:1/no/such:image", "Not A Name"] {
        let spec = SandboxSpec { image: Some(name.to_owned()), ..SandboxSpec::default() };
        let error = world.create(SandboxId::generate(), &spec).await.unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
        assert!(
            matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Invalid),
            "{}: {error}",
            error.kind()
        );
    }
    let Some(world) = World::with("p2_a_missing_image_is_named", DockerSettings::default()) else { return };
    let error = world.create(SandboxId::generate(), &SandboxSpec::default()).await.unwrap_err();
    assert!(error.to_string().contains("--image") && error.to_string().contains("[docker]"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn accounts_name_only_the_images_that_the_operator_lists() {
    let settings = DockerSettings {
        image: Some(DEBIAN.to_owned()),
        images: vec!["seawall-test/s*".to_owned()],
        ..DockerSettings::default()
    };
    let Some(world) = World::with("accounts_name_only_listed_images", settings) else { return };
    let tenant = AccountId::generate();
    for (image, allowed) in [
        (None, true),
        (Some(STATIC), true),
        (Some("127.0.0.1:1/x"), false),
        (Some("seawall-test/busybox"), false),
    ] {
        let spec = SandboxSpec { image: image.map(str::to_owned), ..SandboxSpec::default() };
        let id = SandboxId::generate();
        let made = world.provider.create(id, &spec, tenant).await;
        match made {
            Ok(_) => assert!(allowed, "{image:?}"),
            Err(error) => assert!(!allowed && error.kind() == ErrorKind::Denied, "{image:?}: {error}"),
        }
        world.remove(id).await;
    }
}
