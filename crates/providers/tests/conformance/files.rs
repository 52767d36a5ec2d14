//! Files: bodies of any size, pages of listings, and what is kept of a file beside its body.

use super::{
    kit::{Sandbox, ensure_kind, ensure_same, error_of, from, pattern, read_to_end, to},
    suite::{Cx, cases, skip},
};
use anyhow::{Context, Result, ensure};
use seawall_api::{
    ErrorKind,
    files::{
        Entry, EntryKind, FileName, FileRef, ListDir, MAX_PAGE, MakeDir, MoveFile, ReadFile, SetMeta,
        WriteFile, WriteMode, XattrCall, XattrReply,
    },
};

const K: usize = 1 << 10;

cases!("files";
    a_body_of_any_size_comes_back;
    bulk_bodies_come_back;
    a_range_is_read;
    append_and_write_in_place;
    create_new_refuses_what_exists;
    parents_are_made_when_asked;
    a_body_over_its_limit_is_refused;
    a_body_that_is_not_finished_leaves_nothing;
    directories_are_made;
    a_listing_has_depth_and_order;
    a_listing_comes_in_pages;
    names_need_not_be_text;
    files_and_directories_are_moved;
    files_and_directories_are_removed;
    what_is_missing_is_not_found;
    processes_and_calls_see_the_same_files [Programs];
    permissions_and_times_are_kept [FileMeta];
    metadata_is_changed [FileMeta];
    links_are_followed_only_when_asked [FileMeta];
    extended_attributes [FileMeta];
);

pub fn dir(path: &str) -> MakeDir {
    MakeDir { dir: FileRef::new(path), parents: false, permissions: None }
}

fn moved(from: &str, to: &str, overwrite: bool) -> MoveFile {
    MoveFile { from: FileRef::new(from), to: to.into(), overwrite }
}

async fn a_body_of_any_size_comes_back(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    for size in [0, 1, 128 * K - 1, 128 * K, 128 * K + 1, 3 * K * K] {
        let body = pattern(size);
        let entry = sandbox.guest.write_all(to("file"), &body).await?;
        ensure!(entry.size == size as u64 && entry.kind == EntryKind::File, "{entry:?}");
        ensure!(entry.path == FileName::from("file"), "{entry:?}");
        ensure_same(&sandbox.take("file").await?, &body).with_context(|| format!("{size} bytes"))?;
        ensure!(sandbox.guest.stat(FileRef::new("/work/file"), true).await?.size == size as u64);
    }
    Ok(())
}

async fn bulk_bodies_come_back(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let body = pattern(32 * K * K + 7);
    let mut writer = sandbox.guest.write_bulk(to("bulk")).await?;
    for part in body.chunks(5 * K * K) {
        writer.write(part).await?;
    }
    ensure!(writer.finish().await?.size == body.len() as u64);
    let reader = sandbox.guest.read_bulk(from("bulk")).await?;
    ensure!(reader.entry().size == body.len() as u64);
    ensure_same(&read_to_end(reader).await?, &body)
}

async fn a_range_is_read(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let body = pattern(300 * K);
    sandbox.put("file", &body).await?;
    let len = body.len();
    let ranges =
        [(0, Some(1)), (5, Some(200 * K)), (len - 1, None), (len, None), (len + 9, Some(1)), (7, Some(0))];
    for (offset, length) in ranges {
        let read = ReadFile { offset: offset as u64, length: length.map(|l| l as u64), ..from("file") };
        let got = read_to_end(sandbox.guest.read(read).await?).await?;
        let start = offset.min(len);
        let end = length.map_or(len, |length| (start + length).min(len));
        ensure_same(&got, &body[start..end]).with_context(|| format!("{offset}, {length:?}"))?;
    }
    let too_large = sandbox.guest.read_all(FileRef::new("file"), 10).await;
    ensure_kind(too_large, &[ErrorKind::TooLarge])
}

async fn append_and_write_in_place(cx: Cx) -> Result<()> {
    let guest = cx.sandbox().await?;
    let with = |mode| WriteFile { mode, ..to("file") };
    guest.write_all(with(WriteMode::Append), b"abc").await?;
    guest.write_all(with(WriteMode::Append), b"def").await?;
    ensure!(guest.take("file").await? == b"abcdef");
    guest.write_all(with(WriteMode::At(2)), b"XY").await?;
    ensure!(guest.take("file").await? == b"abXYef", "the rest stays");
    guest.write_all(with(WriteMode::At(8)), b"Z").await?;
    ensure!(guest.take("file").await? == b"abXYef\0\0Z", "a hole is zeroes");
    guest.write_all(with(WriteMode::Replace), b"new").await?;
    ensure!(guest.take("file").await? == b"new");
    Ok(())
}

