//! Ways out that need both sides: a program left for somebody else, a folder left for the next start.

use super::{
    kit::{Cell, PROBE, Said, Yard, eventually, read_outcome},
    probe::{Facts, Outcome},
    runner::cases,
    tally,
    world::Victim,
};
use anyhow::{Context, Result, bail, ensure};
use seawall_api::{
    exec::StartProcess,
    sandbox::{HostMount, SandboxSpec},
};
use seawall_providers::native::{MountRoot, Mounts, NativeSettings};
use std::{
    fs,
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        process::CommandExt,
    },
    path::Path,
    process::Command,
    time::Duration,
};
use tokio::time::timeout;

cases!("tricks", false;
    a_setuid_file_gives_nothing;
    a_setuid_file_is_out_of_reach_of_the_hosts_users;
    killing_all_stays_inside;
    the_program_of_boxes_cannot_be_changed;
    a_box_cannot_mislead_its_next_start;
    a_box_whose_keepers_stopped_can_be_removed;
    a_setuid_file_in_a_mounted_folder_makes_no_root;
    a_mount_lands_in_the_box_wherever_links_point;
);

const NOBODY: u32 = 65534;
const SETUID: u32 = 0o4755;

/// In the box, a program that is root's and makes root of whoever starts it.
async fn plant(cell: &Cell, folder: &str) -> Result<String> {
    let path = format!("{folder}/setuid");
    cell.sh("root", &format!("cp {PROBE} {path} && chown root:root {path} && chmod 4755 {path}")).await?;
    Ok(path)
}

/// What the program says on the host, as nobody.
fn as_nobody(program: &Path) -> Result<Outcome> {
    let output = Command::new(program).args(["--attempt", "be_root"]).uid(NOBODY).gid(NOBODY).output()?;
    let code = output.status.code().context("it was ended")?;
    read_outcome(code, &String::from_utf8_lossy(&output.stdout))
}

async fn a_setuid_file_gives_nothing(yard: Yard, _facts: Facts) -> Result<()> {
    let cell = yard.cell(&SandboxSpec::default()).await?;
    for folder in ["/work", "/tmp", "/opt", "/usr/local/bin", "/var/tmp"] {
        cell.sh("root", &format!("mkdir -p {folder}")).await?;
        let program = plant(&cell, folder).await?;
        let args = [program.as_str(), "--attempt", "be_root"];
        let start = StartProcess { user: Some("user".into()), ..StartProcess::new(args) };
        match Said::all(cell.guest.start(start).await?).await?.outcome()? {
            Outcome::Refused(0, _) => {}
            other => bail!("{program}: {other:?}"),
        }
    }
    let copy = yard.path().join("setuid");
    fs::copy(std::env::current_exe()?, &copy)?;
    fs::set_permissions(&copy, fs::Permissions::from_mode(SETUID))?;
    match as_nobody(&copy)? {
        Outcome::Won(_) => Ok(()),
        other => {
            tally::without_control("tricks::a_setuid_file_gives_nothing", &format!("{other:?}"));
            Ok(())
        }
    }
}

/// Root of a box can make a file that is root's on the host's disk as well, with the bit. Then it is all the
/// more important that nobody on the host gets to it.
async fn a_setuid_file_is_out_of_reach_of_the_hosts_users(yard: Yard, _facts: Facts) -> Result<()> {
    let cell = yard.cell(&SandboxSpec::default()).await?;
    plant(&cell, "/work").await?;
    let planted = cell.work.join("setuid");
    let found = fs::metadata(&planted)?;
    if found.uid() != 0 || found.mode() & 0o7777 != SETUID {
        // Better still: then there is no such file at all.
        return Ok(());
    }
    match as_nobody(&planted) {
        Err(error) => {
            let denied = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
            ensure!(denied == Some(std::io::ErrorKind::PermissionDenied), "{error:?}");
            Ok(())
        }
        Ok(outcome) => bail!("a user of the host could start it: {outcome:?}"),
    }
}

async fn killing_all_stays_inside(yard: Yard, facts: Facts) -> Result<()> {
    let mut victim = Victim::new()?;
    let cell = yard.cell(&SandboxSpec::default()).await?;
    let facts = facts.with("target", 1);
    for user in ["user", "root"] {
        // It may well kill itself, and whoever would have told of it.
        let _ = timeout(Duration::from_secs(20), cell.try_to("kill_all", user, &facts)).await;
        ensure!(victim.is_alive(), "as {user}: a process of the host was killed");
        let neighbour = format!("/proc/{}", facts.get("neighbour_pid"));
        ensure!(Path::new(&neighbour).exists(), "as {user}: another box was killed");
    }
    let said = cell.sh("user", "echo alive").await?;
    ensure!(said.trim() == "alive", "the box does not answer any more: {said}");
    Ok(())
}

