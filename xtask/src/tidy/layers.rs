//! Which crate may know which: dependencies point down only.
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::process::Command;

use super::Finding;

/// A crate of ours, and those of ours that it may use.
const ALLOWED: &[(&str, &[&str])] = &[
    ("dmover-model", &[]),
    ("dmover-schedule", &[]),
    ("dmover-memory", &["dmover-model"]),
    // `memory` and `schedule` only with a feature that nothing that ships has.
    ("dmover-sys", &["dmover-memory", "dmover-schedule", "dmover-model"]),
    ("dmover-host", &["dmover-sys", "dmover-schedule"]),
    ("dmover-plan", &["dmover-model"]),
    ("dmover-observe", &["dmover-schedule", "dmover-model"]),
    ("dmover-digest", &["dmover-model"]),
    ("dmover-tree", &["dmover-observe", "dmover-model"]),
    ("dmover-wire", &["dmover-tree", "dmover-plan", "dmover-observe", "dmover-model"]),
    (
        "dmover-journal",
        &[
            "dmover-host",
            "dmover-sys",
            "dmover-schedule",
            "dmover-plan",
            "dmover-observe",
            "dmover-model",
        ],
    ),
    (
        "dmover-net",
        &[
            "dmover-wire",
            "dmover-tree",
            "dmover-host",
            "dmover-schedule",
            "dmover-observe",
            "dmover-model",
        ],
    ),
    (
        "dmover-local",
        &[
            "dmover-tree",
            "dmover-host",
            "dmover-sys",
            "dmover-plan",
            "dmover-digest",
            "dmover-schedule",
            "dmover-observe",
            "dmover-model",
        ],
    ),
    (
        "dmover-engine",
        &[
            "dmover-local",
            "dmover-tree",
            "dmover-journal",
            "dmover-wire",
            "dmover-host",
            "dmover-plan",
            "dmover-digest",
            "dmover-schedule",
            "dmover-observe",
            "dmover-model",
        ],
    ),
    (
        "dmover-remote",
        &[
            "dmover-engine",
            "dmover-local",
            "dmover-net",
            "dmover-wire",
            "dmover-tree",
            "dmover-host",
            "dmover-plan",
            "dmover-digest",
            "dmover-schedule",
            "dmover-observe",
            "dmover-model",
        ],
    ),
    (
        "dmover-queue",
        &[
            "dmover-engine",
            "dmover-wire",
            "dmover-plan",
            "dmover-host",
            "dmover-schedule",
            "dmover-observe",
            "dmover-model",
        ],
    ),
    ("dmover-server", &["dmover-schedule", "dmover-observe", "dmover-model"]),
    (
        "dmover-job",
        &[
            "dmover-engine",
            "dmover-local",
            "dmover-journal",
            "dmover-plan",
            "dmover-digest",
            "dmover-host",
            "dmover-sys",
            "dmover-schedule",
            "dmover-observe",
            "dmover-model",
        ],
    ),
    // Fleets: what decides, without anything that works. Whole jobs (feature `jobs`): everything up to `job`.
    (
        "dmover-simulator",
        &[
            "dmover-job",
            "dmover-engine",
            "dmover-journal",
            "dmover-tree",
            "dmover-digest",
            "dmover-host",
            "dmover-sys",
            "dmover-memory",
            "dmover-schedule",
            "dmover-observe",
            "dmover-plan",
            "dmover-model",
        ],
    ),
    (
        "dmover-cli",
        &[
            "dmover-engine",
            "dmover-queue",
            "dmover-remote",
            "dmover-net",
            "dmover-server",
            "dmover-job",
            "dmover-journal",
            "dmover-plan",
            "dmover-digest",
            "dmover-host",
            "dmover-sys",
            "dmover-schedule",
            "dmover-observe",
            "dmover-model",
        ],
    ),
    // What judges dmover shares no code with it.
    ("dmover-testkit", &[]),
    (
        "xtask",
        &[
            "dmover-cli",
            "dmover-observe",
            "dmover-model",
            "dmover-simulator",
            "dmover-memory",
            "dmover-host",
            "dmover-sys",
            "dmover-testkit",
        ],
    ),
];

/// Tests of every crate may use these; nothing that ships may.
const TEST_ONLY: &[&str] = &["dmover-testkit", "dmover-memory"];

/// File I/O runs on threads; an async runtime may come in with the crates of the network edge only.
const ASYNC: &[&str] = &["tokio", "async-std", "async-executor", "smol", "futures", "mio"];

