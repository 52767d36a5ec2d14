//! Who may depend on whom, and where each vendor crate lives.

use crate::architecture::{none, read, root};
use serde_json::Value;
use std::{collections::BTreeSet, path::PathBuf, process::Command};

/// Of ours, what each may depend on, also for its build. Crates that are still to come are here too.
const DIRECTION: [(&str, &[&str]); 13] = [
    ("seawall-api", &[]),
    ("seawall-wire", &["seawall-api"]),
    ("seawall-sync", &["seawall-api"]),
    ("seawall-jail", &[]),
    ("seawall-core", &["seawall-api", "seawall-wire", "seawall-sync"]),
    ("seawall-guest", &["seawall-api", "seawall-wire", "seawall-sync", "seawall-jail"]),
    ("seawall-providers", &["seawall-api", "seawall-wire", "seawall-core", "seawall-jail"]),
    ("seawall-stores", &["seawall-api", "seawall-core"]),
    ("seawall-gateway", &["seawall-api", "seawall-wire", "seawall-core"]),
    ("seawall-server", &["seawall-api", "seawall-wire", "seawall-sync", "seawall-core"]),
    ("seawall-client", &["seawall-api", "seawall-wire"]),
    (
        "seawall-cli",
        &[
            "seawall-api",
            "seawall-wire",
            "seawall-sync",
            "seawall-jail",
            "seawall-core",
            "seawall-providers",
            "seawall-stores",
            "seawall-gateway",
            "seawall-server",
            "seawall-client",
        ],
    ),
    (
        "seawall-bench",
        &[
            "seawall-api",
            "seawall-wire",
            "seawall-sync",
            "seawall-core",
            "seawall-providers",
            "seawall-stores",
            "seawall-gateway",
            "seawall-client",
            "seawall-cli",
        ],
    ),
];

/// Where a vendor crate may be a direct dependency. `(dev)`: for tests alone.
const HOMES: [(&str, &[&str]); 19] = [
    ("yamux", &["seawall-wire"]),
    ("rmp-serde", &["seawall-api"]),
    ("clap", &["seawall-bench", "seawall-cli"]),
    ("clap_complete", &["seawall-cli"]),
    ("indicatif", &["seawall-cli"]),
    ("libc", &["seawall-guest", "seawall-jail"]),
    ("blake3", &["seawall-providers", "seawall-jail", "seawall-sync"]),
    (
        "libtest-mimic",
        &["seawall-providers (dev)", "seawall-stores (dev)", "seawall-jail (dev)", "seawall-sync (dev)"],
    ),
    ("bollard", &["seawall-providers"]),
    ("kube", &["seawall-providers"]),
    ("sqlx", &["seawall-stores"]),
    ("aws-sdk-dynamodb", &["seawall-stores"]),
    ("object_store", &["seawall-sync"]),
    ("rmcp", &["seawall-server"]),
    ("axum", &["seawall-server"]),
    ("utoipa", &["seawall-api", "seawall-server"]),
    ("opentelemetry", &["seawall-server"]),
    ("tokio-tungstenite", &["seawall-client", "seawall-server (dev)"]),
    ("reqwest", &["seawall-gateway", "seawall-client"]),
];

/// Core knows no vendor: these are the language's furniture.
const CORE_MAY: [&str; 15] = [
    "async-trait",
    "bytes",
    "futures",
    "getrandom",
    "hmac",
    "jiff",
    "seawall-api",
    "seawall-sync",
    "seawall-wire",
    "serde",
    "serde_json",
    "sha2",
    "thiserror",
    "tokio",
    "tracing",
];

/// The crates that may say `unsafe` have lints of their own.
const OWN_LINTS: [&str; 2] = ["seawall-guest", "seawall-jail"];

struct Package {
    name: String,
    manifest: PathBuf,
    /// Names and kinds: `normal`, `dev`, `build`.
    dependencies: Vec<(String, String)>,
}

impl Package {
    fn names(&self, kinds: &[&str]) -> BTreeSet<&str> {
        let wanted = self.dependencies.iter().filter(|(_, kind)| kinds.contains(&kind.as_str()));
        wanted.map(|(name, _)| name.as_str()).collect()
    }
}