/// As in CVE-2019-5736: a link that means, in whoever follows it, the program that starts commands.
async fn the_program_of_boxes_cannot_be_changed(yard: Yard, facts: Facts) -> Result<()> {
    let (program, cell) = (facts.get("guest"), yard.cell(&SandboxSpec::default()).await?);
    let before = (fs::read(program)?, fs::metadata(program)?.mode());
    cell.sh("root", "ln -s /proc/self/exe /work/starter").await?;
    let id = cell.id.to_string();
    let args = ["/work/starter", "--socket", "/tmp/s", "--root", "/", "--sandbox", id.as_str()];
    let start = StartProcess { user: Some("root".into()), ..StartProcess::new(args) };
    // Where that cannot even be started, all the better.
    let _ = cell.guest.start_detached(start).await;
    let open_all = "for i in 1 2 3 4 5; do for p in /proc/[0-9]*; do \
        (: >> $p/exe) 2>/dev/null && readlink $p/exe; chmod 777 $p/exe 2>/dev/null && readlink $p/exe; \
        done; sleep 0.1; done; true";
    let opened = cell.sh("root", open_all).await?;
    ensure!(opened.is_empty(), "a box may write to {opened}");
    ensure!((fs::read(program)?, fs::metadata(program)?.mode()) == before, "{program} has changed");
    Ok(())
}

/// What the host makes in the box's folders when it starts must not follow where the box points.
async fn a_box_cannot_mislead_its_next_start(yard: Yard, _facts: Facts) -> Result<()> {
    let outside = tempfile::tempdir()?;
    let state = || -> Result<(u32, u32, usize)> {
        let found = fs::metadata(outside.path())?;
        Ok((found.uid(), found.mode(), fs::read_dir(outside.path())?.count()))
    };
    let before = state()?;
    let cell = yard.cell(&SandboxSpec::default()).await?;
    let target = outside.path().display();
    for place in ["/home/user", "/var/tmp", "/var/lib"] {
        cell.sh("root", &format!("rm -rf {place}; ln -s {target} {place}")).await?;
    }
    for _ in 0..2 {
        yard.provider.stop(cell.id, Duration::from_secs(1)).await?;
        // It may refuse to start; it must not touch what is not the box's.
        let _ = yard.provider.start(cell.id).await;
        ensure!(state()? == before, "the host's folder has changed: {before:?}, now {:?}", state()?);
    }
    Ok(())
}

/// Whatever root of the box does to process 1 and to who keeps his command, the host is rid of all of them.
async fn a_box_whose_keepers_stopped_can_be_removed(yard: Yard, _facts: Facts) -> Result<()> {
    let cell = yard.cell(&SandboxSpec::default()).await?;
    let script = "kill -STOP 1; kill -STOP $PPID; sleep 100";
    let start = StartProcess { user: Some("root".into()), ..StartProcess::new(["sh", "-c", script]) };
    let _ = timeout(Duration::from_secs(5), cell.guest.start_detached(start)).await;
    eventually(|| cell.processes().len() > 2).await;
    cell.remove_in_time().await
}

/// An installation whose operator allows a folder, and a box that has it.
async fn with_folder(folder: &Path, target: &str) -> Result<(Yard, Cell)> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    let root = MountRoot { path: folder.canonicalize()?, writable: true };
    let mounts = Mounts { granted: vec![root], ..Mounts::default() };
    let yard = Yard::with(NativeSettings { mounts, ..NativeSettings::default() })?;
    let mount = HostMount { source: folder.display().to_string(), target: target.to_owned(), writable: true };
    let spec = SandboxSpec { mounts: vec![mount], ..SandboxSpec::default() };
    let cell = yard.cell(&spec).await?;
    Ok((yard, cell))
}

/// Here no closed folder protects the host's users: what root of the box makes must not be root's.
async fn a_setuid_file_in_a_mounted_folder_makes_no_root(_yard: Yard, _facts: Facts) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (yard, cell) = with_folder(folder.path(), "/data").await?;
    // That it cannot even be made is fine.
    let planted = plant(&cell, "/data").await;
    let outcome = planted.map(|_| as_nobody(&folder.path().join("setuid")));
    yard.clean().await?;
    match outcome {
        Ok(Ok(Outcome::Won(_))) => bail!("a user of the host became root by a file that a box made"),
        _ => Ok(()),
    }
}

/// The box moves the place of its mount away and leaves a link to the host's, for the next start to follow.
async fn a_mount_lands_in_the_box_wherever_links_point(_yard: Yard, _facts: Facts) -> Result<()> {
    let (folder, outside) = (tempfile::tempdir()?, tempfile::tempdir()?);
    fs::set_permissions(outside.path(), fs::Permissions::from_mode(0o1777))?;
    let (yard, cell) = with_folder(folder.path(), "/tmp/a/b").await?;
    let link = format!("mv /tmp/a /tmp/old && ln -s {} /tmp/a", outside.path().display());
    cell.sh("root", &link).await?;
    yard.provider.stop(cell.id, Duration::from_secs(1)).await?;
    // It may refuse to start.
    let _ = yard.provider.start(cell.id).await;
    let made = fs::read_dir(outside.path())?.count();
    yard.clean().await?;
    ensure!(made == 0, "the start of a box made something in a folder of the host");
    Ok(())
}
