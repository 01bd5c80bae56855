//! Names the services of queue pairs: RC, UC, UD, and the two ends of XRC.

use core::fmt;

/// Transport service of a queue pair (9.1). The numbers are those of `enum ibv_qp_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Service {
    /// Reliable connection.
    Rc = 2,
    /// Unreliable connection.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
    /// Extended reliable connection, the end that asks (annex A14: initiator).
    XrcSend = 9,
    /// Extended reliable connection, the end that serves (annex A14: target).
    XrcRecv = 10,
}

impl Service {
    /// All that there are.
    pub const ALL: [Service; 5] =
        [Service::Rc, Service::Uc, Service::Ud, Service::XrcSend, Service::XrcRecv];

    /// The service of an `enum ibv_qp_type`, if it is one of these.
    #[must_use]
    pub fn from_qp_type(number: u32) -> Option<Service> {
        Service::ALL.into_iter().find(|service| service.qp_type() == number)
    }

    /// Its number as an `enum ibv_qp_type`.
    #[must_use]
    pub const fn qp_type(self) -> u32 {
        self as u32
    }

    /// The queue pair has one peer.
    #[must_use]
    pub const fn is_connected(self) -> bool {
        match self {
            Service::Rc | Service::Uc | Service::XrcSend | Service::XrcRecv => true,
            Service::Ud => false,
        }
    }

    /// Messages are acknowledged, and sent again if they are lost.
    #[must_use]
    #[inline(always)]
    pub const fn is_reliable(self) -> bool {
        matches!(self, Service::Rc | Service::XrcSend | Service::XrcRecv)
    }

    /// One of the ends of an extended reliable connection.
    #[must_use]
    #[inline(always)]
    pub const fn is_extended(self) -> bool {
        matches!(self, Service::XrcSend | Service::XrcRecv)
    }

    /// That of the queue pairs which one of this service can be connected with.
    #[must_use]
    pub const fn opposite(self) -> Service {
        match self {
            Service::XrcSend => Service::XrcRecv,
            Service::XrcRecv => Service::XrcSend,
            same => same,
        }
    }

    /// Its letters: RC, UC, UD; those of the two ends of XRC differ.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Service::Rc => "RC",
            Service::Uc => "UC",
            Service::Ud => "UD",
            Service::XrcSend => "XRC-INI",
            Service::XrcRecv => "XRC-TGT",
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_verbs() {
        for (service, number) in Service::ALL.into_iter().zip([2, 3, 4, 9, 10]) {
            assert_eq!(service.qp_type(), number);
            assert_eq!(Service::from_qp_type(number), Some(service));
        }
        for number in [0, 1, 5, 8, 11, 255, u32::MAX] {
            assert_eq!(Service::from_qp_type(number), None);
        }
    }
}
