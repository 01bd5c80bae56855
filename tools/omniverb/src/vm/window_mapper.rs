//! Maps windows into a machine's memory: a process that plays a vhost-user device for QEMU
//! (decision 0048).
//!
//! One for each machine, for as long as QEMU runs; it runs as an unused user, and has QEMU's
//! socket, its supervisor's, and the windows. One that is killed at rest is followed by another,
//! which goes on where it was (`progress_file.rs`).
//!
//! In: messages of QEMU, which runs a hostile guest (`vhost_user.rs`); windows of its supervisor's.
//! Out: those windows in the guest, and again whenever a driver of the guest's begins: by then QEMU
//! has taken away all. It reads none of them but the head of the machine's own file, which it
//! writes anew for each boot.

#[cfg(test)]
mod tests;

mod end_reason;
mod progress_file;
mod vhost_user_stream;

pub(super) use self::end_reason::MapperEnd;
pub(super) use self::progress_file::{beginning, notes};

use self::progress_file::{MapperProgress, Notes};
use self::vhost_user_stream::Stream;
use super::machine_window::DATA_OFFSET;
use super::vhost_user::{ANSWER_BYTES, Change, Device, News, Part};
use super::window_slots::Slots;
use omniverb_sys::{memfd, seqpacket};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, pwrite};
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// The number of the machine's own file among windows.
pub(super) const OWN: u8 = 0;
/// Jobs that wait: more than a supervisor asks for.
const JOBS_MAX: usize = 256;

/// A supervisor's first message: this byte, and how many windows follow. Beside it are the notes,
/// and the channel to QEMU, if there was an earlier mapper.
pub(super) const NOTES: u8 = b'n';
/// Those windows: this byte, and the number of each.
pub(super) const HAS: u8 = b'h';
/// Its requests: this byte, and the number of a window.
pub(super) const MAP: u8 = b'+';
pub(super) const UNMAP: u8 = b'-';
/// Messages to it: this byte, and one more. Whether its request was done; whether the driver of the
/// guest's that has begun knows of memory that is mapped; the number of a window that QEMU has
/// refused then; the channel to QEMU, which is beside it.
pub(super) const DONE: u8 = b'=';
pub(super) const BEGUN: u8 = b'!';
pub(super) const REFUSED: u8 = b'0';
pub(super) const CHANNEL: u8 = b'c';

/// A window, and where it belongs.
struct Window {
    file: OwnedFd,
    part: Part,
    /// QEMU has it, for all that is known.
    mapped: bool,
}

/// A change that QEMU is to be asked for.
#[derive(Clone, Copy)]
struct Job {
    change: Change,
    number: u8,
    /// The supervisor waits until it is done.
    awaited: bool,
}

struct Mapper {
    slots: Slots,
    supervisor: OwnedFd,
    qemu: Stream,
    /// Where QEMU is asked, once it has said where.
    channel: Option<Stream>,
    notes: Notes,
    device: Device,
    windows: BTreeMap<u8, Window>,
    /// The head of the machine's own file for the guest.
    beginning: Vec<u8>,
    jobs: VecDeque<Job>,
    /// The first one is under way.
    asked: bool,
    /// A driver of the guest's has begun that knows of memory which is mapped.
    begun: bool,
}

/// Serves until QEMU, or the supervisor, is gone, or one of them says what makes no sense.
pub(super) fn serve(
    qemu: OwnedFd,
    supervisor: OwnedFd,
    slots: Slots,
) -> Result<Infallible, MapperEnd> {
    let mut mapper = Mapper::new(qemu, supervisor, slots)?;
    loop {
        mapper.ask()?;
        mapper.note()?;
        let [qemu, supervisor, answered] = mapper.wait()?;
        mapper.notes.busy()?;
        if supervisor {
            mapper.hear_supervisor()?;
        }
        if answered {
            mapper.hear_answer()?;
        }
        if qemu {
            mapper.hear_qemu()?;
        }
    }
}

