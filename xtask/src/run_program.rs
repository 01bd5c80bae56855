//! Runs other programs, and knows the folders of the workspace.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The top folder of the repository.
pub(crate) fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}

/// The cargo that runs us.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Runs to success, output to the terminal.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {command:?}"))?;
    if !status.success() {
        bail!("{command:?}: {status}");
    }
    Ok(())
}

/// Runs to success, returns standard output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!("{command:?}: {}\n{text}", output.status);
    }
    String::from_utf8(output.stdout).context("output is not UTF-8")
}

/// What cargo knows of the workspace.
pub(crate) fn metadata() -> Result<serde_json::Value> {
    let text = output(cargo().args(["metadata", "--format-version", "1", "--no-deps"]))?;
    serde_json::from_str(&text).context("cargo metadata")
}

/// Where cargo puts what it builds.
pub(crate) fn target_directory() -> Result<PathBuf> {
    let metadata = metadata()?;
    let path = metadata["target_directory"].as_str().context("cargo metadata has no target")?;
    Ok(PathBuf::from(path))
}

/// For tasks that take no flags.
pub(crate) fn no_flags(flags: &[&str]) -> Result<()> {
    if let Some(flag) = flags.first() {
        bail!("unknown flag {flag}");
    }
    Ok(())
}

/// Puts a file in place in one step: a running program keeps the old one.
pub(crate) fn replace(from: &Path, to: &Path) -> Result<()> {
    let mut temporary = PathBuf::from(to).into_os_string();
    temporary.push(".new");
    std::fs::copy(from, &temporary).with_context(|| format!("cannot copy {}", from.display()))?;
    std::fs::rename(&temporary, to).with_context(|| format!("cannot replace {}", to.display()))
}
