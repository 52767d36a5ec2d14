//! Finds the daemon's address: the setting, `DOCKER_HOST`, the Docker context, or the default socket, in this order.

use seawall_core::{Error, Result};
use serde::Deserialize;
use std::{
    env, fs,
    path::{Path, PathBuf},
};

pub const DEFAULT: &str = "unix:///var/run/docker.sock";

/// The address of a daemon, and the folder with `ca.pem`, `cert.pem` and `key.pem` if it requires TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    pub host: String,
    pub certificates: Option<PathBuf>,
}

impl Address {
    /// The path of a local socket.
    pub fn socket(&self) -> Option<&Path> {
        self.host.strip_prefix("unix://").map(Path::new)
    }
}

/// The parts of Docker's `config.json` that are used.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClientConfig {
    #[serde(rename = "currentContext")]
    current_context: String,
    pub auths: std::collections::HashMap<String, Auth>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Auth {
    /// `user:password` in base64.
    pub auth: String,
    pub identitytoken: String,
}

/// The folder of Docker's client configuration.
fn config_folder() -> Option<PathBuf> {
    let named = env::var_os("DOCKER_CONFIG").map(PathBuf::from);
    named.or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".docker")))
}

pub fn client_config() -> ClientConfig {
    let read = || serde_json::from_slice(&fs::read(config_folder()?.join("config.json")).ok()?).ok();
    read().unwrap_or_default()
}

/// Finds the daemon.
pub fn find(setting: Option<&str>) -> Result<Address> {
    let from_env = |name| env::var(name).ok().filter(|value: &String| !value.is_empty());
    if let Some(host) = setting.map(str::to_owned).or_else(|| from_env("DOCKER_HOST")) {
        let certificates = from_env("DOCKER_TLS_VERIFY")
            .and_then(|_| from_env("DOCKER_CERT_PATH").map(PathBuf::from).or_else(config_folder));
        return Ok(Address { host, certificates });
    }
    let context = from_env("DOCKER_CONTEXT").unwrap_or_else(|| client_config().current_context);
    match context.as_str() {
        "" | "default" => Ok(Address { host: DEFAULT.to_owned(), certificates: None }),
        name => {
            let contexts = config_folder().unwrap_or_default().join("contexts");
            of_context(&contexts, name).ok_or_else(|| {
                Error::invalid(format!("there is no Docker context `{name}`; see `docker context ls`"))
            })
        }
    }
}

/// The parts of a context's `meta.json` that are used.
#[derive(Debug, Deserialize)]
struct Meta {
    #[serde(rename = "Name")]
    name: String,
    #[serde(rename = "Endpoints")]
    endpoints: std::collections::HashMap<String, Endpoint>,
}

#[derive(Debug, Deserialize)]
struct Endpoint {
    #[serde(rename = "Host")]
    host: String,
}

/// Finds a context by name. The folder of a context is named by a hash, so all folders are read.
fn of_context(contexts: &Path, name: &str) -> Option<Address> {
    fs::read_dir(contexts.join("meta")).ok()?.flatten().find_map(|entry| {
        let meta: Meta = serde_json::from_slice(&fs::read(entry.path().join("meta.json")).ok()?).ok()?;
        let host = meta.endpoints.get("docker").filter(|_| meta.name == name)?.host.clone();
        let certificates = contexts.join("tls").join(entry.file_name()).join("docker");
        Some(Address { host, certificates: certificates.is_dir().then_some(certificates) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p2_a_context_is_found_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        for (folder, name, host) in [("aa", "one", "unix:///one"), ("bb", "two", "tcp://two:2376")] {
            let meta = dir.path().join("meta").join(folder);
            fs::create_dir_all(&meta).unwrap();
            let text = format!(
                r#"{{"Name":"{name}","Metadata":{{}},"Endpoints":{{"docker":{{"Host":"{host}"}}}}}}"#
            );
            fs::write(meta.join("meta.json"), text).unwrap();
        }
        let tls = dir.path().join("tls/bb/docker");
        fs::create_dir_all(&tls).unwrap();
        let two = Address { host: "tcp://two:2376".to_owned(), certificates: Some(tls) };
        assert_eq!(of_context(dir.path(), "two"), Some(two));
        assert_eq!(of_context(dir.path(), "one").unwrap().socket(), Some(Path::new("/one")));
        assert_eq!(of_context(dir.path(), "three"), None);
    }

    #[test]
    fn p2_a_setting_comes_first() {
        assert_eq!(find(Some("tcp://127.0.0.1:1")).unwrap().host, "tcp://127.0.0.1:1");
    }
}
