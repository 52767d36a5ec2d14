//! Stores that are used as `object_store` does it: Google's, Azure's, and WebDAV. Their settings come from the
//! variables that their own tools read.

use super::{Vars, failure::About, object::ObjectBucket, var};
use crate::{Error, Result};
use ::url::{Position, Url};
use object_store::{
    ObjectStore, ObjectStoreScheme, azure::MicrosoftAzureBuilder, gcp::GoogleCloudStorageBuilder,
    http::HttpBuilder, path::Path, prefix::PrefixStore,
};
use std::sync::Arc;

const AZURE: [&str; 14] = [
    "AZURE_ALLOW_HTTP",
    "AZURE_AUTHORITY_HOST",
    "AZURE_CLIENT_ID",
    "AZURE_CLIENT_SECRET",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_MSI_ENDPOINT",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_ENDPOINT",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_TOKEN",
    "AZURE_STORAGE_USE_EMULATOR",
    "AZURE_TENANT_ID",
    "AZURE_USE_AZURE_CLI",
];

const GOOGLE: [&str; 6] = [
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_BASE_URL",
    "GOOGLE_BEARER_TOKEN",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_SKIP_SIGNATURE",
];

pub fn open(scheme: &ObjectStoreScheme, url: &Url, prefix: &str, vars: Vars<'_>) -> Result<ObjectBucket> {
    let place = url.as_str().trim_end_matches('/').to_owned();
    let unfit = |error: object_store::Error| {
        Error::invalid(format!("{place} cannot be opened: {error}")).with_source(error)
    };
    let store = build(scheme, url, vars).map_err(unfit)?;
    let prefix = Path::parse(prefix).map_err(|error| unfit(error.into()))?;
    let store: Arc<dyn ObjectStore> = match prefix.is_root() {
        true => store,
        false => Arc::new(PrefixStore::new(store, prefix)),
    };
    let access = match scheme {
        ObjectStoreScheme::MicrosoftAzure => "variables that begin with AZURE_",
        ObjectStoreScheme::GoogleCloudStorage => "variables that begin with GOOGLE_, or from gcloud",
        _ => "nowhere: there are none for such a store",
    };
    Ok(ObjectBucket::new(store, About { place, access: Some(access.to_owned()) }))
}

/// The three builders have the same methods, and no trait for them.
macro_rules! built {
    ($builder:expr, $names:expr, $vars:expr, $allow_http:expr) => {{
        let client = super::client($allow_http);
        let mut builder = $builder.with_retry(super::retries()).with_client_options(client);
        for name in $names {
            if let Some(value) = var($vars, name) {
                builder = builder.with_config(name.to_ascii_lowercase().parse()?, value);
            }
        }
        Ok(Arc::new(builder.build()?))
    }};
}

fn build(
    scheme: &ObjectStoreScheme,
    url: &Url,
    vars: Vars<'_>,
) -> object_store::Result<Arc<dyn ObjectStore>> {
    match scheme {
        ObjectStoreScheme::MicrosoftAzure => {
            built!(MicrosoftAzureBuilder::new().with_url(url.as_str()), AZURE, vars, false)
        }
        ObjectStoreScheme::GoogleCloudStorage => {
            built!(GoogleCloudStorageBuilder::new().with_url(url.as_str()), GOOGLE, vars, false)
        }
        ObjectStoreScheme::Http => {
            let server = &url[..Position::BeforePath];
            let builder = HttpBuilder::new().with_url(server).with_retry(super::retries());
            let builder = builder.with_client_options(super::client(url.scheme() == "http"));
            Ok(Arc::new(builder.build()?))
        }
        scheme => Err(object_store::Error::NotSupported { source: format!("{scheme:?} here").into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::url::Address;

    fn opened(address: &str, variables: &[(&str, &str)]) -> Result<ObjectBucket> {
        let vars = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        match Address::parse(address)? {
            Address::Other { scheme, url, prefix } => open(&scheme, &url, &prefix, &vars),
            address => panic!("{address:?}"),
        }
    }

    #[test]
    fn clouds_are_opened_with_what_the_environment_says() {
        let azure = [("AZURE_STORAGE_ACCOUNT_NAME", "account"), ("AZURE_STORAGE_ACCOUNT_KEY", "aHVzaA==")];
        for (address, variables) in [
            ("az://container/a/b", &azure[..]),
            ("gs://bucket/a", &[("GOOGLE_SKIP_SIGNATURE", "true")][..]),
            ("https://example.com/dav", &azure[..0]),
        ] {
            let bucket = opened(address, variables).unwrap();
            assert_eq!(bucket.about.place, address);
            assert!(!format!("{bucket:?}").contains("aHVzaA"), "{bucket:?}");
        }
    }

    #[test]
    fn what_is_missing_is_told() {
        let error = opened("az://container/a", &[]).unwrap_err();
        assert!(error.to_string().contains("az://container/a cannot be opened"), "{error}");
    }
}
