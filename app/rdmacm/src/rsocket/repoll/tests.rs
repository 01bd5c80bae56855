//! Sets: whose turn it is, what has changed, whose number it is.

use super::*;

fn members(fds: &[c_int]) -> Members {
    let mut members = Members::default();
    for fd in fds {
        let data = u64::from(fd.unsigned_abs());
        let member = Member { fd: *fd, asked: POLLIN, data, added: 0 };
        members.change(EPOLL_CTL_ADD, member).unwrap();
    }
    members
}

/// What was polled of them, as they are.
fn polled(all: &Members, files: &[(c_int, i16)]) -> Vec<(u64, pollfd)> {
    let added = |fd| all.position(fd).map_or(u64::MAX, |at| all.list[at].added);
    let file = |fd, revents| (added(fd), pollfd { fd, events: 0, revents });
    files.iter().map(|(fd, revents)| file(*fd, *revents)).collect()
}

fn told(members: &mut Members, files: &[(c_int, i16)], room: usize) -> Vec<(u64, u32)> {
    let polled = polled(members, files);
    let events = members.collect(&polled, room);
    events.iter().map(|event| ({ event.u64 }, { event.events })).collect()
}

#[test]
fn the_skipped_are_reported_first_next_time() {
    let mut all = members(&[3, 4, 5]);
    let busy = [(3, POLLIN), (4, POLLIN), (5, POLLIN)];
    let turns: Vec<u64> = (0..6).flat_map(|_| told(&mut all, &busy, 1)).map(|e| e.0).collect();
    assert_eq!(turns, [3, 4, 5, 3, 4, 5]);
    assert_eq!(told(&mut all, &busy, 2), [(3, 1), (4, 1)]);
    assert_eq!(told(&mut all, &busy, 3), [(5, 1), (3, 1), (4, 1)]);
    assert_eq!(told(&mut members(&[]), &[], 1), []);
}

#[test]
fn what_has_changed_meanwhile_counts() {
    let mut all = members(&[3, 4, 5]);
    let nothing = Member { fd: 4, asked: 0, data: 40, added: 0 };
    all.change(EPOLL_CTL_MOD, nothing).unwrap();
    all.change(EPOLL_CTL_DEL, Member { fd: 3, ..nothing }).unwrap();
    let files = [(3, POLLIN), (4, POLLIN | POLLHUP), (5, POLLNVAL), (6, POLLIN)];
    assert_eq!(told(&mut all, &files, 9), [(40, 0x10)]);
    assert_eq!(all.position(5), None, "closed");
    let wrong = |all: &mut Members, operation, fd| {
        all.change(operation, Member { fd, ..nothing }).unwrap_err()
    };
    assert_eq!(wrong(&mut all, EPOLL_CTL_ADD, 4), EEXIST);
    assert_eq!(wrong(&mut all, EPOLL_CTL_MOD, 3), Errno::ENOENT);
    assert_eq!(wrong(&mut all, EPOLL_CTL_DEL, 3), Errno::ENOENT);
    assert_eq!(wrong(&mut all, 7, 4), Errno::EINVAL);
}

#[test]
fn a_reused_descriptor_reports_no_events_of_the_old_file() {
    let mut all = members(&[3, 4]);
    let before = polled(&all, &[(3, POLLNVAL), (4, POLLHUP)]);
    for fd in [3, 4] {
        let again = Member { fd, asked: POLLIN, data: 9, added: 0 };
        all.change(EPOLL_CTL_DEL, again).unwrap();
        all.change(EPOLL_CTL_ADD, again).unwrap();
    }
    assert!(all.collect(&before, 9).is_empty());
    assert_eq!(told(&mut all, &[(3, POLLIN), (4, POLLIN)], 9), [(9, 1), (9, 1)]);
}

#[test]
fn a_wait_on_a_closed_set_ends_with_an_error() {
    let set = Set::new(0).unwrap();
    let member = Member { fd: 0, asked: 0, data: 0, added: 0 };
    set.change(EPOLL_CTL_ADD, member).unwrap();
    assert_eq!(set.close(), Err(Errno::EBUSY));
    set.change(EPOLL_CTL_DEL, member).unwrap();
    let waiting = std::thread::scope(|scope| {
        let wait = || loop {
            if set.poll(&Deadline::of(-1), 1).unwrap().is_none() {
                return;
            }
        };
        let all = [scope.spawn(wait), scope.spawn(wait)];
        while lock(&set.members).waiters < 2 {
            std::thread::yield_now();
        }
        set.close().unwrap();
        all.map(std::thread::ScopedJoinHandle::join)
    });
    assert!(waiting.iter().all(Result::is_ok));
    assert_eq!(set.change(EPOLL_CTL_ADD, member), Err(Errno::EINVAL));
}

/// A file that has a set's number instead of it.
fn takes_number(number: c_int) -> std::fs::File {
    use std::os::fd::FromRawFd;
    let null = std::fs::File::open("/dev/null").unwrap();
    // SAFETY: the number is the test's alone, which is given the file under it.
    unsafe {
        assert_eq!(libc::dup2(null.as_raw_fd(), number), number);
        std::fs::File::from_raw_fd(number)
    }
}

fn is_there(file: &std::fs::File) -> bool {
    use std::os::unix::fs::FileTypeExt;
    file.metadata().unwrap().file_type().is_char_device()
}

#[test]
fn a_reused_descriptor_is_no_set() {
    // A call waits, a socket of the program's comes to have the number, and is closed.
    let number = ov_repoll_create(0);
    let set = find(number).unwrap();
    let member = Member { fd: 0, asked: 0, data: 0, added: 0 };
    set.change(EPOLL_CTL_ADD, member).unwrap();
    let file = takes_number(number);
    assert_eq!(close(number), None, "for whoever closes other numbers");
    assert!(set.poll(&Deadline::of(-1), 1).unwrap().is_none(), "nobody waits for ever");
    assert!(!SETS.read().unwrap().contains_key(&number));
    drop(set);
    assert!(is_there(&file));
    // SAFETY: nothing is written.
    let wrong = unsafe { ov_repoll_wait(number, std::ptr::null_mut(), 1, 0) };
    assert_eq!((wrong, crate::errno::last()), (-1, Errno::EINVAL));
}

#[test]
fn a_set_with_the_number_of_one_that_was_closed_is_another() {
    let (one, mut other) = (Set::new(0).unwrap(), Set::new(0).unwrap());
    let number = add(one.clone());
    let file = takes_number(number);
    // As if the kernel had given it that number, and not its own.
    let other_number = &mut Arc::get_mut(&mut other).unwrap().number.number;
    // SAFETY: it is not used any more.
    unsafe { libc::close(std::mem::replace(other_number, number)) };
    assert_eq!(add(other), number);
    assert!(one.poll(&Deadline::of(-1), 1).unwrap().is_none());
    drop(one);
    assert!(is_there(&file));
    assert_eq!(close(number), None);
    assert!(is_there(&file));
}
