//! V4: the files of a sandbox, with paths as its users mean them.

use crate::turns::world::{ME, World, error};
use seawall_api::{
    ErrorKind, SandboxId,
    files::{EntryKind, FileRef, MakeDir},
    http::{CreateSandbox, FileInfo, TreeNode},
    sandbox::SandboxState,
};
use seawall_core::service::{ListFiles, ReadAsk, Source};
use std::time::Duration;

/// A workspace, with what is ours in it.
const FILES: [&str; 9] = [
    ".git/config",
    ".hidden",
    ".sandbox-state",
    ".sandbox-state.lock",
    ".seawall/sessions/one",
    "a.txt",
    "b.rs",
    "src/deep/x.rs",
    "src/main.rs",
];

async fn made(files: &[&str]) -> (World, SandboxId) {
    let world = World::new();
    let ask = CreateSandbox { start: true, ..CreateSandbox::default() };
    let id = world.service.create(ME, &ask).await.unwrap().info.id;
    for path in files {
        world.put(id, path, "0123456789").await;
    }
    (world, id)
}

/// Paths of one page.
async fn listed(world: &World, id: SandboxId, ask: &ListFiles) -> Vec<String> {
    let page = world.service.list_files(ME, id, ask).await.unwrap();
    page.items.into_iter().map(|file| file.path).collect()
}

/// Paths of all pages, each of which fits.
async fn pages(world: &World, id: SandboxId, ask: &ListFiles) -> Vec<Vec<String>> {
    let (mut pages, mut after) = (Vec::new(), None);
    loop {
        let page = world.service.list_files(ME, id, &ListFiles { after, ..ask.clone() }).await.unwrap();
        assert!(page.items.len() <= ask.limit as usize, "{} of {}", page.items.len(), ask.limit);
        pages.push(page.items.into_iter().map(|file| file.path).collect());
        assert!(pages.len() < 1000, "it never ends");
        after = page.next;
        if after.is_none() {
            return pages;
        }
    }
}

fn depth(depth: u32) -> ListFiles {
    ListFiles { depth, ..ListFiles::default() }
}

fn beneath(path: &str, depth: u32) -> ListFiles {
    ListFiles { path: path.to_owned(), depth, ..ListFiles::default() }
}

#[tokio::test(start_paused = true)]
async fn v4_a_list_is_as_deep_as_asked_for_in_the_order_of_names() {
    let (world, id) = made(&FILES).await;
    let first = ["/work/.git", "/work/.hidden", "/work/a.txt", "/work/b.rs", "/work/src"];
    assert_eq!(listed(&world, id, &ListFiles::default()).await, first);
    let second = [
        "/work/.git",
        "/work/.git/config",
        "/work/.hidden",
        "/work/a.txt",
        "/work/b.rs",
        "/work/src",
        "/work/src/deep",
        "/work/src/main.rs",
    ];
    assert_eq!(listed(&world, id, &depth(2)).await, second);
    let third = listed(&world, id, &depth(3)).await;
    assert_eq!((third.len(), third[7].as_str()), (9, "/work/src/deep/x.rs"));
    assert_eq!(listed(&world, id, &depth(64)).await, third);
}

#[tokio::test(start_paused = true)]
async fn v4_paths_are_the_users_wherever_a_list_begins() {
    let (world, id) = made(&FILES).await;
    for path in ["src", "/work/src", "./src/", "src/../src", "/work/../work/src"] {
        let found = listed(&world, id, &beneath(path, 1)).await;
        assert_eq!(found, ["/work/src/deep", "/work/src/main.rs"], "{path}");
    }
    let all = listed(&world, id, &beneath("/", 3)).await;
    assert!(all.contains(&"/work/src/deep".to_owned()) && all.contains(&"/tmp".to_owned()), "{all:?}");
    assert!(!all.iter().any(|path| path.contains("sandbox-state") || path.contains(".seawall")), "{all:?}");
    for (path, kind) in [("nope", ErrorKind::NotFound), ("a.txt", ErrorKind::Invalid)] {
        assert_eq!(error(world.service.list_files(ME, id, &beneath(path, 1)).await).kind(), kind);
    }
}

#[tokio::test(start_paused = true)]
async fn v4_a_list_tells_what_each_file_is() {
    let (world, id) = made(&FILES).await;
    let page = world.service.list_files(ME, id, &ListFiles::default()).await.unwrap();
    let told = |file: &FileInfo| (file.name.clone(), file.kind, file.size);
    let told: Vec<_> = page.items.iter().skip(2).map(told).collect();
    let file = |name: &str| (name.to_owned(), EntryKind::File, 10);
    assert_eq!(told, [file("a.txt"), file("b.rs"), ("src".to_owned(), EntryKind::Directory, 0)]);
    assert_eq!(page.next, None);
}

