//! The document of the API. It is made from the routes themselves, so that it cannot tell of others.

use crate::routes;
use bytes::Bytes;
use std::{collections::BTreeSet, sync::OnceLock};
use utoipa::openapi::{
    Components, InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder, Paths,
    path::PathItem,
    security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
    tag::{Tag, TagBuilder},
};

const DESCRIPTION: &str = "Sandboxes for agents, and the conversations with them.\n\n\
    Every call but the public ones needs a key: `Authorization: Bearer <key>`. A key has scopes: `read` looks, `run` \
    makes sandboxes and runs things in them, `admin` sees to accounts and keys; each includes those before it.\n\n\
    Errors are `application/problem+json`; `code` is for programs and stays. Every answer has `x-request-id`.\n\n\
    POST, PUT, PATCH and DELETE take an `Idempotency-Key`: a repeat with the same key gets the first answer, with \
    `Idempotent-Replayed: true`. Lists come in pages: `next` of one is `after` of the next.";

const TAGS: [(&str, &str); 12] = [
    ("conversations", "What is durable: prompts and answers, whichever sandbox they are about."),
    ("turns", "One prompt and all that follows from it, as a stream that can be taken up again."),
    ("messages", "What was said."),
    ("sandboxes", "Boxes in which programs run."),
    ("exec", "Commands in a sandbox."),
    ("terminals", "Terminals in a sandbox, over WebSockets."),
    ("files", "Files of a sandbox."),
    ("workspaces", "Files that outlive their sandbox, in versions."),
    ("ports", "Servers that listen in a sandbox."),
    ("wire", "A connection to what runs a sandbox, for the client library."),
    ("accounts", "Accounts, their keys, and what was done with them."),
    ("service", "The server itself."),
];

/// Needs nothing that runs.
pub fn openapi() -> OpenApi {
    let mut document = routes::all(base()).into_openapi();
    // A part of a path that takes the rest is the router's word, not the document's.
    let paths = std::mem::take(&mut document.paths.paths);
    document.paths.paths = paths.into_iter().map(|(path, item)| (path.replace("{*", "{"), item)).collect();
    let mut seen = BTreeSet::new();
    for item in document.paths.paths.values_mut() {
        name_apart(item, &mut seen);
    }
    document
}

/// One handler may be there for several methods; generated clients need a name for each.
fn name_apart(item: &mut PathItem, seen: &mut BTreeSet<String>) {
    let operations = [
        ("get", &mut item.get),
        ("post", &mut item.post),
        ("put", &mut item.put),
        ("patch", &mut item.patch),
        ("delete", &mut item.delete),
        ("head", &mut item.head),
        ("options", &mut item.options),
        ("trace", &mut item.trace),
    ];
    for (method, operation) in operations {
        let Some(id) = operation.as_mut().and_then(|operation| operation.operation_id.as_mut()) else {
            continue;
        };
        if !seen.insert(id.clone()) {
            *id = format!("{id}_{method}");
            seen.insert(id.clone());
        }
    }
}

/// The same as JSON, which never changes while a process lives.
pub fn json() -> Bytes {
    static JSON: OnceLock<Bytes> = OnceLock::new();
    let make = || match serde_json::to_vec_pretty(&openapi()) {
        Ok(json) => Bytes::from(json),
        Err(error) => {
            tracing::error!(%error, "the document of the API is no JSON");
            Bytes::from_static(b"{}")
        }
    };
    JSON.get_or_init(make).clone()
}

fn base() -> OpenApi {
    let license = LicenseBuilder::new().name("Apache-2.0").identifier(Some("Apache-2.0")).build();
    let info = InfoBuilder::new()
        .title("Seawall")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(DESCRIPTION))
        .license(Some(license))
        .build();
    let scheme = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("A key of the server, which `POST /keys` and `seawall keys` make."))
        .build();
    let mut components = Components::new();
    components.add_security_scheme("key", SecurityScheme::Http(scheme));
    OpenApiBuilder::new()
        .info(info)
        .paths(Paths::new())
        .components(Some(components))
        .tags(Some(TAGS.map(|(name, description)| tag(name, description))))
        .build()
}

fn tag(name: &str, description: &str) -> Tag {
    TagBuilder::new().name(name).description(Some(description)).build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn operations(document: &Value) -> Vec<(String, Value)> {
        let methods = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];
        let mut all = Vec::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for method in methods {
                if let Some(operation) = item.get(method) {
                    all.push((format!("{method} {path}"), operation.clone()));
                }
            }
        }
        all
    }

    #[test]
    fn a1_every_operation_is_told_of_properly() {
        let document = serde_json::to_value(openapi()).unwrap();
        let tags: BTreeSet<&str> = TAGS.iter().map(|(name, _)| *name).collect();
        let all = operations(&document);
        assert!(all.len() > 10);
        for (name, operation) in &all {
            assert!(operation["operationId"].is_string(), "{name} has no id");
            assert!(operation["security"].is_array(), "{name} does not say which key it needs");
            let tag = operation["tags"][0].as_str().unwrap_or_default();
            assert!(tags.contains(tag), "{name} has the tag `{tag}`, which is not listed");
            assert!(!name.contains('*'), "{name} is no path of the document");
        }
    }

    #[test]
    fn a1_operations_have_ids_of_their_own() {
        let document = serde_json::to_value(openapi()).unwrap();
        let mut seen = BTreeSet::new();
        for (name, operation) in operations(&document) {
            let id = operation["operationId"].as_str().unwrap().to_owned();
            assert!(seen.insert(id), "{name} has the id of another");
        }
    }

    #[test]
    fn a1_what_is_referred_to_is_there() {
        let text = String::from_utf8(json().to_vec()).unwrap();
        let document: Value = serde_json::from_str(&text).unwrap();
        for part in text.split("\"#/components/schemas/").skip(1) {
            let name = part.split('"').next().unwrap();
            assert!(document["components"]["schemas"][name].is_object(), "there is no schema {name}");
        }
        assert_eq!(document["components"]["securitySchemes"]["key"]["scheme"], "bearer");
    }
}
