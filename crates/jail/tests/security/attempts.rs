//! All attempts, by group, and how this program makes one of them.

use super::{
    apart, blasts, devices, files, hoards, kernel, mounts, network, powers,
    probe::{Attempt, Facts, untried},
    processes,
};

pub static GROUPS: [(&str, &[Attempt]); 7] = [
    ("files", files::ATTEMPTS),
    ("processes", processes::ATTEMPTS),
    ("network", network::ATTEMPTS),
    ("mounts", mounts::ATTEMPTS),
    ("kernel", kernel::ATTEMPTS),
    ("devices", devices::ATTEMPTS),
    ("powers", powers::ATTEMPTS),
];

/// What the runner asks for beside the attempts: bombs, and helpers of cases.
type Helper = (&'static str, super::probe::Run);
static HELPERS: [&[Helper]; 3] = [powers::HELPERS, blasts::BOMBS, hoards::BOMBS];

/// `NAME [KEY=VALUE]…`. The exit code of this process.
pub fn perform(args: &[String]) -> i32 {
    let (name, facts) = match args.split_first() {
        Some((name, rest)) => (name.as_str(), Facts::parse(rest)),
        None => ("", Facts::default()),
    };
    let outcome = match (find(name), facts.number("apart")) {
        (None, _) => untried(format!("there is no attempt `{name}`")),
        (Some(run), 0) => run(&facts),
        (Some(run), kinds) => match apart::leave(kinds as libc::c_int) {
            Ok(()) => run(&facts),
            Err(error) => untried(format!("no namespaces for the control: {error}")),
        },
    };
    println!("{}", outcome.line());
    outcome.code()
}

fn find(name: &str) -> Option<super::probe::Run> {
    let attempts = GROUPS.iter().flat_map(|(_, attempts)| attempts.iter());
    let mut all = attempts.map(|attempt| (attempt.name, attempt.run));
    let mut helpers = HELPERS.iter().flat_map(|helpers| helpers.iter().copied());
    all.find(|(known, _)| *known == name)
        .or_else(|| helpers.find(|(known, _)| *known == name))
        .map(|found| found.1)
}
