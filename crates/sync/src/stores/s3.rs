//! S3, by Amazon and by others. A bucket is asked only when it is known who asks.

use super::{
    Vars,
    failure::About,
    flag,
    identity::{Chosen, Identity, denied},
    object::ObjectBucket,
    url::S3Address,
    var,
};
use crate::{Error, Result};
use ::url::{Host, ParseError, Url};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use std::sync::Arc;

/// Variables that are handed on as they are.
const OPTIONS: [&str; 16] = [
    "AWS_CHECKSUM_ALGORITHM",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_ENDPOINT_URL_STS",
    "AWS_IMDSV1_FALLBACK",
    "AWS_PROXY_URL",
    "AWS_REQUEST_PAYER",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_SERVER_SIDE_ENCRYPTION",
    "AWS_SSE_BUCKET_KEY_ENABLED",
    "AWS_SSE_CUSTOMER_KEY_BASE64",
    "AWS_SSE_KMS_KEY_ID",
    "AWS_UNSIGNED_PAYLOAD",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
];

/// All that leads to a bucket.
pub struct Settings {
    address: S3Address,
    region: String,
    endpoint: Option<Url>,
    /// The bucket is part of the host's name, and not of the path.
    is_virtual: bool,
    identity: Option<Identity>,
    options: Vec<(AmazonS3ConfigKey, String)>,
}

impl Settings {
    pub fn of(address: S3Address, vars: Vars<'_>) -> Result<Settings> {
        let chosen = Chosen::read(vars);
        let of_profile = |name: &str| chosen.as_ref().ok().and_then(|chosen| chosen.get(name));
        let region = address.region.clone().or_else(|| var(vars, "AWS_REGION"));
        let region = region.or_else(|| var(vars, "AWS_DEFAULT_REGION")).or_else(|| of_profile("region"));
        let endpoint = address.endpoint.clone().or_else(|| var(vars, "AWS_ENDPOINT_URL_S3"));
        let endpoint =
            endpoint.or_else(|| var(vars, "AWS_ENDPOINT_URL")).or_else(|| of_profile("endpoint_url"));
        let endpoint = endpoint.map(|text| server(&text)).transpose()?;
        let is_virtual = is_virtual(&address.bucket, endpoint.as_ref(), vars)?;
        let identity = Identity::find(vars, chosen)?;
        let region = region.unwrap_or_else(|| "us-east-1".to_owned());
        Ok(Settings { address, region, endpoint, is_virtual, identity, options: options(vars)? })
    }

    pub fn prefix(&self) -> &str {
        &self.address.prefix
    }

    /// Unique: other servers have buckets of the same name.
    fn place(&self) -> String {
        match &self.endpoint {
            Some(endpoint) => format!("{}/{}", base(endpoint), self.address.bucket),
            None => format!("s3://{}", self.address.bucket),
        }
    }

    pub async fn open(self) -> Result<ObjectBucket> {
        let place = self.place();
        let Some(identity) = &self.identity else { return Err(nobody(&place)) };
        if !identity.is_there().await {
            return Err(nobody(&place));
        }
        let built = self.builder(identity)?.build();
        let store = built.map_err(|error| {
            Error::invalid(format!("{place} cannot be opened: {error}")).with_source(error)
        })?;
        let about = About { place, access: Some(identity.origin()) };
        Ok(ObjectBucket::new(Arc::new(store), about))
    }

    fn builder(&self, identity: &Identity) -> Result<AmazonS3Builder> {
        let allow_http = self.endpoint.as_ref().is_some_and(|endpoint| endpoint.scheme() == "http");
        // Nobody needs certificates to speak without TLS, and reading them takes longer than a sync.
        let plain = allow_http && matches!(self.identity, Some(Identity::Keys(_)) | Some(Identity::Nobody));
        let client = super::client(allow_http).with_no_system_certificates(plain);
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(self.address.bucket.as_str())
            .with_region(self.region.as_str())
            .with_virtual_hosted_style_request(self.is_virtual)
            // A commit rests on it.
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            // One key at a time, which every server understands.
            .with_disable_bulk_delete(true)
            .with_retry(super::retries())
            .with_client_options(client);
        for (key, value) in &self.options {
            builder = builder.with_config(*key, value.as_str());
        }
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_endpoint(self.host(endpoint)?);
        }
        Ok(match identity {
            Identity::Keys(keys) => {
                let builder =
                    builder.with_access_key_id(keys.id.as_str()).with_secret_access_key(keys.secret.as_str());
                match &keys.token {
                    Some(token) => builder.with_token(token.as_str()),
                    None => builder,
                }
            }
            Identity::Variables(_) => builder,
            Identity::Instance(service) => {
                builder.with_config(AmazonS3ConfigKey::MetadataEndpoint, base(service))
            }
            Identity::Nobody => builder.with_skip_signature(true),
        })
    }

    /// The server's address, with the bucket in the host's name where it belongs there.
    fn host(&self, endpoint: &Url) -> Result<String> {
        let bucket = &self.address.bucket;
        if !self.is_virtual {
            return Ok(base(endpoint).to_owned());
        }
        let Some(Host::Domain(host)) = endpoint.host() else {
            let why =
                "the bucket cannot be put before an address of numbers; set AWS_S3_FORCE_PATH_STYLE=true";
            return Err(Error::invalid(why));
        };
        let mut moved = endpoint.clone();
        if !host.starts_with(&format!("{bucket}.")) {
            let host = format!("{bucket}.{host}");
            let unfit =
                |error: ParseError| Error::invalid(format!("{host} is no name of a host")).with_source(error);
            moved.set_host(Some(&host)).map_err(unfit)?;
        }
        Ok(base(&moved).to_owned())
    }
}

