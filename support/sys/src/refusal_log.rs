//! Writes why a call was refused, one line on stderr, if `OMNIVERB_LOG=warn` asks for it.
//!
//! In: a reason, and what a call answers. Out: a line, and the same answer. Each place in the code
//! says its reason once. Without the variable a refusal costs one load more.

use std::fmt::{self, Display, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

const VARIABLE: &str = "OMNIVERB_LOG";
const VALUE: &str = "warn";
/// Bytes of the longest line; what is beyond is cut off.
const LINE_MAX: usize = 400;

/// Says why a call answers with this errno, once for each place in the code; gives the errno back.
#[macro_export]
macro_rules! refused {
    ($errno:expr, $($reason:tt)*) => {{
        static SAID: ::core::sync::atomic::AtomicBool =
            ::core::sync::atomic::AtomicBool::new(false);
        $crate::refusal_log::say(&SAID, $errno, format_args!($($reason)*))
    }};
}

/// Whether the user wants to know.
pub fn is_wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| std::env::var_os(VARIABLE).is_some_and(|value| value == VALUE))
}

/// Says a reason that was not said yet; gives the errno back.
#[cold]
pub fn say<E: Display>(said: &AtomicBool, errno: E, reason: fmt::Arguments<'_>) -> E {
    if is_wanted() && !said.swap(true, Ordering::Relaxed) {
        line(format_args!("{reason} ({errno})"));
    }
    errno
}

/// Which of so many reasons were said.
pub struct LoggedReasons<const REASONS: usize>([AtomicBool; REASONS]);

impl<const REASONS: usize> LoggedReasons<REASONS> {
    /// None was said yet.
    #[must_use]
    pub const fn none() -> LoggedReasons<REASONS> {
        LoggedReasons([const { AtomicBool::new(false) }; REASONS])
    }

    /// Whether this one is to be said now: it is wanted, and was not said. It counts as said then.
    /// There are no others than so many; what is beyond is never said.
    pub fn first(&self, reason: usize) -> bool {
        let said = self.0.get(reason).filter(|_| is_wanted());
        said.is_some_and(|said| !said.swap(true, Ordering::Relaxed))
    }
}

/// One line of text.
struct LineBuffer {
    bytes: [u8; LINE_MAX],
    length: usize,
}

impl Write for LineBuffer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            match self.bytes.get_mut(self.length) {
                Some(place) => *place = byte,
                None => return Ok(()),
            }
            self.length += 1;
        }
        Ok(())
    }
}

/// A line on stderr, in one system call, so that lines of several threads stay whole.
pub fn line(what: fmt::Arguments<'_>) {
    let mut line = LineBuffer { bytes: [0; LINE_MAX], length: 0 };
    let _ = write!(line, "omniverb: {what}");
    let end = line.length.min(LINE_MAX - 1);
    line.bytes[end] = b'\n';
    let _ = rustix::io::write(rustix::stdio::stderr(), &line.bytes[..=end]);
}
