//! Messages with descriptors for a process that has no room for any. The only test of its process,
//! whose limits it changes.

use omniverb_sys::seqpacket::{BlockingMode, lacks_room, pair, receive_kept, send};
use omniverb_sys::{memfd, spare_fds};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// No descriptor from this number on.
fn limit(number: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(number), maximum }).unwrap();
}

/// Whether a message came, with so many descriptors; `None`: there is no room for them.
fn next(from: &OwnedFd) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = [0; 8];
    match receive_kept(from.as_fd(), &mut bytes, BlockingMode::NonBlocking) {
        Ok((length, files)) => Some((bytes[..length].to_vec(), files)),
        Err(error) => {
            assert!(lacks_room(&error), "{error}");
            None
        }
    }
}

fn is_full() -> bool {
    memfd::create("test", 1).is_err_and(|error: io::Error| lacks_room(&error))
}

#[test]
fn a_message_waits_for_room_and_what_is_spare_makes_some() {
    let before = getrlimit(Resource::Nofile).current.unwrap_or(1 << 16);
    let (one, other) = pair().unwrap();
    let file = memfd::create("test", 4096).unwrap();
    for name in [&b"first"[..], b"second", b"third", b"fourth"] {
        send(one.as_fd(), name, &[file.as_fd(), file.as_fd()]).unwrap();
    }
    send(one.as_fd(), b"bare", &[]).unwrap();
    // Nothing is spare: it stays, as often as it is asked for.
    limit(0);
    assert!(next(&other).is_none() && next(&other).is_none());
    limit(before);
    let (name, files) = next(&other).unwrap();
    assert_eq!((&name[..], files.len()), (&b"first"[..], 2));
    drop(files);
    // Two are. Everything else up to the limit is in use.
    spare_fds::keep();
    limit(64);
    let mut rest = Vec::new();
    while let Ok(file) = memfd::create("test", 1) {
        rest.push(file);
    }
    for expected in [&b"second"[..], b"third"] {
        assert!(is_full());
        let (name, files) = next(&other).unwrap();
        assert_eq!((&name[..], files.len()), (expected, 2));
        assert!(is_full(), "both places are in use");
        assert!(next(&other).is_none(), "and there are no others");
        drop(files);
        assert!(!is_full());
        // They are spare again as soon as anything is received.
        limit(0);
        assert!(next(&other).is_none());
        limit(64);
        spare_fds::keep();
    }
    assert!(is_full());
    limit(0);
    // What was spare is given up, and there is no room all the same.
    assert!(next(&other).is_none());
    limit(64);
    let (name, files) = next(&other).unwrap();
    assert_eq!((&name[..], files.len()), (&b"fourth"[..], 2));
    limit(0);
    assert_eq!(next(&other).unwrap().0, b"bare");
    limit(before);
}
