//! Encodes commands of QEMU's monitor that plug in a pair window, and decodes its answers.
//!
//! In: the window's number and size; QEMU's lines. Out: lines to QEMU, and in the end whether it
//! has the window. This module has no files and sockets. QEMU runs a hostile guest and may be
//! another program by now: its lines are bounded in length and number, and only two values in them
//! are used: whether a command succeeded, and the number of a descriptor, which is sent back to it.
//!
//! The language is QMP: a value of JSON on each line, answers with the number of what they answer,
//! and events in between.

use serde_json::{Value, json};

/// Bytes of a line.
const LINE_MAX: usize = 64 << 10;
/// Lines that are heard, events and all.
const LINES_MAX: usize = 1000;
/// Descriptors' numbers are smaller.
const DESCRIPTOR_MAX: u64 = 1 << 24;

/// Windows that are plugged in later on one bus.
pub(crate) const ON_BUS: u8 = 30;

/// QEMU's name for the bus of pair window `number`, if it is plugged in later.
pub(crate) fn bus_id(number: u8) -> String {
    format!("omniverb-later{}", number.saturating_sub(1) / ON_BUS)
}

/// QEMU's name for a pair window's memory.
pub(crate) fn memory_id(number: usize) -> String {
    format!("omniverb-pair{number}")
}

/// QEMU's name for the device.
pub(crate) fn device_id(number: usize) -> String {
    format!("omniverb-{number}")
}

/// Why a window is not plugged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// A line is malformed, or there are too many.
    Malformed,
    /// The memory is not taken.
    Memory,
    /// The device is not.
    Device,
}

/// A descriptor that goes along with a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beside {
    Nothing,
    /// The window's file.
    Window,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// There is something to hear.
    Listen,
    /// This is to be said, with or without a descriptor.
    Say(String, Beside),
    /// That was all.
    Over(Result<(), Refusal>),
}

/// The last command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MonitorRequest {
    /// Nothing: it is to say first what it is.
    Nothing,
    Capabilities,
    File,
    Memory,
    Device,
    /// The memory is to go again, since the device was not taken.
    MemoryBack,
    /// Its own copy of the descriptor is to go: the mapping has another one.
    FileBack,
}

/// Commands and answers so far, about one window.
#[derive(Debug)]
pub(crate) struct Talk {
    number: u8,
    bytes: u64,
    asked: MonitorRequest,
    outcome: Result<(), Refusal>,
    heard: Vec<u8>,
    /// How much of it was looked through for the end of a line.
    looked: usize,
    lines: usize,
    /// QEMU's number for the descriptor, and the set that it has put it in.
    descriptor: u64,
    set: Value,
}

impl Talk {
    /// One about window `number`, of so many bytes.
    pub(crate) fn new(number: u8, bytes: u64) -> Talk {
        Talk {
            number,
            bytes,
            asked: MonitorRequest::Nothing,
            outcome: Ok(()),
            heard: Vec::new(),
            looked: 0,
            lines: 0,
            descriptor: 0,
            set: Value::Null,
        }
    }

    /// QEMU has said this.
    pub(crate) fn hear(&mut self, bytes: &[u8]) {
        self.heard.extend_from_slice(bytes);
    }

    /// The next step after the lines so far.
    pub(crate) fn next(&mut self) -> Next {
        loop {
            match self.line() {
                Ok(Some(line)) => {
                    if let Some(next) = self.answered(&line) {
                        return next;
                    }
                }
                Ok(None) => return Next::Listen,
                Err(refusal) => return Next::Over(Err(refusal)),
            }
        }
    }