/// The workspace as cargo sees it. Without the dependencies' own manifests: direct ones are all that is
/// asked for, and those of other platforms need not be on this machine.
fn packages() -> Vec<Package> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--offline", "--no-deps"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages: Vec<Package> = list(&metadata["packages"]).iter().map(package).collect();
    assert!(packages.len() >= 6, "only {} packages were found", packages.len());
    packages
}

fn package(value: &Value) -> Package {
    let dependency = |each: &Value| {
        let kind = each["kind"].as_str().unwrap_or("normal");
        (text(&each["name"]), kind.to_owned())
    };
    Package {
        name: text(&value["name"]),
        manifest: PathBuf::from(text(&value["manifest_path"])),
        dependencies: list(&value["dependencies"]).iter().map(dependency).collect(),
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

#[test]
fn dependencies_point_one_way() {
    let mut broken = Vec::new();
    for package in packages() {
        let manifest = package.manifest.display();
        let Some((_, may)) = DIRECTION.iter().find(|(name, _)| *name == package.name) else {
            broken.push(format!("{manifest}: {} has no line in DIRECTION of this test", package.name));
            continue;
        };
        for name in package.names(&["normal", "build"]) {
            if name.starts_with("seawall-") && !may.contains(&name) {
                broken.push(format!("{manifest}: {} depends on {name}, and may on {may:?}", package.name));
            }
        }
    }
    none(
        "api <- wire, sync <- core <- providers, stores, server <- cli; guest is nobody's dependency",
        broken,
    );
}

#[test]
fn each_vendor_crate_has_one_home() {
    let mut broken = Vec::new();
    for package in packages() {
        for (vendor, homes) in HOMES {
            for (name, kind) in package.dependencies.iter().filter(|(name, _)| name == vendor) {
                let for_tests = kind == "dev" && homes.contains(&format!("{} (dev)", package.name).as_str());
                if !for_tests && !homes.contains(&package.name.as_str()) {
                    let manifest = package.manifest.display();
                    broken.push(format!("{manifest}: {name} ({kind}) lives in {}", homes.join(", ")));
                }
            }
        }
    }
    none("a vendor crate is a direct dependency of its home alone", broken);
}

#[test]
fn core_has_no_vendor_crate() {
    let packages = packages();
    let core = packages.iter().find(|package| package.name == "seawall-core").unwrap();
    let vendors = core.names(&["normal", "build"]).into_iter().filter(|name| !CORE_MAY.contains(name));
    let manifest = core.manifest.display();
    none("core has no vendor crate", vendors.map(|name| format!("{manifest}: {name}")).collect());
}

/// The lines of a section of a manifest, without blanks and comments.
fn section<'a>(manifest: &'a str, header: &str) -> Vec<&'a str> {
    let lines = manifest.lines().map(str::trim).skip_while(|line| *line != header).skip(1);
    lines.take_while(|line| !line.starts_with('[')).filter(|line| !line.is_empty()).collect()
}

#[test]
fn lints_are_the_workspaces() {
    let mut broken = Vec::new();
    for package in packages() {
        let manifest = read(&package.manifest);
        let shown = package.manifest.display();
        if !OWN_LINTS.contains(&package.name.as_str()) {
            if !section(&manifest, "[lints]").contains(&"workspace = true") {
                broken.push(format!("{shown}: `[lints] workspace = true` is missing"));
            }
        } else if !section(&manifest, "[lints.clippy]").contains(&"undocumented_unsafe_blocks = \"deny\"") {
            broken.push(format!("{shown}: `undocumented_unsafe_blocks = \"deny\"` is missing"));
        }
    }
    let workspace = root().join("Cargo.toml");
    let forbidden = "unsafe_code = \"forbid\"";
    if !section(&read(&workspace), "[workspace.lints.rust]").contains(&forbidden) {
        broken.push(format!("{}: `{forbidden}` is missing", workspace.display()));
    }
    none("lints are decided in one place", broken);
}
