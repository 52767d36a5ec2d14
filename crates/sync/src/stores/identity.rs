//! Who we are to S3: the usual chain of places where credentials stand, the first that has some.
//!
//! Environment, shared files, web identity, container, instance. What we cannot do is an error that names it, never
//! a reason to go on as somebody else.

use super::{
    Vars, flag,
    profile::{self, Kind, Profile},
    var,
};
use crate::{Error, Result};
use ::url::Url;
use seawall_api::ErrorKind;
use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

const METADATA: &str = "http://169.254.169.254";
/// A service of the machine's own network answers at once, or is not there.
const PROBE: Duration = Duration::from_secs(1);

/// Settings of a profile that ask for what is not done here.
const UNKNOWN: [&str; 3] = ["sso_", "credential_process", "web_identity_token_file"];

pub struct Keys {
    pub id: String,
    pub secret: String,
    pub token: Option<String>,
    /// Where they stood.
    from: String,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("from", &self.from).finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub enum Identity {
    Keys(Keys),
    /// Variables that `object_store` follows by itself; this is the first of them.
    Variables(&'static str),
    /// The machine's role, told by the service at this address.
    Instance(Url),
    /// Requests are not signed.
    Nobody,
}

impl Identity {
    pub fn find(vars: Vars<'_>, profile: Result<Chosen>) -> Result<Option<Identity>> {
        if flag(vars, "AWS_SKIP_SIGNATURE")? == Some(true) {
            return Ok(Some(Identity::Nobody));
        }
        if let Some(keys) = of_environment(vars)? {
            return Ok(Some(Identity::Keys(keys)));
        }
        if let Some(keys) = of_profile(&profile?)? {
            return Ok(Some(Identity::Keys(keys)));
        }
        if let Some(first) = of_variables(vars) {
            return Ok(Some(Identity::Variables(first)));
        }
        Ok(instance(vars)?.map(Identity::Instance))
    }

    /// Where it came from, for messages.
    pub fn origin(&self) -> String {
        match self {
            Identity::Keys(keys) => keys.from.clone(),
            Identity::Variables(name) => (*name).to_owned(),
            Identity::Instance(_) => "the role of this machine".to_owned(),
            Identity::Nobody => "nowhere, as AWS_SKIP_SIGNATURE is set".to_owned(),
        }
    }

    /// Whether whoever it comes from is there at all.
    pub async fn is_there(&self) -> bool {
        let Identity::Instance(service) = self else { return true };
        let (Some(host), Some(port)) = (service.host_str(), service.port_or_known_default()) else {
            return false;
        };
        let connected = tokio::net::TcpStream::connect((host.trim_matches(['[', ']']), port));
        matches!(tokio::time::timeout(PROBE, connected).await, Ok(Ok(_)))
    }
}

fn of_environment(vars: Vars<'_>) -> Result<Option<Keys>> {
    let (id, secret) = (var(vars, "AWS_ACCESS_KEY_ID"), var(vars, "AWS_SECRET_ACCESS_KEY"));
    let token = var(vars, "AWS_SESSION_TOKEN");
    match (id, secret) {
        (Some(id), Some(secret)) => keys(id, secret, token, "AWS_ACCESS_KEY_ID of the environment").map(Some),
        (None, None) => Ok(None),
        (Some(_), None) => {
            Err(denied("AWS_ACCESS_KEY_ID is set, and AWS_SECRET_ACCESS_KEY is not; set both"))
        }
        (None, Some(_)) => {
            Err(denied("AWS_SECRET_ACCESS_KEY is set, and AWS_ACCESS_KEY_ID is not; set both"))
        }
    }
}

fn of_profile(chosen: &Chosen) -> Result<Option<Keys>> {
    let Chosen { name, is_asked_for, profile } = chosen;
    let Some(profile) = profile else {
        let why = format!("AWS_PROFILE is {name}, and neither ~/.aws/credentials nor ~/.aws/config has it");
        return if *is_asked_for { Err(denied(why)) } else { Ok(None) };
    };
    if profile.get("role_arn").is_some() {
        return Err(not_done(name, "role_arn"));
    }
    let get = |key| profile.get(key).map(str::to_owned);
    match (get("aws_access_key_id"), get("aws_secret_access_key")) {
        (Some(id), Some(secret)) => {
            keys(id, secret, get("aws_session_token"), &format!("profile `{name}` of the shared files"))
                .map(Some)
        }
        (None, None) => match UNKNOWN.iter().find_map(|key| profile.beginning(key)) {
            Some(key) => Err(not_done(name, key)),
            None => Ok(None),
        },
        _ => Err(denied(format!(
            "profile `{name}` has only one of aws_access_key_id and aws_secret_access_key; it needs both"
        ))),
    }
}

fn not_done(name: &str, key: &str) -> Error {
    denied(format!(
        "profile `{name}` asks for {key}, which is not done here; run `eval \"$(aws configure export-credentials \
         --profile {name} --format env)\"` first, or name another by AWS_PROFILE"
    ))
}

fn keys(id: String, secret: String, token: Option<String>, from: &str) -> Result<Keys> {
    // They become headers, which take nothing else.
    let fits = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
    if ![&id, &secret].into_iter().chain(&token).all(|text| fits(text)) {
        return Err(denied(format!(
            "the keys from {from} have blanks or signs that no key has; copy them again"
        )));
    }
    Ok(Keys { id, secret, token, from: from.to_owned() })
}

/// What `object_store` looks for by itself, in its order.
fn of_variables(vars: Vars<'_>) -> Option<&'static str> {
    let all = |names: &[&str]| names.iter().all(|name| var(vars, name).is_some());
    if all(&["AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN"]) {
        return Some("AWS_WEB_IDENTITY_TOKEN_FILE");
    }
    if all(&["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"]) {
        return Some("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
    }
    all(&["AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"])
        .then_some("AWS_CONTAINER_CREDENTIALS_FULL_URI")
}

/// The service that tells a machine's role.
fn instance(vars: Vars<'_>) -> Result<Option<Url>> {
    if flag(vars, "AWS_EC2_METADATA_DISABLED")? == Some(true) {
        return Ok(None);
    }
    let named = var(vars, "AWS_EC2_METADATA_SERVICE_ENDPOINT").or_else(|| var(vars, "AWS_METADATA_ENDPOINT"));
    let service = named.as_deref().unwrap_or(METADATA);
    let url = Url::parse(service).map_err(|error| {
        Error::invalid(format!("AWS_EC2_METADATA_SERVICE_ENDPOINT is no address: {error}"))
    })?;
    Ok(Some(url))
}

/// The profile that counts.
#[derive(Debug)]
pub struct Chosen {
    name: String,
    is_asked_for: bool,
    /// None where no file has it.
    profile: Option<Profile>,
}

impl Chosen {
    pub fn read(vars: Vars<'_>) -> Result<Chosen> {
        let asked = var(vars, "AWS_PROFILE").or_else(|| var(vars, "AWS_DEFAULT_PROFILE"));
        let is_asked_for = asked.is_some();
        let name = asked.unwrap_or_else(|| "default".to_owned());
        let mut profile = None;
        // What the credentials say counts more.
        for (variable, usual, kind) in [
            ("AWS_CONFIG_FILE", ".aws/config", Kind::Config),
            ("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials", Kind::Credentials),
        ] {
            let Some(path) = file(vars, variable, usual) else { continue };
            if let Some(found) = profile::find(&read(&path)?, kind, &name) {
                profile.get_or_insert_with(Profile::default).overlay(found);
            }
        }
        Ok(Chosen { name, is_asked_for, profile })
    }

    /// A setting that is no secret.
    pub fn get(&self, name: &str) -> Option<String> {
        self.profile.as_ref().and_then(|profile| profile.get(name)).map(str::to_owned)
    }
}

fn file(vars: Vars<'_>, variable: &str, usual: &str) -> Option<PathBuf> {
    let home = var(vars, "HOME").map(PathBuf::from);
    match var(vars, variable) {
        Some(named) => match named.strip_prefix("~/") {
            Some(rest) => home.map(|home| home.join(rest)),
            None => Some(named.into()),
        },
        None => home.map(|home| home.join(usual)),
    }
}

fn read(path: &Path) -> Result<String> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(String::new())
        }
        Err(error) => {
            let path = path.display();
            Err(denied(format!("{path} cannot be read: {error}; let the user that runs this read it")))
        }
    }
}

pub fn denied(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Denied, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// A home with both files, and variables beside it.
    fn found(credentials: &str, config: &str, variables: &[(&str, &str)]) -> Result<Option<Identity>> {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join(".aws")).unwrap();
        fs::write(home.path().join(".aws/credentials"), credentials).unwrap();
        fs::write(home.path().join(".aws/config"), config).unwrap();
        let all: HashMap<&str, &str> = variables.iter().copied().collect();
        let vars = |name: &str| match name {
            "HOME" => home.path().to_str().map(str::to_owned),
            name => all.get(name).map(|value| (*value).to_owned()),
        };
        Identity::find(&vars, Chosen::read(&vars))
    }

