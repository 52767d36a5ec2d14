//! Addresses of stores, as people write them. Nothing is opened here, and an address that holds a secret is refused.

use crate::{Error, Result};
use ::url::Url;
use object_store::{ObjectStoreScheme, path::Path};
use std::path::PathBuf;

const KNOWN: &str = "file:///path, s3://bucket/prefix or the bare name of a bucket, gs://bucket/prefix, \
                     az://container/prefix, https://host/path (WebDAV), and memory: to try things";

/// What an address says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    Memory {
        prefix: String,
    },
    Files {
        folder: PathBuf,
    },
    S3(S3Address),
    /// Of a store that is used as `object_store` does it.
    Other {
        scheme: ObjectStoreScheme,
        url: Url,
        prefix: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct S3Address {
    pub bucket: String,
    pub prefix: String,
    pub endpoint: Option<String>,
    pub region: Option<String>,
}

impl Address {
    pub fn parse(text: &str) -> Result<Address> {
        let text = text.trim();
        if text.starts_with('/') {
            return Ok(Address::Files { folder: text.into() });
        }
        match text.contains(':') {
            true => Address::of_url(text),
            // As `S3_BUCKET_AGENT_DOCS` has it.
            false => bare(text).map(Address::S3),
        }
    }

    fn of_url(text: &str) -> Result<Address> {
        let url = Url::parse(text).map_err(|error| {
            Error::invalid(format!("the store's address is none: {error}; known are {KNOWN}"))
        })?;
        check(&url)?;
        match url.scheme() {
            "file" => files(&url),
            "memory" => Ok(Address::Memory { prefix: prefix(url.path())? }),
            "s3" | "s3a" => s3(&url).map(Address::S3),
            "gs" | "http" | "https" => other(url),
            scheme if is_azure(scheme) => other(url),
            scheme => {
                Err(Error::invalid(format!("`{scheme}:` is no store that is known; known are {KNOWN}")))
            }
        }
    }
}

fn is_azure(scheme: &str) -> bool {
    matches!(scheme, "az" | "adl" | "azure" | "abfs" | "abfss")
}

/// An address is shown in messages and in logs.
fn check(url: &Url) -> Result<()> {
    // What stands before the @ is a container there.
    let user = !url.username().is_empty() && !is_azure(url.scheme());
    if user || url.password().is_some() {
        return Err(Error::invalid("a store's address holds no credentials; put them into the environment"));
    }
    match url.fragment() {
        Some(_) => Err(Error::invalid("the store's address has a #; write %23 where that is part of a name")),
        None => Ok(()),
    }
}

fn files(url: &Url) -> Result<Address> {
    match url.to_file_path() {
        Ok(folder) if url.query().is_none() => Ok(Address::Files { folder }),
        _ => Err(Error::invalid(format!("{url} names no folder; write file:///path, and %3F for a ?"))),
    }
}

fn bare(text: &str) -> Result<S3Address> {
    let (bucket, path) = text.split_once('/').unwrap_or((text, ""));
    check_bucket(bucket)?;
    let prefix = path.trim_matches('/').to_owned();
    Ok(S3Address { bucket: bucket.to_owned(), prefix, ..S3Address::default() })
}

fn s3(url: &Url) -> Result<S3Address> {
    let bucket = url.host_str().unwrap_or_default();
    check_bucket(bucket)?;
    if url.port().is_some() {
        let why = "s3://bucket has no port; name the server by s3://bucket/prefix?endpoint=http://host:port";
        return Err(Error::invalid(why));
    }
    let prefix = prefix(url.path())?;
    let mut address = S3Address { bucket: bucket.to_owned(), prefix, ..S3Address::default() };
    for (name, value) in url.query_pairs() {
        let value = Some(value.into_owned()).filter(|value| !value.is_empty());
        match &*name {
            "endpoint" => address.endpoint = value,
            "region" => address.region = value,
            name => {
                let why = format!("`{name}` is no setting of s3://bucket; known are endpoint and region");
                return Err(Error::invalid(why));
            }
        }
    }
    Ok(address)
}

fn check_bucket(name: &str) -> Result<()> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    match (3..=255).contains(&name.len()) && name.bytes().all(fits) {
        true => Ok(()),
        false => Err(Error::invalid(format!("{name:?} is no name of a bucket; known are {KNOWN}"))),
    }
}

