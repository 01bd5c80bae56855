//! Makes anonymous shared files that are sealed against resizing.
//!
//! A file that shrinks after it was mapped turns the next access into a SIGBUS, so every file that
//! crosses between processes is sealed against resizing by its maker, and [`size`] checks that
//! (never trusting the sender) before any of it is mapped.

use crate::Access;
use crate::extent_error::VerifyError;
use rustix::fs::{
    FileType, MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate,
    memfd_create,
};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// `f_type` of the file system that ordinary memfds live on. Files on huge pages live elsewhere
/// and can raise SIGBUS when the pool runs dry, so they are not accepted.
const TMPFS_MAGIC: i64 = 0x0102_1994;

const FIXED_SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// A memory file of `bytes` zero bytes whose size and seals are final.
///
/// # Errors
/// What the kernel says, for example `ENOMEM`, `EMFILE`, `EINVAL` for a name with a NUL.
pub fn create(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    let file = unsealed(name, bytes)?;
    fcntl_add_seals(&file, FIXED_SIZE | SealFlags::SEAL)?;
    Ok(file)
}

/// A memory file of fixed size to which [`seal_future_write`] may still be applied.
///
/// # Errors
/// As [`create`].
pub fn create_sealable(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    let file = unsealed(name, bytes)?;
    fcntl_add_seals(&file, FIXED_SIZE)?;
    Ok(file)
}

/// A memory file that cannot be executed. It has no seals yet; of fixed size it is not.
///
/// # Errors
/// What the kernel says: `EMFILE`, `ENFILE`, `ENOMEM`.
pub fn unsealed(name: &str, bytes: u64) -> rustix::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Kernels before 6.3 do not know NOEXEC_SEAL.
        Err(Errno::INVAL) => memfd_create(name, flags)?,
        other => other?,
    };
    if !is_permitted(bytes) {
        return Err(Errno::FBIG);
    }
    ftruncate(&file, bytes)?;
    Ok(file)
}

/// Whether this process may write to files up to so many bytes (`RLIMIT_FSIZE`). Beyond that the
/// kernel sends a signal (SIGXFSZ), which ends most programs.
#[must_use]
pub fn is_permitted(bytes: u64) -> bool {
    getrlimit(Resource::Fsize).current.is_none_or(|most| bytes <= most)
}

/// Forbids any new writable mapping and any `write`; mappings that exist stay writable. Final.
///
/// # Errors
/// `EPERM` if the file's seals are final already.
pub fn seal_future_write(file: BorrowedFd<'_>) -> io::Result<()> {
    Ok(fcntl_add_seals(file, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?)
}

/// Makes the seals of a memory file final, if they are not yet, so that its receiver can map it for
/// this `access`, and for no more.
///
/// # Errors
/// `EPERM` if they are final already and allow more.
pub fn finish(file: BorrowedFd<'_>, access: Access) -> io::Result<()> {
    match (is_final(file)?, access) {
        (false, Access::ReadWrite) => Ok(fcntl_add_seals(file, SealFlags::SEAL)?),
        (true, Access::ReadWrite) => Ok(()),
        (true, Access::ReadOnly) if is_write_sealed(file)? => Ok(()),
        (_, Access::ReadOnly) => seal_future_write(file),
    }
}

/// The seals of a memory file.
///
/// # Errors
/// `EINVAL` if the descriptor is of another kind.
pub fn seals(file: BorrowedFd<'_>) -> io::Result<SealFlags> {
    Ok(fcntl_get_seals(file)?)
}

/// True if no writable mapping of the file can be made any more.
///
/// # Errors
/// As [`seals`].
pub(crate) fn is_write_sealed(file: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(seals(file)?.intersects(SealFlags::FUTURE_WRITE | SealFlags::WRITE))
}

/// True if neither the size nor the seals of the file can change any more.
///
/// # Errors
/// As [`seals`].
pub(crate) fn is_final(file: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(seals(file)?.contains(FIXED_SIZE | SealFlags::SEAL))
}

/// What can still be done to a memory file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seals {
    /// Neither its size nor its seals can change any more.
    pub is_final: bool,
    /// No writable mapping of it can be made any more.
    pub is_write_sealed: bool,
}

impl Seals {
    /// Those of a file.
    pub(crate) fn of(file: BorrowedFd<'_>) -> io::Result<Seals> {
        Ok(Seals { is_final: is_final(file)?, is_write_sealed: is_write_sealed(file)? })
    }

    /// It cannot be cut short, and all its holders may write, for good.
    #[must_use]
    pub fn is_for_writers(self) -> bool {
        self.is_final && !self.is_write_sealed
    }
}

/// Bytes of a memory file that will never have fewer, nor more.
///
/// # Errors
/// [`VerifyError`]: it is no such file.
pub fn size(file: BorrowedFd<'_>) -> Result<u64, VerifyError> {
    let os = |errno: Errno| VerifyError::Os(errno.into());
    // First of all, and the only question that no file system is asked: what is behind the
    // descriptor may be one that never answers.
    let seals = fcntl_get_seals(file).map_err(|_| VerifyError::NotMemory)?;
    let status = fstat(file).map_err(os)?;
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
        return Err(VerifyError::NotMemory);
    }
    if fstatfs(file).map_err(os)?.f_type != TMPFS_MAGIC {
        return Err(VerifyError::NotMemory);
    }
    // Seals first, size second: a size that is read before the seal could still change.
    if !seals.contains(FIXED_SIZE) {
        return Err(VerifyError::Resizable);
    }
    Ok(u64::try_from(fstat(file).map_err(os)?.st_size).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_created_file_is_acceptable_and_final() {
        let file = create("test", 8192).unwrap();
        assert_eq!(size(file.as_fd()).unwrap(), 8192);
        assert!(ftruncate(&file, 0).is_err());
        assert!(ftruncate(&file, 1 << 20).is_err());
        assert!(seal_future_write(file.as_fd()).is_err());
    }

    #[test]
    fn a_read_only_grant_cannot_be_written() {
        let file = create_sealable("test", 4096).unwrap();
        assert!(!is_write_sealed(file.as_fd()).unwrap() && !is_final(file.as_fd()).unwrap());
        seal_future_write(file.as_fd()).unwrap();
        assert!(is_write_sealed(file.as_fd()).unwrap() && is_final(file.as_fd()).unwrap());
        finish(file.as_fd(), Access::ReadOnly).unwrap();
    }

    #[test]
    fn what_is_final_for_writers_never_becomes_read_only() {
        let [open, closed] = [(); 2].map(|()| create_sealable("test", 4096).unwrap());
        finish(open.as_fd(), Access::ReadWrite).unwrap();
        finish(open.as_fd(), Access::ReadWrite).unwrap();
        assert!(is_final(open.as_fd()).unwrap() && !is_write_sealed(open.as_fd()).unwrap());
        assert!(finish(open.as_fd(), Access::ReadOnly).is_err());
        finish(closed.as_fd(), Access::ReadOnly).unwrap();
        assert!(is_final(closed.as_fd()).unwrap() && is_write_sealed(closed.as_fd()).unwrap());
    }
}