fn nobody(place: &str) -> Error {
    denied(format!(
        "there are no credentials for {place}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write a profile \
         into ~/.aws/credentials (AWS_PROFILE names one that is not called default), or give this machine a role"
    ))
}

/// Without the slash at its end.
fn base(url: &Url) -> &str {
    url.as_str().trim_end_matches('/')
}

fn server(text: &str) -> Result<Url> {
    let unfit = |why: &str| {
        Error::invalid(format!(
            "the address of the S3 server {why}; write it as https://host or http://host:port"
        ))
    };
    let url = Url::parse(text).map_err(|error| unfit("cannot be read").with_source(error))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(unfit("holds no credentials"));
    }
    if !matches!(url.scheme(), "http" | "https") || url.query().is_some() || url.fragment().is_some() {
        return Err(unfit("has a scheme or an end that it cannot have"));
    }
    let local = match url.host() {
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    };
    if url.scheme() == "http" && !local {
        tracing::warn!(endpoint = base(&url), "what goes to this S3 server is not encrypted");
    }
    Ok(url)
}

/// Whether the bucket goes into the host's name. Servers of one's own seldom have names for that.
fn is_virtual(bucket: &str, endpoint: Option<&Url>, vars: Vars<'_>) -> Result<bool> {
    if let Some(by_path) = flag(vars, "AWS_S3_FORCE_PATH_STYLE")? {
        return Ok(!by_path);
    }
    if let Some(is_virtual) = flag(vars, "AWS_VIRTUAL_HOSTED_STYLE_REQUEST")? {
        return Ok(is_virtual);
    }
    // A certificate is for one label more, and a host has no capitals.
    let is_label = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    Ok(endpoint.is_none() && bucket.bytes().all(is_label))
}

fn options(vars: Vars<'_>) -> Result<Vec<(AmazonS3ConfigKey, String)>> {
    let set = OPTIONS.iter().filter_map(|name| Some((*name, var(vars, name)?)));
    set.map(|(name, value)| {
        let key = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>();
        let key = key.map_err(|error| Error::invalid(format!("{name} is not known")).with_source(error))?;
        Ok((key, value))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::url::Address;

    fn settings(address: &str, variables: &[(&str, &str)]) -> Result<Settings> {
        let vars = |name: &str| {
            let usual = [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "secret")];
            let found = variables.iter().chain(&usual).find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let Address::S3(address) = Address::parse(address)? else { panic!("{address}") };
        Settings::of(address, &vars)
    }

    /// Where a request would go.
    fn target(address: &str, variables: &[(&str, &str)]) -> String {
        let settings = settings(address, variables).unwrap();
        let identity = settings.identity.as_ref().unwrap();
        let builder = settings.builder(identity).unwrap();
        let get = |key| builder.get_config_value(&key).unwrap_or_default();
        builder.clone().build().unwrap();
        format!(
            "{} {} {}",
            get(AmazonS3ConfigKey::Endpoint),
            get(AmazonS3ConfigKey::VirtualHostedStyleRequest),
            get(AmazonS3ConfigKey::Region)
        )
    }

    #[test]
    fn amazon_by_the_hosts_name_and_others_by_the_path() {
        let none: &[(&str, &str)] = &[];
        let minio = ("AWS_ENDPOINT_URL", "http://localhost:9000/");
        for (address, variables, expected) in [
            ("s3://docs", none, " true us-east-1"),
            ("s3://docs", &[("AWS_DEFAULT_REGION", "eu-west-1")][..], " true eu-west-1"),
            ("s3://docs.example", none, " false us-east-1"),
            ("s3://docs", &[("AWS_S3_FORCE_PATH_STYLE", "true")][..], " false us-east-1"),
            ("docs", &[minio][..], "http://localhost:9000 false us-east-1"),
            (
                "docs",
                &[minio, ("AWS_ENDPOINT_URL_S3", "https://s3.host"), ("AWS_REGION", "x")][..],
                "https://s3.host false x",
            ),
            (
                "s3://docs?endpoint=https://other.host&region=auto",
                &[minio, ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true")][..],
                "https://docs.other.host true auto",
            ),
        ] {
            assert_eq!(target(address, variables), expected, "{address} {variables:?}");
        }
    }

    #[test]
    fn places_of_one_name_on_two_servers_differ() {
        let place = |address| settings(address, &[]).unwrap().place();
        assert_eq!(place("s3://docs/a"), "s3://docs");
        assert_eq!(place("s3://docs/a?endpoint=http://127.0.0.1:9000/"), "http://127.0.0.1:9000/docs");
    }

    #[test]
    fn servers_that_cannot_be_are_refused_without_telling_secrets() {
        for endpoint in ["host:9000", "ftp://host", "http://u:hush@host", "https://host?x", "nonsense"] {
            let error = settings("docs", &[("AWS_ENDPOINT_URL", endpoint)]).err().unwrap();
            assert!(!error.to_string().contains("hush"), "{error}");
        }
        let numbers = [("AWS_ENDPOINT_URL", "http://127.0.0.1:9"), ("AWS_S3_FORCE_PATH_STYLE", "false")];
        let settings = settings("docs", &numbers).unwrap();
        assert!(settings.builder(settings.identity.as_ref().unwrap()).is_err());
    }

    #[test]
    fn every_option_is_one_that_the_library_knows() {
        let all: Vec<(&str, &str)> = OPTIONS.iter().map(|name| (*name, "x")).collect();
        assert_eq!(settings("docs", &all).unwrap().options.len(), OPTIONS.len());
    }
}
