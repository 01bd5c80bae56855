//! Gives freed memory of this process's heap back to the kernel.
//!
//! glibc keeps what was freed for later use, also hundreds of MiB after a flood is over, unless it
//! is asked to give it back.

#![expect(unsafe_code)]
// UNSAFETY: calls of the C library for which nothing has a wrapper; none takes a pointer.

/// Allocations from so many bytes on are mappings of their own, which go with them. glibc raises
/// that by itself with every one that is freed, unless it is set.
const MAPPED_FROM: libc::c_int = 128 << 10;

/// Has large allocations given back as soon as they are freed. For the start of a program.
pub fn map_large_allocations() {
    // SAFETY: may be called at any time, by any thread.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM) };
}

/// Looks now and then whether memory was freed.
#[derive(Debug, Default)]
pub struct Trimmer {
    /// Bytes of the heap that were free after the last look.
    free: u32,
}

/// Less than so much more is not worth the work.
const WORTH: i32 = 8 << 20;

impl Trimmer {
    /// Gives back what was freed since the last look, if that is much. True: it was.
    pub fn look(&mut self) -> bool {
        let free = free_bytes();
        // The number wraps at 4 GiB.
        let more = free.wrapping_sub(self.free).cast_signed();
        if more < WORTH {
            if more < 0 {
                self.free = free;
            }
            return false;
        }
        // SAFETY: as above.
        unsafe { libc::malloc_trim(0) };
        self.free = free_bytes();
        true
    }
}

/// Bytes of the heap that are free, given back or not.
fn free_bytes() -> u32 {
    // SAFETY: as above; it returns numbers.
    unsafe { libc::mallinfo() }.fordblks.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident_bytes() -> usize {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    }

    #[test]
    fn freed_heap_returns_to_the_kernel() {
        map_large_allocations();
        let mut trimmer = Trimmer::default();
        trimmer.look();
        let before = resident_bytes();
        let small: Vec<Box<[u8]>> = (0..64 << 10).map(|_| vec![1; 1024].into()).collect();
        // One that stays behind the others keeps the heap's end where it is.
        let last: Box<[u8]> = vec![1; 1024].into();
        assert!(resident_bytes() > before + (60 << 20));
        drop(small);
        assert!(trimmer.look());
        assert!(resident_bytes() < before + (16 << 20), "{before} to {}", resident_bytes());
        assert!(!trimmer.look(), "there is nothing more");
        drop(last);
    }
}
