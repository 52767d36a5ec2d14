//! The object stores behind [`Bucket`](crate::bucket::Bucket): files, S3, and whatever else `object_store` speaks to.
//!
//! Invariant: a store is named by an address that holds no secret, and no secret gets from here into a message, a
//! log or a `Debug`.

mod failure;
mod files;
mod identity;
mod object;
mod other;
mod profile;
mod s3;
mod upload;
mod url;

pub use object::ObjectBucket;

use self::url::Address;
use crate::{
    Error, Result,
    bucket::{MemoryBucket, Scoped, SharedBucket},
};
use object_store::{BackoffConfig, ClientOptions, RetryConfig};
use std::{path::PathBuf, sync::Arc, time::Duration};

/// The environment, or what a test says instead of it.
type Vars<'a> = &'a dyn Fn(&str) -> Option<String>;

/// What is left to do once address and variables are read.
enum Plan {
    Memory { prefix: String },
    Files { folder: PathBuf },
    S3(Box<s3::Settings>),
    Other(ObjectBucket),
}

/// Whether an address is one, as far as that can be known before it is used.
pub fn check(address: &str) -> Result<()> {
    Address::parse(address).map(drop)
}

/// The folder that an address names; none where it names another kind of store, or is no address.
pub fn folder(address: &str) -> Option<PathBuf> {
    match Address::parse(address) {
        Ok(Address::Files { folder }) => Some(folder),
        _ => None,
    }
}

/// Opens the store at an address: `file:///path`, `s3://bucket/prefix` or a bucket's bare name, `gs:`, `az:`, `http:`,
/// `memory:`. The variables are read at once; the future does not need them, and may go to another thread.
pub fn open(
    url: &str,
    vars: &dyn Fn(&str) -> Option<String>,
) -> impl Future<Output = Result<SharedBucket>> + Send + use<> {
    let plan = plan(url, vars);
    async move { made(plan?).await }
}

fn plan(url: &str, vars: Vars<'_>) -> Result<Plan> {
    Ok(match Address::parse(url)? {
        Address::Memory { prefix } => Plan::Memory { prefix },
        Address::Files { folder } => Plan::Files { folder },
        Address::S3(address) => Plan::S3(Box::new(s3::Settings::of(address, vars)?)),
        Address::Other { scheme, url, prefix } => Plan::Other(other::open(&scheme, &url, &prefix, vars)?),
    })
}

async fn made(plan: Plan) -> Result<SharedBucket> {
    match plan {
        Plan::Memory { prefix } => scoped(Arc::new(MemoryBucket::default()), &prefix),
        Plan::Files { folder } => Ok(Arc::new(files::open(folder).await?)),
        Plan::S3(settings) => {
            let prefix = settings.prefix().to_owned();
            scoped(Arc::new(settings.open().await?), &prefix)
        }
        Plan::Other(bucket) => Ok(Arc::new(bucket)),
    }
}

fn scoped(bucket: SharedBucket, prefix: &str) -> Result<SharedBucket> {
    match prefix.is_empty() {
        true => Ok(bucket),
        false => Ok(Arc::new(Scoped::new(bucket, prefix)?)),
    }
}

/// A variable that says something.
fn var(vars: Vars<'_>, name: &str) -> Option<String> {
    vars(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// A variable that says yes or no.
fn flag(vars: Vars<'_>, name: &str) -> Result<Option<bool>> {
    let Some(value) = var(vars, name) else { return Ok(None) };
    match value.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Ok(Some(true)),
        "false" | "0" | "no" | "off" => Ok(Some(false)),
        _ => Err(Error::invalid(format!("{name} is neither true nor false"))),
    }
}

/// Few and short: [`crate::retry`] tries again above them, and knows what may be repeated.
fn retries() -> RetryConfig {
    let backoff = BackoffConfig {
        init_backoff: Duration::from_millis(50),
        max_backoff: Duration::from_secs(1),
        base: 2.0,
    };
    RetryConfig { backoff, max_retries: 2, retry_timeout: Duration::from_secs(10) }
}

/// A request may take as long as bytes flow; [`object`] and [`upload`] see to it that they do.
fn client(allow_http: bool) -> ClientOptions {
    ClientOptions::new()
        .with_timeout_disabled()
        .with_connect_timeout(Duration::from_secs(10))
        .with_allow_http(allow_http)
}

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_api::ErrorKind;

    fn no_vars(_: &str) -> Option<String> {
        None
    }

    #[tokio::test]
    async fn a_prefix_of_the_address_is_kept() {
        let bucket = open("memory:/docs/a", &no_vars).await.unwrap();
        assert_eq!(bucket.place(), "memory:/docs/a");
    }

    #[tokio::test]
    async fn files_are_private_and_the_folder_is_made() {
        use std::os::unix::fs::PermissionsExt;
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary.path().join("a b/c");
        let url = ::url::Url::from_directory_path(&folder).unwrap();
        let bucket = open(url.as_str(), &no_vars).await.unwrap();
        assert_eq!(bucket.place(), format!("file://{}", folder.canonicalize().unwrap().display()));
        for made in [folder, temporary.path().join("a b")] {
            assert_eq!(made.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        }
    }

    #[tokio::test]
    async fn a_store_that_nobody_knows_is_refused_with_a_list() {
        let error = open("ftp://host/x", &no_vars).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        for known in ["file:///path", "s3://bucket/prefix", "gs://", "az://", "memory:"] {
            assert!(error.to_string().contains(known), "{error}");
        }
    }

    #[tokio::test]
    async fn s10_without_credentials_s3_fails_at_once_and_says_what_to_do() {
        let vars = |name: &str| (name == "AWS_EC2_METADATA_DISABLED").then(|| "true".to_owned());
        let error = open("s3://a-bucket/docs", &vars).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        for word in ["s3://a-bucket", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "~/.aws/credentials"] {
            assert!(error.to_string().contains(word), "{error}");
        }
    }

    #[tokio::test]
    async fn secrets_are_not_shown() {
        let vars = |name: &str| match name {
            "AWS_ACCESS_KEY_ID" => Some("AKIAEXAMPLE".to_owned()),
            "AWS_SECRET_ACCESS_KEY" => Some("topsecret".to_owned()),
            "AWS_SESSION_TOKEN" => Some("sesame".to_owned()),
            _ => None,
        };
        let shown = format!("{:?}", open("s3://a-bucket/docs", &vars).await.unwrap());
        assert!(!shown.contains("topsecret") && !shown.contains("sesame"), "{shown}");
        assert!(shown.contains("s3://a-bucket"), "{shown}");
    }

    #[test]
    fn opening_may_go_to_another_thread() {
        fn is_send(_: impl Send) {}
        is_send(open("memory:", &no_vars));
    }
}
