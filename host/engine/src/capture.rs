//! A capture file of one vNIC's packets. A file that cannot be written any more ends the capture,
//! never the traffic.

use omniverb_wire::Flow;
use omniverb_wire::Identification;
use omniverb_wire::pcap::{Capture, Envelope};
use std::fs::File;
use std::io::BufWriter;
use std::time::{SystemTime, UNIX_EPOCH};

/// An open file, or none.
#[derive(Default)]
pub(crate) struct Tap(Option<Capture<BufWriter<File>>>);

impl Tap {
    /// Starts, or stops.
    pub(crate) fn set(&mut self, file: Option<File>) {
        self.finish();
        // The head of the file says that it has begun.
        let begin = |file| {
            let mut capture = Capture::new(BufWriter::new(file))?;
            capture.flush()?;
            std::io::Result::Ok(capture)
        };
        self.0 = file.and_then(|file| begin(file).ok());
    }

    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Writes one packet, ICRC included.
    pub(crate) fn add(
        &mut self,
        flow: &Flow,
        identification: Identification,
        traffic_class: u8,
        datagram: &[u8],
    ) {
        let Some(capture) = &mut self.0 else { return };
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = u64::try_from(since.as_nanos()).unwrap_or_default();
        let envelope = Envelope { flow: *flow, identification, traffic_class, hop_limit: 64 };
        if capture.add(time, &envelope, datagram).is_err() {
            self.0 = None;
        }
    }

    fn finish(&mut self) {
        if let Some(capture) = self.0.take() {
            let _ = capture.finish();
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.finish();
    }
}
