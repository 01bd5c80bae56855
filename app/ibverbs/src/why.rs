//! Why something was refused, in one line on stderr, for who asks for it by `OMNIVERB_LOG=warn`.
//!
//! Each place says each reason once. Without the variable a refusal costs one load more.
//! `OMNIVERB_STRICT=1` has direct links refuse queue pairs that do not fit each other, and says so
//! by itself.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::OnceLock;

use omniverb_device::{Forgiven, status};
use omniverb_terms::{Errno, Qpn};

const VARIABLE: &str = "OMNIVERB_LOG";
const VALUE: &str = "warn";
/// Bytes of the longest line; what is beyond is cut off.
const LINE_MAX: usize = 400;

/// Says why a verb answers with this errno, once for each place in the code; gives the errno back.
macro_rules! refused {
    ($errno:expr, $($reason:tt)*) => {{
        static SAID: ::core::sync::atomic::AtomicBool =
            ::core::sync::atomic::AtomicBool::new(false);
        $crate::why::say(&SAID, $errno, format_args!($($reason)*))
    }};
}
pub(crate) use refused;

/// Whether direct links are to let pass only what a wire would.
pub(crate) fn strict_is_wanted() -> bool {
    std::env::var_os("OMNIVERB_STRICT").is_some_and(|value| value == "1")
}

fn is_wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| std::env::var_os(VARIABLE).is_some_and(|value| value == VALUE))
}

/// Says a reason that was not said yet; gives the errno back.
#[cold]
pub(crate) fn say(said: &AtomicBool, errno: Errno, reason: fmt::Arguments<'_>) -> Errno {
    if is_wanted() && !said.swap(true, Ordering::Relaxed) {
        line(format_args!("{reason} ({errno})"));
    }
    errno
}

/// A request failed, and its queue pair with it: says what that status stands for, once.
pub(crate) fn request_failed(qpn: Qpn, code: u32) {
    static SAID: AtomicU32 = AtomicU32::new(0);
    let bit = 1 << (code % 32);
    if !is_wanted() || SAID.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
        return;
    }
    let reason = match code {
        status::LOC_LEN_ERR => "a message is longer than its transport allows",
        status::LOC_QP_OP_ERR => {
            "a READ or atomic with max_rd_atomic 0, or a key to invalidate that no bound window has"
        }
        status::LOC_PROT_ERR => "an L_Key, its range, its rights or its PD do not fit a request",
        status::MW_BIND_ERR => "a window cannot be bound so: its key, its region, range or rights",
        status::BAD_RESP_ERR => "the peer answered what no peer answers",
        status::REM_INV_REQ_ERR => {
            "the peer refuses the operation: too long for its receive, not in its \
             qp_access_flags, or misaligned"
        }
        status::REM_ACCESS_ERR => "the peer refuses the R_Key: unknown, ended, or not for this",
        status::REM_OP_ERR => "the peer's receive names memory that it may not",
        status::RETRY_EXC_ERR => {
            "the peer does not answer: gone, never ready, or the network lets nothing pass"
        }
        status::RNR_RETRY_EXC_ERR => "the peer had no receive for as long as rnr_retry lasts",
        _ => "the link to the peer is broken",
    };
    line(format_args!("queue pair {} failed: {reason} (completion status {code})", qpn.0));
}

/// A request of a queue pair does not pass, since direct links are strict: says why, once for each
/// kind of reason.
pub(crate) fn forgiven(qpn: Qpn, what: Forgiven) {
    static SAID: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];
    let kind = match what {
        Forgiven::Psn { .. } => 0,
        Forgiven::PathMtu { .. } => 1,
        Forgiven::RdAtomic { .. } => 2,
    };
    if SAID[kind].swap(true, Ordering::Relaxed) {
        return;
    }
    let qpn = qpn.0;
    match what {
        Forgiven::Psn { ours, theirs } => line(format_args!(
            "strict: queue pair {qpn} begins with sq_psn {ours}, and its peer's rq_psn is {theirs}"
        )),
        Forgiven::PathMtu { ours, theirs } => line(format_args!(
            "strict: queue pair {qpn} has a path_mtu of {ours} bytes, and its peer of {theirs}: \
             messages of several packets do not pass"
        )),
        Forgiven::RdAtomic { ours, theirs } => line(format_args!(
            "strict: queue pair {qpn} has max_rd_atomic {ours}, and its peer max_dest_rd_atomic \
             {theirs}"
        )),
    }
}

/// One line of text.
struct Line {
    bytes: [u8; LINE_MAX],
    length: usize,
}

impl Write for Line {
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

/// In one system call, so that lines of several threads stay whole.
fn line(what: fmt::Arguments<'_>) {
    let mut line = Line { bytes: [0; LINE_MAX], length: 0 };
    let _ = write!(line, "omniverb: {what}");
    let end = line.length.min(LINE_MAX - 1);
    line.bytes[end] = b'\n';
    let _ = rustix::io::write(rustix::stdio::stderr(), &line.bytes[..=end]);
}