#[tokio::test(start_paused = true)]
async fn v4_filters_leave_out_what_is_not_wanted() {
    let (world, id) = made(&FILES).await;
    let all = depth(9);
    let pattern = |pattern: &str| ListFiles { pattern: Some(pattern.to_owned()), ..all.clone() };
    let rust = ["/work/b.rs", "/work/src/deep/x.rs", "/work/src/main.rs"];
    assert_eq!(listed(&world, id, &pattern("*.rs")).await, rust);
    assert_eq!(listed(&world, id, &pattern("?.rs")).await, rust[..2]);
    // Of names, not of paths.
    assert!(listed(&world, id, &pattern("src/*")).await.is_empty());
    let kind = |kind| ListFiles { kind: Some(kind), ..all.clone() };
    let directories = listed(&world, id, &kind(EntryKind::Directory)).await;
    assert_eq!(directories, ["/work/.git", "/work/src", "/work/src/deep"]);
    assert_eq!(listed(&world, id, &kind(EntryKind::File)).await.len(), 6);
    let plain = ListFiles { hidden: false, ..all.clone() };
    let shown = listed(&world, id, &plain).await;
    assert_eq!(shown.len(), 6);
    // What is below a hidden directory is hidden too.
    assert!(!shown.iter().any(|path| path.contains("/.")), "{shown:?}");
    let both = ListFiles { kind: Some(EntryKind::File), pattern: Some("*e*".to_owned()), ..all };
    assert_eq!(listed(&world, id, &both).await, ["/work/.hidden"]);
}

#[tokio::test(start_paused = true)]
async fn v4_pages_have_every_file_once_whatever_is_left_out() {
    let (world, id) = made(&FILES).await;
    for number in 0..30 {
        for end in ["log", "txt"] {
            world.put(id, &format!("many/{number:02}.{end}"), "x").await;
        }
    }
    let whole = ListFiles { limit: 1000, ..depth(3) };
    let filters = [
        whole.clone(),
        ListFiles { pattern: Some("*.log".to_owned()), ..whole.clone() },
        ListFiles { kind: Some(EntryKind::Directory), ..whole.clone() },
        ListFiles { hidden: false, ..whole.clone() },
        ListFiles { pattern: Some("29.log".to_owned()), ..whole.clone() },
        ListFiles { pattern: Some("no such".to_owned()), ..whole.clone() },
    ];
    for filter in filters {
        let expected = listed(&world, id, &filter).await;
        for limit in [1, 2, 3, 7, 59, 1000] {
            let pages = pages(&world, id, &ListFiles { limit, ..filter.clone() }).await;
            assert_eq!(pages.concat(), expected, "{filter:?} by {limit}");
            // Only the last may have room.
            let full = pages.iter().rev().skip(1).all(|page| page.len() == limit as usize);
            assert!(full, "{pages:?}");
        }
    }
    let logs = ListFiles { pattern: Some("*.log".to_owned()), ..whole };
    assert_eq!(listed(&world, id, &logs).await.len(), 30);
}

/// Below directories: `count` files, each beneath 60 of them.
async fn bury(world: &World, id: SandboxId, count: usize) {
    for number in 0..count {
        world.put(id, &format!("b{number:03}/{}f", "d/".repeat(59)), "x").await;
    }
}

#[tokio::test(start_paused = true)]
async fn v4_what_is_more_than_a_page_of_the_guest_is_looked_through() {
    let (world, id) = made(&[]).await;
    bury(&world, id, 30).await;
    let files = ListFiles { kind: Some(EntryKind::File), limit: 1000, ..depth(64) };
    // 1800 directories stand between them.
    let pages = pages(&world, id, &files).await;
    assert_eq!((pages.len(), pages[0].len()), (1, 30));
}

#[tokio::test(start_paused = true)]
async fn v4_odd_names_are_found_again() {
    let names = ["back\\slash", "new\nline", "ü", "two words", "\\x41"];
    let (world, id) = made(&names).await;
    let one = ListFiles { limit: 1, ..ListFiles::default() };
    let found = pages(&world, id, &one).await.concat();
    assert_eq!(found.len(), names.len(), "{found:?}");
    // As JSON has them: a backslash twice.
    assert!(found.contains(&"/work/back\\\\slash".to_owned()), "{found:?}");
    let odd = ListFiles { after: Some("a\\q".to_owned()), ..ListFiles::default() };
    assert_eq!(error(world.service.list_files(ME, id, &odd).await).kind(), ErrorKind::Invalid);
}

