//! Keeps the latest packets of a run, which are printed if it fails.

use omniverb_transport::Time;
use omniverb_wire::Packet;
use std::collections::VecDeque;

/// Packets that are remembered.
const LATEST: usize = 60;

/// What the hosts sent lately.
#[derive(Default)]
pub struct Trace(VecDeque<(Time, usize, Vec<u8>)>);

impl Trace {
    /// Host `from` sends this.
    pub fn sent(&mut self, now: Time, from: usize, datagram: &[u8]) {
        // What is left over is filled anew: this is done for every packet.
        let mut bytes = match self.0.len() {
            LATEST => self.0.pop_front().map_or_else(Vec::new, |(.., bytes)| bytes),
            _ => Vec::new(),
        };
        bytes.clear();
        bytes.extend_from_slice(datagram);
        self.0.push_back((now, from, bytes));
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for (time, from, datagram) in &self.0 {
                match Packet::parse(datagram) {
                    Ok(packet) => println!("{time:>12} host {from} sends {packet}"),
                    Err(error) => println!("{time:>12} host {from} sends nonsense: {error}"),
                }
            }
        }
    }
}
