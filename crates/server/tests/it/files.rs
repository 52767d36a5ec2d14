//! Files of sandboxes over HTTP: the real router on the real core, with boxes of the mock provider.

use crate::world::{World, ask, text};
use axum::{
    body::Body,
    http::{StatusCode, header::CONTENT_LENGTH},
    response::Response,
};
use serde_json::{Value, json};
use std::io;

/// A sandbox of A that runs, as the beginning of its paths.
async fn made(world: &World) -> String {
    let (status, sandbox) = world.json("POST", "/sandboxes", &world.mine, Some(json!({}))).await;
    assert_eq!(status, StatusCode::CREATED, "{sandbox}");
    format!("/sandboxes/{}", sandbox["id"].as_str().unwrap())
}

async fn put(world: &World, path: &str, body: impl Into<Body>) -> Response {
    world.call(ask("PUT", path, &world.mine).body(body.into()).unwrap()).await
}

async fn write(world: &World, one: &str, file: &str, body: &'static str) -> Value {
    let response = put(world, &format!("{one}/content?path={file}"), body).await;
    assert_eq!(response.status(), StatusCode::OK, "{file}");
    serde_json::from_str(&text(response).await).unwrap()
}

async fn read(world: &World, one: &str, file: &str) -> String {
    let response = world.request("GET", &format!("{one}/content?path={file}"), &world.mine, None).await;
    assert_eq!(response.status(), StatusCode::OK, "{file}");
    text(response).await
}

/// A GET with a header of its own: the status, a header of the answer, the body.
async fn asked(world: &World, path: &str, header: (&str, &str), told: &str) -> (u16, String, String) {
    let response = world.send(ask("GET", path, &world.mine).header(header.0, header.1), None).await;
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let told = headers.get(told).map_or("", |value| value.to_str().unwrap()).to_owned();
    (status, told, text(response).await)
}

async fn refused(world: &World, method: &str, path: &str, body: Option<Value>) -> (u16, String) {
    let (status, problem) = world.json(method, path, &world.mine, body).await;
    (status.as_u16(), problem["code"].as_str().unwrap_or_default().to_owned())
}

