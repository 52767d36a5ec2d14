//! What wins over what, and what is said when something is wrong.

use super::*;
use std::collections::HashMap;

struct Place {
    folder: tempfile::TempDir,
    vars: HashMap<&'static str, OsString>,
    root: bool,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("home");
        std::fs::create_dir_all(home.join(".config/seawall")).unwrap();
        std::fs::create_dir_all(folder.path().join("here")).unwrap();
        Place { folder, vars: HashMap::from([("HOME", home.into_os_string())]), root: false }
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.folder.path().join(relative)
    }

    fn write(&self, relative: &str, text: &str) {
        std::fs::write(self.path(relative), text).unwrap();
    }

    fn load(&self, flags: &Flags) -> Result<Loaded> {
        let var = |name: &str| self.vars.get(name).cloned();
        load_from(flags, &Surroundings { var: &var, current_dir: self.path("here"), root: self.root })
    }

    fn refused(&self) -> String {
        format!("{:#}", self.load(&Flags::default()).unwrap_err())
    }
}

#[test]
fn defaults_work() {
    let mut place = Place::new();
    let loaded = place.load(&Flags::default()).unwrap();
    assert_eq!(loaded.settings.data, place.path("home/.local/share/seawall"));
    assert_eq!(loaded.settings.provider_name(), "native");
    assert_eq!(loaded.settings.stop_grace, Duration::from_secs(5));
    assert_eq!((loaded.settings.exec_timeout, loaded.settings.output_limit), (None, None));
    assert!(loaded.warnings.is_empty());

    place.vars.insert("XDG_DATA_HOME", place.path("xdg").into_os_string());
    assert_eq!(place.load(&Flags::default()).unwrap().settings.data, place.path("xdg/seawall"));
    place.root = true;
    assert_eq!(place.load(&Flags::default()).unwrap().settings.data, Path::new("/var/lib/seawall"));
}

#[test]
fn no_home_says_what_to_do() {
    let mut place = Place::new();
    place.vars.clear();
    assert!(place.refused().contains("--data"));
    let flags = Flags { data: Some("/d".into()), ..Flags::default() };
    assert_eq!(place.load(&flags).unwrap().settings.data, Path::new("/d"));
}

#[test]
fn the_file_is_found_in_order() {
    let place = Place::new();
    place.write("home/.config/seawall/seawall.toml", "provider = \"home\"");
    assert_eq!(place.load(&Flags::default()).unwrap().settings.provider_name(), "home");
    place.write("here/seawall.toml", "provider = \"here\"");
    assert_eq!(place.load(&Flags::default()).unwrap().settings.provider_name(), "here");
    place.write("named.toml", "provider = \"named\"");
    let named = Flags { config: Some(place.path("named.toml")), ..Flags::default() };
    assert_eq!(place.load(&named).unwrap().settings.provider_name(), "named");
    let missing = Flags { config: Some("missing.toml".into()), ..Flags::default() };
    assert!(format!("{:#}", place.load(&missing).unwrap_err()).contains("missing.toml"));
}

#[test]
fn later_layers_win() {
    let mut place = Place::new();
    place.write(
        "here/seawall.toml",
        "data = \"from-file\"\n[exec]\ntimeout_seconds = 7\noutput_limit_bytes = 10\n[stop]\ngrace_seconds = 0\n",
    );
    let settings = place.load(&Flags::default()).unwrap().settings;
    assert_eq!(settings.data, place.path("here/from-file"));
    assert_eq!(settings.exec_timeout, Some(Duration::from_secs(7)));
    assert_eq!(settings.output_limit, Some(10));
    assert_eq!(settings.stop_grace, Duration::ZERO);

    place.vars.insert("SEAWALL_EXEC_TIMEOUT_SECONDS", "8".into());
    place.vars.insert("SEAWALL_STOP_GRACE_SECONDS", "2".into());
    let flags = Flags { data: Some("flag".into()), ..Flags::default() };
    let settings = place.load(&flags).unwrap().settings;
    assert_eq!(settings.exec_timeout, Some(Duration::from_secs(8)));
    assert_eq!(settings.stop_grace, Duration::from_secs(2));
    assert_eq!(settings.data, place.path("here/flag"));
}

#[test]
fn o1_settings_are_read_under_the_names_that_they_had() {
    let mut place = Place::new();
    for (name, value) in [
        ("S3_BUCKET_AGENT_DOCS", "s3://agent-docs"),
        ("SANDBOX_SYNC_STALE_THRESHOLD", "90"),
        ("SANDBOX_SESSION_IDLE_TIMEOUT", "10m"),
        ("SANDBOX_SESSION_MAX_LIFETIME", "7200"),
    ] {
        place.vars.insert(name, value.into());
    }
    let loaded = place.load(&Flags::default()).unwrap();
    let settings = &loaded.settings;
    assert_eq!(settings.sync.bucket.as_deref(), Some("s3://agent-docs"));
    assert_eq!(settings.sync.stale_after, Duration::from_secs(90));
    let timeouts = settings.server.timeouts;
    assert_eq!((timeouts.idle_seconds, timeouts.max_lifetime_seconds), (Some(600), Some(7200)));
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    // The name that it has now goes before.
    place.vars.insert("SEAWALL_SYNC_BUCKET", "s3://new".into());
    let settings = place.load(&Flags::default()).unwrap().settings;
    assert_eq!(settings.sync.bucket.as_deref(), Some("s3://new"));
}

