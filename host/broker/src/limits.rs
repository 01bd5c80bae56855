//! How much anybody can make the broker keep.

/// Processes at a time: a thread each, two descriptors, a page.
pub(crate) const PROCESSES: usize = 4096;
/// Of these of one user.
pub(crate) const PROCESSES_OF_USER: usize = 1024;
/// Offers of a process whose other end has not come. Nearly all of these never come, since there
/// the library is not loaded, so the oldest are given up.
pub(crate) const OFFERS: usize = 1024;
/// Links of a process. Their memory is its own and its peers'.
pub(crate) const LINKS: usize = 4096;
