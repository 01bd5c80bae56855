//! Finds where a process's pages are in the machine's memory, and what pins them.

use omniverb_session::body::Pinned;
use omniverb_sys::io_uring_pin;
use omniverb_terms::Errno;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::pread;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const PAGE: u64 = 4096;
/// Bytes of the longest pin: no grant is longer.
const BYTES_MAX: u64 = 256 << 20;
/// Of an entry of `/proc/PID/pagemap`: the page is there, in memory; its number.
const PRESENT: u64 = 1 << 63;
const NUMBER: u64 = (1 << 55) - 1;
/// Capabilities of a process that may write to any memory of the kernel's: CAP_SYS_RAWIO,
/// CAP_SYS_ADMIN.
pub(super) const ANYTHING: u64 = 1 << 17 | 1 << 21;
/// Capabilities of a process that may look into all processes, and where their pages are:
/// CAP_SYS_PTRACE, CAP_SYS_ADMIN.
pub(super) const LOOKS: u64 = 1 << 19 | 1 << 21;

/// The ring of a process that keeps what it says, and the numbers of the pages.
pub(super) fn look(
    process: BorrowedFd<'_>,
    pid: i32,
    said: &Pinned,
) -> Result<(OwnedFd, Vec<u64>), Errno> {
    let Pinned { ring, start, length, .. } = *said;
    let whole = start.is_multiple_of(PAGE) && length.is_multiple_of(PAGE);
    if !whole || !(PAGE..=BYTES_MAX).contains(&length) || start.checked_add(length).is_none() {
        return Err(Errno::EINVAL);
    }
    let ring = io_uring_pin::descriptor_of(process, ring).map_err(|error| refused(&error))?;
    let pages = numbers(pid, start, length)?;
    // Of a process with this number there was one in between, or nothing has changed.
    let same = numbers(pid, start, length)? == pages;
    let lives = omniverb_sys::pidfd::pid_of(process).is_ok_and(|now| now == pid);
    match (same && lives, io_uring_pin::keeps(ring.as_fd(), start, length)) {
        (true, true) => Ok((ring, pages)),
        (false, true) => Err(Errno::EAGAIN),
        (_, false) => Err(Errno::EINVAL),
    }
}

/// The answer where the kernel refuses: not now, if there is no room, and otherwise never.
fn refused(error: &std::io::Error) -> Errno {
    use rustix::io::Errno as Raw;
    let now = [Raw::MFILE, Raw::NFILE, Raw::NOMEM, Raw::INTR, Raw::AGAIN];
    match Raw::from_io_error(error).is_some_and(|errno| now.contains(&errno)) {
        true => Errno::EAGAIN,
        false => Errno::EACCES,
    }
}

/// The numbers of the pages that a process has there.
fn numbers(pid: i32, start: u64, length: u64) -> Result<Vec<u64>, Errno> {
    let path = format!("/proc/{pid}/pagemap");
    let map = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let map = map.map_err(|errno| refused(&errno.into()))?;
    let wanted = usize::try_from(length / PAGE * 8).map_err(|_| Errno::EINVAL)?;
    let (mut bytes, mut have, from) = (vec![0; wanted], 0, start / PAGE * 8);
    while have < wanted {
        let room = bytes.get_mut(have..).unwrap_or(&mut []);
        match pread(&map, room, from + have as u64) {
            Ok(0) | Err(_) => return Err(Errno::EACCES),
            Ok(more) => have += more,
        }
    }
    let (entries, _) = bytes.as_chunks();
    entries.iter().map(|entry| number(u64::from_ne_bytes(*entry))).collect()
}

/// The number of a page, which may be on its way somewhere; a process that may not see numbers sees
/// zeros.
fn number(entry: u64) -> Result<u64, Errno> {
    let number = entry & NUMBER;
    match (entry & PRESENT != 0, number != 0) {
        (true, true) => Ok(number),
        (true, false) => Err(Errno::EACCES),
        (false, _) => Err(Errno::EAGAIN),
    }
}

/// Whether a process of our user namespace has all of these capabilities.
pub(super) fn may(pid: i32, what: u64) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let users = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/user")).ok();
    let here = users("self");
    has_all(&status, what) && here.is_some() && users(&pid.to_string()) == here
}

fn has_all(status: &str, what: u64) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    set.is_some_and(|set| set & what == what)
}

/// Bytes of memory that this machine has; none, if it does not say.
pub(super) fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_at_the_kernels_place_or_nowhere() {
        assert_eq!(number(PRESENT | 77), Ok(77));
        assert_eq!(number(PRESENT | 1 << 56 | 1 << 55 | 77), Ok(77), "more is said of it");
        assert_eq!(number(PRESENT), Err(Errno::EACCES), "we may not see it");
        for elsewhere in [77, 1 << 62 | 77, 0] {
            assert_eq!(number(elsewhere), Err(Errno::EAGAIN), "{elsewhere:#x}");
        }
    }

    #[test]
    fn root_may_do_anything() {
        assert!(has_all("Name:\tx\nCapPrm:\t0\nCapEff:\t000001ffffffffff\n", ANYTHING));
        assert!(has_all("CapEff:\t0000000000280000\n", LOOKS));
        for fewer in ["0000000000000000", "0000000000200000", "00000000a80425fb", "zz", ""] {
            let said = format!("CapEff:\t{fewer}\n");
            assert!(!has_all(&said, ANYTHING) && !has_all(&said, LOOKS), "{fewer}");
        }
        assert!(!has_all("", ANYTHING) && !may(0, 0));
        assert!(memory() > 0);
    }

    #[test]
    fn a_malformed_range_of_pages_is_refused() {
        let this = omniverb_sys::pidfd::of(std::process::id().cast_signed()).unwrap();
        for (start, length) in
            [(1, PAGE), (PAGE, 0), (PAGE, 1), (PAGE, BYTES_MAX + PAGE), (u64::MAX - 4095, PAGE)]
        {
            let said = Pinned { token: 0, epoch: 0, ring: 0, start, length };
            let found = look(this.as_fd(), std::process::id().cast_signed(), &said);
            assert_eq!(found.err(), Some(Errno::EINVAL), "{start} {length}");
        }
        let said = Pinned { token: 0, epoch: 0, ring: u32::MAX, start: PAGE, length: PAGE };
        let found = look(this.as_fd(), std::process::id().cast_signed(), &said);
        assert_eq!(found.err(), Some(Errno::EACCES));
    }
}