async fn create_new_refuses_what_exists(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let new = WriteFile { mode: WriteMode::CreateNew, ..to("file") };
    sandbox.guest.write_all(new.clone(), b"first").await?;
    ensure_kind(sandbox.guest.write_all(new, b"second").await, &[ErrorKind::AlreadyExists])?;
    ensure!(sandbox.take("file").await? == b"first");
    Ok(())
}

async fn parents_are_made_when_asked(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let missing = sandbox.guest.write_all(to("a/b/c"), b"x").await;
    ensure_kind(missing, &[ErrorKind::NotFound])?;
    let write = WriteFile { parents: true, ..to("a/b/c") };
    sandbox.guest.write_all(write, b"x").await?;
    ensure!(sandbox.take("a/b/c").await? == b"x");
    sandbox.put("plain", b"").await?;
    error_of(sandbox.guest.write_all(WriteFile { parents: true, ..to("plain/x") }, b"").await)?;
    Ok(())
}

async fn a_body_over_its_limit_is_refused(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    sandbox.put("file", b"old").await?;
    let write = WriteFile { max_size: Some(100), ..to("file") };
    let refused = sandbox.guest.write_all(write.clone(), &[1; 101]).await;
    ensure_kind(refused, &[ErrorKind::TooLarge])?;
    ensure!(sandbox.take("file").await? == b"old");
    sandbox.guest.write_all(write, &[1; 100]).await?;
    Ok(())
}

async fn a_body_that_is_not_finished_leaves_nothing(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    sandbox.put("file", b"old").await?;
    let mut writer = sandbox.guest.write(to("file")).await?;
    writer.write(&pattern(400 * K)).await?;
    drop(writer);
    sandbox.guest.disconnect().await;
    ensure!(sandbox.take("file").await? == b"old");
    let clean = super::kit::eventually(|| async {
        list_all(&sandbox, "/work", 1, 100).await.is_ok_and(|found| found.len() == 1)
    });
    ensure!(clean.await, "a part was left: {:?}", list_all(&sandbox, "/work", 1, 100).await?);
    Ok(())
}

async fn directories_are_made(cx: Cx) -> Result<()> {
    let guest = cx.sandbox().await?.guest;
    let made = guest.make_dir(dir("one")).await?;
    ensure!(made.kind == EntryKind::Directory && made.path == FileName::from("one"), "{made:?}");
    ensure_kind(guest.make_dir(dir("one")).await, &[ErrorKind::AlreadyExists])?;
    ensure_kind(guest.make_dir(dir("two/three")).await, &[ErrorKind::NotFound])?;
    for _ in 0..2 {
        guest.make_dir(MakeDir { parents: true, ..dir("two/three") }).await?;
    }
    ensure!(guest.stat(FileRef::new("two/three"), true).await?.kind == EntryKind::Directory);
    Ok(())
}

/// All pages of a listing.
async fn list_all(sandbox: &Sandbox, path: &str, depth: u32, limit: u32) -> Result<Vec<Entry>> {
    let mut list = ListDir { dir: FileRef::new(path), depth, after: None, limit };
    let mut entries = Vec::new();
    loop {
        let page = sandbox.guest.list(list.clone()).await?;
        ensure!(page.unreadable.is_empty(), "{:?}", page.unreadable);
        entries.extend(page.entries);
        match page.next {
            Some(next) if list.after.as_ref() != Some(&next) => list.after = Some(next),
            Some(next) => anyhow::bail!("the page after {next:?} is itself"),
            None => return Ok(entries),
        }
    }
}

fn paths(entries: &[Entry]) -> Vec<String> {
    entries.iter().map(|entry| entry.path.to_string()).collect()
}

async fn a_listing_has_depth_and_order(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    for path in ["b/x", "a/z/deep", "a/y", "a-b", "c"] {
        let write = WriteFile { parents: true, ..to(path) };
        sandbox.guest.write_all(write, b"1").await?;
    }
    let one = list_all(&sandbox, "/work", 1, 100).await?;
    ensure!(paths(&one) == ["a", "a-b", "b", "c"], "{one:?}");
    ensure!(one[0].kind == EntryKind::Directory && one[1].size == 1, "{one:?}");
    let wanted = ["a", "a/y", "a/z", "a/z/deep", "a-b", "b", "b/x", "c"];
    for limit in [1, 2, 3, 100] {
        let mut found = paths(&list_all(&sandbox, "/work", 9, limit).await?);
        let parents_first = found.iter().enumerate().all(|(index, path)| {
            path.rsplit_once('/').is_none_or(|(above, _)| found[..index].iter().any(|p| p == above))
        });
        ensure!(parents_first, "by {limit}: {found:?}");
        found.sort();
        let mut wanted = wanted.to_vec();
        wanted.sort();
        ensure!(found == wanted, "by {limit}: {found:?}");
    }
    ensure!(paths(&list_all(&sandbox, "a", 1, 100).await?) == ["y", "z"], "relative to what was asked");
    let file = ListDir { dir: FileRef::new("c"), depth: 1, after: None, limit: 10 };
    error_of(sandbox.guest.list(file).await)?;
    Ok(())
}

