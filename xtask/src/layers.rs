//! Fails on a dependency between workspace crates that `layers.toml` does not allow.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::run::{metadata, root};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Layers {
    /// Folder: folders that the crates in it may use. The longest matching folder counts.
    may_use: BTreeMap<String, Vec<String>>,
}

impl Layers {
    fn rule(&self, folder: &str) -> Option<(&str, &[String])> {
        let matching = self.may_use.iter().filter(|(prefix, _)| within(folder, prefix));
        let longest = matching.max_by_key(|(prefix, _)| prefix.len());
        longest.map(|(prefix, allowed)| (prefix.as_str(), allowed.as_slice()))
    }

    /// What is wrong with a crate in `from` that depends on one in `to`, if anything.
    fn fault(&self, from: &str, to: &str) -> Option<String> {
        match self.rule(from) {
            None => Some(format!("layers.toml has no line for {from}")),
            Some((prefix, allowed)) if !allowed.iter().any(|folder| within(to, folder)) => {
                Some(format!("{from} uses {to}, but {prefix} may use only {allowed:?}"))
            }
            Some(_) => None,
        }
    }
}

/// Whether `folder` is `prefix` or below it.
fn within(folder: &str, prefix: &str) -> bool {
    folder.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The task.
pub(crate) fn run() -> Result<()> {
    let path = root().join("layers.toml");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let layers: Layers = toml::from_str(&text).with_context(|| path.display().to_string())?;
    let metadata = metadata()?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let mut faults = Vec::new();
    let mut edges = 0;
    for package in packages {
        let manifest = package["manifest_path"].as_str().context("a package has no path")?;
        let from = folder_of(Path::new(manifest).parent().context("a manifest has no folder")?)?;
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let Some(path) = dependency["path"].as_str() else { continue };
            edges += 1;
            faults.extend(layers.fault(&from, &folder_of(Path::new(path))?));
        }
    }
    if !faults.is_empty() {
        bail!("{}", faults.join("\n"));
    }
    println!("{} crates, {edges} edges, all as layers.toml has them", packages.len());
    Ok(())
}

/// A crate's folder, from the top of the repository.
fn folder_of(path: &Path) -> Result<String> {
    let top = root();
    let folder = path.strip_prefix(&top);
    let folder = folder.with_context(|| format!("{} is outside", path.display()))?;
    Ok(folder.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::Layers;

    #[test]
    fn the_longest_rule_counts() {
        let text = r#"
            [may_use]
            "app" = ["rnic", "app/abi"]
            "app/abi" = []
            "rnic" = ["support"]
        "#;
        let layers: Layers = toml::from_str(text).unwrap();
        assert_eq!(layers.fault("app/ibverbs", "rnic/device"), None);
        assert_eq!(layers.fault("app/ibverbs", "app/abi"), None);
        assert!(layers.fault("app/ibverbs", "app/client").is_some());
        assert!(layers.fault("app/abi", "rnic/device").is_some());
        assert!(layers.fault("rnic/device", "app/abi").is_some());
        assert!(layers.fault("rnic/device", "supportive").is_some());
        assert!(layers.fault("elsewhere", "rnic/device").is_some());
    }
}
