//! The providers of this installation, by name (P7).

use crate::{Error, Result, ports::Provider};
use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};

/// The providers that can become the default if the operator names none, in order. `local` isolates nothing, so it is
/// never chosen.
const PREFERRED: [&str; 2] = ["native", "docker"];
/// How long a provider may take to show that it can be used.
const PROBE_PATIENCE: Duration = Duration::from_secs(5);
/// How long the result of a probe is reused.
const PROBE_LIFE: Duration = Duration::from_secs(30);
/// How long a failure is reused, so that a provider that works again is soon shown as that.
const FAILURE_LIFE: Duration = Duration::from_secs(2);

/// All providers, and which of them is the default. Clones share the default.
#[derive(Clone)]
pub struct Providers {
    default: Arc<OnceLock<&'static str>>,
    all: BTreeMap<&'static str, Arc<dyn Provider>>,
    probes: Arc<Mutex<HashMap<&'static str, Probe>>>,
}

/// The result of a probe: when it was made, and why the provider cannot be used.
#[derive(Clone)]
struct Probe {
    at: Instant,
    why_not: Option<String>,
}

impl fmt::Debug for Providers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Providers").field("default", &self.default).field("all", &self.names()).finish()
    }
}

impl Providers {
    /// Fails if no provider has the name of the default.
    pub fn new(default: &str, all: Vec<Arc<dyn Provider>>) -> Result<Providers> {
        let providers = Providers::undecided(all);
        let name = providers.get(default)?.name();
        Ok(Providers { default: Arc::new(OnceLock::from(name)), ..providers })
    }

    /// Providers without a default. [`Providers::choose`] decides it; until then it is the first of those that can be
    /// chosen.
    pub fn undecided(all: Vec<Arc<dyn Provider>>) -> Providers {
        let all = all.into_iter().map(|provider| (provider.name(), provider)).collect();
        Providers { default: Arc::default(), all, probes: Arc::default() }
    }

    /// Chooses the default if there is none: the first of native and docker that can be used. If both fail, native
    /// remains, and its error names the missing parts.
    pub async fn choose(&self) {
        if self.default.get().is_some() {
            return;
        }
        let mut chosen = None;
        for provider in self.preferred() {
            match self.why_not(provider).await {
                None => {
                    chosen = Some(provider.name());
                    break;
                }
                Some(why) => {
                    tracing::warn!(provider = provider.name(), why, "a provider cannot be used");
                }
            }
        }
        let name = chosen.unwrap_or_else(|| self.default_name());
        let name = *self.default.get_or_init(|| name);
        tracing::info!(provider = name, usable = chosen.is_some(), "the default provider was chosen");
    }

    fn preferred(&self) -> impl Iterator<Item = &Arc<dyn Provider>> {
        PREFERRED.iter().filter_map(|name| self.all.get(name))
    }

    /// Returns why a provider cannot make sandboxes now, or `None` if it can.
    pub async fn why_not(&self, provider: &Arc<dyn Provider>) -> Option<String> {
        // Held during a probe, so that callers at the same time share it.
        let mut probes = self.probes.lock().await;
        if let Some(probe) = probes.get(provider.name())
            && probe.at.elapsed() < if probe.why_not.is_some() { FAILURE_LIFE } else { PROBE_LIFE }
        {
            return probe.why_not.clone();
        }
        let why_not = match timeout(PROBE_PATIENCE, provider.probe()).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.chain()),
            Err(_) => Some(format!("it did not answer within {} s", PROBE_PATIENCE.as_secs())),
        };
        probes.insert(provider.name(), Probe { at: Instant::now(), why_not: why_not.clone() });
        why_not
    }

    /// Fails if no provider has this name.
    pub fn get(&self, name: &str) -> Result<Arc<dyn Provider>> {
        self.all.get(name).cloned().ok_or_else(|| {
            let known = self.names().join(", ");
            Error::invalid(format!("there is no provider `{name}`; this installation has {known}"))
        })
    }

    pub fn default_name(&self) -> &'static str {
        let first = || self.preferred().chain(self.all.values()).next().map_or("native", |one| one.name());
        self.default.get().copied().unwrap_or_else(first)
    }

    pub fn names(&self) -> Vec<&'static str> {
        self.all.keys().copied().collect()
    }

    pub fn all(&self) -> impl Iterator<Item = &Arc<dyn Provider>> {
        self.all.values()
    }
}