async fn a_listing_comes_in_pages(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let mut wanted = Vec::new();
    for group in 0..5 {
        sandbox.guest.make_dir(dir(&format!("d{group}"))).await?;
        wanted.push(format!("d{group}"));
        let names: Vec<_> = (0..500).map(|number| format!("d{group}/f{number:03}")).collect();
        let puts = names.iter().map(|name| sandbox.put(name, b""));
        for put in futures::future::join_all(puts).await {
            put?;
        }
        wanted.extend(names);
    }
    for limit in [MAX_PAGE, 333] {
        let found = paths(&list_all(&sandbox, "/work", 2, limit).await?);
        ensure!(found == wanted, "{} instead of {}", found.len(), wanted.len());
    }
    let page = ListDir { dir: FileRef::new("/work"), depth: 2, after: None, limit: MAX_PAGE };
    let page = sandbox.guest.list(page).await?;
    ensure!(page.entries.len() <= MAX_PAGE as usize && page.next.is_some());
    Ok(())
}

async fn names_need_not_be_text(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let names: [&[u8]; 4] = [b"\xff\xfe", b"line\nbreak", b"back\\slash", "sp ace ü".as_bytes()];
    for name in names {
        let write = WriteFile { file: FileRef::new(name), ..to("") };
        sandbox.guest.write_all(write, name).await?;
        ensure!(sandbox.guest.read_all(FileRef::new(name), 100).await? == name);
    }
    let mut found: Vec<_> =
        list_all(&sandbox, "/work", 1, 2).await?.into_iter().map(|entry| entry.path.0).collect();
    found.sort();
    let mut wanted: Vec<_> = names.map(<[u8]>::to_vec).to_vec();
    wanted.sort();
    ensure!(found == wanted, "{found:?}");
    Ok(())
}

async fn files_and_directories_are_moved(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    sandbox.put("one", b"1").await?;
    sandbox.put("two", b"2").await?;
    let refused = sandbox.guest.move_file(moved("one", "two", false)).await;
    ensure_kind(refused, &[ErrorKind::AlreadyExists, ErrorKind::Conflict])?;
    ensure!(sandbox.take("two").await? == b"2");
    sandbox.guest.move_file(moved("one", "two", true)).await?;
    ensure!(sandbox.take("two").await? == b"1");
    ensure_kind(sandbox.guest.stat(FileRef::new("one"), true).await, &[ErrorKind::NotFound])?;
    sandbox.guest.write_all(WriteFile { parents: true, ..to("d/e/f") }, b"deep").await?;
    sandbox.guest.move_file(moved("d", "g", false)).await?;
    ensure!(sandbox.take("g/e/f").await? == b"deep");
    error_of(sandbox.guest.move_file(moved("g", "g/e/g", false)).await)?;
    let missing = sandbox.guest.move_file(moved("nothing", "x", false)).await;
    ensure_kind(missing, &[ErrorKind::NotFound])
}

async fn files_and_directories_are_removed(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    sandbox.guest.write_all(WriteFile { parents: true, ..to("d/e/f") }, b"").await?;
    sandbox.put("file", b"").await?;
    sandbox.guest.remove(FileRef::new("file"), false).await?;
    error_of(sandbox.guest.remove(FileRef::new("d"), false).await)?;
    sandbox.guest.stat(FileRef::new("d/e/f"), true).await.context("a refusal removes nothing")?;
    sandbox.guest.remove(FileRef::new("d"), true).await?;
    ensure_kind(sandbox.guest.stat(FileRef::new("d"), true).await, &[ErrorKind::NotFound])?;
    sandbox.guest.make_dir(dir("empty")).await?;
    sandbox.guest.remove(FileRef::new("empty"), false).await?;
    ensure!(list_all(&sandbox, "/work", 9, 100).await?.is_empty());
    error_of(sandbox.guest.remove(FileRef::new("/work"), true).await)?;
    sandbox.put("file", b"").await.context("the workspace itself stays")
}

