//! Finds the buffers that io_uring has registered (`IORING_REGISTER_BUFFERS`).
//!
//! In: a range. Out: whether a ring stores there, by physical page, whatever is mapped there later.
//! `fdinfo` of a ring lists its buffers. It does not while a thread is submitting, so it is read
//! again. A ring that is in no table of descriptors tells nothing.
//!
//! A thread may register a buffer at any moment. So they are looked for before pages go back, and
//! again at each step, when no thread can: all stand still, or would wait at the pages
//! (`Work::is_pinned`).

use crate::kernel_page_users::{pinned_pages, shares_files};
use crate::proc_task_files::{for_each_number, open_directory, open_file, with_path};
use core::mem::MaybeUninit;
use core::ops::ControlFlow;
use omniverb_sys::proc_maps;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{CWD, readlinkat_raw};
use rustix::io::{Errno, read};
use rustix::process::{Pid, getpid, test_kill_process};
use rustix::thread::{gettid, sched_yield};

/// Budget: how often a ring is asked that does not tell because of its own work.
const LOOKS_MAX: usize = 1000;

/// Whether a buffer lies in a range, wholly or partly; true also where a ring does not tell.
pub(crate) fn within(start: usize, end: usize) -> bool {
    let process = getpid().as_raw_nonzero().get();
    let thread = gettid().as_raw_nonzero().get();
    pinned_pages() && of_process((process, thread), start, end)
}

/// The same of one process in this memory, which may have ended; with one of its threads.
pub(crate) fn of_process((process, thread): (i32, i32), start: usize, end: usize) -> bool {
    unless_ended(any_task((process, thread), start, end), process).unwrap_or(true)
}

/// What looking at a task found: no ring if the task has ended. That it is not in `/proc` is no
/// proof: after `unshare --pid`, `/proc` may be that of another PID namespace. So the kernel is
/// asked.
fn unless_ended(looked: Result<bool, Errno>, task: i32) -> Result<bool, Errno> {
    match looked {
        Err(Errno::NOENT | Errno::SRCH) if has_ended(task) => Ok(false),
        looked => looked,
    }
}

/// Whether no task has this number any more.
fn has_ended(task: i32) -> bool {
    Pid::from_raw(task).is_some_and(|task| test_kill_process(task) == Err(Errno::SRCH))
}

