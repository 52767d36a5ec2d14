//! What turns need: `[models]`, `[agents]`, `[programs]`, and templates of users' own.

use super::{Layers, Surroundings, check_keys, section};
use anyhow::{Context, Result, anyhow, bail, ensure};
use seawall_core::{
    ports::gateway::Secret,
    templates::{Template, Templates},
};
use seawall_gateway::{GatewaySettings, Upstream};
use seawall_sync::stores;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};
use toml::{Table, Value};

/// Of a template's file.
const KNOWN: [&str; 7] = ["base", "description", "agent", "sandbox", "sync", "git", "hooks"];
const MODEL_KEYS: [&str; 2] = ["anthropic", "openai"];
const UPSTREAM_KEYS: [&str; 3] = ["base_url", "key", "max_output_tokens"];
const PROGRAM_KEYS: [&str; 2] = ["claude-code", "codex"];

#[derive(Debug, Clone, Default)]
pub struct AgentSettings {
    pub models: GatewaySettings,
    /// C1: the template of an agent id.
    pub agents: BTreeMap<String, String>,
    /// Folders with agents' programs, for the built-in templates.
    pub programs: BTreeMap<String, PathBuf>,
    /// Where templates are looked for, beside the data folder's.
    pub folder: Option<PathBuf>,
}

/// Keys are not compared, and not shown.
impl PartialEq for AgentSettings {
    fn eq(&self, other: &Self) -> bool {
        (&self.agents, &self.programs, &self.folder) == (&other.agents, &other.programs, &other.folder)
    }
}

impl Layers {
    pub(super) fn agents_file(&mut self, file: &Path, shown: &str, table: &Table) -> Result<()> {
        self.settings.agents.folder = file.parent().map(|folder| folder.join("templates"));
        if let Some(models) = section(shown, table, "models", &MODEL_KEYS)? {
            upstream(shown, models, "anthropic", &mut self.settings.agents.models.anthropic)?;
            upstream(shown, models, "openai", &mut self.settings.agents.models.openai)?;
        }
        for (agent, value) in sections(shown, table, "agents")? {
            let name =
                value.as_str().ok_or_else(|| anyhow!("{shown}: `agents.{agent}` must name a template"))?;
            self.settings.agents.agents.insert(agent.clone(), name.to_owned());
        }
        if let Some(programs) = section(shown, table, "programs", &PROGRAM_KEYS)? {
            for (name, value) in programs {
                let path = value.as_str().map(PathBuf::from).filter(|path| path.is_absolute());
                let path =
                    path.ok_or_else(|| anyhow!("{shown}: `programs.{name}` must be an absolute path"))?;
                self.settings.agents.programs.insert(name.clone(), path);
            }
        }
        Ok(())
    }

    pub(super) fn agents_environment(&mut self, around: &Surroundings<'_>) {
        let text = |name: &str| {
            let text = (around.var)(name)?.to_string_lossy().trim().to_owned();
            (!text.is_empty()).then_some(text)
        };
        let models = &mut self.settings.agents.models;
        let vars = [
            ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", &mut models.anthropic),
            ("OPENAI_API_KEY", "OPENAI_BASE_URL", &mut models.openai),
        ];
        for (key, url, upstream) in vars {
            if let Some(key) = text(key) {
                upstream.key = Some(Secret::new(key));
            }
            if let Some(url) = text(url) {
                upstream.base_url = url;
            }
        }
        let programs = [("SEAWALL_CLAUDE_CODE", "claude-code"), ("SEAWALL_CODEX", "codex")];
        for (var, name) in programs {
            if let Some(path) = text(var) {
                self.settings.agents.programs.insert(name.to_owned(), around.current_dir.join(path));
            }
        }
    }
}

fn sections<'a>(shown: &str, table: &'a Table, name: &str) -> Result<Vec<(&'a String, &'a Value)>> {
    match table.get(name) {
        None => Ok(Vec::new()),
        Some(Value::Table(section)) => Ok(section.iter().collect()),
        Some(_) => bail!("{shown}: `{name}` must be a section: [{name}]"),
    }
}