async fn what_is_missing_is_not_found(cx: Cx) -> Result<()> {
    let guest = cx.sandbox().await?.guest;
    let file = || FileRef::new("nothing");
    let not_found = [ErrorKind::NotFound];
    ensure_kind(guest.stat(file(), true).await, &not_found)?;
    ensure_kind(guest.read(from("nothing")).await, &not_found)?;
    ensure_kind(guest.remove(file(), false).await, &not_found)?;
    let list = ListDir { dir: file(), depth: 1, after: None, limit: 10 };
    ensure_kind(guest.list(list).await, &not_found)?;
    let zero = FileRef::new(&b"a\0b"[..]);
    ensure_kind(guest.stat(zero, true).await, &[ErrorKind::Invalid])
}

async fn processes_and_calls_see_the_same_files(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    sandbox.put("from-call", b"hello").await?;
    ensure!(sandbox.sh_ok("cat from-call").await? == "hello");
    sandbox.sh_ok("mkdir sub && printf world > sub/from-process").await?;
    ensure!(sandbox.take("/work/sub/from-process").await? == b"world");
    Ok(())
}

async fn permissions_and_times_are_kept(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    let plain = sandbox.guest.write_all(to("plain"), b"").await?;
    ensure!(plain.mode == 0o644, "{plain:?}");
    let mtime = (1_234_567_890, 123_456_789);
    let write = WriteFile { permissions: Some(0o750), mtime: Some(mtime), ..to("file") };
    let entry = sandbox.guest.write_all(write, b"x").await?;
    ensure!(entry.mode == 0o750 && (entry.mtime, entry.mtime_nanos) == mtime, "{entry:?}");
    let entry = sandbox.guest.write_all(to("file"), b"new body").await?;
    ensure!(entry.mode == 0o750, "a replaced file keeps its permissions: {entry:?}");
    let entry = sandbox.guest.stat(FileRef::new("file"), true).await?;
    ensure!(entry.mode == 0o750 && entry.size == 8 && entry.mtime != mtime.0, "{entry:?}");
    let made = sandbox.guest.make_dir(MakeDir { permissions: Some(0o700), ..dir("d") }).await?;
    ensure!(made.mode == 0o700, "{made:?}");
    Ok(())
}

async fn metadata_is_changed(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    sandbox.put("file", b"x").await?;
    let set = SetMeta { file: FileRef::new("file"), permissions: Some(0o600), ..SetMeta::default() };
    let entry = sandbox.guest.set_meta(set).await?;
    ensure!(entry.mode == 0o600, "{entry:?}");
    let mtime = (1_000_000_000, 5);
    let set = SetMeta { file: FileRef::new("file"), mtime: Some(mtime), ..SetMeta::default() };
    let entry = sandbox.guest.set_meta(set).await?;
    ensure!(entry.mode == 0o600, "what is not given stays: {entry:?}");
    ensure!((entry.mtime, entry.mtime_nanos) == mtime, "{entry:?}");
    Ok(())
}

async fn links_are_followed_only_when_asked(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    sandbox.put("target", b"12345").await?;
    sandbox.guest.symlink(FileRef::new("link"), "target".into()).await?;
    let link = sandbox.guest.stat(FileRef::new("link"), false).await?;
    ensure!(link.kind == EntryKind::Symlink, "{link:?}");
    ensure!(link.target == Some("target".into()), "{link:?}");
    let target = sandbox.guest.stat(FileRef::new("link"), true).await?;
    ensure!(target.kind == EntryKind::File && target.size == 5, "{target:?}");
    ensure!(sandbox.take("link").await? == b"12345");
    sandbox.guest.remove(FileRef::new("link"), true).await?;
    ensure!(sandbox.take("target").await? == b"12345", "removing a link removes the link");
    sandbox.guest.symlink(FileRef::new("dangling"), "nowhere".into()).await?;
    sandbox.guest.stat(FileRef::new("dangling"), false).await?;
    ensure_kind(sandbox.guest.stat(FileRef::new("dangling"), true).await, &[ErrorKind::NotFound])
}

async fn extended_attributes(cx: Cx) -> Result<()> {
    let sandbox = cx.sandbox().await?;
    sandbox.put("file", b"").await?;
    let call = |call| sandbox.guest.xattr(FileRef::new("file"), call);
    let name = || "user.seawall.test".to_owned();
    let set = XattrCall::Set { name: name(), value: b"a\0b".to_vec() };
    match call(set).await {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            return skip(format!("no extended attributes on this file system ({error})"));
        }
        done => ensure!(done? == XattrReply::Done),
    }
    ensure!(call(XattrCall::Get(name())).await? == XattrReply::Value(b"a\0b".to_vec()));
    ensure!(call(XattrCall::List).await? == XattrReply::Names(vec![name()]));
    ensure!(call(XattrCall::Remove(name())).await? == XattrReply::Done);
    ensure!(call(XattrCall::List).await? == XattrReply::Names(Vec::new()));
    error_of(call(XattrCall::Get(name())).await)?;
    Ok(())
}