/// Goes through all tables of descriptors: each thread may have one of its own.
fn any_task((process, own): (i32, i32), start: usize, end: usize) -> Result<bool, Errno> {
    let tasks = open_directory(CWD, format_args!("/proc/{process}/task"))?;
    // A leader that has exited leaves its threads their descriptors.
    let mut found = unless_ended(any_ring(tasks.as_fd(), own, start, end), own)?;
    for_each_number(tasks.as_fd(), |task| {
        if !found && task != own && !shares_files(own, task) {
            found = unless_ended(any_ring(tasks.as_fd(), task, start, end), task).unwrap_or(true);
        }
        if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(found)
}

fn any_ring(tasks: BorrowedFd<'_>, task: i32, start: usize, end: usize) -> Result<bool, Errno> {
    let descriptors = open_directory(tasks, format_args!("{task}/fd"))?;
    let mut found = false;
    for_each_number(descriptors.as_fd(), |number| {
        found =
            is_ring(descriptors.as_fd(), number) && has_buffer((tasks, task), number, (start, end));
        if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(found)
}

fn is_ring(descriptors: BorrowedFd<'_>, number: i32) -> bool {
    let mut room = [MaybeUninit::uninit(); 64];
    with_path(format_args!("{number}"), |entry| {
        let (target, _) = readlinkat_raw(descriptors, entry, &mut room[..])?;
        Ok(target.starts_with(b"anon_inode:[io_uring]"))
    })
    .unwrap_or(false)
}

fn has_buffer(
    (tasks, task): (BorrowedFd<'_>, i32),
    number: i32,
    (start, end): (usize, usize),
) -> bool {
    for _ in 0..LOOKS_MAX {
        let mut buffers = FdinfoParser::default();
        let looked = open_file(tasks, format_args!("{task}/fdinfo/{number}")).and_then(|info| {
            proc_maps::texts(
                |room| read(&info, room),
                |line| {
                    buffers.add(line, (start as u64, end as u64));
                    Ok(ControlFlow::Continue(()))
                },
            )
        });
        if buffers.is_within {
            return true;
        }
        if looked == Err(Errno::NOENT) {
            return false;
        }
        if looked.is_ok() && buffers.left == Some(0) {
            return false;
        }
        sched_yield();
    }
    true
}

/// What lines of a ring's `fdinfo` told so far.
#[derive(Default)]
struct FdinfoParser {
    /// Lines to come.
    left: Option<usize>,
    is_within: bool,
}

impl FdinfoParser {
    /// `UserBufs: 2` and then a line for each, `0: 0x7f63de3d3000/65536` or `1: <none>`. While a
    /// thread is submitting, older kernels (6.1) tell the number and go on with something else.
    fn add(&mut self, line: &[u8], (start, end): (u64, u64)) {
        let Some(line) = core::str::from_utf8(line).ok() else { return };
        if let Some(count) = line.strip_prefix("UserBufs:") {
            self.left = count.trim().parse().ok();
        } else if let Some(left @ 1..) = self.left {
            self.left = is_entry(line).then_some(left - 1);
            self.is_within |= range(line).is_some_and(|(from, to)| from < end && start < to);
        }
    }
}

/// Whether a line is of one buffer: its number is first.
fn is_entry(line: &str) -> bool {
    line.split_once(": ").is_some_and(|(number, _)| number.trim().parse::<u32>().is_ok())
}

/// First byte and end of a buffer.
fn range(line: &str) -> Option<(u64, u64)> {
    let (address, length) = line.split_once(": 0x")?.1.split_once('/')?;
    let address = u64::from_str_radix(address, 16).ok()?;
    Some((address, address.saturating_add(length.trim().parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_is_not_in_proc_has_not_ended() {
        let own = getpid().as_raw_nonzero().get();
        assert!(!has_ended(own) && !has_ended(gettid().as_raw_nonzero().get()));
        assert!(unless_ended(Err(Errno::NOENT), own).is_err(), "an old /proc");
        // Beyond what a kernel gives.
        assert_eq!(unless_ended(Err(Errno::NOENT), i32::MAX), Ok(false));
        assert_eq!(unless_ended(Ok(true), i32::MAX), Ok(true));
        assert!(unless_ended(Err(Errno::ACCESS), i32::MAX).is_err());
    }

    #[test]
    fn registered_buffers_are_parsed_from_fdinfo() {
        let told = |text: &str, range| {
            let mut buffers = FdinfoParser::default();
            text.lines().for_each(|line| buffers.add(line.as_bytes(), range));
            (buffers.left, buffers.is_within)
        };
        let text = "SqThread:\t-1\nUserFiles:\t1\n    0: 0x1000/4096\nUserBufs:\t3\n    \
                    0: 0x7f63de3d3000/65536\n    1: <none>\n    2: 0x9064/200\nPollList:\n";
        let buffer = 0x7f63_de3d_3000;
        assert_eq!(told(text, (buffer - 4096, buffer)), (Some(0), false));
        assert_eq!(told(text, (buffer + 65535, buffer + 70000)), (Some(0), true));
        assert_eq!(told(text, (buffer + 65536, buffer + 70000)), (Some(0), false));
        assert_eq!(told(text, (0x9000, 0xa000)), (Some(0), true));
        assert_eq!(told(text, (0x1000, 0x2000)), (Some(0), false), "a file's name");
        // Cut short, or a thread is submitting.
        assert_eq!(told(&text[..text.len() - 30], (0, 4096)), (Some(1), false));
        assert_eq!(told("SqThread:\t-1\n", (0, 4096)), (None, false));
        let busy = "SqThread:\t-1\nUserFiles:\t0\nUserBufs:\t1\nPollList:\nCqOverflowList:\n";
        assert_eq!(told(busy, (0, usize::MAX as u64)), (None, false), "Linux 6.1");
    }
}
