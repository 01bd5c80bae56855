//! Connects two queue pairs of the engine by a faulty line, for tests.
//!
//! Whatever goes which way, the memory holds what was written, in the order it was written.

mod app_and_qp_of_one_end;
mod dead_process;
mod late_payload;
mod memory_owner;
mod missing_receive;
mod packet_trace;
mod refusing_application;
mod repeated_read;
mod source_region;

use self::app_and_qp_of_one_end::{RECEIVE, Side, side};
use self::memory_owner::{BYTES, INBOX, KEY, Owner, SKEW, START, Seen, pages};
use self::packet_trace::Trace;
use self::source_region::Shelf;
use crate::pages::grant::Grant;
use crate::pages::link_grants::insert;
use crate::pages::mapped_memory_budget::{Budget, Mappings};
use crate::pages::shared_extent_mappings::Hold;
use omniverb_datapath::pages::mapped_pages::{REMOTE_READ, REMOTE_WRITE};
use omniverb_datapath::peer_features;
use omniverb_link::record::{FIRST, IMMEDIATE, LAST};
use omniverb_link::{Request, Response};
use omniverb_ring::UserMemory;
use omniverb_terms::Service;
use omniverb_transport::Ecn;
use omniverb_transport::splitmix64::Random;
use omniverb_wire::{DATAGRAM_MAX, Packet, WriteRun};

struct Trial {
    random: Random,
    service: Service,
    loss: u64,
    asker: Side,
    /// The memory that it sends from.
    shelf: Shelf,
    holder: Side,
    owner: Owner,
    model: Vec<u8>,
    /// The data that a READ under way is to bring, and those that have come.
    reading: Option<(Vec<u8>, Vec<u8>)>,
    budget: Budget,
    now: u64,
    /// Runs placed at once.
    runs: u64,
    /// Of two hundred steps, after so many another queue pair goes on at either end.
    handovers_of_200: u64,
    handovers: u64,
    trace: Trace,
}

impl Trial {
    fn new(seed: u64, service: Service) -> Trial {
        let mut random = Random::new(seed);
        let loss =
            if service == Service::Rc { [0, 0, 2, 5][random.between(0, 3) as usize] } else { 0 };
        let (memory, _) = pages(&[0; BYTES], true);
        let owner = Owner::new(memory);
        let features = 1 | if random.between(0, 1) == 1 { peer_features::NAME_ALL } else { 0 };
        let (asker, holder, shelf) =
            (side(service, features), side(service, features), Shelf::new());
        let (model, budget) = (vec![0; BYTES], Mappings::default().budget());
        let reading = None;
        Trial {
            random,
            service,
            loss,
            asker,
            shelf,
            holder,
            owner,
            model,
            reading,
            budget,
            now: 1,
            runs: 0,
            handovers_of_200: 0,
            handovers: 0,
            trace: Trace::default(),
        }
    }

    /// Asks for something; false: no room.
    fn ask(&mut self) -> bool {
        if self.reading.is_some() {
            return false; // what comes behind a READ may overtake it
        }
        let length = match self.random.between(0, 3) {
            0 => self.random.between(1, 40),
            1 => 256 * self.random.between(1, 4),
            _ => self.random.between(1, 9000),
        } as usize;
        let at = self.random.between(SKEW as u64, (BYTES - SKEW - length) as u64) as usize;
        let (address, rkey, total) = (START + at as u64, KEY, length as u64);
        let data: Vec<u8> = (0..length).map(|_| self.random.between(0, 255) as u8).collect();
        match self.random.between(0, 9) {
            0 => {
                let request = Request::Send { flags: FIRST | LAST, immediate: 0 };
                let data = &data[..length.min(RECEIVE)];
                let sent = self.send(&request, data);
                if sent {
                    self.model[INBOX..INBOX + data.len()].copy_from_slice(data);
                    self.owner.seen.push_back(Seen::Message(self.model.clone()));
                }
                sent
            }
            1 | 2 if self.service == Service::Rc => {
                let sent = self.send(&Request::Read { address, rkey, length: total }, &[]);
                if sent {
                    self.reading = Some((self.model[at..at + length].to_vec(), Vec::new()));
                }
                sent
            }
            kind => {
                let flags = LAST | if kind == 3 { IMMEDIATE } else { 0 };
                let request = Request::WriteFirst { flags, address, rkey, immediate: 7, total };
                let sent = self.send(&request, &data);
                if sent {
                    self.model[at..at + length].copy_from_slice(&data);
                    if kind == 3 {
                        self.owner.seen.push_back(Seen::Immediate(self.model.clone(), total));
                    }
                }
                sent
            }
        }
    }

    fn send(&mut self, request: &Request, data: &[u8]) -> bool {
        let application = &mut self.asker.application;
        if data.len() > application.request_payload_max() {
            return false;
        }
        if self.service == Service::Rc
            && self.random.between(0, 3) > 0
            && let Some(sent) = self.shelf.send(application, request, data)
        {
            return sent;
        }
        UserMemory::lend(data, |part| application.send_request(request, data.len(), [&part]))
            .unwrap()
    }

    /// Data of the READ under way.
    fn hear(&mut self) {
        let application = &mut self.asker.application;
        while let Some((response, record)) = application.next_response().unwrap() {
            let Response::ReadData { last } = response else { panic!("{response:?}") };
            let (expected, so_far) = self.reading.as_mut().expect("a READ under way");
            let mut bytes = vec![0; record.length];
            UserMemory::lend_mut(&mut bytes, |to| application.response_payload(&record, 0, to));
            so_far.extend(bytes);
            application.pass_response(&record);
            if last {
                assert!(expected == so_far, "READ of something else");
                self.reading = None;
            }
        }
    }