fn upstream(shown: &str, models: &Table, name: &str, upstream: &mut Upstream) -> Result<()> {
    let Some(value) = models.get(name) else { return Ok(()) };
    let table = value.as_table().ok_or_else(|| anyhow!("{shown}: `models.{name}` must be a section"))?;
    check_keys(shown, &format!("models.{name}."), table, &UPSTREAM_KEYS)?;
    let text = |key: &str| -> Result<Option<String>> {
        let Some(value) = table.get(key) else { return Ok(None) };
        let text = value.as_str().filter(|text| !text.is_empty());
        Ok(Some(text.ok_or_else(|| anyhow!("{shown}: `models.{name}.{key}` must be text"))?.to_owned()))
    };
    if let Some(url) = text("base_url")? {
        upstream.base_url = url;
    }
    if let Some(key) = text("key")? {
        upstream.key = Some(Secret::new(key));
    }
    if let Some(value) = table.get("max_output_tokens") {
        let most = value.as_integer().and_then(|most| u64::try_from(most).ok()).filter(|most| *most > 0);
        let wrong = || anyhow!("{shown}: `models.{name}.max_output_tokens` must be a whole number above 0");
        upstream.max_output_tokens = most.ok_or_else(wrong)?;
    }
    Ok(())
}

/// The built-in ones, those beside `seawall.toml`, and those of the data folder, which win.
pub fn templates(settings: &AgentSettings, data: &Path) -> Result<Templates> {
    let mut all = Templates::default();
    for name in ["claude-code", "codex"] {
        if let Some(program) = settings.programs.get(name) {
            let mut template = all.get(name)?.clone();
            template.agent.program = Some(program.clone());
            all.add(template)?;
        }
    }
    for folder in settings.folder.iter().cloned().chain([data.join("templates")]) {
        let mut files: Vec<PathBuf> = match std::fs::read_dir(&folder) {
            Ok(entries) => entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect(),
            Err(_) => continue,
        };
        files.sort();
        for file in files.iter().filter(|file| is_template(file)) {
            load(&mut all, file)
                .with_context(|| format!("the template {} cannot be used", file.display()))?;
        }
    }
    Ok(all)
}

/// What editors leave beside a file begins with a dot, and is none.
fn is_template(file: &Path) -> bool {
    let hidden = file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    !hidden && file.extension().is_some_and(|ending| ending == "toml")
}

fn load(all: &mut Templates, file: &Path) -> Result<()> {
    // A pipe would be waited for.
    ensure!(std::fs::metadata(file)?.is_file(), "it is no file");
    let mut table: Table = toml::from_str(&std::fs::read_to_string(file)?)?;
    let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let says_false = |hook: &Value| hook.get("critical") == Some(&Value::Boolean(false));
    let cold_starts = table.get("hooks").and_then(|hooks| hooks.get("cold_start")).and_then(Value::as_array);
    if cold_starts.is_some_and(|hooks| hooks.iter().any(says_false)) {
        bail!(
            "a hook of `hooks.cold_start`: `critical = false` cannot be, cold starts are critical; leave it out"
        );
    }
    // What it does not say is as in the one that it is based on.
    if let Some(base) = table.remove("base") {
        let base = base.as_str().ok_or_else(|| anyhow!("`base` must be the name of a template"))?;
        let mut whole = Table::try_from(all.get(base)?)?;
        whole.remove("name");
        merge(&mut whole, table);
        table = whole;
    }
    if let Some(key) = table.keys().find(|key| !KNOWN.contains(&key.as_str())) {
        bail!("unknown field `{key}`, expected one of {}", KNOWN.join(", "));
    }
    let template = Template { name, ..Value::Table(table).try_into()? };
    if let Some(bucket) = &template.sync.bucket {
        stores::check(bucket).context("`sync.bucket`")?;
    }
    Ok(all.add(template)?)
}

