//! The section `[docker]`. A wrong value is an error, because a default instead of it could select another daemon.

use anyhow::{Result, anyhow};
use seawall_core::mounts::is_plain;
use seawall_providers::docker::{DockerSettings, Transport};
use std::path::Path;
use toml::Table;

pub fn settings(file: &str, section: &Table) -> Result<DockerSettings> {
    let text = |key: &str| -> Result<Option<String>> {
        let Some(value) = section.get(key) else { return Ok(None) };
        let text = value.as_str().filter(|text| !text.is_empty());
        let text = text.ok_or_else(|| anyhow!("{file}: `docker.{key}` is {value}, not a text"))?;
        Ok(Some(text.to_owned()))
    };
    let transport = match text("transport")?.as_deref() {
        None | Some("auto") => Transport::Auto,
        Some("sockets") => Transport::Sockets,
        Some("exec") => Transport::Exec,
        Some(other) => {
            return Err(anyhow!(
                "{file}: `docker.transport` is `{other}`; it can be \"auto\", \"sockets\" or \"exec\""
            ));
        }
    };
    let caches = names(file, section, "caches")?;
    if let Some(path) = caches.iter().find(|path| !is_place(path)) {
        return Err(anyhow!(
            "{file}: `docker.caches` has `{path}`, which is no place for a cache: name a folder such as /root/.cache"
        ));
    }
    Ok(DockerSettings {
        host: text("host")?,
        image: text("image")?,
        images: names(file, section, "images")?,
        caches,
        transport,
        ..DockerSettings::default()
    })
}

/// A list of names.
fn names(file: &str, section: &Table, key: &str) -> Result<Vec<String>> {
    let Some(value) = section.get(key) else { return Ok(Vec::new()) };
    let names = value.as_array().and_then(|names| {
        names.iter().map(|name| name.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
    });
    names.ok_or_else(|| anyhow!("{file}: `docker.{key}` is {value}, not a list of names"))
}

/// Whether a volume may be mounted at a path of a container.
fn is_place(path: &str) -> bool {
    let ours = ["/work", "/run", "/proc", "/sys", "/dev", "/etc", "/usr"];
    is_plain(path) && path != "/" && !ours.iter().any(|ours| Path::new(path).starts_with(ours))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_values_are_refused_by_name() {
        let section = |text: &str| settings("seawall.toml", &toml::from_str(text).unwrap());
        for (wrong, named) in [
            ("host = 1", "docker.host"),
            ("image = ''", "docker.image"),
            ("transport = 'tcp'", "tcp"),
            ("images = 'x'", "docker.images"),
            ("caches = ['/work/x']", "/work/x"),
            ("caches = ['a']", "docker.caches"),
        ] {
            assert!(section(wrong).unwrap_err().to_string().contains(named), "{wrong}");
        }
        let set = section("host = 'tcp://127.0.0.1:2375'\nimage = 'debian:12'\ntransport = 'exec'").unwrap();
        assert_eq!((set.host.as_deref(), set.transport), (Some("tcp://127.0.0.1:2375"), Transport::Exec));
    }
}
