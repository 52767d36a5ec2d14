//! The providers of this installation, by name (P7).

use crate::{Error, Result, ports::Provider};
use std::{collections::BTreeMap, fmt, sync::Arc};

#[derive(Clone)]
pub struct Providers {
    default: &'static str,
    all: BTreeMap<&'static str, Arc<dyn Provider>>,
}

impl fmt::Debug for Providers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Providers").field("default", &self.default).field("all", &self.names()).finish()
    }
}

impl Providers {
    pub fn new(default: &str, all: Vec<Arc<dyn Provider>>) -> Result<Providers> {
        let all: BTreeMap<_, _> = all.into_iter().map(|p| (p.name(), p)).collect();
        let known = all.keys().copied().collect::<Vec<_>>().join(", ");
        let default = all.get_key_value(default).map(|(name, _)| *name).ok_or_else(|| {
            Error::invalid(format!("there is no provider `{default}`; this installation has {known}"))
        })?;
        Ok(Providers { default, all })
    }

    pub fn get(&self, name: &str) -> Result<Arc<dyn Provider>> {
        self.all.get(name).cloned().ok_or_else(|| {
            let known = self.names().join(", ");
            Error::invalid(format!("there is no provider `{name}`; this installation has {known}"))
        })
    }

    pub fn default_name(&self) -> &str {
        self.default
    }

    pub fn names(&self) -> Vec<&'static str> {
        self.all.keys().copied().collect()
    }

    pub fn all(&self) -> impl Iterator<Item = &Arc<dyn Provider>> {
        self.all.values()
    }
}
