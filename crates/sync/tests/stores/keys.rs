//! One object at a time: created once, replaced, read, deleted, whatever it is called.

use super::kit::{Cx, cases, put};
use bytes::Bytes;
use futures::future::join_all;
use seawall_api::ErrorKind;
use seawall_sync::bucket;

cases! {
    s9_create_refuses_a_second;
    s9_of_a_hundred_creates_one_wins;
    put_replaces;
    get_whole_and_in_part;
    get_what_is_not_there;
    delete_twice;
    s14_odd_keys_come_back_as_they_are;
}

async fn s9_create_refuses_a_second(cx: Cx) {
    assert!(cx.bucket.create("d/k", Bytes::from_static(b"one")).await.unwrap());
    assert!(!cx.bucket.create("d/k", Bytes::from_static(b"two")).await.unwrap());
    assert_eq!(cx.read("d/k").await, "one");
    put(&*cx.bucket, "d/p").await;
    assert!(!cx.bucket.create("d/p", Bytes::new()).await.unwrap());
    cx.bucket.delete("d/k").await.unwrap();
    assert!(cx.bucket.create("d/k", Bytes::from_static(b"three")).await.unwrap());
    assert_eq!(cx.read("d/k").await, "three");
    assert_eq!(cx.leftovers().await, Vec::<String>::new());
}

async fn s9_of_a_hundred_creates_one_wins(cx: Cx) {
    let (bucket, _proxy) = cx.one_at_a_time().await;
    let creates = (0..100).map(|number: usize| {
        let bucket = bucket.clone();
        tokio::spawn(async move { bucket.create("d/k", number.to_string().into()).await.unwrap() })
    });
    let won: Vec<bool> = join_all(creates).await.into_iter().map(Result::unwrap).collect();
    let winners: Vec<usize> = (0..100).filter(|number| won[*number]).collect();
    assert_eq!(winners.len(), 1, "{winners:?}");
    assert_eq!(cx.read("d/k").await, winners[0].to_string());
    assert_eq!(cx.leftovers().await, Vec::<String>::new());
}

async fn put_replaces(cx: Cx) {
    for body in ["one", "", "two is longer"] {
        cx.bucket.put("k", Bytes::from_static(body.as_bytes())).await.unwrap();
        assert_eq!(cx.read("k").await, body);
    }
    assert_eq!(cx.keys("", None).await, ["k"]);
}

async fn get_whole_and_in_part(cx: Cx) {
    cx.bucket.put("d/k", Bytes::from_static(b"0123456789")).await.unwrap();
    assert_eq!(cx.read("d/k").await, "0123456789");
    for (range, expected) in [(0..10, "0123456789"), (2..5, "234"), (9..10, "9"), (7..99, "789"), (4..4, "")]
    {
        let body = cx.bucket.get("d/k", Some(range.clone())).await.unwrap();
        assert_eq!(bucket::collect(body, 99).await.unwrap(), expected, "{range:?}");
    }
    // Nothing is there. Some stores call that an error.
    match cx.bucket.get("d/k", Some(10..12)).await {
        Ok(body) => assert!(bucket::collect(body, 99).await.unwrap().is_empty()),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Invalid, "{error}"),
    }
    // More than one read of a file.
    let large: Vec<u8> = (0..1_000_003u32).map(|n| (n % 251) as u8).collect();
    cx.bucket.put("large", large.clone().into()).await.unwrap();
    assert!(cx.read("large").await == large);
    let body = cx.bucket.get("large", Some(262_143..700_001)).await.unwrap();
    assert!(bucket::collect(body, u64::MAX).await.unwrap() == large[262_143..700_001]);
}

async fn get_what_is_not_there(cx: Cx) {
    put(&*cx.bucket, "d/k").await;
    for (key, range) in [("k", None), ("d", None), ("d/k2", Some(0..1)), ("e/k", None)] {
        let error = cx.bucket.get(key, range).await.err().expect(key);
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert_eq!(bucket::find(&*cx.bucket, key, 9).await.unwrap(), None);
    }
}

async fn delete_twice(cx: Cx) {
    put(&*cx.bucket, "d/e/k").await;
    for _ in 0..2 {
        cx.bucket.delete("d/e/k").await.unwrap();
        assert_eq!(
            cx.bucket.get("d/e/k", None).await.err().map(|error| error.kind()),
            Some(ErrorKind::NotFound)
        );
    }
    cx.bucket.delete("never/there").await.unwrap();
    assert_eq!(cx.keys("", None).await, Vec::<String>::new());
    assert_eq!(cx.bucket.folders("").await.unwrap(), Vec::<String>::new());
}

const ODD: [&str; 23] = [
    "odd/a b",
    "odd/a%b",
    "odd/a%20b",
    "odd/a%2Fb",
    "odd/a#b",
    "odd/a#1",
    "odd/a#1#",
    "odd/#7",
    "odd/a+b",
    "odd/a&b=c;d,e",
    "odd/what?",
    "odd/*",
    "odd/back\\slash",
    "odd/'quoted\"",
    "odd/<tag>",
    "odd/{c}[d]^|`~",
    "odd/..a",
    "odd/-rf",
    "odd/\u{e4}\u{f6}*",
    "odd/e\u{301}",
    "odd/\u{65e5}\u{672c}/\u{1f980}",
    "odd/C:/D|",
    "odd/TODO:",
];

async fn s14_odd_keys_come_back_as_they_are(cx: Cx) {
    for key in ODD {
        put(&*cx.bucket, key).await;
        assert!(!cx.bucket.create(key, Bytes::new()).await.unwrap(), "{key}");
    }
    for key in ODD {
        assert_eq!(cx.read(key).await, key);
    }
    let mut sorted = ODD;
    sorted.sort_unstable();
    assert_eq!(cx.keys("odd/", None).await, sorted);
    for (at, after) in sorted.iter().enumerate() {
        assert_eq!(cx.keys("odd/", Some(after)).await, sorted[at + 1..], "{after}");
        assert!(cx.keys(after, None).await.contains(&(*after).to_owned()), "{after}");
    }
    assert_eq!(cx.bucket.folders("odd/").await.unwrap(), ["C:", "\u{65e5}\u{672c}"]);
    for key in ODD {
        cx.bucket.delete(key).await.unwrap();
    }
    assert_eq!(cx.keys("", None).await, Vec::<String>::new());
}
