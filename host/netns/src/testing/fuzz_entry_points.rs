//! Feeds arbitrary bytes to the protocol's decoders, for fuzzing: they must not panic.

use crate::helper_protocol::message_fields::{HEADER_BYTES, MARK};
use crate::helper_protocol::underlay_messages::{
    SOCKET_REQUEST_BYTES, STATES_BYTES_MAX, WANTED_BYTES_MAX, read_socket_request, read_wanted,
};
use crate::helper_protocol::{
    ADDRESSES_BYTES, FACTS_BYTES, PORT_BYTES, PROCESS_BYTES, REQUEST_BYTES, VANISHED_BYTES,
    read_answer, read_request,
};
use std::os::fd::OwnedFd;

/// The first two bytes choose descriptors and a length, the rest is a request and an answer, as
/// each end gets it.
pub fn protocol(bytes: &[u8]) {
    let Some((&[which, length], rest)) = bytes.split_first_chunk::<2>() else { return };
    let files = || -> Vec<OwnedFd> {
        let open = |path| std::fs::File::open(path).ok().map(OwnedFd::from);
        let socket = || Some(OwnedFd::from(std::net::UdpSocket::bind("127.0.0.1:0").ok()?));
        match which % 6 {
            0 => Vec::new(),
            1 => open("/proc/self/ns/net").into_iter().collect(),
            2 => open("/proc/self/ns/mnt").into_iter().collect(),
            3 => open("/dev/null").into_iter().collect(),
            count => (2..count).filter_map(|_| socket()).collect(),
        }
    };
    let lengths = [
        REQUEST_BYTES,
        HEADER_BYTES,
        PROCESS_BYTES,
        ADDRESSES_BYTES,
        PORT_BYTES,
        FACTS_BYTES,
        VANISHED_BYTES,
        WANTED_BYTES_MAX,
        STATES_BYTES_MAX,
        SOCKET_REQUEST_BYTES,
    ];
    let mut message = MARK.to_ne_bytes().to_vec();
    message.extend(rest);
    if let Some(length) = lengths.get(usize::from(length % 11)) {
        message.resize(*length, 0);
    }
    let _ = read_wanted(&message, &mut files());
    let _ = read_socket_request(&message, &mut files());
    let _ = read_request(&message, files());
    let _ = read_answer(&message, files());
}