/// Crates of the network edge.
const EDGE: &[&str] = &["dmover-queue", "dmover-server"];

/// What cargo knows of the workspace.
pub fn metadata() -> Result<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(crate::root())
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .output()
        .context("cannot run cargo")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).context("cargo metadata is not JSON")
}

/// Checks every dependency of every workspace member.
pub fn check(metadata: &Value) -> Result<Vec<Finding>> {
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let names: Vec<&str> = packages.iter().filter_map(|p| p["name"].as_str()).collect();
    let mut findings = Vec::new();
    for package in packages {
        let name = package["name"].as_str().context("a package has no name")?;
        let manifest = package["manifest_path"].as_str().unwrap_or_default();
        let manifest = relative(manifest);
        let Some((_, allowed)) = ALLOWED.iter().find(|(of, _)| *of == name) else {
            let what =
                format!("crate {name} has no place in the layers: see xtask/src/tidy/layers.rs");
            findings.push(Finding::of_tree(&manifest, what));
            continue;
        };
        for dependency in package["dependencies"].as_array().context("no dependencies")? {
            let on = dependency["name"].as_str().unwrap_or_default();
            let for_tests = dependency["kind"] == "dev";
            let ours = names.contains(&on);
            let permitted = allowed.contains(&on) || (for_tests && TEST_ONLY.contains(&on));
            if ours && !permitted {
                let what = format!("{name} must not depend on {on}: dependencies point down only");
                findings.push(Finding::of_tree(&manifest, what));
            }
            if !EDGE.contains(&name)
                && ASYNC.iter().any(|a| on == *a || on.starts_with(&format!("{a}-")))
            {
                let what = format!("{name} must not depend on {on}: file I/O runs on threads");
                findings.push(Finding::of_tree(&manifest, what));
            }
        }
    }
    Ok(findings)
}

/// A manifest's path from the root of the repository.
fn relative(manifest: &str) -> String {
    let root = crate::root();
    let path = std::path::Path::new(manifest);
    path.strip_prefix(&root).unwrap_or(path).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The findings in a workspace of all known crates, where `from` depends on `on`.
    fn findings(from: &str, on: &str, kind: Option<&str>) -> Vec<String> {
        let packages: Vec<Value> = ALLOWED
            .iter()
            .map(|(name, _)| {
                let dependencies =
                    if *name == from { json!([{ "name": on, "kind": kind }]) } else { json!([]) };
                json!({ "name": name, "manifest_path": "Cargo.toml", "dependencies": dependencies })
            })
            .collect();
        let found = check(&json!({ "packages": packages })).unwrap();
        found.into_iter().map(|f| f.to_string()).collect()
    }

    #[test]
    fn arrows_point_down() {
        assert!(findings("dmover-cli", "dmover-engine", None).is_empty());
        assert!(findings("dmover-engine", "serde", None).is_empty());
        for (from, on) in [
            ("dmover-engine", "dmover-cli"),
            ("dmover-plan", "dmover-sys"),
            ("dmover-model", "dmover-plan"),
            ("dmover-testkit", "dmover-engine"),
        ] {
            assert_eq!(findings(from, on, None).len(), 1, "{from} -> {on}");
            assert_eq!(findings(from, on, Some("dev")).len(), 1, "{from} -> {on} for tests");
        }
    }

    #[test]
    fn some_crates_are_for_tests() {
        for on in TEST_ONLY {
            assert!(findings("dmover-plan", on, Some("dev")).is_empty());
            assert!(findings("xtask", on, None).is_empty());
            assert_eq!(findings("dmover-cli", on, None).len(), 1);
            assert_eq!(findings("dmover-cli", on, Some("build")).len(), 1);
        }
    }

    #[test]
    fn no_async_runtime() {
        assert_eq!(findings("dmover-engine", "tokio", None).len(), 1);
        assert_eq!(findings("dmover-cli", "tokio-util", None).len(), 1);
    }

    #[test]
    fn a_new_crate_needs_a_place() {
        let package = json!({ "name": "dmover-new", "manifest_path": "x", "dependencies": [] });
        let found = check(&json!({ "packages": [package] })).unwrap();
        assert!(found[0].to_string().contains("no place in the layers"));
    }

    #[test]
    fn the_table_has_no_cycle() {
        let place = |name: &str| ALLOWED.iter().position(|(n, _)| *n == name).unwrap();
        for (name, allowed) in ALLOWED {
            assert!(allowed.iter().all(|on| place(on) < place(name)), "{name}");
        }
    }
}
