//! Reads `/proc/self/smaps`: the flags of mappings, which `/proc/self/maps` does not show. Raw
//! system calls and no allocation, as in [`crate::proc_maps`].
//!
//! The kernel walks all pages of each mapping that it shows, which takes about 4 us for each MiB
//! that is resident; what lies behind the last mapping that is wanted is not walked.

use crate::proc_maps::{self, Mapping};
use core::ops::ControlFlow;
use rustix::io::{Errno, read};

/// The flags of a mapping.
#[derive(Clone, Copy, Debug)]
pub struct Flags<'a> {
    /// As the kernel writes them: two letters each, see proc_pid_smaps(5).
    letters: &'a [u8],
    /// Its memory protection key (pkeys(7)); 0 is that of all pages.
    pub protection_key: u32,
}

impl Flags<'_> {
    /// Calls for each flag, by its two letters, until one is not `known`. True if all are.
    #[must_use]
    pub fn all(&self, mut known: impl FnMut(&[u8]) -> bool) -> bool {
        self.letters.split(u8::is_ascii_whitespace).filter(|f| !f.is_empty()).all(&mut known)
    }

    /// True if it has this flag.
    #[must_use]
    pub fn has(&self, flag: [u8; 2]) -> bool {
        !self.all(|other| other != flag)
    }
}

/// Calls `visit` for each mapping of this process in order of address, until it breaks. The
/// mappings come without their names.
///
/// # Errors
/// What the kernel says; a kernel without this file says `ENOENT`.
pub fn for_each(
    visit: impl FnMut(&Mapping<'_>, &Flags<'_>) -> ControlFlow<()>,
) -> Result<(), Errno> {
    let file = proc_maps::open_read(c"/proc/self/smaps")?;
    entries(|buffer| read(&file, buffer), visit)
}

fn entries(
    more: impl FnMut(&mut [u8]) -> Result<usize, Errno>,
    mut visit: impl FnMut(&Mapping<'_>, &Flags<'_>) -> ControlFlow<()>,
) -> Result<(), Errno> {
    let mut current: Option<Mapping<'static>> = None;
    let mut protection_key = 0;
    proc_maps::texts(more, |line| {
        if let Some(mapping) = proc_maps::parse(line) {
            protection_key = 0;
            current = Some(mapping.without_name());
        } else if let Some(key) = line.strip_prefix(b"ProtectionKey:") {
            protection_key = proc_maps::decimal(key.trim_ascii())
                .and_then(|key| u32::try_from(key).ok())
                .ok_or(Errno::IO)?;
        } else if let Some(letters) = line.strip_prefix(b"VmFlags:")
            && let Some(mapping) = current.take()
        {
            return Ok(visit(&mapping, &Flags { letters, protection_key }));
        }
        Ok(ControlFlow::Continue(()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaps_entries_are_parsed() {
        let text = b"1000-3000 rw-p 00000000 00:00 0 \nSize: 8 kB\nProtectionKey:  3\n\
                     VmFlags: rd wr mr wf \n4000-5000 r--p 00000000 00:00 0 [heap]\nVmFlags: rd\n";
        let mut at = 0;
        let mut seen = Vec::new();
        let more = |buffer: &mut [u8]| {
            let count = 7.min(text.len() - at).min(buffer.len());
            buffer[..count].copy_from_slice(&text[at..at + count]);
            at += count;
            Ok(count)
        };
        entries(more, |mapping, flags| {
            seen.push((mapping.start, flags.has(*b"wf"), flags.has(*b"rd"), flags.protection_key));
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(seen, [(0x1000, true, true, 3), (0x4000, false, true, 0)]);
    }

    #[test]
    fn this_kernel_reports_vm_flags() {
        let own = Box::new(0u8);
        let address = (&raw const *own).addr();
        let mut found = false;
        for_each(|mapping, flags| {
            found |= (mapping.start..mapping.end).contains(&address)
                && flags.has(*b"rd")
                && flags.has(*b"wr")
                && !flags.has(*b"ht");
            ControlFlow::Continue(())
        })
        .unwrap();
        assert!(found);
    }
}
