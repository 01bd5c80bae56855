//! Encodes messages as words: a number for their kind, then their fields in order.
//!
//! A message that is not exactly one of those that are declared is none.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::channel_layout::Names;

/// Bytes of every message on a socket of this host. What its fields do not take is zero.
pub const BYTES: usize = 128;

/// Writes words one after another.
pub(crate) struct Writer<'a>(core::slice::IterMut<'a, u64>);

impl Writer<'_> {
    /// What there is no room for is left out.
    pub(crate) fn put(&mut self, word: u64) {
        if let Some(place) = self.0.next() {
            *place = word;
        }
    }
}

/// Reads words one after another; `None`: there are no more.
pub(crate) struct Reader<'a>(core::slice::Iter<'a, u64>);

impl Reader<'_> {
    pub(crate) fn take(&mut self) -> Option<u64> {
        self.0.next().copied()
    }
}

/// Part of a message.
pub(crate) trait Field: Sized {
    fn put(&self, to: &mut Writer<'_>);
    fn take(from: &mut Reader<'_>) -> Option<Self>;
}

/// Writes a message at the beginning of these words. How many it takes.
pub(crate) fn put(message: &impl Field, words: &mut [u64]) -> usize {
    let most = words.len();
    let mut to = Writer(words.iter_mut());
    message.put(&mut to);
    most - to.0.len()
}

/// Reads a message. What is behind it is zero.
pub(crate) fn take<T: Field>(words: &[u64]) -> Option<T> {
    let mut from = Reader(words.iter());
    let message = T::take(&mut from)?;
    from.0.all(|word| *word == 0).then_some(message)
}

/// Words as bytes.
pub(crate) fn to_bytes(words: &[u64], bytes: &mut [u8]) {
    bytes.as_chunks_mut().0.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_ne_bytes());
}

/// Words out of as many bytes.
pub(crate) fn from_bytes<const WORDS: usize>(bytes: &[u8]) -> Option<[u64; WORDS]> {
    let mut words = [0; WORDS];
    let (from, rest) = bytes.as_chunks();
    words.iter_mut().zip(from).for_each(|(to, word)| *to = u64::from_ne_bytes(*word));
    (from.len() == WORDS && rest.is_empty()).then_some(words)
}

/// Declares messages with their numbers, and with the version of their protocol.
macro_rules! messages {
    ($(#[$of_all:meta])* $all:ident, version $version:literal {
        $($(#[$doc:meta])* $number:literal => $kind:ident
            $({ $($(#[$of_field:meta])* $field:ident: $type:ty,)* })?
            $(($part:ident: $whole:ty))?,)*
    }) => {
        $(#[$of_all])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $all {
            $($(#[$doc])* $kind $({ $($(#[$of_field])* $field: $type,)* })? $(($whole))?,)*
        }

        impl $crate::message_codec::Field for $all {
            fn put(&self, to: &mut $crate::message_codec::Writer<'_>) {
                match self {
                    $(Self::$kind $({ $($field,)* })? $(($part))? => {
                        to.put($number | $version << 32);
                        $($($field.put(to);)*)?
                        $($part.put(to);)?
                    })*
                }
            }

            fn take(from: &mut $crate::message_codec::Reader<'_>) -> Option<Self> {
                let kind = from.take()?;
                Some(match kind as u32 {
                    _ if kind >> 32 != $version => return None,
                    $($number => Self::$kind
                        $({ $($field: $crate::message_codec::Field::take(from)?,)* })?
                        $((<$whole as $crate::message_codec::Field>::take(from)?))?,)*
                    _ => return None,
                })
            }
        }
    };
}
pub(crate) use messages;

/// Gives messages of which each has [`BYTES`] their two functions.
macro_rules! on_sockets {
    ($($all:ident),*) => {
        $(impl $all {
            /// Encodes the message.
            #[must_use]
            pub fn encode(&self) -> [u8; BYTES] {
                let (mut words, mut bytes) = ([0; BYTES / 8], [0; BYTES]);
                $crate::message_codec::put(self, &mut words);
                $crate::message_codec::to_bytes(&words, &mut bytes);
                bytes
            }

            /// Decodes a message, if the bytes are one.
            #[must_use]
            pub fn decode(bytes: &[u8]) -> Option<Self> {
                let words: [u64; BYTES / 8] = $crate::message_codec::from_bytes(bytes)?;
                $crate::message_codec::take(&words)
            }
        })*
    };
}
pub(crate) use on_sockets;

/// Encodes a structure as its fields.
macro_rules! fields {
    ($type:ident { $($field:ident),* }) => {
        impl $crate::message_codec::Field for $type {
            fn put(&self, to: &mut $crate::message_codec::Writer<'_>) {
                $(self.$field.put(to);)*
            }

            fn take(from: &mut $crate::message_codec::Reader<'_>) -> Option<Self> {
                $(let $field = $crate::message_codec::Field::take(from)?;)*
                Some(Self { $($field),* })
            }
        }
    };
}
pub(crate) use fields;

/// Encodes an enumeration as its number.
macro_rules! numbers {
    ($type:ident { $($kind:ident),* }) => {
        impl $crate::message_codec::Field for $type {
            fn put(&self, to: &mut $crate::message_codec::Writer<'_>) {
                to.put(*self as u64);
            }

            fn take(from: &mut $crate::message_codec::Reader<'_>) -> Option<Self> {
                let number = from.take()?;
                [$(Self::$kind),*].into_iter().find(|one| *one as u64 == number)
            }
        }
    };
}
pub(crate) use numbers;

macro_rules! unsigned {
    ($($type:ident),*) => {
        $(impl Field for $type {
            fn put(&self, to: &mut Writer<'_>) {
                to.put((*self).into());
            }

            fn take(from: &mut Reader<'_>) -> Option<Self> {
                from.take()?.try_into().ok()
            }
        })*
    };
}
unsigned!(u64, u32, u16, u8);

impl Field for i32 {
    fn put(&self, to: &mut Writer<'_>) {
        to.put((*self).cast_unsigned().into());
    }

    fn take(from: &mut Reader<'_>) -> Option<Self> {
        u32::take(from).map(u32::cast_signed)
    }
}

impl Field for bool {
    fn put(&self, to: &mut Writer<'_>) {
        to.put((*self).into());
    }

    fn take(from: &mut Reader<'_>) -> Option<Self> {
        match from.take()? {
            word @ 0..=1 => Some(word == 1),
            _ => None,
        }
    }
}

/// The bytes of an address, or of a name, as they are.
impl Field for [u8; 16] {
    fn put(&self, to: &mut Writer<'_>) {
        self.as_chunks().0.iter().for_each(|half| to.put(u64::from_ne_bytes(*half)));
    }

    fn take(from: &mut Reader<'_>) -> Option<Self> {
        let mut bytes = [0; 16];
        for half in bytes.as_chunks_mut().0 {
            *half = from.take()?.to_ne_bytes();
        }
        Some(bytes)
    }
}

/// An address of IPv4 is the one of IPv6 that it is mapped to.
impl Field for IpAddr {
    fn put(&self, to: &mut Writer<'_>) {
        bytes_of(*self).put(to);
    }

    fn take(from: &mut Reader<'_>) -> Option<Self> {
        <[u8; 16]>::take(from).map(|bytes| Ipv6Addr::from(bytes).to_canonical())
    }
}

/// An address as the bytes of one of IPv6.
#[must_use]
pub fn bytes_of(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

impl Field for SocketAddr {
    fn put(&self, to: &mut Writer<'_>) {
        self.ip().put(to);
        self.port().put(to);
    }

    fn take(from: &mut Reader<'_>) -> Option<Self> {
        Some(Self::new(IpAddr::take(from)?, u16::take(from)?))
    }
}

impl<T: Field> Field for [T; 2] {
    fn put(&self, to: &mut Writer<'_>) {
        self.iter().for_each(|one| one.put(to));
    }

    fn take(from: &mut Reader<'_>) -> Option<Self> {
        Some([T::take(from)?, T::take(from)?])
    }
}

/// Whether there is one, and then that.
impl<T: Field> Field for Option<T> {
    fn put(&self, to: &mut Writer<'_>) {
        self.is_some().put(to);
        self.iter().for_each(|one| one.put(to));
    }

    fn take(from: &mut Reader<'_>) -> Option<Self> {
        match bool::take(from)? {
            true => T::take(from).map(Some),
            false => Some(None),
        }
    }
}

fields!(Names { addresses, ports });
