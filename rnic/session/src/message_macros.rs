//! Defines the macros that both protocols, of tenants and of operators, make their messages with:
//! structs as bytes, numbers of kinds, and the way from bytes to a message and back.

/// Structs whose fields are their bytes.
macro_rules! bodies {
    ($($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident : $ty:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        #[allow(missing_docs)] // names of the field, like qpn, that mean the same in every body
        pub struct $name { $($(#[$fdoc])* pub $field: $ty),* }
    )*};
}

/// A protocol: its kinds, its `Message`, `encode` and `decode`.
macro_rules! messages {
    ($($number:literal $name:ident),* $(,)?) => {
        /// Number of a message kind. Numbers are never reused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u16)]
        pub enum Kind { $(
            #[doc = concat!("[`", stringify!($name), "`]")]
            $name = $number),*
        }

        /// A decoded message.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(clippy::large_enum_variant)] // status text; messages are rare and short-lived
        pub enum Message { $(
            #[doc = concat!("[`", stringify!($name), "`]")]
            $name($name)),* ,
            /// An answer that carries only an errno.
            Failed(Errno),
        }

        impl Message {
            fn parts(&self) -> (u16, Errno, &[u8]) {
                match self {
                    $(Message::$name(b) => (Kind::$name as u16, Errno::NONE, b.as_bytes()),)*
                    Message::Failed(errno) => (0, *errno, &[]),
                }
            }
            fn parse(kind: u16, body: &[u8]) -> Result<Message, DecodeError> {
                match kind {
                    $($number => $name::read_from_bytes(body)
                        .map(Message::$name).map_err(|_| DecodeError::Length),)*
                    _ => Err(DecodeError::Kind),
                }
            }
        }

        $(impl From<$name> for Message {
            fn from(b: $name) -> Message { Message::$name(b) }
        })*

        /// Writes a message into `out` and returns how many bytes it took.
        pub fn encode(tag: u64, message: &Message, out: &mut [u8; MESSAGE_BYTES_MAX]) -> usize {
            let (kind, errno, body) = message.parts();
            let header = Header { version: VERSION, kind, errno, tag };
            let end = size_of::<Header>() + body.len();
            out[..size_of::<Header>()].copy_from_slice(header.as_bytes());
            out[size_of::<Header>()..end].copy_from_slice(body);
            end
        }

        /// A message as it travels.
        #[must_use]
        pub fn written(tag: u64, message: &Message) -> Vec<u8> {
            let mut bytes = [0; MESSAGE_BYTES_MAX];
            let length = encode(tag, message, &mut bytes);
            bytes[..length].to_vec()
        }

        /// Reads a message. Accepts any bytes; never panics.
        ///
        /// # Errors
        /// [`DecodeError`] when the bytes are not exactly one message of this version.
        pub fn decode(bytes: &[u8]) -> Result<(u64, Message), DecodeError> {
            let (header, body) = Header::read_from_prefix(bytes).map_err(|_| DecodeError::Length)?;
            if header.version != VERSION {
                return Err(DecodeError::Version);
            }
            if header.errno != Errno::NONE || header.kind == 0 {
                return if body.is_empty() {
                    Ok((header.tag, Message::Failed(header.errno)))
                } else {
                    Err(DecodeError::Length)
                };
            }
            Ok((header.tag, Message::parse(header.kind, body)?))
        }
    };
}

pub(crate) use {bodies, messages};
