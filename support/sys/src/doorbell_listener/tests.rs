//! Tests listeners with a thread for each doorbell, and with one for many.

use super::*;
use crate::mapping::Access;
use crate::{EventFd, Extent, memfd};

const LONG: Option<Duration> = Some(Duration::from_secs(20));
const SOON: Option<Duration> = Some(Duration::from_millis(30));

fn thread(name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    std::thread::Builder::new().name(name.into()).spawn(work).map(drop)
}

/// Both processes' views of one doorbell.
fn bell() -> (DoorbellPage<Window>, DoorbellPage<Window>) {
    let file = memfd::create("bell", 4096).unwrap();
    let view = || Extent::new(&file, 0, 4096).map(Access::ReadWrite).unwrap();
    (DoorbellPage::new(view()), DoorbellPage::new(view()))
}

fn listener(room: usize) -> (DoorbellListener, Arc<EventFd>) {
    let told = Arc::new(EventFd::new().unwrap());
    let theirs = told.clone();
    (DoorbellListener::with_room(room, thread, move |_| theirs.signal()), told)
}

/// Until nothing is told for a while.
fn settle(told: &EventFd) {
    while told.wait(SOON).unwrap() {
        told.take();
    }
}

#[test]
fn a_rung_doorbell_is_reported_until_removed() {
    assert!(futex::has_wait_any(), "the machine of the tests has Linux 5.16");
    for room in [1, 2, GROUP] {
        let (listener, told) = listener(room);
        let bells: Vec<_> = (0..5).map(|_| bell()).collect();
        let numbers: Vec<_> =
            bells.iter().map(|(ours, _)| listener.add(ours.clone()).unwrap()).collect();
        assert_eq!(lock(&listener.groups).len(), 5_usize.div_ceil(room));
        settle(&told);
        for (_, theirs) in &bells {
            ring(theirs);
            assert!(told.wait(LONG).unwrap());
            settle(&told);
        }
        listener.remove(numbers[2]);
        settle(&told);
        ring(&bells[2].1);
        assert!(!told.wait(SOON).unwrap());
        ring(&bells[3].1);
        assert!(told.wait(LONG).unwrap());
        settle(&told);
        // Its place is taken by another.
        let (ours, theirs) = bell();
        listener.add(ours).unwrap();
        settle(&told);
        assert_eq!(lock(&listener.groups).len(), 5_usize.div_ceil(room));
        ring(&theirs);
        assert!(told.wait(LONG).unwrap());
    }
}

#[test]
fn a_ring_before_adding_is_reported() {
    let (listener, told) = listener(GROUP);
    for _ in 0..3 {
        let (ours, theirs) = bell();
        ring(&theirs);
        listener.add(ours).unwrap();
        assert!(told.wait(LONG).unwrap());
        settle(&told);
    }
}

#[test]
fn no_ring_is_lost_under_stress() {
    const RINGS: u64 = 30_000;
    for room in [1, GROUP] {
        let (there, back) = (listener(room), listener(room));
        let (one, other) = (bell(), bell());
        there.0.add(one.0).unwrap();
        back.0.add(other.0).unwrap();
        let (news, heard) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (their_news, their_heard) = (news.clone(), heard.clone());
        let answering = std::thread::spawn(move || {
            let mut seen = 0;
            while seen < RINGS {
                assert!(there.1.wait(LONG).unwrap(), "lost after {seen}");
                there.1.take();
                seen = their_news.load(Ordering::SeqCst);
                their_heard.store(seen, Ordering::SeqCst);
                ring(&other.1);
            }
        });
        for told in 1..=RINGS {
            news.store(told, Ordering::SeqCst);
            ring(&one.1);
            while told % 3 == 0 && heard.load(Ordering::SeqCst) < told {
                assert!(back.1.wait(LONG).unwrap(), "the answer to {told} was lost");
                back.1.take();
            }
        }
        answering.join().unwrap();
    }
}

/// One that is rung, or woken, without end is heard seldom; and the one beside it always.
#[test]
fn a_storm_drowns_no_other_sender() {
    for room in [1, GROUP] {
        let (listener, told) = listener(room);
        let ((loud, theirs), (quiet, other)) = (bell(), bell());
        listener.add(loud).unwrap();
        listener.add(quiet).unwrap();
        let begun = clock::now();
        let over = Arc::new(AtomicBool::new(false));
        let storms: Vec<_> = [true, false]
            .map(|counts| {
                let (page, over) = (theirs.clone(), over.clone());
                std::thread::spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        match counts {
                            true => ring(&page),
                            false => futex::wake(page.rung(), 1),
                        }
                    }
                })
            })
            .into();
        std::thread::sleep(Duration::from_millis(20));
        let mut times = told.take().unwrap_or_default();
        for _ in 0..40 {
            ring(&other);
            assert!(told.wait(LONG).unwrap());
            times += told.take().unwrap_or_default();
            std::thread::sleep(Duration::from_millis(1));
        }
        // What is counted is how often it was heard in each of the windows that there were.
        let windows = (clock::now() - begun) / WINDOW;
        assert!(times <= (u64::from(MOST) + 4) * (windows + 2), "{times} in {windows} ms");
        over.store(true, Ordering::Relaxed);
        storms.into_iter().for_each(|storm| storm.join().unwrap());
    }
}

#[test]
fn where_each_needs_a_thread_there_is_a_limit_and_the_others_share_one() {
    let (listener, told) = listener(1);
    let bells: Vec<_> = (0..SINGLES + 20).map(|_| bell()).collect();
    let numbers: Vec<_> =
        bells.iter().map(|(ours, _)| listener.add(ours.clone()).unwrap()).collect();
    assert_eq!(lock(&listener.groups).len(), SINGLES + 1);
    settle(&told);
    for index in [0, SINGLES - 1, SINGLES, SINGLES + 19] {
        ring(&bells[index].1);
        assert!(told.wait(LONG).unwrap());
        settle(&told);
    }
    for index in [5, SINGLES, SINGLES + 5] {
        listener.remove(numbers[index]);
        ring(&bells[index].1);
    }
    settle(&told);
    ring(&bells[SINGLES + 10].1);
    assert!(told.wait(LONG).unwrap());
}
