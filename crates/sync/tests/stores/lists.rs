//! Lists: sorted by bytes, whole, and only what is asked for.

use super::kit::{Cx, cases, put};
use futures::StreamExt;

cases! {
    list_by_prefix_and_behind_a_key;
    list_more_than_a_page;
    list_tells_sizes;
    folders_are_the_next_parts;
}

const KEYS: [&str; 6] = ["a.txt", "a/1", "a/b/2", "ab/3", "b", ".c/4"];

async fn list_by_prefix_and_behind_a_key(cx: Cx) {
    for key in KEYS {
        put(&*cx.bucket, key).await;
    }
    let none: [&str; 0] = [];
    for (prefix, after, expected) in [
        ("", None, &[".c/4", "a.txt", "a/1", "a/b/2", "ab/3", "b"][..]),
        ("a", None, &["a.txt", "a/1", "a/b/2", "ab/3"][..]),
        ("a/", None, &["a/1", "a/b/2"][..]),
        ("a/b", None, &["a/b/2"][..]),
        ("a/c", None, &none[..]),
        ("none/", None, &none[..]),
        (".c/", None, &[".c/4"][..]),
        ("a/", Some("a/1"), &["a/b/2"][..]),
        // What it is behind need not be there, nor beneath the prefix.
        ("a/", Some("a/0"), &["a/1", "a/b/2"][..]),
        ("a/", Some("a/2"), &["a/b/2"][..]),
        ("a/", Some("A"), &["a/1", "a/b/2"][..]),
        ("a/", Some("z"), &none[..]),
        ("", Some("a/b/2"), &["ab/3", "b"][..]),
        ("b", Some("b"), &none[..]),
    ] {
        assert_eq!(cx.keys(prefix, after).await, expected, "{prefix:?} behind {after:?}");
    }
}

async fn list_more_than_a_page(cx: Cx) {
    // In no order.
    let keys = (0..1500).map(|number| format!("many/{:04}", number * 7919 % 1500));
    let bucket = &*cx.bucket;
    let puts = keys.map(|key| async move { put(bucket, &key).await });
    futures::stream::iter(puts).buffer_unordered(16).collect::<Vec<()>>().await;
    let from = |first: usize, end: usize| -> Vec<String> {
        (first..end).map(|number| format!("many/{number:04}")).collect()
    };
    assert_eq!(cx.keys("many/", None).await, from(0, 1500));
    assert_eq!(cx.keys("many/", Some("many/0099")).await, from(100, 1500));
    assert_eq!(cx.keys("many/", Some("many/1498")).await, from(1499, 1500));
    assert_eq!(cx.keys("many/12", None).await, from(1200, 1300));
    assert_eq!(cx.keys("many/12", Some("many/1249")).await, from(1250, 1300));
}

async fn list_tells_sizes(cx: Cx) {
    for size in [0, 1, 300_000] {
        cx.bucket.put(&format!("s/{size:06}"), vec![7u8; size].into()).await.unwrap();
    }
    let listed = cx.bucket.list("s/", None).await.unwrap();
    assert_eq!(listed.iter().map(|object| object.size).collect::<Vec<_>>(), [0, 1, 300_000]);
}

async fn folders_are_the_next_parts(cx: Cx) {
    assert_eq!(cx.bucket.folders("").await.unwrap(), Vec::<String>::new());
    for key in KEYS {
        put(&*cx.bucket, key).await;
    }
    assert_eq!(cx.bucket.folders("").await.unwrap(), [".c", "a", "ab"]);
    assert_eq!(cx.bucket.folders("a/").await.unwrap(), ["b"]);
    for empty in ["a/b/", "none/"] {
        assert_eq!(cx.bucket.folders(empty).await.unwrap(), Vec::<String>::new());
    }
}
