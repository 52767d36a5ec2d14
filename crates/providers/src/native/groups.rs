//! Control groups in advance.

use super::{
    limits::{self, Defaults},
    spares::MakeGroup,
};
use seawall_api::{SandboxId, sandbox::Limits};
use seawall_jail::cgroup::{self, Cgroups, Controller};

pub fn spare_group(installation: &str, name: &str) -> String {
    format!("{installation}-spare-{name}")
}

/// Groups in advance, with the default limits: then those are only checked.
struct Groups {
    groups: Cgroups,
    installation: String,
    defaults: Defaults,
}

impl MakeGroup for Groups {
    fn make(&self) -> Option<(String, cgroup::Limits)> {
        let limits = limits::in_force(&Limits::default(), &self.defaults, &self.groups).ok()?;
        let name = spare_group(&self.installation, &SandboxId::generate().to_string());
        self.groups.make(&name, &limits).ok().map(|_| (name, limits))
    }

    fn remove(&self, name: &str) {
        // Whoever opens the folder next clears away what is left.
        let _ = self.groups.all_of(name).remove();
    }
}

/// None where groups cannot be renamed, or there are none.
pub fn group_maker(groups: &Cgroups, installation: &str, defaults: Defaults) -> Option<Box<dyn MakeGroup>> {
    let some = Controller::ALL.into_iter().any(|controller| groups.has(controller));
    let (groups, installation) = (groups.clone(), installation.to_owned());
    (groups.can_rename() && some)
        .then(|| Box::new(Groups { groups, installation, defaults }) as Box<dyn MakeGroup>)
}
