//! Records the latest packets of a trial, and prints them if it fails.

use omniverb_wire::Packet;
use std::collections::VecDeque;

/// Packets that are remembered.
const LATEST: usize = 60;

/// The time and sender of each packet.
#[derive(Default)]
pub(super) struct Trace(VecDeque<(u64, &'static str, Vec<u8>)>);

impl Trace {
    pub(super) fn sent(&mut self, now: u64, who: &'static str, datagram: &[u8]) {
        if self.0.len() == LATEST {
            self.0.pop_front();
        }
        self.0.push_back((now, who, datagram.to_vec()));
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for (time, who, datagram) in &self.0 {
                if let Ok(packet) = Packet::parse(datagram) {
                    println!("{time:>12} {who} sends {packet}");
                }
            }
        }
    }
}