fn other(url: Url) -> Result<Address> {
    if url.query().is_some() {
        return Err(Error::invalid("such a store's address has no ?; settings come from the environment"));
    }
    let (scheme, path) = ObjectStoreScheme::parse(&url).map_err(|error| {
        Error::invalid(format!("{url} is no address of a store: {error}")).with_source(error)
    })?;
    if scheme == ObjectStoreScheme::AmazonS3 {
        return Err(Error::invalid(format!("write {url} as s3://bucket/prefix?endpoint=https://host")));
    }
    Ok(Address::Other { scheme, prefix: path.into(), url })
}

/// A prefix as it stands in an address, with its escapes undone.
fn prefix(path: &str) -> Result<String> {
    let path = Path::from_url_path(path)
        .map_err(|error| Error::invalid(format!("the prefix cannot be used: {error}")).with_source(error))?;
    Ok(path.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s3(bucket: &str, prefix: &str) -> Address {
        let (bucket, prefix) = (bucket.to_owned(), prefix.to_owned());
        Address::S3(S3Address { bucket, prefix, ..S3Address::default() })
    }

    #[test]
    fn addresses_as_people_write_them() {
        for (text, address) in [
            ("agent-docs", s3("agent-docs", "")),
            ("agent-docs/a/b/", s3("agent-docs", "a/b")),
            (" s3://agent-docs ", s3("agent-docs", "")),
            ("s3a://Agent_Docs/a%20b/c d/", s3("Agent_Docs", "a b/c d")),
            ("memory:", Address::Memory { prefix: String::new() }),
            ("memory:///x/y", Address::Memory { prefix: "x/y".into() }),
            ("file:///var/lib/a%23b", Address::Files { folder: "/var/lib/a#b".into() }),
            ("/var/lib/x", Address::Files { folder: "/var/lib/x".into() }),
        ] {
            assert_eq!(Address::parse(text).unwrap(), address, "{text}");
        }
    }

    #[test]
    fn an_address_may_name_the_server() {
        let address = Address::parse("s3://docs/p?endpoint=http://127.0.0.1:9000&region=garage").unwrap();
        let Address::S3(address) = address else { panic!("{address:?}") };
        assert_eq!(address.endpoint.as_deref(), Some("http://127.0.0.1:9000"));
        assert_eq!(address.region.as_deref(), Some("garage"));
        assert_eq!(address.prefix, "p");
    }

    #[test]
    fn clouds_are_left_to_the_library() {
        for (text, prefix) in [
            ("gs://bucket/a/b", "a/b"),
            ("az://container/a", "a"),
            ("abfs://container@account/a", "a"),
            ("https://example.com/dav/x", "dav/x"),
            ("https://account.blob.core.windows.net/container/a", "a"),
        ] {
            match Address::parse(text).unwrap() {
                Address::Other { prefix: found, .. } => assert_eq!(found, prefix, "{text}"),
                found => panic!("{text}: {found:?}"),
            }
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_without_telling_secrets() {
        for bad in [
            "",
            "a",
            "two words",
            "ftp://host/x",
            "s3://",
            "s3://bucket:9000/x",
            "s3://bucket/x?secret=hush",
            "s3://key:hush@bucket/x",
            "s3://bucket/a//b",
            "file://host/x",
            "file:///a#b",
            "file:///a?b",
            "az://container/a?sig=hush",
            "https://user:hush@host/x",
            "https://bucket.s3.eu-west-1.amazonaws.com/x",
        ] {
            let error = Address::parse(bad).expect_err(bad);
            assert!(!error.to_string().contains("hush"), "{error}");
        }
    }
}
