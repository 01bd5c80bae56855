//! Defines the macros of names that are made of one number or some bytes.

/// Declares such a name: copied and compared like what it is made of, and laid out so, in messages
/// and shared memory, where any value may be found. It is debugged as it is displayed.
macro_rules! name {
    ($(#[$doc:meta])* $name:ident($visible:vis $of:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone,
            Copy,
            Default,
            PartialEq,
            Eq,
            PartialOrd,
            Ord,
            Hash,
            zerocopy::FromBytes,
            zerocopy::IntoBytes,
            zerocopy::Immutable,
            zerocopy::KnownLayout,
        )]
        #[repr(transparent)]
        pub struct $name($visible $of);

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                core::fmt::Display::fmt(self, f)
            }
        }
    };
}

pub(crate) use name;
