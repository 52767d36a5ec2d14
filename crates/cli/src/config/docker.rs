//! The section `[docker]`. A wrong value is an error, because a default instead of it could select another daemon.

use anyhow::{Result, anyhow};
use seawall_core::mounts::is_plain;
use seawall_providers::docker::{DockerSettings, NetworkSettings, Transport};
use std::{net::Ipv4Addr, path::Path};
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
    let caches = names(file, "docker", section, "caches")?;
    if let Some(path) = caches.iter().find(|path| !is_place(path)) {
        return Err(anyhow!(
            "{file}: `docker.caches` has `{path}`, which is no place for a cache: name a folder such as /root/.cache"
        ));
    }
    Ok(DockerSettings {
        host: text("host")?,
        image: text("image")?,
        images: names(file, "docker", section, "images")?,
        caches,
        transport,
        networks: NetworkSettings {
            name_servers: addresses(file, section, "name_servers")?,
            refused: ranges(file, section, "refused_ranges")?,
            unchecked: flag(file, section, "unchecked_network")?,
        },
        runtimes: names(file, "docker", section, "runtimes")?,
        ..DockerSettings::default()
    })
}

/// A list of names.
pub fn names(file: &str, name: &str, section: &Table, key: &str) -> Result<Vec<String>> {
    let Some(value) = section.get(key) else { return Ok(Vec::new()) };
    let names = value.as_array().and_then(|names| {
        names.iter().map(|name| name.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
    });
    names.ok_or_else(|| anyhow!("{file}: `{name}.{key}` is {value}, not a list of names"))
}

fn flag(file: &str, section: &Table, key: &str) -> Result<bool> {
    let Some(value) = section.get(key) else { return Ok(false) };
    value.as_bool().ok_or_else(|| anyhow!("{file}: `docker.{key}` is {value}, not true or false"))
}

fn addresses(file: &str, section: &Table, key: &str) -> Result<Vec<Ipv4Addr>> {
    let parse = |name: String| {
        name.parse().map_err(|_| anyhow!("{file}: `docker.{key}` has `{name}`, which is no IPv4 address"))
    };
    names(file, "docker", section, key)?.into_iter().map(parse).collect()
}

/// Ranges such as 10.1.0.0/16.
fn ranges(file: &str, section: &Table, key: &str) -> Result<Vec<(Ipv4Addr, u8)>> {
    let range = |text: &str| {
        let (address, bits) = text.split_once('/')?;
        Some((address.parse().ok()?, bits.parse().ok().filter(|bits| *bits <= 32)?))
    };
    let parse = |text: String| {
        range(&text).ok_or_else(|| {
            anyhow!("{file}: `docker.{key}` has `{text}`, which is no range such as 10.1.0.0/16")
        })
    };
    names(file, "docker", section, key)?.into_iter().map(parse).collect()
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
            ("name_servers = ['::1']", "::1"),
            ("refused_ranges = ['10.0.0.0/33']", "10.0.0.0/33"),
            ("unchecked_network = 'yes'", "docker.unchecked_network"),
            ("runtimes = 'runsc'", "docker.runtimes"),
        ] {
            assert!(section(wrong).unwrap_err().to_string().contains(named), "{wrong}");
        }
        let set = section("host = 'tcp://127.0.0.1:2375'\nimage = 'debian:12'\ntransport = 'exec'").unwrap();
        assert_eq!((set.host.as_deref(), set.transport), (Some("tcp://127.0.0.1:2375"), Transport::Exec));
    }
}
