//! Asks the daemon why a queue pair reaches no peer: its link and the reason for that kind, or the
//! peer that it waits for.
//!
//! In: a queue pair, and status of the process's vNIC, in lines (`host/control`,
//! `server/status.rs`). Out: text for people. Nothing else is done by it.

use crate::daemon_caller_trait::DaemonCaller;
use crate::device_platform;
use omniverb_session::Message;
use omniverb_session::body::{Cursor, QueryStatus};
use omniverb_terms::Qpn;

/// Pieces of status that are asked for: some thousand queue pairs.
const PIECES_MAX: usize = 256;
/// Peers that are told of.
const WAYS_MAX: usize = 4;
/// Bytes of what one is called, or travels by: the rest is cut off.
const WORD_MAX: usize = 100;

/// Says what the daemon knows of the ways of a queue pair.
pub(super) fn explain_qp(daemon: &impl DaemonCaller, qpn: Qpn) {
    let Some(explain) = device_platform::explanations() else { return };
    let mut ways = PeerReports::of(qpn);
    let mut from = Cursor::START;
    for _ in 0..PIECES_MAX {
        let Ok(Message::Status(piece)) = daemon.call(&QueryStatus { from }.into()) else {
            return;
        };
        let text = piece.text.get(..piece.length as usize).unwrap_or(&[]);
        String::from_utf8_lossy(text).lines().for_each(|line| ways.read(line));
        if ways.stage == Stage::Past || piece.more == 0 {
            break;
        }
        from = piece.next;
    }
    ways.found.iter().for_each(|way| explain(qpn, way));
}

/// Where in the list we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Before,
    /// At what belongs to the queue pair.
    There,
    Past,
}

/// What was read of one queue pair.
struct PeerReports {
    qpn: Qpn,
    stage: Stage,
    found: Vec<String>,
}

impl PeerReports {
    fn of(qpn: Qpn) -> PeerReports {
        PeerReports { qpn, stage: Stage::Before, found: Vec::new() }
    }

    /// The next line: an object of one member, whose name says what it is.
    fn read(&mut self, line: &str) {
        let ours = self.stage == Stage::There && self.found.len() < WAYS_MAX;
        if line.starts_with("{\"qp\":") {
            self.stage = match (self.stage, number(line, "qpn") == Some(self.qpn.0)) {
                (Stage::Before, true) => Stage::There,
                (Stage::Before, false) => Stage::Before,
                _ => Stage::Past,
            };
        } else if line.starts_with("{\"peer\":") && ours {
            let peer = number(line, "qpn").unwrap_or(0);
            let at = word(line, "address").map(|address| format!(" at {address}"));
            let (at, path) = (at.unwrap_or_default(), word(line, "path").unwrap_or_default());
            let why = word(line, "why").unwrap_or_default();
            self.found.push(format!("its way to queue pair {peer}{at} is {path}: {why}"));
        } else if line.starts_with("{\"waiting_for\":") && ours {
            let peer = number(line, "waiting_for").unwrap_or(0);
            self.found.push(format!(
                "it waits for queue pair {peer}, which is not there, or not for this one"
            ));
        }
    }
}

/// What follows a name.
fn after<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let name = format!("\"{name}\":");
    line.find(&name).and_then(|at| line.get(at + name.len()..))
}

fn number(line: &str, name: &str) -> Option<u32> {
    let rest = after(line, name)?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest.get(..end)?.parse().ok()
}

/// A word of plain characters.
fn word(line: &str, name: &str) -> Option<String> {
    let rest = after(line, name)?.strip_prefix('"')?;
    let plain = rest.chars().take_while(|c| *c != '"' && !c.is_control() && *c != '\\');
    Some(plain.take(WORD_MAX).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = r#"{"daemon":{"pid":1,"qpn":7}}
{"vnic":{"name":"a"}}
{"process":{"name":"\"qpn\":7,"}}
{"qp":{"operations":0,"qpn":6,"type":"RC"}}
{"peer":{"address":"10.0.0.1","path":"direct","qpn":9,"vnic":"b","why":"same"}}
{"qp":{"operations":0,"qpn":7,"type":"RC"}}
{"peer":{"address":"10.0.0.9","path":"roce","qpn":77,"why":"no answer to the handshake"}}
{"waiting_for":78}
{"qp":{"operations":0,"qpn":8,"type":"RC"}}
{"waiting_for":79}"#;

    fn read(qpn: u32, text: &str) -> PeerReports {
        let mut ways = PeerReports::of(Qpn(qpn));
        text.lines().for_each(|line| ways.read(line));
        ways
    }

    #[test]
    fn what_belongs_to_a_queue_pair_follows_it() {
        let ways = read(7, STATUS);
        assert_eq!(ways.stage, Stage::Past);
        let [way, waits] = &ways.found[..] else { panic!("{:?}", ways.found) };
        let expected = "its way to queue pair 77 at 10.0.0.9 is roce: no answer to the handshake";
        assert_eq!(way, expected);
        assert!(waits.starts_with("it waits for queue pair 78,"), "{waits}");
        assert!(read(5, STATUS).found.is_empty());
    }

    #[test]
    fn whatever_it_says_is_short_and_plain() {
        let long = format!(
            "{{\"qp\":{{\"qpn\":7}}}}\n{{\"peer\":{{\"why\":\"\u{1b}{}\"}}}}\n",
            "x".repeat(5000)
        );
        let many = long.clone() + &"{\"waiting_for\":99999999999}\n".repeat(100);
        for text in [long.as_str(), &many, "{\"qp\":", "{\"peer\":{\"why\":\"", ""] {
            let ways = read(7, text);
            assert!(ways.found.len() <= WAYS_MAX);
            assert!(ways.found.iter().all(|way| way.len() < 400 && !way.contains('\u{1b}')));
        }
    }
}
