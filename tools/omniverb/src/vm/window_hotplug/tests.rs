//! Tests hotplug with a QEMU and a mapper that are played.

use super::super::machine_window::STEP;
use super::super::window_slots::Slots;
use super::*;
use omniverb_session::vm::MachineName;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

/// The result with this QEMU.
fn outcome(qemu: impl FnOnce(UnixStream) + Send + 'static, time: u64) -> Result<(), PlugTrouble> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let window = memfd::create("pair", 4096).unwrap();
    let serving = std::thread::spawn(move || qemu(theirs));
    let talk = Talk::new(1, 4096);
    let outcome = talk_until(&ours.into(), &window, talk, clock::now() + time);
    serving.join().unwrap();
    outcome
}

const LONG: u64 = 20_000_000_000;

/// Answers everything but this; and takes one descriptor.
fn without(refused: &'static str) -> impl FnOnce(UnixStream) + Send + 'static {
    move |mut socket| {
        socket.write_all(b"{\"QMP\": {}}\r\n").unwrap();
        let mut files = 0;
        let mut bytes = [0; 4096];
        let end: OwnedFd = socket.try_clone().unwrap().into();
        while let Ok((length @ 1.., came)) =
            seqpacket::receive(end.as_fd(), &mut bytes, seqpacket::BlockingMode::Blocking)
        {
            files += came.len();
            let said: serde_json::Value = serde_json::from_slice(&bytes[..length]).unwrap();
            assert_eq!(came.len(), usize::from(said["execute"] == "add-fd"));
            let word = if said["execute"] == refused { "error" } else { "return" };
            let id = &said["id"];
            let answer = format!("{{\"{word}\": {{\"fd\": 9, \"fdset-id\": 0}}, \"id\": {id}}}\n");
            if socket.write_all(answer.as_bytes()).is_err() || said["execute"] == "remove-fd" {
                break;
            }
        }
        assert!(files <= 1);
    }
}

#[test]
fn an_error_of_qemu_is_reported_as_it_is() {
    assert_eq!(outcome(without("nothing"), LONG), Ok(()));
    assert_eq!(outcome(without("object-add"), LONG), Err(PlugTrouble::Memory));
    assert_eq!(outcome(without("device_add"), LONG), Err(PlugTrouble::Device));
    assert_eq!(outcome(drop, LONG), Err(PlugTrouble::Silent));
    let keep = |socket: UnixStream| {
        // Until the other end is closed.
        let _ = BufReader::new(socket).read_line(&mut String::new());
    };
    assert_eq!(outcome(keep, 10_000_000), Err(PlugTrouble::Silent));
    let talks = |mut socket: UnixStream| while socket.write_all(b"{\"event\": 1}\n").is_ok() {};
    assert_eq!(outcome(talks, LONG), Err(PlugTrouble::Malformed));
}

/// How long another machine's window is that one says: it keeps nothing from this one.
#[test]
fn another_machine_s_window_that_is_too_long_ends_nothing() {
    let own = Window::new(MachineName::new("web-1").unwrap(), STEP).unwrap();
    let (ours, mapper) = seqpacket::pair().unwrap();
    let slots = Slots { bytes: 2 * STEP, count: 3 };
    let mut later = Later {
        machine: [0; VNIC_NAME_BYTES],
        own: Arc::new(own),
        wanted: Neighbours { count: 1, most: slots.count, bytes: slots.bytes },
        pairs: Arc::new(Pairs::new(Vec::new())),
        monitor: None,
        mapped: Some(Mapped::played(slots, ours)),
        home: Home::nowhere(),
        program: PathBuf::from("/nowhere"),
        tries: TRIES,
        tries_of_others: TRIES,
        trouble: None,
    };
    let plug = |later: &Later, bytes| {
        later.plug(Some(memfd::create("another", bytes).unwrap())).err().unwrap()
    };
    assert_eq!(plug(&later, 3 * STEP), PlugTrouble::TooLong);
    // With a monitor it goes there; here that has no listener.
    let folder = std::fs::File::open("/proc/self").unwrap();
    later.monitor = Some(Monitor(folder.into()));
    assert_eq!(plug(&later, 3 * STEP), PlugTrouble::NoMonitor);
    assert!(!eventfd::readable(mapper.as_fd(), Some(Duration::ZERO)).unwrap(), "it was asked");
    for _ in 0..TRIES {
        later.is_in_vain(WindowOwner::Another, PlugTrouble::NoMonitor);
    }
    assert_eq!((later.tries_of_others, later.left()), (0, 3));
    // One that has a place goes to the mapper; here it has no successor.
    let mapped = later.mapped.clone().unwrap();
    let ends = std::thread::spawn(move || {
        let asked = eventfd::readable(mapper.as_fd(), Some(Duration::from_secs(20))).unwrap();
        mapped.is_over();
        asked
    });
    assert_eq!(plug(&later, 2 * STEP), PlugTrouble::NoMapper);
    assert!(ends.join().unwrap());
    for _ in 0..TRIES {
        later.is_in_vain(WindowOwner::Own, PlugTrouble::NoMapper);
    }
    assert_eq!(later.left(), 0);
}

#[test]
fn an_exit_code_names_its_error() {
    for (trouble, number) in TROUBLES {
        assert_eq!((code(Err(trouble)), trouble_of(number.into())), (number, Some(trouble)));
    }
    assert_eq!((code(Ok(())), code(Err(PlugTrouble::Host))), (0, 1));
    assert_eq!([1, 0, 101].map(trouble_of), [None; 3]);
}
