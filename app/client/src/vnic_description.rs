//! What the daemon says of the vNIC that this process has, and why there may be none.

use omniverb_session::SOCKET_VARIABLE;
use omniverb_terms::Errno;

/// Facts about the vNIC, from the daemon.
#[derive(Clone, Copy, Debug)]
pub struct VirtualNic {
    /// GUID of the device's node, in network byte order.
    pub node_guid: [u8; 8],
    /// Queue pairs that this process may have at a time.
    pub qp_max: u32,
    /// Regions with remote access that this process may have at a time.
    pub mr_max: u32,
    /// Links that this process may have at a time.
    pub link_max: u32,
}

/// Why there is no device.
#[derive(Debug)]
pub enum NoDevice {
    /// No daemon answers at this path: errno of the attempt.
    NoDaemon(String, Errno),
    /// The daemon at this path refused: its errno.
    Refused(String, Errno),
    /// This process ran out of something, or cannot map what the daemon made: errno.
    Resources(Errno),
}

impl std::fmt::Display for NoDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |errno: &Errno| std::io::Error::from_raw_os_error(errno.raw());
        match self {
            NoDevice::NoDaemon(path, errno) => write!(
                f,
                "omniverb: no daemon at {path} ({}); start omniverbd, or run the program with \
                 'omniverb run' (see also {SOCKET_VARIABLE})",
                text(errno)
            ),
            NoDevice::Refused(path, Errno::ENODEV) => write!(
                f,
                "omniverb: the daemon at {path} has no device for this network namespace: its \
                 operator has to describe it, with an address if its tenant has a virtual network"
            ),
            NoDevice::Refused(path, errno) => {
                write!(f, "omniverb: the daemon at {path} refuses this process ({})", text(errno))
            }
            NoDevice::Resources(errno) => {
                write!(f, "omniverb: cannot set up a session ({})", text(errno))
            }
        }
    }
}