fn merge(base: &mut Table, over: Table) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(Value::Table(base)), Value::Table(over)) => merge(base, over),
            (_, value) => drop(base.insert(key, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h7_a_template_of_ones_own_is_a_file() {
        let data = tempfile::tempdir().unwrap();
        let folder = data.path().join("templates");
        std::fs::create_dir(&folder).unwrap();
        let text = "base = \"claude-code\"\ndescription = \"mine\"\n[agent]\nmodel = \"m\"\n[[hooks.cold_start]]\nrun = \"true\"\n";
        std::fs::write(folder.join("mine.toml"), text).unwrap();
        let all = templates(&AgentSettings::default(), data.path()).unwrap();
        let mine = all.get("mine").unwrap();
        assert_eq!((mine.agent.driver.as_str(), mine.agent.model.as_deref()), ("claude-code", Some("m")));
        assert_eq!(mine.hooks.cold_start.len(), 1);
        assert!(all.get("nope").unwrap_err().to_string().contains("claude-code, codex, github, mine, shell"));
    }

    #[test]
    fn h7_what_makes_no_sense_is_refused_when_it_is_loaded() {
        for text in [
            "descripton = \"x\"",
            "[agent]\ndriver = \"gpt\"",
            "[agent]\nprogram = \"relative\"",
            "[agent]\ntimeout_seconds = 0",
            "[[hooks.message]]\nrun = \"a\"\nwebhook = \"https://x\"",
            "[[hooks.message]]\nwebhook = \"ftp://x\"",
            "[sync]\nkey_prefix = \"all\"",
            "[sync]\nvolume = \"../all\"",
            "[sync]\nvolume = \"{user}\"",
            "[sync]\nvolume = \"all\"\nversion = 1794766165301",
            "[sync]\nvolume = \"all\"\nkey_prefix = \"docs/{account}/{conversation}\"",
            "[git]\nrepo = \"git@github.com:a/b\"",
            "base = \"nope\"",
            "[agent]\nenv = { \"A=B\" = \"c\" }",
            "[agent]\nargs = [\"a\\u0000\"]",
            "[[hooks.message]]\nrun = \"a\\u0000b\"",
            "[[hooks.cold_start]]\nrun = \"true\"\ncritical = false",
            "[sync]\nkey_prefix = \"../../{sandbox}\"",
            "[sync]\nbucket = \"ftp://x\"",
            "[sync]\nbucket = \"s3://key:secret@x\"",
            "[sync]\nversion = -1",
            "[git]\nrepo = \"https://github.com/a/b\"\ndepth = 0",
            "[git]\nrepo = \"https://github.com/a/b\"\nref = \"--upload-pack=x\"",
        ] {
            let data = tempfile::tempdir().unwrap();
            std::fs::create_dir(data.path().join("templates")).unwrap();
            std::fs::write(data.path().join("templates/bad.toml"), text).unwrap();
            let error = templates(&AgentSettings::default(), data.path()).unwrap_err();
            assert!(format!("{error:#}").contains("bad.toml"), "{text}: {error:#}");
            assert!(!format!("{error:#}").contains("secret"), "{text}: {error:#}");
        }
    }

    #[test]
    fn h7_what_editors_leave_is_no_template_and_a_pipe_is_none_either() {
        let data = tempfile::tempdir().unwrap();
        let folder = data.path().join("templates");
        std::fs::create_dir(&folder).unwrap();
        std::os::unix::fs::symlink("user@host.1", folder.join(".#mine.toml")).unwrap();
        std::fs::write(folder.join(".mine.toml"), "half of").unwrap();
        std::fs::write(folder.join("mine.toml"), "[[hooks.cold_start]]\nrun = \"true\"\n").unwrap();
        let all = templates(&AgentSettings::default(), data.path()).unwrap();
        // H2: shown as it is.
        assert!(all.get("mine").unwrap().hooks.cold_start[0].critical);
        std::fs::create_dir(folder.join("folder.toml")).unwrap();
        let error = templates(&AgentSettings::default(), data.path()).unwrap_err();
        assert!(format!("{error:#}").contains("it is no file"), "{error:#}");
    }
}
