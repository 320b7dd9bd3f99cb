//! What the program is linked from, as cargo knows it, and the licences of that.
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::{PACKAGE, TARGET, cargo};

/// What cargo knows of the packages for the target.
pub fn metadata() -> Result<Value> {
    let output = cargo()
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", TARGET])
        .output()
        .context("cannot run cargo")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).context("cargo metadata is not JSON")
}

fn array<'a>(metadata: &'a Value, field: &str) -> Result<&'a Vec<Value>> {
    metadata[field].as_array().with_context(|| format!("cargo metadata has no {field}"))
}

/// The package of this name.
pub fn package<'a>(metadata: &'a Value, name: &str) -> Result<&'a Value> {
    let found = array(metadata, "packages")?.iter().find(|package| package["name"] == name);
    found.with_context(|| format!("no package {name}"))
}

/// Names, versions and licences of everything that is linked in, then each licence text once.
pub fn third_party(metadata: &Value) -> Result<String> {
    let mut list = String::from("dmover contains these libraries, under their own licences:\n\n");
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let linked = linked(metadata)?;
    for package in array(metadata, "packages")? {
        // What has no source is ours.
        let foreign = !package["source"].is_null();
        if !foreign || !package["id"].as_str().is_some_and(|id| linked.contains(id)) {
            continue;
        }
        let word = |field: &str| package[field].as_str().unwrap_or("-");
        let name = format!("{} {}", word("name"), word("version"));
        writeln!(list, "{name} ({}), {}", word("license"), word("repository"))?;
        let manifest = Path::new(word("manifest_path"));
        for file in licence_files(manifest.parent().context("a manifest lies nowhere")?)? {
            let bytes =
                std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
            let text = String::from_utf8_lossy(&bytes).trim().to_owned();
            texts.entry(text).or_default().push(name.clone());
        }
    }
    for (text, packages) in texts {
        let rule = "=".repeat(78);
        writeln!(list, "\n{rule}\n{}\n{rule}\n{text}", packages.join(", "))?;
    }
    Ok(list)
}

/// The ids of all packages that the program is linked from: build tools and tests left out.
fn linked(metadata: &Value) -> Result<BTreeSet<&str>> {
    let nodes = metadata["resolve"]["nodes"].as_array().context("no resolved dependencies")?;
    let nodes: BTreeMap<&str, &Value> =
        nodes.iter().filter_map(|node| Some((node["id"].as_str()?, node))).collect();
    let mut open = vec![package(metadata, PACKAGE)?["id"].as_str().context("no id")?];
    let mut seen = BTreeSet::new();
    while let Some(id) = open.pop() {
        if !seen.insert(id) {
            continue;
        }
        let dependencies = nodes.get(id).and_then(|node| node["deps"].as_array());
        for dependency in dependencies.into_iter().flatten() {
            let kinds = dependency["dep_kinds"].as_array();
            if kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null())) {
                open.extend(dependency["pkg"].as_str());
            }
        }
    }
    Ok(seen)
}

fn licence_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().map(OsStr::to_string_lossy).unwrap_or_default().to_uppercase();
        let wanted = ["LICEN", "COPYING", "NOTICE", "COPYRIGHT", "UNLICENSE"];
        if path.is_file() && wanted.iter().any(|start| name.starts_with(start)) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn build_tools_and_tests_are_not_linked() {
        let dependency =
            |name: &str, kind: Value| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        let metadata = json!({
            "packages": [{ "name": PACKAGE, "id": "cli" }],
            "resolve": { "nodes": [
                { "id": "cli", "deps": [
                    dependency("lib", Value::Null),
                    dependency("cc", json!("build")),
                    dependency("kit", json!("dev")),
                ]},
                { "id": "lib", "deps": [dependency("deep", Value::Null)] },
                { "id": "cc", "deps": [] },
            ]},
        });
        assert_eq!(linked(&metadata).unwrap(), BTreeSet::from(["cli", "deep", "lib"]));
    }
}
