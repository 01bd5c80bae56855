//! Writes one capture's file and counts its packets.

use super::command::Summary;
use crate::capture_recorder::packet_queue::PacketQueue;
use omniverb_terms::{Errno, VnicId};
use omniverb_wire::pcap::{self, Envelope};
use std::fs::File;
use std::io::{self, BufWriter};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A file that cannot be written any more ends its capture, never the traffic.
pub(super) struct Capture {
    pub(super) vnic: VnicId,
    /// When it began, by our clock.
    pub(super) since: u64,
    pub(super) queue: Arc<PacketQueue>,
    pub(super) snap_bytes: u32,
    pub(super) summary: Summary,
    file: Option<pcap::Capture<BufWriter<File>>>,
    unflushed: bool,
}

impl Capture {
    pub(super) fn new(
        vnic: VnicId,
        file: OwnedFd,
        snap_bytes: u32,
        queue: Arc<PacketQueue>,
        since: u64,
    ) -> Capture {
        let mut capture = Capture {
            vnic,
            since,
            queue,
            snap_bytes,
            summary: Summary::default(),
            file: None,
            unflushed: true,
        };
        let file = File::from(file);
        // A pipe could hold us up. Not asked earlier: its file system may do so, too.
        let regular = match file.metadata().map(|status| status.is_file()) {
            Ok(true) => Ok(()),
            Ok(false) => Err(io::Error::from_raw_os_error(Errno::EINVAL.raw())),
            Err(error) => Err(error),
        };
        if let Err(error) = regular {
            capture.fail(&error);
            return capture;
        }
        let target = BufWriter::with_capacity(256 << 10, file);
        match pcap::Capture::with_snap(target, snap_bytes) {
            Ok(written) => capture.file = Some(written),
            Err(error) => capture.fail(&error),
        }
        // The head of the file says that it has begun.
        capture.flush();
        capture
    }

    /// Adds a packet of which the first `known` bytes are known; `time` is since 1970.
    pub(super) fn add(&mut self, time: u64, envelope: &Envelope, datagram: &[u8], known: usize) {
        let Some(file) = &mut self.file else { return };
        match file.add_beginning(time, envelope, datagram, known) {
            Ok(()) => {
                self.summary.packets += 1;
                self.unflushed = true;
            }
            Err(error) => self.fail(&error),
        }
    }

    pub(super) fn drop_packets(&mut self, count: u64) {
        self.summary.dropped = self.summary.dropped.saturating_add(count);
    }

    pub(super) fn flush(&mut self) {
        if std::mem::take(&mut self.unflushed)
            && let Some(Err(error)) = self.file.as_mut().map(pcap::Capture::flush)
        {
            self.fail(&error);
        }
    }

    pub(super) fn finish(mut self) -> Summary {
        self.unflushed = true;
        self.flush();
        self.queue.close();
        self.summary
    }

    fn fail(&mut self, error: &io::Error) {
        self.queue.close();
        self.file = None;
        let number = error.raw_os_error();
        let errno = number.map_or(Errno::EIO, |number| Errno(number.cast_unsigned()));
        self.summary.errno.get_or_insert(errno);
    }
}
