//! How pair windows come into a machine: as devices of their own, or mapped into one (decision
//! 0048). That takes a QEMU which can do it.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

/// The first release of QEMU that maps what a device asks for.
const FIRST: (u32, u32) = (11, 1);

/// How.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Way {
    /// Mapped, if QEMU is new enough, for all that it says itself; else plugged in.
    Auto,
    /// Mapped, with QEMU 11.1 or newer, and plugged in if the guest's driver knows of no such
    /// memory.
    Mapped,
    /// The same, of a machine into which nothing can be plugged: then there are none.
    #[value(skip)]
    MappedOnly,
    /// Plugged in.
    Plugged,
}

impl Way {
    /// As a keeper is told it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Way::Auto | Way::Plugged => "plugged",
            Way::Mapped => "mapped",
            Way::MappedOnly => "mapped-only",
        }
    }

    /// As that says.
    pub(crate) fn read(word: &str) -> Option<Way> {
        [Way::Plugged, Way::Mapped, Way::MappedOnly].into_iter().find(|way| way.word() == word)
    }

    /// Which it is, of a QEMU that is started by this word.
    pub(super) fn with(self, program: &OsStr) -> Way {
        match self {
            Way::Auto if maps(program) => Way::Mapped,
            Way::Auto => Way::Plugged,
            chosen => chosen,
        }
    }
}

/// Whether a program is a QEMU that is new enough. One that is called otherwise is not asked: it
/// may do anything.
fn maps(program: &OsStr) -> bool {
    let name = Path::new(program).file_name().and_then(OsStr::to_str);
    if !name.is_some_and(|name| name.starts_with("qemu-system-")) {
        return false;
    }
    let mut asked = Command::new(program);
    asked.arg("--version").stdin(Stdio::null()).stderr(Stdio::null());
    let said = asked.output().ok().and_then(|output| String::from_utf8(output.stdout).ok());
    said.and_then(|said| version(&said)).is_some_and(|version| version >= FIRST)
}

fn version(said: &str) -> Option<(u32, u32)> {
    let mut numbers = said.strip_prefix("QEMU emulator version ")?.split(['.', ' ']);
    let mut next = || numbers.next()?.parse().ok();
    Some((next()?, next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read() {
        for (said, expected) in [
            ("QEMU emulator version 11.1.3 (Debian 1:11.1.3+ds-1)\nCopyright", Some((11, 1))),
            ("QEMU emulator version 7.2.22 (Debian)", Some((7, 2))),
            ("QEMU emulator version 12.0.50", Some((12, 0))),
            ("ld.so (Debian GLIBC 2.43-1) stable release version 2.43.", None),
            ("QEMU emulator version x", None),
        ] {
            assert_eq!(version(said), expected, "{said}");
        }
        assert!((11, 1) >= FIRST && (11, 0) < FIRST && (12, 0) >= FIRST);
    }

    #[test]
    fn nobody_is_asked_who_is_called_otherwise() {
        assert_eq!(Way::Auto.with(OsStr::new("/bin/true")), Way::Plugged);
        assert_eq!(Way::Auto.with(OsStr::new("/nowhere/qemu-system-x86_64")), Way::Plugged);
        assert_eq!(Way::Mapped.with(OsStr::new("/bin/true")), Way::Mapped);
        for way in [Way::Mapped, Way::MappedOnly, Way::Plugged] {
            assert_eq!(Way::read(way.word()), Some(way));
        }
        assert_eq!(Way::read("auto"), None);
    }
}
