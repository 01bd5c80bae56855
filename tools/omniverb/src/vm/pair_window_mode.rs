//! Chooses how pair windows come into a machine: as devices, or mapped into one (decision 0048).
//!
//! That takes a QEMU which can do it.

use omniverb_arguments::WindowMode;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{Command, Stdio};

/// The first release of QEMU that maps what a device asks for.
const FIRST: (u32, u32) = (11, 1);

/// How a machine's pair windows come into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowMethod {
    /// Mapped, if QEMU is new enough, for all that it says itself, ends at a reset anyway, and is
    /// not told to use KVM, with which that was never tried; else plugged in.
    Auto,
    /// Mapped, with QEMU 11.1 or newer, and plugged in if the guest's driver knows of no such
    /// memory.
    Mapped,
    /// Like `Mapped`, of a machine into which nothing can be plugged: then there are none.
    MappedOnly,
    /// Plugged in, each as a device of its own.
    Plugged,
}

impl From<WindowMode> for WindowMethod {
    fn from(mode: WindowMode) -> WindowMethod {
        match mode {
            WindowMode::Auto => WindowMethod::Auto,
            WindowMode::Mapped => WindowMethod::Mapped,
            WindowMode::Plugged => WindowMethod::Plugged,
        }
    }
}

impl WindowMethod {
    /// The option for a supervisor.
    pub(super) fn word(self) -> &'static str {
        match self {
            WindowMethod::Auto | WindowMethod::Plugged => "plugged",
            WindowMethod::Mapped => "mapped",
            WindowMethod::MappedOnly => "mapped-only",
        }
    }

    /// As that says.
    pub(crate) fn read(word: &str) -> Option<WindowMethod> {
        [WindowMethod::Plugged, WindowMethod::Mapped, WindowMethod::MappedOnly]
            .into_iter()
            .find(|way| way.word() == word)
    }

    /// Which it is, of a QEMU that is started by this word and these.
    pub(super) fn with(self, program: &OsStr, arguments: &[OsString]) -> WindowMethod {
        match self {
            WindowMethod::Auto
                if ends_at_reset(arguments) && !names_kvm(arguments) && maps(program) =>
            {
                WindowMethod::Mapped
            }
            WindowMethod::Auto => WindowMethod::Plugged,
            chosen => chosen,
        }
    }
}

/// Whether QEMU is told to end when its guest is reset: a guest that is reset after it has lost its
/// mapper for good ends anyway, which only users who asked for it are to have.
fn ends_at_reset(arguments: &[OsString]) -> bool {
    let says = |word: &OsString| {
        let word = word.to_str().unwrap_or("");
        word.trim_start_matches('-') == "no-reboot"
            || word.split(',').any(|w| w == "reboot=shutdown")
    };
    arguments.iter().any(says)
}

/// Whether QEMU is told to use KVM, or a processor that there is only with it. A false match costs
/// nothing: windows are plugged in.
fn names_kvm(arguments: &[OsString]) -> bool {
    let words: Vec<&str> = arguments.iter().map(|word| word.to_str().unwrap_or("")).collect();
    let says = |word: &&str| {
        word.trim_start_matches('-') == "enable-kvm"
            || word.split([',', ':', '=']).any(|part| part == "kvm")
    };
    let is_host = |pair: &[&str]| {
        pair[0].trim_start_matches('-') == "cpu" && pair[1].split(',').next() == Some("host")
    };
    words.iter().any(says) || words.windows(2).any(is_host)
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
    fn a_guest_that_may_be_reset_is_known_by_its_words() {
        for (words, expected) in [
            (&["-m", "512"][..], false),
            (&["-action", "reboot=reset"], false),
            (&["-action", "panic=none,reboot=shutdown"], true),
            (&["--no-reboot"], true),
        ] {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            assert_eq!(ends_at_reset(&words), expected, "{words:?}");
        }
    }

    #[test]
    fn kvm_is_known_by_its_words() {
        for (words, expected) in [
            (&["-m", "512", "-machine", "q35", "-no-reboot"][..], false),
            (&["-accel", "tcg,thread=multi", "-cpu", "max"], false),
            (&["-cpu", "qemu64", "-name", "host"], false),
            (&["-enable-kvm"], true),
            (&["--enable-kvm"], true),
            (&["-accel", "kvm"], true),
            (&["-accel", "kvm,dirty-ring-size=4096"], true),
            (&["-machine", "type=q35,accel=kvm:tcg"], true),
            (&["-M", "q35,accel=tcg:kvm"], true),
            (&["-cpu", "host"], true),
            (&["--cpu", "host,pmu=off"], true),
        ] {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            assert_eq!(names_kvm(&words), expected, "{words:?}");
        }
    }

    #[test]
    fn only_devices_of_that_name_are_asked() {
        let words = [OsString::from("-no-reboot")];
        let with = |way: WindowMethod, program| way.with(OsStr::new(program), &words);
        assert_eq!(with(WindowMethod::Auto, "/bin/true"), WindowMethod::Plugged);
        assert_eq!(with(WindowMethod::Auto, "/nowhere/qemu-system-x86_64"), WindowMethod::Plugged);
        assert_eq!(with(WindowMethod::Mapped, "/bin/true"), WindowMethod::Mapped);
        for way in [WindowMethod::Mapped, WindowMethod::MappedOnly, WindowMethod::Plugged] {
            assert_eq!(WindowMethod::read(way.word()), Some(way));
        }
        assert_eq!(WindowMethod::read("auto"), None);
    }
}
