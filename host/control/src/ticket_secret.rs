//! Keeps the secret of tickets in a file beside the lock, so that the next daemon has it too.
//!
//! It lives as long as that folder does, which is usually until the machine is switched off. A file
//! that is not ours alone is not believed: then there is a new secret, and nothing that is older
//! than this daemon can be announced to it.

use omniverb_sys::random;
use omniverb_tenancy::Secret;
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::process::geteuid;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Bytes of the file: a mark, and two numbers.
const BYTES: usize = 24;
const MARK: [u8; 8] = *b"omnivsec";

/// The origin of a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// That of an earlier daemon, whose clients may announce what they have of it.
    Inherited,
    /// Drawn for this one.
    Drawn,
}

/// The secret that the earlier daemon has left for this one.
#[derive(Debug)]
pub(crate) struct StoredSecret {
    pub(crate) secret: Secret,
    pub(crate) source: Source,
    /// Why the next daemon will not have it.
    pub(crate) problem: Option<io::Error>,
}

/// The secret of the earlier daemon, or a new one. Only the holder of the lock may ask.
pub(crate) fn take(files: &Path) -> StoredSecret {
    let mut name = files.as_os_str().to_owned();
    name.push(".secret");
    let path = PathBuf::from(name);
    if let Ok(secret) = read(&path) {
        return StoredSecret { secret, source: Source::Inherited, problem: None };
    }
    let secret = Secret([random::number(), random::number()]);
    StoredSecret { secret, source: Source::Drawn, problem: write(&path, secret).err() }
}

/// How many daemons have asked this before, if it can be written down that we did, too.
pub(crate) fn count(files: &Path) -> Option<u64> {
    let mut name = files.as_os_str().to_owned();
    name.push(".count");
    let path = PathBuf::from(name);
    let before = read(&path).map(|Secret([count, _])| count).unwrap_or_else(|_| random::number());
    write(&path, Secret([before.wrapping_add(1), 0])).ok().map(|()| before)
}

fn read(path: &Path) -> io::Result<Secret> {
    // Not blocking, should it be a pipe.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = open(path, flags, Mode::empty())?;
    let status = fstat(&file)?;
    let plain = FileType::from_raw_mode(status.st_mode) == FileType::RegularFile;
    let ours = status.st_uid == geteuid().as_raw() && status.st_mode & 0o7777 == 0o600;
    if !plain || !ours || status.st_nlink != 1 || status.st_size != BYTES as i64 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = [0; BYTES];
    File::from(file).read_exact(&mut bytes)?;
    let number = |at: usize| {
        let bytes = bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_ne_bytes)
    };
    match bytes.starts_with(&MARK) {
        true => Ok(Secret([number(8), number(16)])),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn write(path: &Path, Secret([one, other]): Secret) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = open(path, flags, Mode::from_raw_mode(0o600))?;
    let mut bytes = MARK.to_vec();
    bytes.extend(one.to_ne_bytes());
    bytes.extend(other.to_ne_bytes());
    File::from(file).write_all(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn daemons_are_counted() {
        let folder = std::env::temp_dir().join(format!("omniverb-count-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let socket = folder.join("socket");
        let first = count(&socket).unwrap();
        assert_eq!(count(&socket), Some(first.wrapping_add(1)));
        assert_eq!(count(&socket), Some(first.wrapping_add(2)));
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(count(&socket), None);
    }

    #[test]
    fn a_secret_is_handed_on_and_a_malformed_one_is_not() {
        let folder = std::env::temp_dir().join(format!("omniverb-secret-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let socket = folder.join("socket");
        let file = folder.join("socket.secret");
        let first = take(&socket);
        assert!(first.source == Source::Drawn && first.problem.is_none());
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        let second = take(&socket);
        assert!(second.source == Source::Inherited && second.secret.0 == first.secret.0);

        let renewed = |what: &str| {
            let found = take(&socket);
            assert!(found.source == Source::Drawn && found.problem.is_none(), "{what}");
            assert_ne!(found.secret.0, first.secret.0, "{what}");
            assert_eq!(take(&socket).source, Source::Inherited, "{what}");
        };
        // Others may have read it.
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
        renewed("readable");
        let other = folder.join("other");
        std::fs::hard_link(&file, &other).unwrap();
        renewed("two names");
        std::fs::remove_file(&file).unwrap();
        symlink(&other, &file).unwrap();
        renewed("a link");
        assert!(other.exists());
        std::fs::write(&file, b"short").unwrap();
        renewed("too short");
        std::fs::write(&file, [7; BYTES]).unwrap();
        renewed("no mark");
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        let found = take(&socket);
        assert!(found.source == Source::Drawn && found.problem.is_some(), "a folder in its place");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
