//! Other users: who runs, who owns, and what they may not.

use super::{
    kit::{Sandbox, ensure_kind, to},
    suite::{Cx, cases},
};
use anyhow::{Result, ensure};
use seawall_api::{
    ErrorKind,
    exec::StartProcess,
    files::{FileRef, MakeDir, SetMeta, WriteFile},
    sandbox::SandboxSpec,
};

cases!("users";
    p5_exec_as_another_user [Users, Programs, Root];
    p6_users_are_names_or_numbers [Users, Programs, Root];
    the_sandboxs_user_is_the_default [Users, Programs, Root];
    files_are_written_as_their_user [Users, FileMeta, Root];
    files_keep_out_whom_they_should [Users, FileMeta, Root];
    an_owner_is_given [Users, FileMeta, Root];
    an_unknown_user_is_an_error [Users];
);

const NOBODY: u32 = 65534;

async fn id_as(sandbox: &Sandbox, user: &str, what: &str) -> Result<String> {
    let start = StartProcess { user: Some(user.into()), ..StartProcess::new(["id", what]) };
    let output = sandbox.finish(start).await?;
    ensure!(output.status.success(), "{output:?}");
    Ok(output.out().trim().to_owned())
}

async fn p5_exec_as_another_user(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    ensure!(id_as(&sandbox, "nobody", "-u").await? == NOBODY.to_string());
    ensure!(id_as(&sandbox, "root", "-u").await? == "0");
    let groups = id_as(&sandbox, "nobody", "-G").await?;
    ensure!(!groups.split(' ').any(|group| group == "0"), "root's groups stayed: {groups}");
    Ok(())
}

async fn p6_users_are_names_or_numbers(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    ensure!(id_as(&sandbox, "12345", "-u").await? == "12345");
    ensure!(id_as(&sandbox, "12345:54321", "-u").await? == "12345");
    ensure!(id_as(&sandbox, "12345:54321", "-g").await? == "54321");
    Ok(())
}

async fn the_sandboxs_user_is_the_default(cx: Cx) -> Result<()> {
    let spec = SandboxSpec { user: Some("nobody".into()), ..SandboxSpec::default() };
    let sandbox = cx.sandbox_of(&spec).await?;
    let output = sandbox.run(["id", "-u"]).await?;
    ensure!(output.out().trim() == NOBODY.to_string(), "{output:?}");
    ensure!(id_as(&sandbox, "root", "-u").await? == "0", "a call may say otherwise");
    sandbox.put("mine", b"").await?;
    let entry = sandbox.guest.stat(FileRef::new("mine"), true).await?;
    ensure!(entry.uid == NOBODY, "{entry:?}");
    Ok(())
}

/// A directory that anybody may write into.
async fn open_dir(sandbox: &Sandbox, path: &str) -> Result<()> {
    let dir = FileRef::new(path);
    sandbox.guest.make_dir(MakeDir { dir, parents: false, permissions: Some(0o777) }).await?;
    Ok(())
}

fn as_nobody(path: &str) -> WriteFile {
    WriteFile { file: FileRef::new(path).as_user("nobody"), ..to("") }
}

async fn files_are_written_as_their_user(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    open_dir(&sandbox, "open").await?;
    let entry = sandbox.guest.write_all(as_nobody("open/file"), b"x").await?;
    ensure!(entry.uid == NOBODY && entry.user.as_deref() == Some("nobody"), "{entry:?}");
    let dir = FileRef::new("open/dir").as_user("nobody");
    let made = sandbox.guest.make_dir(MakeDir { dir, parents: false, permissions: None }).await?;
    ensure!(made.uid == NOBODY, "{made:?}");
    Ok(())
}

async fn files_keep_out_whom_they_should(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let closed = MakeDir { dir: FileRef::new("closed"), parents: false, permissions: Some(0o755) };
    sandbox.guest.make_dir(closed).await?;
    let secret = WriteFile { permissions: Some(0o600), ..to("closed/secret") };
    sandbox.guest.write_all(secret, b"s").await?;
    let denied = [ErrorKind::Denied];
    ensure_kind(sandbox.guest.write_all(as_nobody("closed/new"), b"x").await, &denied)?;
    let secret = || FileRef::new("closed/secret").as_user("nobody");
    ensure_kind(sandbox.guest.read_all(secret(), 100).await, &denied)?;
    ensure_kind(sandbox.guest.remove(secret(), false).await, &denied)?;
    ensure!(sandbox.take("closed/secret").await? == b"s");
    Ok(())
}

async fn an_owner_is_given(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    sandbox.put("file", b"").await?;
    let file = FileRef::new("file");
    let set =
        SetMeta { file: file.clone().as_user("root"), owner: Some("nobody".into()), ..SetMeta::default() };
    ensure!(sandbox.guest.set_meta(set).await?.uid == NOBODY);
    let stolen = SetMeta { file: file.as_user("nobody"), owner: Some("root".into()), ..SetMeta::default() };
    ensure_kind(sandbox.guest.set_meta(stolen).await, &[ErrorKind::Denied])
}

async fn an_unknown_user_is_an_error(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let user = || Some("no-such-user".to_owned());
    let kinds = [ErrorKind::NotFound, ErrorKind::Invalid, ErrorKind::ExecFailed];
    let start = StartProcess { user: user(), ..StartProcess::new(["true"]) };
    ensure_kind(sandbox.guest.start(start).await, &kinds)?;
    let file = FileRef { user: user(), ..FileRef::new("/work") };
    ensure_kind(sandbox.guest.stat(file, true).await, &kinds)
}
