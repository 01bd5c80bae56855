//! Tells whether an open file is a device that may keep pages of this process and write to them
//! later.
//!
//! In: a descriptor's entry in `/proc`. Out: yes or no; what is not known to be harmless may. The
//! kernel says what kind of file it is and which device; names say nothing, since a device may have
//! any, and a harmless name be any device's. Nothing is asked of a file system that another
//! process may serve.
//!
//! Devices with memory of their own accord are RDMA, VFIO, GPUs and other accelerators, KVM, vhost
//! and udmabuf. Harmless are terminals, sources of zeros and random numbers, FUSE, tun, clocks, and
//! disks, whose direct I/O is another matter (`strategy/direct_io_detection.rs`), and memory that
//! was plugged into the machine (the bus `dax`).

use core::ffi::CStr;
use core::fmt::{Arguments, Write};
use core::mem::MaybeUninit;
use rustix::fd::AsFd;
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, major, minor, readlinkat_raw, statat, statx};
use rustix::io::Errno;

/// What a descriptor is open on, by its entry in a directory of them.
pub(crate) fn may_store(directory: impl AsFd, entry: &CStr) -> Result<bool, Errno> {
    let how = AtFlags::STATX_DONT_SYNC;
    let (mode, device) = match statx(&directory, entry, how, StatxFlags::TYPE) {
        Ok(found) => (found.stx_mode.into(), (found.stx_rdev_major, found.stx_rdev_minor)),
        // An old filter of system calls does not know it.
        Err(Errno::NOSYS | Errno::PERM) => {
            let found = statat(&directory, entry, AtFlags::empty())?;
            (found.st_mode, (major(found.st_rdev), minor(found.st_rdev)))
        }
        Err(errno) => return Err(errno),
    };
    let kind = FileType::from_raw_mode(mode);
    Ok(kind == FileType::CharacterDevice && !is_harmless(device))
}

/// A character device by its numbers; those that the kernel gives anew after each start, by what it
/// says that they are.
fn is_harmless(device: (u32, u32)) -> bool {
    match device {
        // null, zero, full, random, urandom, kmsg; not mem, port, kmem
        (1, 3 | 5 | 7 | 8 | 9 | 11) => true,
        // terminals, among them serial ones and pseudo terminals
        (4 | 5 | 136..=143 | 166 | 188 | 204 | 229, _) => true,
        // rtc, tun, fuse, loop-control
        (10, 135 | 200 | 229 | 237) => true,
        _ => kernel_says_harmless(device) || kernel_says_memory(device),
    }
}

/// Memory as a device: its pages are its own, and it touches no others.
fn kernel_says_memory((major, minor): (u32, u32)) -> bool {
    let mut room = [MaybeUninit::uninit(); 512];
    let bus = link(format_args!("/sys/dev/char/{major}:{minor}/subsystem\0"), &mut room);
    bus.is_some_and(|bus| bus.ends_with(b"/bus/dax"))
}

fn kernel_says_harmless((major, minor): (u32, u32)) -> bool {
    const DEVICES: [&[u8]; 4] = [b"/misc/userfaultfd", b"/misc/cpu_dma_latency", b"/rtc", b"/ptp"];
    let mut room = [MaybeUninit::uninit(); 512];
    let target = link(format_args!("/sys/dev/char/{major}:{minor}\0"), &mut room);
    let Some(target) = target else { return false };
    // Of clocks there are several, each with its number.
    let name = target.trim_ascii_end();
    let name = &name[..name.len() - name.iter().rev().take_while(|b| b.is_ascii_digit()).count()];
    DEVICES.iter().any(|known| name.ends_with(known))
}

/// Where a link leads whose path this is, with its end.
fn link<'a>(path: Arguments<'_>, room: &'a mut [MaybeUninit<u8>; 512]) -> Option<&'a [u8]> {
    let mut bytes = PathBytes { bytes: [0; 64], used: 0 };
    bytes.write_fmt(path).ok()?;
    let path = CStr::from_bytes_until_nul(&bytes.bytes).ok()?;
    readlinkat_raw(CWD, path, &mut room[..]).ok().map(|(target, _)| &*target)
}

/// A path, without allocating.
struct PathBytes {
    bytes: [u8; 64],
    used: usize,
}

impl Write for PathBytes {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let end = self.used + text.len();
        self.bytes
            .get_mut(self.used..end)
            .ok_or(core::fmt::Error)?
            .copy_from_slice(text.as_bytes());
        self.used = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    fn open_on(path: &str) -> Option<bool> {
        let file = File::open(path).ok()?;
        let own = File::open("/proc/self/fd").ok()?;
        let entry = std::ffi::CString::new(file.as_raw_fd().to_string()).ok()?;
        Some(may_store(&own, &entry).unwrap())
    }

    #[test]
    fn device_numbers_decide() {
        for harmless in [(1, 3), (1, 9), (5, 0), (136, 7), (10, 200), (10, 229)] {
            assert!(is_harmless(harmless), "{harmless:?}");
        }
        // mem, KVM, vhost-net, VFIO, GPUs, RDMA, and an unknown one.
        for device in [(1, 1), (10, 232), (10, 238), (10, 196), (226, 128), (231, 192), (999, 0)] {
            assert!(!is_harmless(device), "{device:?}");
        }
    }

    #[test]
    fn open_devices_are_found_under_any_path() {
        // Not beside a test that looks at all that this process has open.
        let _alone = crate::move_lock::MOVES.guard();
        assert_eq!(open_on("/dev/null"), Some(false));
        assert_eq!(open_on("/dev/urandom"), Some(false));
        assert_eq!(open_on("/proc/self/stat"), Some(false));
        assert!(open_on("/dev/kvm").is_none_or(|stores| stores));
        assert!(open_on("/dev/mem").is_none_or(|stores| stores));
        // Needs root, and a file system that has devices.
        let path = std::env::temp_dir().join(format!("null-{}", std::process::id()));
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        let device = rustix::fs::makedev(10, 232);
        let kind = FileType::CharacterDevice;
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        if rustix::fs::mknodat(CWD, &*name, kind, mode, device).is_ok() {
            let seen = open_on(path.to_str().unwrap());
            std::fs::remove_file(&path).unwrap();
            assert!(seen.is_none_or(|stores| stores), "KVM, by the name of null");
        }
    }
}