    fn line(&mut self) -> Result<Option<Value>, Refusal> {
        let rest = self.heard.get(self.looked..).unwrap_or(&[]);
        let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
            self.looked = self.heard.len();
            return if self.looked > LINE_MAX { Err(Refusal::Malformed) } else { Ok(None) };
        };
        let line: Vec<u8> = self.heard.drain(..=self.looked + end).collect();
        self.looked = 0;
        self.lines += 1;
        if line.len() > LINE_MAX || self.lines > LINES_MAX {
            return Err(Refusal::Malformed);
        }
        serde_json::from_slice(&line).map(Some).map_err(|_| Refusal::Malformed)
    }

    /// Nothing, if it is no answer.
    fn answered(&mut self, said: &Value) -> Option<Next> {
        if said.get("event").is_some() {
            return None;
        }
        if self.asked == MonitorRequest::Nothing {
            return Some(match said.get("QMP") {
                Some(_) => self.ask(MonitorRequest::Capabilities),
                None => Next::Over(Err(Refusal::Malformed)),
            });
        }
        let ours = said.get("id") == Some(&json!(self.asked as u8));
        let done = match (said.get("return"), said.get("error")) {
            (Some(value), None) if ours => Some(value),
            (None, Some(_)) if ours => None,
            _ => return Some(Next::Over(Err(Refusal::Malformed))),
        };
        Some(self.after(done))
    }

    /// The step after an answer: its value, or `None` if the command was refused.
    fn after(&mut self, done: Option<&Value>) -> Next {
        match (self.asked, done) {
            (MonitorRequest::Nothing, _)
            | (MonitorRequest::Capabilities | MonitorRequest::MemoryBack, None) => {
                Next::Over(Err(Refusal::Malformed))
            }
            (MonitorRequest::Capabilities, Some(_)) => self.ask(MonitorRequest::File),
            (MonitorRequest::File, None) => Next::Over(Err(Refusal::Memory)),
            (MonitorRequest::File, Some(value)) => {
                let number = value.get("fd").and_then(Value::as_u64);
                let set = value.get("fdset-id").filter(|set| set.is_u64());
                match (number.filter(|number| *number < DESCRIPTOR_MAX), set) {
                    (Some(number), Some(set)) => {
                        (self.descriptor, self.set) = (number, set.clone());
                        self.ask(MonitorRequest::Memory)
                    }
                    _ => Next::Over(Err(Refusal::Malformed)),
                }
            }
            (MonitorRequest::Memory, None) => {
                self.outcome = Err(Refusal::Memory);
                self.ask(MonitorRequest::FileBack)
            }
            (MonitorRequest::Memory, Some(_)) => self.ask(MonitorRequest::Device),
            (MonitorRequest::Device, None) => {
                self.outcome = Err(Refusal::Device);
                self.ask(MonitorRequest::MemoryBack)
            }
            (MonitorRequest::Device | MonitorRequest::MemoryBack, Some(_)) => {
                self.ask(MonitorRequest::FileBack)
            }
            // It may have gone by itself.
            (MonitorRequest::FileBack, _) => Next::Over(self.outcome),
        }
    }

    fn ask(&mut self, what: MonitorRequest) -> Next {
        self.asked = what;
        let number = usize::from(self.number);
        let (memory, device) = (memory_id(number), device_id(number));
        let (command, arguments) = match what {
            MonitorRequest::Nothing => return Next::Listen,
            MonitorRequest::Capabilities => ("qmp_capabilities", json!({})),
            MonitorRequest::File => ("add-fd", json!({})),
            // A memory backend opens a path, and no set of descriptors; but its own descriptors
            // have paths.
            MonitorRequest::Memory => (
                "object-add",
                json!({"qom-type": "memory-backend-file", "id": memory, "size": self.bytes,
                       "mem-path": format!("/proc/self/fd/{}", self.descriptor), "share": true}),
            ),
            MonitorRequest::Device => (
                "device_add",
                json!({"driver": "virtio-pmem-pci", "id": device, "memdev": memory,
                       "bus": bus_id(self.number)}),
            ),
            MonitorRequest::MemoryBack => ("object-del", json!({"id": memory})),
            MonitorRequest::FileBack => ("remove-fd", json!({"fdset-id": self.set})),
        };
        let words = json!({"execute": command, "arguments": arguments, "id": what as u8});
        let beside = if what == MonitorRequest::File { Beside::Window } else { Beside::Nothing };
        Next::Say(format!("{words}\n"), beside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: &str = r#"{"QMP": {"version": {}, "capabilities": ["oob"]}}"#;

    /// A QEMU that answers with these, one after the other: what was said to it, and the end.
    fn with(answers: &[&str]) -> (Vec<Value>, Result<(), Refusal>) {
        let mut talk = Talk::new(7, 8 << 20);
        let (mut said, mut answers) = (Vec::new(), answers.iter());
        loop {
            match talk.next() {
                Next::Listen => {
                    let Some(answer) = answers.next() else { panic!("it waits; {said:?}") };
                    // In pieces, with an event before it.
                    talk.hear(b"{\"event\": \"X\", \"data\": {}}\r\n");
                    answer.as_bytes().chunks(3).for_each(|piece| talk.hear(piece));
                    talk.hear(b"\r\n");
                }
                Next::Say(text, beside) => {
                    let words: Value = serde_json::from_str(&text).unwrap();
                    assert_eq!(beside == Beside::Window, words["execute"] == "add-fd");
                    said.push(words);
                }
                Next::Over(outcome) => return (said, outcome),
            }
        }
    }

    fn names(said: &[Value]) -> Vec<&str> {
        said.iter().map(|words| words["execute"].as_str().unwrap()).collect()
    }

    const FILE: &str = r#"{"return": {"fd": 23, "fdset-id": 4}, "id": 2}"#;

    fn yes(id: u8) -> String {
        format!(r#"{{"return": {{}}, "id": {id}}}"#)
    }

    fn no(id: u8) -> String {
        format!(r#"{{"error": {{"class": "GenericError", "desc": "no"}}, "id": {id}}}"#)
    }

    #[test]
    fn a_window_is_plugged_in_by_its_descriptor() {
        let (said, outcome) = with(&[HELLO, &yes(1), FILE, &yes(3), &yes(4), &yes(6)]);
        assert_eq!(outcome, Ok(()));
        let expected = ["qmp_capabilities", "add-fd", "object-add", "device_add", "remove-fd"];
        assert_eq!(names(&said), expected);
        let memory = &said[2]["arguments"];
        assert_eq!(
            (&memory["mem-path"], &memory["size"]),
            (&"/proc/self/fd/23".into(), &(8 << 20).into())
        );
        assert_eq!((&memory["share"], &memory["id"]), (&true.into(), &"omniverb-pair7".into()));
        let device = &said[3]["arguments"];
        assert_eq!((&device["memdev"], &device["bus"]), (&memory["id"], &"omniverb-later0".into()));
        assert_eq!(said[4]["arguments"]["fdset-id"], 4);
    }

    #[test]
    fn a_refused_window_leaves_nothing_behind() {
        let (said, outcome) = with(&[HELLO, &yes(1), FILE, &no(3), &yes(6)]);
        assert_eq!((names(&said).pop(), outcome), (Some("remove-fd"), Err(Refusal::Memory)));
        let (said, outcome) = with(&[HELLO, &yes(1), FILE, &yes(3), &no(4), &yes(5), &yes(6)]);
        assert_eq!(names(&said)[4..], ["object-del", "remove-fd"]);
        assert_eq!(outcome, Err(Refusal::Device));
        assert_eq!(with(&[HELLO, &yes(1), &no(2)]).1, Err(Refusal::Memory));
    }

    #[test]
    fn a_malformed_answer_ends_the_monitor() {
        let deep = "[".repeat(10_000);
        let long = format!("\"{}\"", "x".repeat(LINE_MAX));
        for first in ["", "hello", "{}", "3", &deep, &long, r#"{"return": {}, "id": 1}"#] {
            assert_eq!(with(&[first]).1, Err(Refusal::Malformed), "{first:.20}");
        }
        let both = r#"{"return": {}, "error": {}, "id": 1}"#;
        for second in [HELLO, &yes(2), r#"{"return": {}}"#, both, &no(1)] {
            assert_eq!(with(&[HELLO, second]).1, Err(Refusal::Malformed), "{second}");
        }
        for third in [
            "{}",
            r#"{"fd": -1, "fdset-id": 1}"#,
            r#"{"fd": 1e9, "fdset-id": 1}"#,
            r#"{"fd": 99999999, "fdset-id": 1}"#,
            r#"{"fd": 3, "fdset-id": "x"}"#,
        ] {
            let third = format!(r#"{{"return": {third}, "id": 2}}"#);
            assert_eq!(with(&[HELLO, &yes(1), &third]).1, Err(Refusal::Malformed), "{third}");
        }
        let mut talk = Talk::new(1, 1);
        talk.hear(&b"{\"event\": 1}\n".repeat(LINES_MAX + 1));
        assert_eq!(talk.next(), Next::Over(Err(Refusal::Malformed)));
    }
}
