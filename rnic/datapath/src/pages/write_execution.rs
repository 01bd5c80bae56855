//! Executes the peer's WRITEs on the application's pages.
//!
//! Which way a message goes is decided at its first packet, for all of it: here, if the application
//! has consumed everything that it was given before and the pages are mapped; otherwise as records.
//! If the pages are taken back in the middle of a message, the rest of it becomes records, as a
//! WRITE of its own behind what is written: the application checks the key and refuses or places
//! it, as if the whole had come that way.

use crate::pages::mapped_pages::{MappedPages, REMOTE_WRITE, Target};
use crate::request_records;
use omniverb_link::record::{IMMEDIATE, LAST, PLACED, SOLICITED};
use omniverb_link::{Broken, Endpoint, Request};
use omniverb_transport::{Kind, Part};
use omniverb_wire::WriteRun;

/// So many packets in a row became records only because the application had not consumed what came
/// before: then it is time to wait until it has. A pipeline would never come to that by itself.
const IN_A_ROW_MAX: u32 = 64;

/// The treatment of a part of a WRITE.
pub enum Course {
    /// It travels to the application, which places it.
    Travels(Request),
    /// It is in its place, and the application need not know.
    Placed,
    /// It is, and this is to be said.
    PlacedAndTold(Request),
    /// It is the rest, or belongs to it; then perhaps something is to be said.
    Rest(Request, Option<Request>),
    /// Not before the application has consumed what it has.
    Wait,
}

/// The way of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteRoute {
    /// As records, which the application places.
    #[default]
    Records,
    /// As records, but only because something came before.
    RecordsForNow,
    /// Its bytes are put into the pages here.
    Here,
    /// It began here, the rest are records.
    Rest,
}

/// The WRITE that is arriving at one link, and what was placed so far.
#[derive(Default)]
pub struct WritePlacement {
    way: WriteRoute,
    /// Packets that became records one after the other, only because something came before.
    in_a_row: u32,
    /// Messages executed here.
    pub count: u64,
}

/// Decides whether a WRITE may overtake others, or waits for them.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// Something that came before it waits for room in the ring.
    pub is_behind: bool,
    /// The peer can be made to say it again.
    pub may_wait: bool,
}

impl WritePlacement {
    /// The way of the WRITE that is arriving, or has arrived last.
    pub fn route(&self) -> WriteRoute {
        self.way
    }

    /// The WRITE that is arriving has taken this way so far. What is not reached here goes on as
    /// records.
    pub fn resume(&mut self, route: WriteRoute) {
        self.way = route;
    }

    /// Something else than a WRITE arrived.
    pub fn interrupted(&mut self) {
        self.in_a_row = 0;
    }

    /// Places a part, or says how it travels.
    pub fn part(
        &mut self,
        grants: &mut impl MappedPages,
        endpoint: &mut Endpoint,
        part: &Part<'_>,
        order: Order,
        now: u64,
    ) -> Result<Course, Broken> {
        let Kind::Write { address, key, total } = part.kind else {
            self.interrupted();
            return Ok(Course::Travels(request_records::part(part)));
        };
        let target = Target { key, address, length: total };
        if part.place.begins() {
            match self.choose(grants, endpoint, target, order)? {
                Some(way) => self.way = way,
                None => return Ok(Course::Wait),
            }
        }
        self.in_a_row = match self.way {
            WriteRoute::RecordsForNow => self.in_a_row.saturating_add(1),
            _ => 0,
        };
        Ok(match self.way {
            WriteRoute::Records | WriteRoute::RecordsForNow => {
                Course::Travels(request_records::part(part))
            }
            WriteRoute::Here => {
                let place = (target, part.offset);
                if grants.write(endpoint, place, part.data, part.place, now) {
                    self.count += u64::from(part.place.ends());
                    match placed(part) {
                        Some(record) => Course::PlacedAndTold(record),
                        None => Course::Placed,
                    }
                } else if part.place.begins() {
                    self.way = WriteRoute::Records;
                    Course::Travels(request_records::part(part))
                } else {
                    rest(part, true)
                }
            }
            WriteRoute::Rest => rest(part, false),
        })
    }

    /// The way of a whole message. `None`: none, for now.
    fn choose(
        &mut self,
        grants: &mut impl MappedPages,
        endpoint: &mut Endpoint,
        target: Target,
        order: Order,
    ) -> Result<Option<WriteRoute>, Broken> {
        // A message of no bytes is the application's to judge: it names no memory.
        Ok(if target.length == 0 || !grants.reach(endpoint, target, REMOTE_WRITE) {
            self.interrupted();
            Some(WriteRoute::Records)
        } else if !order.is_behind && is_drained(endpoint)? {
            Some(WriteRoute::Here)
        } else if order.may_wait && self.in_a_row >= IN_A_ROW_MAX {
            None
        } else {
            Some(WriteRoute::RecordsForNow)
        })
    }

    /// Places a run, if its message is placed here. False: nothing of it counts.
    pub fn run(
        &mut self,
        grants: &mut impl MappedPages,
        endpoint: &mut Endpoint,
        (part, run): (&Part<'_>, &WriteRun<'_>),
        order: Order,
        now: u64,
    ) -> Result<bool, Broken> {
        let Kind::Write { address, key, total } = part.kind else { return Ok(false) };
        let target = Target { key, address, length: total };
        let here = match part.place.begins() {
            true => !order.is_behind && is_drained(endpoint)?,
            false => self.way == WriteRoute::Here,
        };
        let placed = here && grants.write_run(endpoint, (target, part.offset), run, now);
        if placed {
            (self.way, self.in_a_row) = (WriteRoute::Here, 0);
        }
        Ok(placed)
    }

    /// A part of the rest was taken.
    pub fn rest_began(&mut self) {
        self.way = WriteRoute::Rest;
    }
}

/// Whether the application has consumed everything that it was given.
pub fn is_drained(endpoint: &mut Endpoint) -> Result<bool, Broken> {
    endpoint.request_consumed(endpoint.request_position())
}

/// A part that has to travel although the message began here; `begins`: it is the first of these.
fn rest(part: &Part<'_>, begins: bool) -> Course {
    let Kind::Write { address, key, total } = part.kind else {
        return Course::Travels(request_records::part(part));
    };
    // The completion is to tell the length of the whole message: it comes apart.
    let notice = placed(part);
    let flags = if part.place.ends() { LAST } else { 0 };
    let request = if begins {
        Request::WriteFirst {
            flags,
            address: address.wrapping_add(part.offset),
            rkey: key,
            immediate: 0,
            total: total.saturating_sub(part.offset),
        }
    } else {
        Request::WriteMore { flags, immediate: 0 }
    };
    Course::Rest(request, notice)
}

/// The record that only announces a complete message, if the application is to know of it.
fn placed(part: &Part<'_>) -> Option<Request> {
    let Kind::Write { address, key, total } = part.kind else { return None };
    let immediate = u32::from_ne_bytes(part.immediate?);
    let solicited = if part.is_solicited { SOLICITED } else { 0 };
    let flags = LAST | IMMEDIATE | PLACED | solicited;
    Some(Request::WriteFirst { flags, address, rkey: key, immediate, total })
}