#[tokio::test(start_paused = true)]
async fn v4_pages_and_depths_have_bounds() {
    let (world, id) = made(&FILES).await;
    for (limit, depth) in [(0, 1), (1001, 1), (1, 0), (1, 65)] {
        let ask = ListFiles { limit, depth, ..ListFiles::default() };
        assert_eq!(error(world.service.list_files(ME, id, &ask).await).kind(), ErrorKind::Invalid);
    }
    for depth in [0, 65] {
        assert_eq!(error(world.service.tree(ME, id, ".", depth).await).kind(), ErrorKind::Invalid);
    }
    let widest = ListFiles { limit: 1000, depth: 64, ..ListFiles::default() };
    assert_eq!(listed(&world, id, &widest).await.len(), 9);
}

/// `path` and what is beneath it: `name(…)`, and `name!` of a directory that was not looked into.
fn drawn(node: &TreeNode) -> String {
    let name = &node.file.name;
    match &node.children {
        Some(children) => format!("{name}({})", children.iter().map(drawn).collect::<Vec<_>>().join(" ")),
        None if node.file.kind == EntryKind::Directory => format!("{name}!"),
        None => name.clone(),
    }
}

fn all_paths(node: &TreeNode) -> Vec<String> {
    let beneath = node.children.iter().flatten().flat_map(all_paths);
    std::iter::once(node.file.path.clone()).chain(beneath).collect()
}

#[tokio::test(start_paused = true)]
async fn v4_a_tree_is_what_a_list_is_with_branches() {
    let (world, id) = made(&FILES).await;
    let make = MakeDir { dir: FileRef::new("empty"), parents: false, permissions: None };
    world.sandboxes.guest(id).await.unwrap().make_dir(make).await.unwrap();
    for (depth, expected) in [
        (1, "work(.git! .hidden a.txt b.rs empty! src!)"),
        (2, "work(.git(config) .hidden a.txt b.rs empty() src(deep! main.rs))"),
        (3, "work(.git(config) .hidden a.txt b.rs empty() src(deep(x.rs) main.rs))"),
        (64, "work(.git(config) .hidden a.txt b.rs empty() src(deep(x.rs) main.rs))"),
    ] {
        let tree = world.service.tree(ME, id, ".", depth).await.unwrap();
        assert_eq!((drawn(&tree.root).as_str(), tree.truncated), (expected, false), "{depth}");
        let mut paths = listed(&world, id, &ListFiles { depth, ..ListFiles::default() }).await;
        paths.insert(0, "/work".to_owned());
        assert_eq!(all_paths(&tree.root), paths);
    }
    let part = world.service.tree(ME, id, "src/", 3).await.unwrap().root;
    let paths = ["/work/src", "/work/src/deep", "/work/src/deep/x.rs", "/work/src/main.rs"];
    assert_eq!(
        (drawn(&part).as_str(), all_paths(&part)),
        ("src(deep(x.rs) main.rs)", paths.map(str::to_owned).to_vec())
    );
    let file = world.service.tree(ME, id, "a.txt", 3).await.unwrap().root;
    assert_eq!((file.file.path.as_str(), file.file.size, file.children), ("/work/a.txt", 10, None));
    assert_eq!(error(world.service.tree(ME, id, "nope", 1).await).kind(), ErrorKind::NotFound);
}