impl Mapper {
    /// By the supervisor's message, and the notes of an earlier mapper.
    fn new(qemu: OwnedFd, supervisor: OwnedFd, slots: Slots) -> Result<Mapper, MapperEnd> {
        let mut said = [0; 2];
        let mut hear = || {
            let heard = seqpacket::receive(
                supervisor.as_fd(),
                &mut said,
                seqpacket::BlockingMode::Blocking,
            )?;
            if heard.0 == 2 { Ok((said, heard.1)) } else { Err(MapperEnd) }
        };
        let ([NOTES, count], files) = hear()? else { return Err(MapperEnd) };
        let mut files = files.into_iter();
        let notes = Notes::new(files.next().ok_or(MapperEnd)?)?;
        let channel = files.next().map(Stream::new);
        let left = notes.read()?;
        if left.has_channel != channel.is_some() || files.next().is_some() {
            return Err(MapperEnd);
        }
        let mut windows = BTreeMap::new();
        for _ in 0..count {
            let ([HAS, number], mut files) = hear()? else { return Err(MapperEnd) };
            let file = files.pop().filter(|_| files.is_empty()).ok_or(MapperEnd)?;
            let part = part(slots, number, &file)?.ok_or(MapperEnd)?;
            // Whatever there is has been mapped since a driver began.
            let window = Window { file, part, mapped: left.has_begun };
            if windows.insert(number, window).is_some() {
                return Err(MapperEnd);
            }
        }
        Ok(Mapper {
            slots,
            supervisor,
            qemu: Stream::new(qemu),
            channel,
            beginning: notes.beginning()?,
            notes,
            device: Device::new(slots.region(), left.state),
            windows,
            jobs: VecDeque::new(),
            asked: false,
            begun: left.has_begun,
        })
    }

    /// Notes that nothing is under way, if so.
    fn note(&self) -> Result<(), MapperEnd> {
        let none_is_half =
            self.qemu.is_at_rest() && self.channel.as_ref().is_none_or(Stream::is_at_rest);
        if !none_is_half || !self.jobs.is_empty() {
            return Ok(());
        }
        let (state, has_channel) = (self.device.state(), self.channel.is_some());
        self.notes.at_rest(MapperProgress { state, has_begun: self.begun, has_channel })
    }

