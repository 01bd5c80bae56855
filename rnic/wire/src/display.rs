//! Prints packets in words, for people who read traces and tests that fail: `SEND-ONLY qpn 0x22 psn
//! 1003 ask`, `NAK remote access qpn 0x22 psn 501 msn 1`.
//!
//! Names are the specification's (9.2.1, table 38). Reliable connection is what is meant where no
//! service is named. QP numbers, addresses and keys are hexadecimal, PSNs and counts decimal.

use crate::{CREDITS_INVALID, Class, Opcode, Operation, Packet, PacketPosition, Syndrome};
use core::fmt;
use omniverb_terms::{Placement, Selectivity, Service};

impl fmt::Display for PacketPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PacketPosition::First => "FIRST",
            PacketPosition::Middle => "MIDDLE",
            PacketPosition::Last => "LAST",
            PacketPosition::Only => "ONLY",
        })
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let with = |present: bool, name: &'static str| if present { name } else { "" };
        match self {
            Operation::Send { place, immediate, invalidate } => {
                write!(f, "SEND-{place}{}{}", with(*immediate, "-IMM"), with(*invalidate, "-INV"))
            }
            Operation::Write { place, immediate } => {
                write!(f, "WRITE-{place}{}", with(*immediate, "-IMM"))
            }
            Operation::ReadRequest => f.write_str("READ-REQUEST"),
            Operation::ReadResponse { place } => write!(f, "READ-RESPONSE-{place}"),
            Operation::Acknowledge => f.write_str("ACKNOWLEDGE"),
            Operation::AtomicAcknowledge => f.write_str("ATOMIC-ACKNOWLEDGE"),
            Operation::CompareSwap => f.write_str("COMPARE-SWAP"),
            Operation::FetchAdd => f.write_str("FETCH-ADD"),
            Operation::Flush => f.write_str("FLUSH"),
            Operation::AtomicWrite => f.write_str("ATOMIC-WRITE"),
            Operation::Notification => f.write_str("CNP"),
        }
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.class {
            Class::Service(service @ (Service::Uc | Service::Ud)) => write!(f, "{service} ")?,
            Class::Service(Service::XrcSend | Service::XrcRecv) => f.write_str("XRC ")?,
            Class::Service(Service::Rc) | Class::Notification => {}
        }
        fmt::Display::fmt(&self.operation, f)
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Syndrome::Ack(_) => f.write_str("ACK"),
            Syndrome::ReceiverNotReady(code) => write!(f, "RNR-NAK timer {code}"),
            Syndrome::SequenceError => f.write_str("NAK sequence"),
            Syndrome::Refused(refusal) => write!(f, "NAK {refusal}"),
            Syndrome::Reserved(byte) => write!(f, "syndrome {byte:#04x}"),
        }
    }
}

impl fmt::Display for Packet<'_> {
    /// Everything but the payload.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bth, opcode) = (self.bth(), self.opcode());
        match self.aeth() {
            // What it says is what it is.
            Some(aeth) if opcode.operation == Operation::Acknowledge => {
                fmt::Display::fmt(&aeth.syndrome(), f)?;
            }
            _ => fmt::Display::fmt(&opcode, f)?,
        }
        write!(f, " qpn {:#x}", bth.destination().0)?;
        if opcode.is_notification() {
            if let Some((source, psn)) = self.report() {
                write!(f, " report of {:#x} psn {psn}", source.0)?;
            }
            if let Some(microseconds) = self.delay() {
                write!(f, " delay {microseconds} us")?;
            }
            return Ok(());
        }
        write!(f, " psn {}", bth.psn())?;
        if bth.is_solicited() {
            f.write_str(" solicited")?;
        }
        if bth.is_ack_requested() {
            f.write_str(" ask")?;
        }
        self.extended_headers(f)
    }
}

impl Packet<'_> {
    fn extended_headers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(deth) = self.deth() {
            write!(f, " from {:#x} qkey {:#x}", deth.source().0, deth.queue_key().0)?;
        }
        if let Some(srq) = self.srq() {
            write!(f, " srq {srq}")?;
        }
        if let Some(feth) = self.flush() {
            let placement = feth.placement();
            let asks = |what| placement.is_some_and(|placement| placement.asks(what));
            f.write_str(match (asks(Placement::GLOBAL), asks(Placement::PERSISTENT)) {
                (true, true) => " global persistent",
                (true, false) => " global",
                (false, true) => " persistent",
                (false, false) => " nowhere",
            })?;
            if feth.selectivity() == Some(Selectivity::Region) {
                f.write_str(" region")?;
            }
        }
        if let Some(reth) = self.reth() {
            let (address, length, key) = (reth.address(), reth.length(), reth.key().0);
            write!(f, " {address:#x}+{length} rkey {key:#x}")?;
        }
        if let Some(atomic) = self.atomic() {
            write!(f, " {:#x} rkey {:#x}", atomic.address(), atomic.key().0)?;
            match self.opcode().operation {
                Operation::FetchAdd => write!(f, " add {:#x}", atomic.swap_or_add())?,
                _ => write!(f, " {:#x} -> {:#x}", atomic.compare(), atomic.swap_or_add())?,
            }
        }
        if let Some(aeth) = self.aeth() {
            let acknowledges = self.opcode().operation == Operation::Acknowledge;
            match aeth.syndrome() {
                Syndrome::Ack(CREDITS_INVALID) => {}
                Syndrome::Ack(code) => write!(f, " credits {code:#x}")?,
                _ if acknowledges => {}
                other => write!(f, " {other}")?,
            }
            write!(f, " msn {}", aeth.messages())?;
        }
        if let Some(result) = self.atomic_ack() {
            write!(f, " original {:#x}", result.original())?;
        }
        if let Some(immediate) = self.immediate() {
            write!(f, " imm {:08x}", u32::from_be_bytes(immediate.0))?;
        }
        if let Some(invalidate) = self.invalidate() {
            write!(f, " inv {:#x}", invalidate.key().0)?;
        }
        Ok(())
    }
}
