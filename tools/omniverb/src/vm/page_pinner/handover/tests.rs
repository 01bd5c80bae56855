//! Tests which processes get pinned pages, and which do not.
//!
//! Only root may look into processes: for others there is nothing to see here.

use super::*;
use rustix::thread::{CapabilitySet, capabilities};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// A folder of its own, and a pinner with as many pins there, until an heir has them.
struct Bench {
    folder: PathBuf,
    /// Its agent lives.
    has_agent: Arc<AtomicBool>,
    supervisor: Option<thread::JoinHandle<()>>,
}

fn kept(pins: u64) -> KeptRings {
    let mut kept = KeptRings::default();
    for token in 0..pins {
        kept.add(token * 7, File::open("/dev/null").unwrap().into(), 4096 + token);
    }
    kept
}

fn bench(pins: u64) -> Option<Bench> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    if !page_location::may(std::process::id().cast_signed(), LOOKS) {
        let looks = CapabilitySet::SYS_PTRACE | CapabilitySet::SYS_ADMIN;
        let has = capabilities(None).unwrap().effective;
        assert!(!has.contains(looks), "tracing is refused although the capability is there");
        eprintln!("not tested: needs the right to trace processes");
        return None;
    }
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let folder = format!("omniverb-pins-{}-{number}", std::process::id());
    let folder = std::env::temp_dir().join(folder);
    let mut heirs = Heirs::begin(&folder, &mut KeptRings::default()).unwrap();
    let has_agent = Arc::new(AtomicBool::new(false));
    let agent = Arc::clone(&has_agent);
    let supervisor = thread::spawn(move || {
        let kept = kept(pins);
        loop {
            let sockets: Vec<_> = heirs.sockets().collect();
            let ready = |of: &BorrowedFd<'_>| {
                omniverb_sys::eventfd::readable(*of, Some(std::time::Duration::ZERO)).unwrap()
            };
            let ready: Vec<bool> = sockets.iter().map(ready).collect();
            drop(sockets);
            let has_agent = agent.load(Ordering::Relaxed);
            let agent = if has_agent { Agent::Lives } else { Agent::Gone };
            if heirs.serve(&ready, &kept, agent) {
                return;
            }
            thread::yield_now();
        }
    });
    Some(Bench { folder, has_agent, supervisor: Some(supervisor) })
}

impl Bench {
    /// A client connects, sends this, and gets that.
    fn come(&self, said: &[Vec<u8>]) -> (OwnedFd, Option<(u8, Vec<u64>)>) {
        let deadline = clock::now() + PATIENCE;
        let socket = seqpacket_deadline::connect(&self.folder.join(NAME), deadline).unwrap();
        for message in said {
            seqpacket_deadline::send(socket.as_fd(), message, &[], deadline).unwrap();
        }
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let heard = (!said.is_empty()).then(|| {
            let (length, _) =
                seqpacket_deadline::receive(socket.as_fd(), &mut bytes, deadline).unwrap();
            parts(&bytes[..length])
        });
        (socket, heard.flatten())
    }