    fn wait(&self) -> Result<[bool; 3], MapperEnd> {
        let sockets = [Some(&self.qemu.socket), Some(&self.supervisor)];
        let channel = self.channel.as_ref().map(|channel| &channel.socket);
        let mut polled: Vec<PollFd<'_>> =
            sockets.iter().flatten().map(|socket| PollFd::new(*socket, PollFlags::IN)).collect();
        polled.extend(channel.map(|socket| PollFd::new(socket, PollFlags::IN)));
        match poll(&mut polled, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let came = |at: usize| polled.get(at).is_some_and(|one| !one.revents().is_empty());
        Ok([came(0), came(1), came(2)])
    }

    /// Has QEMU do the next thing. While it does it may ask and tell others: that is heard, too.
    fn ask(&mut self) -> Result<(), MapperEnd> {
        while !self.asked {
            let (Some(channel), Some(job)) = (&self.channel, self.jobs.front().copied()) else {
                break;
            };
            // It may be gone meanwhile.
            let Some(window) = self.windows.get(&job.number) else {
                self.jobs.pop_front();
                if job.awaited {
                    self.tell(DONE, job.change == Change::Unmap)?;
                }
                continue;
            };
            let file = [window.file.as_fd()];
            let files = if job.change == Change::Map { &file[..] } else { &[] };
            seqpacket::try_send(channel.socket.as_fd(), &job.change.of(window.part), files)?;
            self.asked = true;
        }
        Ok(())
    }

    fn add(&mut self, change: Change, number: u8, awaited: bool) -> Result<(), MapperEnd> {
        if self.jobs.len() >= JOBS_MAX {
            return Err(MapperEnd);
        }
        self.jobs.push_back(Job { change, number, awaited });
        Ok(())
    }

    /// QEMU is asked for something of this window, or will be.
    fn is_to_be_done(&self, number: u8) -> bool {
        self.jobs.iter().any(|job| job.number == number)
    }

    fn tell(&self, what: u8, value: impl Into<u8>) -> Result<(), MapperEnd> {
        Ok(seqpacket::try_send(self.supervisor.as_fd(), &[what, value.into()], &[])?)
    }

    fn hear_supervisor(&mut self) -> Result<(), MapperEnd> {
        let mut said = [0; 2];
        let mode = seqpacket::BlockingMode::NonBlocking;
        let (length, mut files) = match seqpacket::receive(self.supervisor.as_fd(), &mut said, mode)
        {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            heard => heard?,
        };
        match (&said[..length], files.pop()) {
            ([MAP, number], Some(file)) => self.take(*number, file),
            ([UNMAP, number], None) => match self.windows.get(number) {
                Some(window) if window.mapped || self.is_to_be_done(*number) => {
                    self.add(Change::Unmap, *number, true)
                }
                _ => {
                    self.windows.remove(number);
                    self.tell(DONE, true)
                }
            },
            _ => Err(MapperEnd),
        }
    }

    /// A window is to be mapped: now, or when a driver of the guest's begins.
    fn take(&mut self, number: u8, file: OwnedFd) -> Result<(), MapperEnd> {
        let part = part(self.slots, number, &file)?;
        let Some(part) = part.filter(|_| !self.windows.contains_key(&number)) else {
            return self.tell(DONE, false);
        };
        self.windows.insert(number, Window { file, part, mapped: false });
        if self.begun {
            return self.add(Change::Map, number, true);
        }
        self.tell(DONE, true)
    }

    /// QEMU has answered.
    fn hear_answer(&mut self) -> Result<(), MapperEnd> {
        let Some(channel) = &mut self.channel else { return Ok(()) };
        let Some(answer) = channel.read(ANSWER_BYTES)? else { return Ok(()) };
        let job =
            self.jobs.pop_front().filter(|_| std::mem::take(&mut self.asked)).ok_or(MapperEnd)?;
        let Job { change, number, awaited } = job;
        let done = change.is_done(answer.first_chunk().ok_or(MapperEnd)?)?;
        match (change, self.windows.get_mut(&number)) {
            (Change::Map, Some(window)) => {
                // A mapper that follows one at rest finds all as it was: present windows are not
                // mapped again.
                window.mapped |= done;
                if !window.mapped {
                    self.windows.remove(&number);
                }
            }
            (Change::Unmap, _) => _ = self.windows.remove(&number),
            (Change::Map, None) => {}
        }
        if awaited {
            return self.tell(DONE, done);
        }
        // A successor must not take it for mapped.
        if self.windows.contains_key(&number) { Ok(()) } else { self.tell(REFUSED, number) }
    }

    fn hear_qemu(&mut self) -> Result<(), MapperEnd> {
        let Some((head, body, mut files)) = self.qemu.message()? else { return Ok(()) };
        let (answer, news) = self.device.hear(head, &body, files.len())?;
        match news {
            News::Nothing => {}
            News::Channel => {
                let channel = files.pop().filter(|_| self.channel.is_none()).ok_or(MapperEnd)?;
                // A successor asks there, too.
                seqpacket::try_send(self.supervisor.as_fd(), &[CHANNEL, 0], &[channel.as_fd()])?;
                self.channel = Some(Stream::new(channel));
            }
            News::Begun { knows } => self.begin(knows)?,
        }
        if let Some(answer) = answer {
            seqpacket::try_send(self.qemu.socket.as_fd(), &answer, &[])?;
        }
        Ok(())
    }

    /// A driver of the guest's has begun.
    fn begin(&mut self, knows: bool) -> Result<(), MapperEnd> {
        self.begun = knows;
        if knows {
            if let Some(own) = self.windows.get(&OWN) {
                pwrite(&own.file, &self.beginning, 0)?;
            }
            // First the machine's own, which the guest looks for.
            let numbers: Vec<u8> = self.windows.keys().copied().collect();
            for number in numbers {
                self.add(Change::Map, number, false)?;
            }
        } else {
            // QEMU has taken away all, and nothing is mapped again.
            self.windows.values_mut().for_each(|window| window.mapped = false);
        }
        self.tell(BEGUN, knows)
    }
}

/// Where window `number` belongs, if it has a place, and what of its file belongs there.
fn part(slots: Slots, number: u8, file: &OwnedFd) -> Result<Option<Part>, MapperEnd> {
    let bytes = memfd::size(file.as_fd()).map_err(|_| MapperEnd)?;
    if number == OWN {
        return Ok(Some(Part { at: 0, in_file: 0, length: bytes }));
    }
    let place = slots.place(number, bytes);
    Ok(place.map(|place| Part { at: place.offset, in_file: DATA_OFFSET, length: place.length }))
}
