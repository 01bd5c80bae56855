//! Writes man pages and shell completions into the folder that is its argument.
#![forbid(unsafe_code)]

mod page;

use anyhow::{Context, bail};
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A program, and the section of the manual that it belongs to.
type Program = (Command, &'static str);

/// Where each shell looks for completions below `share`, and what the file of a program is called.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions"),
    (Shell::Zsh, "zsh/vendor-completions"),
    (Shell::Fish, "fish/vendor_completions.d"),
];

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let Some(folder) = arguments.next() else { bail!("usage: omniverb_manual FOLDER") };
    let share = PathBuf::from(folder).join("share");
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut written = BTreeSet::new();
    for (command, section) in programs() {
        page::write_all(&command, section, &own.join("sections"), &share, &mut written)?;
        complete(&command, &share)?;
    }
    page::refuse_unused(&own.join("sections"), &written)?;
    let folder = share.join("man/man5");
    std::fs::create_dir_all(&folder)?;
    let name = "omniverbd.toml.5";
    std::fs::copy(own.join("pages").join(name), folder.join(name)).context(name)?;
    Ok(())
}

fn programs() -> [Program; 3] {
    [
        (omniverb_arguments::Arguments::command(), "1"),
        (omniverbd_arguments::Arguments::command(), "8"),
        (omniverb_agent_arguments::Arguments::command(), "8"),
    ]
}

fn complete(command: &Command, share: &Path) -> anyhow::Result<()> {
    let name = command.get_name().to_owned();
    for (shell, folder) in COMPLETIONS {
        let folder = share.join(folder);
        std::fs::create_dir_all(&folder)?;
        // Debian's bash-completion loads the file that has the program's plain name.
        let file = match shell {
            Shell::Bash => name.clone(),
            Shell::Zsh => format!("_{name}"),
            _ => format!("{name}.fish"),
        };
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut page::without_hidden(command), &name, &mut text);
        std::fs::write(folder.join(file), text)?;
    }
    Ok(())
}