    /// The heir takes all, and no earlier pinner is left.
    fn ends_well(mut self, pins: u64) {
        let mut found = KeptRings::default();
        let heirs = Heirs::begin(&self.folder, &mut found).unwrap();
        self.supervisor.take().unwrap().join().unwrap();
        let sums = |kept: &KeptRings| (kept.len(), kept.bytes());
        assert_eq!(sums(&found), sums(&kept(pins)));
        drop(heirs);
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn an_heir_has_all_of_it() {
    for pins in [0, 1, AT_ONCE as u64, 500] {
        let Some(bench) = bench(pins) else { return };
        bench.ends_well(pins);
    }
}

/// Clients that send nothing, or stop, or send malformed messages, or are gone.
#[test]
fn a_silent_client_holds_up_no_other() {
    let Some(bench) = bench(3) else { return };
    let silent: Vec<_> = (0..HEIRS_MAX).map(|_| bench.come(&[])).collect();
    let half = bench.come(&[message(WHICH, [])]);
    assert!(matches!(half.1, Some((SOME, ref words)) if words.len() == 9), "{:?}", half.1);
    for malformed in [vec![0], vec![WHICH, 1, 2], message(WHICH, [1, 2]), message(HAVE, [1])] {
        // It is not heard any more.
        assert_eq!(bench.come(&[malformed]).1, None);
    }
    bench.ends_well(3);
    drop((silent, half));
}

#[test]
fn data_without_a_copy_is_kept() {
    let Some(bench) = bench(2) else { return };
    let other = File::open("/dev/null").unwrap();
    let have = |words: &[u64]| message(HAVE, words.iter().copied());
    let all = message(ALL, []);
    let refused = |said: &[Vec<u8>]| assert_eq!(bench.come(said).1, Some((NO, Vec::new())));
    refused(std::slice::from_ref(&all));
    refused(&[have(&[0, number(&other), 7, number(&other)]), all.clone()]);
    refused(&[have(&[0, u32::MAX.into(), 7, u32::MAX.into()]), all.clone()]);
    // Of one of two.
    let (_, told) = bench.come(&[message(WHICH, [])]);
    let Some((SOME, words)) = told else { panic!("{told:?}") };
    refused(&[have(&[words[0], words[2]]), all]);
    bench.ends_well(2);
}

/// The earlier one releases its rings, and ends before its last message is read.
#[test]
fn an_heir_without_the_last_message_keeps_its_copies() {
    let Some(bench) = bench(0) else { return };
    let path = bench.folder.join("other.sock");
    let listener = seqpacket::listen(&path, 0o600).unwrap();
    let before = thread::spawn(move || {
        let kept = kept(3);
        loop {
            let Ok(Some(socket)) = seqpacket::accept(listener.as_fd()) else {
                thread::yield_now();
                continue;
            };
            let pid = std::process::id().cast_signed();
            let mut heir = Heir { socket, pid, has: BTreeMap::new() };
            // Its socket is closed with it, and what it has said last is not there to be read.
            let mut bytes = [0; MESSAGE_BYTES_MAX];
            loop {
                let deadline = clock::now() + PATIENCE;
                let heard =
                    seqpacket_deadline::receive(heir.socket.as_fd(), &mut bytes, deadline).unwrap();
                match parts(&bytes[..heard.0]).unwrap() {
                    (WHICH, words) => assert!(heir.tell(words.first().copied(), &kept)),
                    (HAVE, words) => assert!(heir.hear(&words)),
                    (kind, _) => break assert_eq!((kind, heir.has_all(&kept)), (ALL, true)),
                }
            }
            return;
        }
    });
    let mut found = KeptRings::default();
    assert!(take_over(&path, &mut found).is_err());
    before.join().unwrap();
    assert_eq!((found.len(), found.bytes()), (3, kept(3).bytes()));
    bench.ends_well(0);
}

/// Its agent would lose all that was kept for it.
#[test]
fn a_living_agent_gives_nothing() {
    let Some(bench) = bench(3) else { return };
    bench.has_agent.store(true, Ordering::Relaxed);
    assert!(Heirs::begin(&bench.folder, &mut KeptRings::default()).is_err());
    assert!(!bench.supervisor.as_ref().unwrap().is_finished());
    bench.has_agent.store(false, Ordering::Relaxed);
    bench.ends_well(3);
}

/// It takes nothing from the present one, and keeps rings that the other has no copy of.
#[test]
fn a_machine_without_an_agent_leaves_others_their_windows() {
    let Some(bench) = bench(3) else { return };
    bench.has_agent.store(true, Ordering::Relaxed);
    let mut ours = KeptRings::default();
    assert!(Heirs::begin(&bench.folder, &mut ours).is_err());
    assert_eq!(ours.len(), 3, "there are copies");
    // Under a number of theirs, and under one that they have not.
    for token in [7, 8] {
        ours.add(token, File::open("/dev/null").unwrap().into(), 1);
    }
    bench.has_agent.store(false, Ordering::Relaxed);
    assert!(Heirs::begin_without_agent(&bench.folder, &mut ours).is_err(), "a pinner is there");
    let left: Vec<u64> = ours.iter().map(|(token, ..)| token).collect();
    assert_eq!(left, [7, 8]);
    assert!(!bench.supervisor.as_ref().unwrap().is_finished(), "it took all");
    let folder = bench.folder.clone();
    bench.ends_well(3);
    // Without a present one the next one finds it, unless that has just begun.
    make(&folder).unwrap();
    let begins = Alone::at(&folder).unwrap();
    assert!(Heirs::begin_without_agent(&folder, &mut ours).is_err());
    drop(begins);
    let listener = Heirs::begin_without_agent(&folder, &mut ours).unwrap();
    assert_eq!(ours.len(), 2);
    assert!(has_pinner(&folder));
    drop(listener);
    fs::remove_dir_all(&folder).unwrap();
}

/// There may be no room for two of each.
#[test]
fn a_retry_copies_only_what_is_missing() {
    let Some(bench) = bench(3) else { return };
    bench.has_agent.store(true, Ordering::Relaxed);
    let mut ours = KeptRings::default();
    let numbers =
        |ours: &KeptRings| ours.iter().map(|(_, ring, _)| number(ring)).collect::<Vec<_>>();
    ours.add(7, File::open("/dev/null").unwrap().into(), 1);
    assert!(Heirs::begin(&bench.folder, &mut ours).is_err());
    assert_eq!(ours.bytes(), kept(3).bytes(), "what was something else is theirs now");
    let before = numbers(&ours);
    assert!(Heirs::begin(&bench.folder, &mut ours).is_err());
    assert_eq!(numbers(&ours), before);
    bench.has_agent.store(false, Ordering::Relaxed);
    bench.ends_well(3);
}

#[test]
fn the_folder_is_private() {
    let Some(bench) = bench(0) else { return };
    let mode = || fs::metadata(&bench.folder).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o700);
    fs::set_permissions(&bench.folder, Permissions::from_mode(0o755)).unwrap();
    make(&bench.folder).unwrap();
    assert_eq!(mode(), 0o700);
    let other = bench.folder.join("other");
    std::os::unix::fs::symlink("/tmp", &other).unwrap();
    assert!(make(&other).is_err());
    let file = bench.folder.join("file");
    File::create(&file).unwrap();
    assert!(make(&file).is_err());
    bench.ends_well(0);
}
