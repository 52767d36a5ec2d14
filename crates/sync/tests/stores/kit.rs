//! What a case gets: a fresh bucket, and a look behind it.

use crate::{
    proxy::{Fault, Options, Proxy},
    server,
};
use bytes::Bytes;
use futures::future::BoxFuture;
use seawall_sync::{
    bucket::{self, Bucket, MemoryBucket, SharedBucket},
    stores,
};
use std::{fs, net::SocketAddr, path::Path, sync::Arc};

/// Names functions as cases.
macro_rules! cases {
    ($($name:ident;)+) => {
        pub fn cases() -> Vec<$crate::stores::kit::Case> {
            vec![$($crate::stores::kit::Case {
                name: stringify!($name),
                run: |cx| Box::pin($name(cx)),
            }),+]
        }
    };
}

pub(crate) use cases;

#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    pub run: fn(Cx) -> BoxFuture<'static, ()>,
}

/// A kind of bucket, and how a fresh one is made for each case.
#[derive(Clone, Copy)]
pub struct Store {
    pub name: &'static str,
    /// Why it cannot be used here.
    pub missing: Option<&'static str>,
    pub make: fn() -> BoxFuture<'static, Cx>,
}

impl Store {
    pub fn all() -> [Store; 3] {
        let missing = server::address().is_none().then_some(server::MISSING);
        [
            Store { name: "memory", missing: None, make: || Box::pin(memory()) },
            Store { name: "files", missing: None, make: || Box::pin(files()) },
            Store { name: "s3", missing, make: || Box::pin(s3()) },
        ]
    }
}

pub struct Cx {
    pub bucket: SharedBucket,
    folder: Option<tempfile::TempDir>,
    server: Option<(SocketAddr, String)>,
}

async fn memory() -> Cx {
    Cx { bucket: Arc::new(MemoryBucket::default()), folder: None, server: None }
}

/// A folder in memory, where there is one: to sync a disk so often takes minutes.
async fn files() -> Cx {
    let folder = match Path::new("/dev/shm").is_dir() {
        true => tempfile::tempdir_in("/dev/shm").unwrap(),
        false => tempfile::tempdir().unwrap(),
    };
    let url = format!("file://{}/a%20store", folder.path().display());
    let bucket = stores::open(&url, &|_: &str| None).await.unwrap();
    Cx { bucket, folder: Some(folder), server: None }
}

/// Beneath a prefix, as workspaces are.
async fn s3() -> Cx {
    let server = server::address().unwrap();
    let name = server::make_bucket(server).await;
    let bucket = server::open(&format!("http://{server}"), &format!("{name}/some/where")).await.unwrap();
    Cx { bucket, folder: None, server: Some((server, name)) }
}

impl Cx {
    pub async fn read(&self, key: &str) -> Bytes {
        bucket::read(&*self.bucket, key, u64::MAX).await.unwrap()
    }

    pub async fn keys(&self, prefix: &str, after: Option<&str>) -> Vec<String> {
        let listed = self.bucket.list(prefix, after).await.unwrap();
        listed.into_iter().map(|object| object.key).collect()
    }

    /// The same bucket. moto looks and stores in two steps: only one request at a time may be there.
    pub async fn one_at_a_time(&self) -> (SharedBucket, Option<Proxy>) {
        let Some((server, name)) = &self.server else { return (self.bucket.clone(), None) };
        let options = Options { serial: true, ..Options::default() };
        let proxy = Proxy::with(*server, options, |_, _| Fault::Pass).await;
        let bucket = server::open(&proxy.endpoint(), &format!("{name}/some/where")).await.unwrap();
        (bucket, Some(proxy))
    }

    /// What the bucket has beside its objects: half-written files, parts without an object.
    pub async fn leftovers(&self) -> Vec<String> {
        if let Some(folder) = &self.folder {
            let mut files = Vec::new();
            walk(folder.path(), &mut files);
            return files.into_iter().filter(|name| name.contains('#')).collect();
        }
        let Some((server, name)) = &self.server else { return Vec::new() };
        let reply = server::request(*server, &format!("GET /{name}?uploads")).await;
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
        reply.split("<Upload>").skip(1).map(str::to_owned).collect()
    }
}

fn walk(folder: &Path, files: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => walk(&path, files),
            false => files.push(path.display().to_string()),
        }
    }
}

pub async fn put(bucket: &dyn Bucket, key: &str) {
    bucket.put(key, Bytes::from(key.to_owned())).await.unwrap();
}
