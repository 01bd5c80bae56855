//! Opens memory that is plugged into the machine as a device of the bus `dax`.
//!
//! In a virtual machine such a device is memory that the host has, too; the host's name for a piece
//! of it is an offset in the device (decision 0036). In: a descriptor, perhaps of something else.
//! Out: how many bytes the device has, which is its hardware's: only root can change it.

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags, openat, readlinkat, statx};
use std::os::fd::BorrowedFd;

/// Where the kernel says what is behind a device's numbers.
const DEVICES: &str = "/sys/dev/char";
/// Digits of the largest number, a newline, and one more.
const NUMBER_BYTES: usize = 22;

/// Bytes of a device of the bus `dax`; `None`: it is no such device, or sysfs is not there to say.
pub(crate) fn size(file: BorrowedFd<'_>) -> Option<u64> {
    size_in(DEVICES, file)
}

fn size_in(devices: &str, file: BorrowedFd<'_>) -> Option<u64> {
    // A file system that may never answer is not asked, either: what it said last will do.
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let status = statx(file, "", flags, StatxFlags::TYPE).ok()?;
    if FileType::from_raw_mode(status.stx_mode.into()) != FileType::CharacterDevice {
        return None;
    }
    let device = format!("{devices}/{}:{}", status.stx_rdev_major, status.stx_rdev_minor);
    let bus = readlinkat(CWD, format!("{device}/subsystem"), Vec::new());
    if !bus.is_ok_and(|bus| bus.to_bytes().ends_with(b"/bus/dax")) {
        return None;
    }
    number(&format!("{device}/size"))
}

/// The number that a file of sysfs says.
fn number(path: &str) -> Option<u64> {
    let file = openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut bytes = [0; NUMBER_BYTES];
    let length = rustix::io::read(&file, &mut bytes).ok()?;
    std::str::from_utf8(bytes.get(..length)?).ok()?.trim_end().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, create_dir_all, remove_dir_all, write};
    use std::os::fd::AsFd;
    use std::os::unix::fs::symlink;

    /// A sysfs in which `/dev/null` is a device of some bus, with some size.
    fn size_of_null(name: &str, bus: &str, size: Option<&str>) -> Option<u64> {
        let folder = std::env::temp_dir().join(format!("omniverb-{name}-{}", std::process::id()));
        let device = folder.join("1:3");
        create_dir_all(&device).unwrap();
        symlink(bus, device.join("subsystem")).unwrap();
        if let Some(size) = size {
            write(device.join("size"), size).unwrap();
        }
        let null = File::open("/dev/null").unwrap();
        let found = size_in(folder.to_str().unwrap(), null.as_fd());
        remove_dir_all(&folder).unwrap();
        found
    }

    #[test]
    fn a_device_of_the_bus_is_as_large_as_it_says() {
        let found = size_of_null("dax-sound", "../../../../bus/dax", Some("134209536\n"));
        assert_eq!(found, Some(134_209_536));
    }

    #[test]
    fn nothing_else_is_memory() {
        let dax = "../../bus/dax";
        for (name, bus, size) in [
            ("dax-bus", "../../class/mem", Some("4096\n")),
            ("dax-none", dax, None),
            ("dax-word", dax, Some("many\n")),
            ("dax-minus", dax, Some("-1\n")),
            ("dax-large", dax, Some("99999999999999999999999\n")),
        ] {
            assert_eq!(size_of_null(name, bus, size), None, "{name}");
        }
        for path in ["/dev/null", "/proc/self/exe", "/"] {
            let other = File::open(path).unwrap();
            assert_eq!(size(other.as_fd()), None, "{path}");
        }
    }
}