#[tokio::test(start_paused = true)]
async fn v4_of_the_whole_box_a_tree_leaves_out_what_is_ours_too() {
    let (world, id) = made(&FILES).await;
    let root = world.service.tree(ME, id, "/", 4).await.unwrap().root;
    let paths = all_paths(&root);
    assert_eq!((root.file.path.as_str(), paths.contains(&"/work/src/deep/x.rs".to_owned())), ("/", true));
    assert!(
        !paths.iter().any(|path| path.contains("sandbox-state") || path.contains(".seawall")),
        "{paths:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn v4_a_tree_that_is_too_large_says_so() {
    let (world, id) = made(&[]).await;
    bury(&world, id, 160).await;
    let tree = world.service.tree(ME, id, ".", 64).await.unwrap();
    assert_eq!((tree.truncated, all_paths(&tree.root).len()), (false, 1 + 160 * 61));
    bury(&world, id, 170).await;
    let tree = world.service.tree(ME, id, ".", 64).await.unwrap();
    assert_eq!((tree.truncated, all_paths(&tree.root).len()), (true, 1 + 10_000));
}

async fn read(world: &World, id: SandboxId, ask: &ReadAsk) -> (FileInfo, String) {
    let (info, mut reader) = world.service.read_file(ME, id, ask).await.unwrap();
    let mut body = Vec::new();
    while let Some(bytes) = reader.next().await.unwrap() {
        body.extend_from_slice(&bytes);
    }
    (info, String::from_utf8(body).unwrap())
}

fn of(path: &str) -> ReadAsk {
    ReadAsk { path: path.to_owned(), ..ReadAsk::default() }
}

#[tokio::test(start_paused = true)]
async fn v4_a_file_is_read_whole_or_in_part() {
    let (world, id) = made(&FILES).await;
    for (offset, length, expected) in [
        (0, None, "0123456789"),
        (7, None, "789"),
        (2, Some(3), "234"),
        (8, Some(100), "89"),
        (0, Some(0), ""),
        (10, None, ""),
        (99, Some(1), ""),
    ] {
        let (info, body) = read(&world, id, &ReadAsk { offset, length, ..of("a.txt") }).await;
        assert_eq!(body, expected, "{offset} {length:?}");
        // Of the file, not of the part.
        assert_eq!((info.path.as_str(), info.name.as_str(), info.size), ("/work/a.txt", "a.txt", 10));
    }
    world.put(id, "empty", "").await;
    assert_eq!(read(&world, id, &of("empty")).await.1, "");
}

#[tokio::test(start_paused = true)]
async fn v4_a_file_that_is_too_large_is_refused() {
    let (world, id) = made(&FILES).await;
    let most = |most| ReadAsk { max_size: Some(most), ..of("a.txt") };
    assert_eq!(read(&world, id, &most(10)).await.1, "0123456789");
    let refused = error(world.service.read_file(ME, id, &most(9)).await);
    assert_eq!(refused.kind(), ErrorKind::TooLarge);
    assert!(refused.to_string().contains("/work/a.txt"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn v4_what_is_no_file_is_not_read() {
    let (world, id) = made(&FILES).await;
    for (path, kind) in
        [("src", ErrorKind::Invalid), (".", ErrorKind::Invalid), ("nope", ErrorKind::NotFound)]
    {
        assert_eq!(error(world.service.read_file(ME, id, &of(path)).await).kind(), kind, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn v4_a_source_says_where_a_path_begins() {
    let (world, id) = made(&FILES).await;
    world.put(id, "/home/notes", "of home").await;
    world.put(id, "/tmp/notes", "of tmp").await;
    world.put(id, "notes", "of work").await;
    for (source, path, shown, body) in [
        (Source::WorkingDir, "notes", "/work/notes", "of work"),
        (Source::WorkingDir, "/notes", "/work/notes", "of work"),
        (Source::HomeDir, "notes", "~/notes", "of home"),
        (Source::Box, "notes", "/work/notes", "of work"),
        (Source::Box, "/tmp/notes", "/tmp/notes", "of tmp"),
        (Source::Box, "../tmp/notes", "/tmp/notes", "of tmp"),
    ] {
        let ask = ReadAsk { source, ..of(path) };
        let (info, found) = read(&world, id, &ask).await;
        assert_eq!((info.path.as_str(), found.as_str()), (shown, body), "{source:?} {path}");
        assert_eq!(world.service.stat_file(ME, id, source, path).await.unwrap(), info);
    }
    // Nothing leads out of it.
    for source in [Source::WorkingDir, Source::HomeDir] {
        for path in ["../tmp/notes", "/tmp/notes", "a/../../tmp/notes"] {
            let ask = ReadAsk { source, ..of(path) };
            let refused = error(world.service.read_file(ME, id, &ask).await);
            assert_eq!(refused.kind(), ErrorKind::NotFound, "{source:?} {path}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn v2_whoever_looks_at_files_has_the_sandbox_run() {
    let (world, id) = made(&FILES).await;
    let first = listed(&world, id, &depth(3)).await;
    for lost in [false, true] {
        match lost {
            true => world.mock.crash(id),
            false => drop(world.service.stop(ME, id, Some(Duration::ZERO), false).await.unwrap()),
        }
        assert_eq!(world.sandboxes.get(id).await.unwrap().state, SandboxState::Stopped);
        assert_eq!(listed(&world, id, &depth(3)).await, first);
        assert_eq!(world.sandboxes.get(id).await.unwrap().state, SandboxState::Running);
    }
}
