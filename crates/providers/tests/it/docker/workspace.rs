//! A folder of the host as the workspace of a sandbox (P10), with both providers.

use super::world::{DEBIAN, World, sh};
use seawall_api::{AccountId, http::CreateSandbox, sandbox::Egress};
use seawall_core::{
    Providers, Sandboxes, ServiceParts, Services,
    mounts::{Grantees, MountGrant, MountGrants},
    ports::{SystemClock, Volumes},
    service::EndSandbox,
    testing::{HostClaims, MemoryStore},
};
use seawall_providers::{
    docker::DockerSettings,
    native::{MountRoot, Mounts, NativeProvider, NativeSettings},
};
use std::{
    fs,
    os::unix::fs::{MetadataExt, chown},
    path::Path,
    sync::Arc,
};

const ME: AccountId = AccountId::LOCAL;

fn services(world: &World, mounts: Mounts, top: &Path) -> Services {
    let (claims, clock) = (Arc::new(HostClaims::default()), Arc::new(SystemClock));
    let native =
        NativeProvider::open(world.data(), NativeSettings { mounts, ..NativeSettings::default() }).unwrap();
    let providers = Providers::new("docker", vec![Arc::new(world.reopen()), Arc::new(native)]).unwrap();
    let stores = MemoryStore::default().stores();
    let sandboxes = Sandboxes::on_rows(providers, &stores, claims.clone(), clock.clone(), "node");
    let grant = MountGrant { path: top.to_owned(), accounts: Grantees::All, writable: true };
    let parts = ServiceParts::new(sandboxes, stores, claims, clock, "node");
    ServiceParts { mounts: MountGrants::new(vec![grant]), ..parts }.build()
}

#[tokio::test(flavor = "multi_thread")]
async fn p10_a_folder_of_the_host_is_the_workspace_and_stays() {
    let top = tempfile::tempdir().unwrap();
    let granted = vec![MountRoot { path: top.path().canonicalize().unwrap(), writable: true }];
    let mounts = Mounts { granted, ..Mounts::default() };
    let settings = DockerSettings {
        image: Some(DEBIAN.to_owned()),
        mounts: mounts.clone(),
        ..DockerSettings::default()
    };
    let Some(world) = World::with("p10_a_folder_of_the_host_is_the_workspace", settings) else { return };
    let top = top.path().canonicalize().unwrap();
    let services = services(&world, mounts, &top);
    let service = &services.sandboxes;
    for provider in ["docker", "native"] {
        let folder = top.join(provider);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("project"), "mine\n").unwrap();
        for path in [&folder, &folder.join("project")] {
            chown(path, Some(1000), Some(1000)).unwrap();
        }
        let ask = CreateSandbox {
            provider: Some(provider.to_owned()),
            workspace_path: Some(folder.display().to_string()),
            project_id: Some("shop".to_owned()),
            ..CreateSandbox::default()
        };
        let made = service.create(ME, &ask).await.unwrap();
        let id = made.info.id;
        assert_eq!((made.info.spec.project_id.as_deref(), made.info.egress), (Some("shop"), Egress::None));
        let guest = service.guest(ME, id).await.unwrap();
        assert_eq!(
            sh(&guest, None, "pwd; cat project; echo new > made").await.1,
            "/work\nmine\n",
            "{provider}"
        );
        let found = fs::metadata(folder.join("made")).unwrap();
        assert_eq!((found.uid(), found.gid()), (1000, 1000), "{provider}");
        // A second start mounts it again, and nothing of it goes to a bucket.
        service.stop(ME, id, None, false).await.unwrap();
        service.start(ME, id).await.unwrap();
        let guest = service.guest(ME, id).await.unwrap();
        assert_eq!(sh(&guest, None, "cat made").await.1, "new\n", "{provider}");
        let how =
            EndSandbox { sync: true, force: false, volumes: Some(Volumes::Delete), delete_versions: false };
        service.end(ME, id, &how).await.unwrap();
        assert_eq!(fs::read_to_string(folder.join("made")).unwrap(), "new\n", "{provider}");
        assert_eq!(fs::metadata(&folder).unwrap().uid(), 1000, "{provider}");
        let elsewhere = CreateSandbox { workspace_path: Some("/etc".to_owned()), ..ask };
        assert_eq!(service.create(ME, &elsewhere).await.unwrap_err().code(), "mount_denied");
    }
}
