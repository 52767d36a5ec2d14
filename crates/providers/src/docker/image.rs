//! Images: what a container needs to know of one, and pulling one that is missing.

use super::{
    address::{Auth, client_config},
    daemon::{Daemon, is_missing},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use bollard::{
    auth::DockerCredentials, models::CreateImageInfo, query_parameters::CreateImageOptionsBuilder,
};
use futures::StreamExt;
use seawall_api::ErrorKind;
use seawall_core::{Error, Result};
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// How often the log reports the progress of a pull.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// The registry of names without one.
const DEFAULT_REGISTRY: &str = "docker.io";

/// The settings of an image that containers take over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Image {
    /// Tells images apart, also when a tag moves.
    pub id: String,
    pub user: Option<String>,
    pub workdir: Option<String>,
    /// The program that the image starts by itself: its entrypoint and command.
    pub command: Vec<String>,
    /// Paths for which the daemon makes volumes without a name, and without a bound.
    pub volumes: Vec<String>,
}

/// Returns the image with this name. Pulls a missing image.
pub async fn find(daemon: &Daemon, name: &str) -> Result<Image> {
    match inspect(daemon, name).await? {
        Some(image) => Ok(image),
        None => {
            pull(daemon, name).await?;
            inspect(daemon, name).await?.ok_or_else(|| missing(name, "it is gone again after it was pulled"))
        }
    }
}

async fn inspect(daemon: &Daemon, name: &str) -> Result<Option<Image>> {
    let found = match daemon.docker().await?.inspect_image(name).await {
        Ok(found) => found,
        Err(error) if is_missing(&error) => return Ok(None),
        Err(error) => return Err(daemon.failed(&format!("the image `{name}`"), error)),
    };
    let config = found.config.unwrap_or_default();
    let set = |text: Option<String>| text.filter(|text| !text.is_empty());
    Ok(Some(Image {
        id: found.id.unwrap_or_default(),
        user: set(config.user),
        workdir: set(config.working_dir).filter(|dir| dir != "/"),
        volumes: config.volumes.unwrap_or_default(),
        command: config.entrypoint.into_iter().flatten().chain(config.cmd.into_iter().flatten()).collect(),
    }))
}

async fn pull(daemon: &Daemon, name: &str) -> Result<()> {
    let options = CreateImageOptionsBuilder::default().from_image(&with_tag(name)).build();
    let mut answers = daemon.docker().await?.create_image(Some(options), None, credentials(name));
    tracing::info!(image = name, "pulling an image");
    let (begun, mut reported, mut progress) = (Instant::now(), Instant::now(), Progress::default());
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(info) => progress.take(&info),
            Err(error) => {
                let why = daemon.failed("the registry", error).to_string();
                return Err(missing(name, &why));
            }
        }
        if reported.elapsed() >= PROGRESS_INTERVAL {
            reported = Instant::now();
            let (done, total) = progress.bytes();
            tracing::info!(image = name, done_mb = done >> 20, total_mb = total >> 20, "pulling an image");
        }
    }
    tracing::info!(image = name, bytes = progress.bytes().1, duration = ?begun.elapsed(), "pulled an image");
    Ok(())
}

fn missing(name: &str, why: &str) -> Error {
    Error::new(
        ErrorKind::NotFound,
        format!("the image `{name}` is not on the Docker daemon and cannot be pulled: {why}; check the name, or `docker load` it"),
    )
    .with_code("image_not_found")
}

/// The bytes of each layer: those that arrived, and all.
#[derive(Debug, Default)]
struct Progress(HashMap<String, (i64, i64)>);

impl Progress {
    fn take(&mut self, info: &CreateImageInfo) {
        let detail = info.progress_detail.as_ref();
        if let (Some(layer), Some(current), Some(total)) =
            (&info.id, detail.and_then(|detail| detail.current), detail.and_then(|detail| detail.total))
            && info.status.as_deref() == Some("Downloading")
        {
            self.0.insert(layer.clone(), (current, total));
        }
    }

    fn bytes(&self) -> (i64, i64) {
        self.0.values().fold((0, 0), |(done, all), (current, total)| (done + current, all + total))
    }
}

/// A name without a tag and without a digest means the tag `latest`; the daemon would pull all tags.
fn with_tag(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or(name);
    match last.contains([':', '@']) {
        true => name.to_owned(),
        false => format!("{name}:latest"),
    }
}

/// The registry that a name of an image names.
fn registry(name: &str) -> &str {
    match name.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => host,
        _ => DEFAULT_REGISTRY,
    }
}

/// The credentials that `docker login` stored for the image's registry.
fn credentials(name: &str) -> Option<DockerCredentials> {
    let registry = registry(name);
    let mut auths = client_config().auths;
    let known =
        [registry.to_owned(), format!("https://{registry}"), "https://index.docker.io/v1/".to_owned()];
    let known = known.into_iter().take(if registry == DEFAULT_REGISTRY { 3 } else { 2 });
    let (server, Auth { auth, identitytoken }) =
        known.into_iter().find_map(|server| auths.remove(&server).map(|auth| (server, auth)))?;
    let decoded = String::from_utf8(STANDARD.decode(auth).ok()?).ok()?;
    let (username, password) = decoded.split_once(':')?;
    Some(DockerCredentials {
        username: Some(username.to_owned()),
        password: Some(password.to_owned()),
        serveraddress: Some(server),
        identitytoken: Some(identitytoken).filter(|token| !token.is_empty()),
        ..DockerCredentials::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p2_names_of_images_say_what_is_pulled() {
        for (name, whole, from) in [
            ("debian", "debian:latest", "docker.io"),
            ("library/debian:12", "library/debian:12", "docker.io"),
            ("127.0.0.1:5000/a/b", "127.0.0.1:5000/a/b:latest", "127.0.0.1:5000"),
            ("localhost/x@sha256:00", "localhost/x@sha256:00", "localhost"),
            ("ghcr.io/o/r:1", "ghcr.io/o/r:1", "ghcr.io"),
        ] {
            assert_eq!((with_tag(name).as_str(), registry(name)), (whole, from), "{name}");
        }
    }
}