fn paths(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn v4_files_are_written_and_read() {
    let world = World::new().await;
    let one = made(&world).await;
    let told = write(&world, &one, "src/main.rs", "fn main() {}").await;
    assert_eq!((&told["path"], &told["name"]), (&json!("/work/src/main.rs"), &json!("main.rs")));
    assert_eq!((&told["kind"], &told["size"]), (&json!("file"), &json!(12)));
    assert_eq!(read(&world, &one, "/work/src/main.rs").await, "fn main() {}");
    write(&world, &one, "src/main.rs", "").await;
    assert_eq!(read(&world, &one, "src/main.rs").await, "");
    let executable = put(&world, &format!("{one}/content?path=run&mode=0755"), "#!").await;
    let told: Value = serde_json::from_str(&text(executable).await).unwrap();
    assert_eq!(told["mode"], 0o755);
}

#[tokio::test(start_paused = true)]
async fn v4_a_body_that_announces_its_length_is_the_same() {
    let world = World::new().await;
    let one = made(&world).await;
    for (length, fill) in [(3, "abc"), (5, "12345")] {
        let request =
            ask("PUT", &format!("{one}/content?path=x"), &world.mine).header(CONTENT_LENGTH, length);
        assert_eq!(world.call(request.body(Body::from(fill)).unwrap()).await.status(), StatusCode::OK);
        assert_eq!(read(&world, &one, "x").await, fill);
    }
}

#[tokio::test(start_paused = true)]
async fn v4_a_body_that_breaks_off_replaces_nothing() {
    let world = World::new().await;
    let one = made(&world).await;
    write(&world, &one, "x", "old").await;
    for length in [None, Some("1000")] {
        let parts = [Ok("new"), Err(io::Error::other("the client went"))];
        let body = Body::from_stream(futures::stream::iter(parts));
        let mut request = ask("PUT", &format!("{one}/content?path=x"), &world.mine);
        if let Some(length) = length {
            request = request.header(CONTENT_LENGTH, length);
        }
        let response = world.call(request.body(body).unwrap()).await;
        assert_eq!(response.status(), StatusCode::BAD_REQUEST);
        assert_eq!(read(&world, &one, "x").await, "old");
    }
}

#[tokio::test(start_paused = true)]
async fn v4_what_is_too_large_is_refused() {
    let world = World::new().await;
    let one = made(&world).await;
    let path = format!("{one}/content?path=x&max_size=3");
    assert_eq!(put(&world, &path, "abc").await.status(), StatusCode::OK);
    assert_eq!(put(&world, &path, "abcd").await.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(read(&world, &one, "x").await, "abc");
    let least = format!("{one}/content?path=x&max_size=2");
    assert_eq!(refused(&world, "GET", &least, None).await, (413, "too_large".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn v4_a_part_of_a_file_is_read() {
    let world = World::new().await;
    let one = made(&world).await;
    write(&world, &one, "x", "0123456789").await;
    let path = format!("{one}/content?path=x");
    for (range, place, body) in [
        ("bytes=2-4", "bytes 2-4/10", "234"),
        ("bytes=7-", "bytes 7-9/10", "789"),
        ("bytes=-2", "bytes 8-9/10", "89"),
        ("bytes=0-99", "bytes 0-9/10", "0123456789"),
    ] {
        let told = asked(&world, &path, ("range", range), "content-range").await;
        assert_eq!(told, (206, place.to_owned(), body.to_owned()), "{range}");
    }
    let (status, place, _) = asked(&world, &path, ("range", "bytes=10-"), "content-range").await;
    assert_eq!((status, place.as_str()), (416, "bytes */10"));
    let several = asked(&world, &path, ("range", "bytes=0-1,3-4"), "content-range").await;
    assert_eq!(several, (200, String::new(), "0123456789".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn v4_who_has_it_is_told_so() {
    let world = World::new().await;
    let one = made(&world).await;
    write(&world, &one, "x", "first").await;
    let path = format!("{one}/content?path=x");
    let (_, tag, _) = asked(&world, &path, ("accept", "*/*"), "etag").await;
    assert!(tag.starts_with('"') && tag.ends_with('"'), "{tag}");
    let told = asked(&world, &path, ("if-none-match", tag.as_str()), "etag").await;
    assert_eq!(told, (304, tag.clone(), String::new()));
    let head = world.request("HEAD", &path, &world.mine, None).await;
    assert_eq!(head.status(), StatusCode::OK);
    let header = |name: &str| head.headers()[name].to_str().unwrap().to_owned();
    assert_eq!((header("etag"), header("content-length")), (tag.clone(), "5".to_owned()));
    assert_eq!(
        (header("accept-ranges"), header("x-content-type-options")),
        ("bytes".into(), "nosniff".into())
    );
    assert_eq!(header("content-type"), "application/octet-stream");
    assert_eq!(text(head).await, "");
    write(&world, &one, "x", "second").await;
    let (status, other, body) = asked(&world, &path, ("if-none-match", tag.as_str()), "etag").await;
    assert_eq!((status, body.as_str()), (200, "second"));
    assert_ne!(other, tag);
}

#[tokio::test(start_paused = true)]
async fn v4_listings_come_in_pages_and_filtered() {
    let world = World::new().await;
    let one = made(&world).await;
    for file in ["a.rs", "b.txt", "d/c.rs", "d/e/f.rs", ".hidden"] {
        write(&world, &one, file, "x").await;
    }
    let list = async |query: &str| world.get(&format!("{one}/files?{query}")).await;
    assert_eq!(paths(&list("path=d").await), ["/work/d/c.rs", "/work/d/e"]);
    assert_eq!(paths(&list("pattern=*.rs&depth=3").await), ["/work/a.rs", "/work/d/c.rs", "/work/d/e/f.rs"]);
    assert_eq!(paths(&list("kind=directory&depth=3").await), ["/work/d", "/work/d/e"]);
    assert_eq!(paths(&list("hidden=false").await), ["/work/a.rs", "/work/b.txt", "/work/d"]);
    let first = list("limit=2").await;
    assert_eq!(first["items"].as_array().unwrap().len(), 2);
    let after = first["next"].as_str().unwrap();
    let second = list(&format!("limit=2&after={after}")).await;
    assert_eq!(second["items"].as_array().unwrap().len(), 2);
    assert_eq!(second.get("next"), None);
    let many = refused(&world, "GET", &format!("{one}/files?limit=1001"), None).await;
    assert_eq!(many.0, 400);
}

#[tokio::test(start_paused = true)]
async fn v4_trees_have_the_users_paths() {
    let world = World::new().await;
    let one = made(&world).await;
    write(&world, &one, "d/e/f", "x").await;
    let tree = world.get(&format!("{one}/tree?path=d")).await;
    assert_eq!((&tree["root"]["path"], &tree["truncated"]), (&json!("/work/d"), &json!(false)));
    let below = &tree["root"]["children"][0];
    assert_eq!((&below["path"], &below["children"][0]["path"]), (&json!("/work/d/e"), &json!("/work/d/e/f")));
    let flat = world.get(&format!("{one}/tree?path=d&depth=1")).await;
    assert_eq!(flat["root"]["children"][0].get("children"), None);
}

#[tokio::test(start_paused = true)]
async fn v4_directories_are_made_moved_and_removed() {
    let world = World::new().await;
    let one = made(&world).await;
    let ask = Some(json!({"path": "a/b"}));
    let (status, made) = world.json("POST", &format!("{one}/directories"), &world.mine, ask).await;
    assert_eq!((status, &made["kind"]), (StatusCode::CREATED, &json!("directory")));
    write(&world, &one, "a/b/x", "1").await;
    write(&world, &one, "a/y", "2").await;
    let moving = |overwrite: bool| Some(json!({"from": "a/b/x", "to": "a/y", "overwrite": overwrite}));
    let path = format!("{one}/move");
    assert_eq!(refused(&world, "POST", &path, moving(false)).await, (409, "already_exists".to_owned()));
    assert_eq!(world.json("POST", &path, &world.mine, moving(true)).await.0, StatusCode::NO_CONTENT);
    assert_eq!(read(&world, &one, "a/y").await, "1");
    assert_eq!(refused(&world, "DELETE", &format!("{one}/files?path=a"), None).await.0, 409);
    let all = format!("{one}/files?path=a&recursive=true");
    assert_eq!(world.json("DELETE", &all, &world.mine, None).await.0, StatusCode::NO_CONTENT);
    assert_eq!(refused(&world, "DELETE", &all, None).await, (404, "not_found".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn v4_what_cannot_be_read_or_written_says_why() {
    let world = World::new().await;
    let one = made(&world).await;
    write(&world, &one, "x", "1").await;
    let content = |query: &str| format!("{one}/content?{query}");
    assert_eq!(refused(&world, "GET", &content("path=nowhere"), None).await, (404, "not_found".to_owned()));
    assert_eq!(refused(&world, "GET", &content("path=."), None).await.0, 400);
    assert_eq!(refused(&world, "GET", &content(""), None).await, (400, "invalid_query".to_owned()));
    assert_eq!(refused(&world, "GET", &content("path=x&source=moon"), None).await.0, 400);
    assert_eq!(
        refused(&world, "PUT", &content("path=y&mode=rwx"), None).await,
        (400, "invalid_mode".to_owned())
    );
    assert_eq!(refused(&world, "PUT", &content("path=y&mode=17777"), None).await.0, 400);
    assert_eq!(put(&world, &content("path=x/y"), "2").await.status(), StatusCode::BAD_REQUEST);
    assert_eq!(put(&world, &content("path=no/y&parents=false"), "2").await.status(), StatusCode::NOT_FOUND);
    let head = world.request("HEAD", &content("path=."), &world.mine, None).await;
    assert_eq!(head.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test(start_paused = true)]
async fn v4_sources_are_where_a_path_begins() {
    let world = World::new().await;
    let one = made(&world).await;
    write(&world, &one, "/home/own", "home").await;
    write(&world, &one, "own", "work").await;
    for (source, body) in [("home_dir", "home"), ("working_dir", "work"), ("box", "work")] {
        let path = format!("{one}/content?path=own&source={source}");
        assert_eq!(text(world.request("GET", &path, &world.mine, None).await).await, body, "{source}");
    }
}