    fn exchange(&mut self) {
        let mut datagrams = vec![0; 9 * DATAGRAM_MAX];
        for turn in 0..2 {
            let (from, to, who) = match turn {
                0 => (&mut self.asker.engine, &mut self.holder.engine, "asker"),
                _ => (&mut self.holder.engine, &mut self.asker.engine, "holder"),
            };
            from.serve(self.now);
            for _ in 0..self.random.between(1, 20) {
                let Some(length) = from.transmit(self.now, &mut datagrams) else { break };
                let most = self.random.between(0, 8) as usize;
                let alike = from.transmit_alike(self.now, &mut datagrams, length, most);
                let train = &datagrams[..length * (1 + alike)];
                train.chunks(length).for_each(|one| self.trace.sent(self.now, who, one));
                if let Some(run) = WriteRun::of(train, length)
                    && self.random.between(1, 100) > self.loss
                    && to.take_run(self.now, &run)
                {
                    self.runs += 1;
                    continue;
                }
                for datagram in train.chunks(length) {
                    if self.random.between(1, 100) > self.loss {
                        to.packet(self.now, &Packet::parse(datagram).unwrap(), Ecn::Unmarked);
                    }
                }
            }
            from.after();
            to.after();
            for side in [from, to] {
                if side.next_timeout().is_some_and(|at| at <= self.now) {
                    side.timeout(self.now);
                }
            }
        }
        self.now += 10_000;
    }

    /// The application grants what is wanted, or takes its memory back.
    fn manage(&mut self) {
        while let Some((key, _)) = self.holder.engine.application.pages().0.take_wanted() {
            if key == KEY && self.random.between(0, 3) > 0 {
                let holes = self.random.between(0, 1) == 1;
                let (ours, whole) = pages(&self.owner.contents(), holes);
                self.owner.memory = ours;
                let share = self.budget.share(whole.len()).unwrap();
                let access = REMOTE_WRITE | REMOTE_READ;
                let grant = Grant::new(KEY, access, START + 4096, Hold::alone(whole, share));
                let epoch = self.holder.application.epoch() as u32;
                insert(&mut self.holder.engine.application, grant, epoch);
            }
        }
        let application = &mut self.asker.application;
        while let Some((key, _)) = self.asker.engine.application.pages().0.take_wanted() {
            if key == source_region::KEY
                && self.random.between(0, 3) > 0
                && let Some(grant) = self.shelf.grant(&self.budget)
            {
                insert(&mut self.asker.engine.application, grant, application.epoch() as u32);
            }
        }
        self.shelf.fill_if_wanted(application);
        if self.random.between(0, 60) == 0 {
            self.shelf.take_back(application);
        }
        if self.random.between(0, 60) == 0 {
            self.holder.application.advance_epoch();
            let (ours, _) = pages(&self.owner.contents(), false);
            self.owner.memory = ours;
        }
    }

    fn run(&mut self) -> u64 {
        let mut left = 120;
        let mut quiet = 0;
        while quiet < 1000 {
            let before = (left, self.owner.records, self.reading.is_some());
            while left > 0 && self.random.between(0, 2) > 0 && self.ask() {
                left -= 1;
            }
            self.exchange();
            self.manage();
            for side in [&mut self.asker, &mut self.holder] {
                if self.random.between(1, 200) <= self.handovers_of_200 {
                    self.handovers += u64::from(side.hand_over(self.now));
                }
            }
            let most = self.random.between(0, 4) * self.random.between(0, 6);
            self.owner.serve(&mut self.holder.application, most);
            self.hear();
            let after = (left, self.owner.records, self.reading.is_some());
            quiet = if before == after { quiet + 1 } else { 0 };
            if quiet > 20 {
                self.now += 200_000;
            }
        }
        assert!(self.reading.is_none() && self.owner.seen.is_empty(), "something did not arrive");
        assert!(self.owner.contents() == self.model, "the memory holds something else");
        self.holder.mapped()
    }
}

#[test]
fn memory_holds_the_writes_in_order_by_each_path() {
    let (mut mapped, mut records, mut runs, mut sent, mut fills) = (0, 0, 0, 0, 0);
    for seed in 0..400 {
        let service = if seed % 5 == 4 { Service::Uc } else { Service::Rc };
        let mut trial = Trial::new(seed, service);
        println!("seed {seed}"); // shown if it fails
        mapped += trial.run();
        records += trial.owner.records;
        runs += trial.runs;
        (sent, fills) = (sent + trial.shelf.sent, fills + trial.shelf.fills);
    }
    // All ways are taken, or this says nothing.
    assert!(mapped > 1000 && records > 1000, "{mapped} mapped, {records} as records");
    assert!(runs > 1000 && sent > 300 && fills > 100, "{runs} runs, {sent} sources, {fills} fills");
}

/// Queue pairs without pages go on where such as have them have ended, in the middle of WRITEs that
/// were placed there, and of payload that is still where the application has it; they get pages
/// again.
#[test]
fn memory_holds_the_writes_when_other_queue_pairs_go_on() {
    let (mut mapped, mut handovers, mut records) = (0, 0, 0);
    for seed in 0..200 {
        let mut trial = Trial::new(seed, Service::Rc);
        trial.handovers_of_200 = [1, 10, 60][seed as usize % 3];
        println!("seed {seed}"); // shown if it fails
        mapped += trial.run();
        handovers += trial.handovers;
        records += trial.owner.records;
    }
    assert!(handovers > 1000, "only {handovers} handovers");
    assert!(mapped > 300 && records > 1000, "{mapped} mapped, {records} as records");
}