#[test]
fn o1_an_invalid_setting_gets_the_default_and_a_warning() {
    let mut place = Place::new();
    let default = Settings::default();
    for (name, value) in [
        ("SANDBOX_SYNC_STALE_THRESHOLD", "-5"),
        ("SANDBOX_SESSION_IDLE_TIMEOUT", "soon"),
        ("SANDBOX_SESSION_MAX_LIFETIME", "-1"),
    ] {
        place.vars.insert(name, value.into());
        let loaded = place.load(&Flags::default()).unwrap();
        assert_eq!(loaded.settings.sync.stale_after, default.sync.stale_after);
        assert_eq!(loaded.settings.server.timeouts, default.server.timeouts);
        let told = loaded.warnings.iter().any(|warning| warning.contains(name) && warning.contains(value));
        assert!(told, "{:?}", loaded.warnings);
    }
}

#[test]
fn home_may_be_a_tilde() {
    let place = Place::new();
    place.write("here/seawall.toml", "data = \"~/walls\"");
    assert_eq!(place.load(&Flags::default()).unwrap().settings.data, place.path("home/walls"));
}

#[test]
fn unknown_keys_are_refused_with_a_suggestion() {
    let place = Place::new();
    place.write("here/seawall.toml", "provdier = \"local\"");
    let error = place.refused();
    assert!(error.contains("here/seawall.toml") && error.contains("`provdier`"), "{error}");
    assert!(error.contains("did you mean `provider`?"), "{error}");

    place.write("here/seawall.toml", "[stop]\ngrace_secs = 3");
    let error = place.refused();
    assert!(error.contains("`stop.grace_secs`") && error.contains("`stop.grace_seconds`"), "{error}");

    place.write("here/seawall.toml", "zzzzzzzzzz = 1");
    assert!(place.refused().contains("known here: data, provider, exec, stop"));
}

#[test]
fn wrong_values_with_a_safe_default_are_replaced() {
    let mut place = Place::new();
    place.write(
        "here/seawall.toml",
        "[exec]\ntimeout_seconds = 0\noutput_limit_bytes = \"many\"\n[stop]\ngrace_seconds = -1\n",
    );
    let loaded = place.load(&Flags::default()).unwrap();
    assert_eq!(loaded.settings.stop_grace, Duration::from_secs(5));
    assert_eq!((loaded.settings.exec_timeout, loaded.settings.output_limit), (None, None));
    assert_eq!(loaded.warnings.len(), 3);
    assert!(loaded.warnings[2].contains("`stop.grace_seconds` is -1"), "{:?}", loaded.warnings);

    place.vars.insert("SEAWALL_STOP_GRACE_SECONDS", "soon".into());
    let loaded = place.load(&Flags::default()).unwrap();
    assert!(loaded.warnings[3].contains("SEAWALL_STOP_GRACE_SECONDS is soon"), "{:?}", loaded.warnings);
}

#[test]
fn wrong_values_without_one_are_errors() {
    let place = Place::new();
    for (text, named) in [("data = 3", "`data`"), ("provider = []", "`provider`"), ("exec = 1", "[exec]")] {
        place.write("here/seawall.toml", text);
        assert!(place.refused().contains(named), "{text}");
    }
    place.write("here/seawall.toml", "data = ");
    assert!(place.refused().contains("not valid TOML"));
}

#[test]
fn k11_retention_has_defaults_and_refuses_what_it_does_not_know() {
    let place = Place::new();
    let kept = |place: &Place| place.load(&Flags::default()).unwrap().settings.retention;
    let day = Duration::from_secs(86_400);
    let default = kept(&place);
    assert_eq!((default.keep.events, default.keep.hook_runs), (Some(day * 7), Some(day * 30)));
    assert_eq!((default.keep.ended_sandboxes, default.keep.leases), (Some(day * 30), Some(day)));
    assert_eq!((default.audit.age, default.audit.bytes), (Some(day * 90), 1 << 30));
    assert_eq!(default.staged_objects, Some(day));
    assert_eq!(
        (default.keep.conversations, default.keep.messages, default.keep.versions),
        (None, None, None)
    );
    place.write(
        "here/seawall.toml",
        "[retention]\nevents = \"60s\"\nconversations = \"90d\"\nversions = \"30d\"\nhook_runs = \"off\"\naudit_bytes = 2000000",
    );
    let set = kept(&place);
    assert_eq!((set.keep.events, set.keep.hook_runs), (Some(Duration::from_secs(60)), None));
    assert_eq!((set.keep.conversations, set.keep.versions), (Some(day * 90), Some(day * 30)));
    assert_eq!((set.audit.bytes, set.keep.leases), (2_000_000, Some(day)));
    for (wrong, said) in [
        ("event = \"7d\"", "did you mean `retention.events`?"),
        ("events = 7", "e.g. \"7d\""),
        ("events = \"7 days\"", "retention.events"),
        ("events = \"0\"", "at least 10 s"),
        ("versions = \"-1d\"", "retention.versions"),
        ("audit_bytes = 12", "retention.audit_bytes"),
        ("audit_bytes = \"1G\"", "retention.audit_bytes"),
    ] {
        place.write("here/seawall.toml", &format!("[retention]\n{wrong}"));
        assert!(place.refused().contains(said), "{wrong}: {}", place.refused());
    }
}