    const FILE: &str = "[default]\naws_access_key_id=F\naws_secret_access_key=S\naws_session_token=T\n[w]\n\
                        aws_access_key_id=W\naws_secret_access_key=S\n";

    fn id(identity: Result<Option<Identity>>) -> String {
        match identity.unwrap() {
            Some(Identity::Keys(keys)) => keys.id,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_first_place_with_credentials_counts() {
        let environment = [("AWS_ACCESS_KEY_ID", "E"), ("AWS_SECRET_ACCESS_KEY", "S"), ("AWS_PROFILE", "w")];
        assert_eq!(id(found(FILE, "", &environment)), "E");
        assert_eq!(id(found(FILE, "", &[("AWS_PROFILE", "w")])), "W");
        assert_eq!(id(found(FILE, "", &[])), "F");
        assert_eq!(
            id(found(
                "",
                "[profile w]\naws_access_key_id=C\naws_secret_access_key=S",
                &[("AWS_PROFILE", "w")]
            )),
            "C"
        );
    }

    #[test]
    fn variables_of_a_pod_or_a_task_come_behind_the_files() {
        let pod = [("AWS_WEB_IDENTITY_TOKEN_FILE", "/t"), ("AWS_ROLE_ARN", "arn")];
        assert_eq!(id(found(FILE, "", &pod)), "F");
        let task = [("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/x")];
        for (variables, first) in [(&pod[..], "AWS_WEB_"), (&task[..], "AWS_CONTAINER_")] {
            match found("", "", variables).unwrap() {
                Some(Identity::Variables(name)) => assert!(name.starts_with(first), "{name}"),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn the_machine_itself_comes_last() {
        assert!(
            matches!(found("", "", &[]).unwrap(), Some(Identity::Instance(url)) if url.as_str().starts_with(METADATA))
        );
        assert!(found("", "", &[("AWS_EC2_METADATA_DISABLED", "true")]).unwrap().is_none());
        assert!(matches!(found(FILE, "", &[("AWS_SKIP_SIGNATURE", "1")]).unwrap(), Some(Identity::Nobody)));
    }

    #[test]
    fn what_is_half_or_not_done_is_an_error_that_names_it() {
        let half = "[default]\naws_access_key_id=F\n";
        let none: &[(&str, &str)] = &[];
        for (credentials, config, variables, word) in [
            ("", "", &[("AWS_ACCESS_KEY_ID", "E")][..], "AWS_SECRET_ACCESS_KEY"),
            ("", "", &[("AWS_SECRET_ACCESS_KEY", "E")][..], "AWS_ACCESS_KEY_ID"),
            (half, "", none, "aws_secret_access_key"),
            (FILE, "", &[("AWS_PROFILE", "nobody")][..], "nobody"),
            (FILE, "[default]\nrole_arn=arn\nsource_profile=w\n", none, "role_arn"),
            ("", "[default]\nsso_session=x\n", none, "sso_session"),
            ("", "[default]\ncredential_process=x\n", none, "credential_process"),
            ("[default]\naws_access_key_id=F F\naws_secret_access_key=hush\n", "", none, "blanks"),
        ] {
            let error = found(credentials, config, variables).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
            assert!(error.to_string().contains(word) && !error.to_string().contains("hush"), "{error}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let shown = format!("{:?}", found(FILE, "", &[]).unwrap());
        assert_eq!(shown, "Some(Keys(Keys { from: \"profile `default` of the shared files\", .. }))");
    }

    #[tokio::test]
    async fn a_service_that_is_not_there_is_noticed() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        assert!(Identity::Instance(url.clone()).is_there().await);
        drop(listener);
        assert!(!Identity::Instance(url).is_there().await);
    }
}
