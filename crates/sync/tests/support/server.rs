//! The S3 server of the tests: `SEAWALL_TEST_S3`, an address like `http://127.0.0.1:5000`. It takes any credentials, and
//! lets a bucket be made without them, as moto does. Each test has a bucket of its own.
#![allow(dead_code, reason = "each test program uses its part of it")]

use seawall_sync::{Result, bucket::SharedBucket, stores};
use std::{
    io::Write,
    net::{SocketAddr, ToSocketAddrs},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

pub const MISSING: &str = "no S3: SEAWALL_TEST_S3 is not set (`make test` starts moto's)";

/// A test that cannot run fails.
pub fn is_required() -> bool {
    std::env::var("SEAWALL_TEST_REQUIRE").is_ok_and(|what| what == "all")
}

pub fn address() -> Option<SocketAddr> {
    let text = std::env::var("SEAWALL_TEST_S3").ok()?;
    let host = text.trim_start_matches("http://").trim_end_matches('/');
    host.to_socket_addrs().unwrap().next()
}

/// The server, or the word that there is none.
pub fn or_skip(name: &str) -> Option<SocketAddr> {
    let found = address();
    if found.is_none() {
        assert!(!is_required(), "{MISSING}");
        // Not captured, so that it is counted.
        let _ = writeln!(std::io::stderr(), "skipped s3::{name}: {MISSING}");
    }
    found
}

pub async fn make_bucket(server: SocketAddr) -> String {
    let name = format!("seawall-{}", uuid::Uuid::new_v4().simple());
    let reply = request(server, &format!("PUT /{name}")).await;
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    name
}

/// What the server answers to a request without a body.
pub async fn request(server: SocketAddr, line: &str) -> String {
    let mut stream = TcpStream::connect(server).await.unwrap();
    let head = format!("{line} HTTP/1.1\r\nHost: {server}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).await.unwrap();
    String::from_utf8_lossy(&reply).into_owned()
}

/// A bucket, or a part of it, on the server at an address.
pub async fn open(endpoint: &str, bucket: &str) -> Result<SharedBucket> {
    let vars = |name: &str| match name {
        "AWS_ACCESS_KEY_ID" | "AWS_SECRET_ACCESS_KEY" => Some("test".to_owned()),
        _ => None,
    };
    stores::open(&format!("s3://{bucket}?endpoint={endpoint}"), &vars).await
}
