//! Finds system calls among a program's own instructions, on x86-64.
//!
//! A library that stands before functions of the C library sees none of these. Two bytes that look
//! like `syscall` are in any large program, within other instructions. So one counts only where
//! instructions of the few kinds that prepare a call lead to it, of which one gives `eax` a number:
//! ordinary programs have none of those, though they have megabytes of code.

/// Bytes before a call that are looked through for what prepares it.
pub const BEFORE: usize = 96;

/// What a call is about, by the number in `eax`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// It is certain.
    Known(u32),
    /// It comes from elsewhere: any call may be made so.
    Any,
}

/// Calls by which bytes of sockets move, or are waited for, or descriptors come and go: `read`,
/// `write`, `close`, `poll`, `readv`, `writev`, `select`, `dup`, `dup2`, `sendfile`, `connect` to
/// `recvmsg`, `shutdown`, `setsockopt`, `fork`, `vfork`, `epoll_wait`, `epoll_ctl`, `pselect6`,
/// `ppoll`, `splice`, `epoll_pwait`, `accept4`, `dup3`, `recvmmsg`, `sendmmsg`, `preadv2`,
/// `pwritev2`, `epoll_pwait2`, `clone3`.
const DESCRIPTORS: [u32; 34] = [
    0, 1, 3, 7, 19, 20, 23, 32, 33, 40, 42, 43, 44, 45, 46, 47, 48, 54, 57, 58, 232, 233, 270, 271,
    275, 281, 288, 292, 299, 307, 327, 328, 441, 435,
];
/// `io_uring_setup`, `io_uring_enter`, `io_uring_register`.
const RINGS: [u32; 3] = [425, 426, 427];

impl Number {
    /// The call may be about a socket, and passes the library by.
    #[must_use]
    pub fn is_about_sockets(self) -> bool {
        match self {
            Self::Known(number) => DESCRIPTORS.contains(&number) || self.is_about_rings(),
            Self::Any => true,
        }
    }

    /// It is about rings of io_uring.
    #[must_use]
    pub fn is_about_rings(self) -> bool {
        matches!(self, Self::Known(number) if RINGS.contains(&number))
    }
}

/// Calls with each system call in `code` behind its first `from` bytes, until that says that it is
/// enough.
pub fn calls(code: &[u8], from: usize, mut with: impl FnMut(Number) -> bool) {
    let mut at = from;
    while let Some(found) = next(code, at) {
        at = found + 2;
        if let Some(number) = prepared(code, found)
            && !with(number)
        {
            return;
        }
    }
}

/// Where the next two bytes are that look like one.
fn next(code: &[u8], from: usize) -> Option<usize> {
    const PART: usize = 64;
    let mut at = from;
    while at + PART < code.len() {
        let (first, second) = (&code[at..at + PART], &code[at + 1..at + PART + 1]);
        // Without a branch for each byte.
        let pairs = first.iter().zip(second);
        let is_any = pairs.fold(false, |any, (one, two)| any | (*one == 0x0f) & (*two == 0x05));
        if is_any {
            break;
        }
        at += PART;
    }
    let rest = code.get(at..)?;
    rest.windows(2).position(|two| two == [0x0f, 0x05]).map(|found| {
        // What was broken off for is in the first part: or there is none left.
        at + found
    })
}

/// What is called at this place, if instructions lead there that prepare it.
fn prepared(code: &[u8], at: usize) -> Option<Number> {
    // Within a distance, as calls, jumps and addresses have it: the high half of it is small.
    let is_small = |place: usize| matches!(code.get(place), Some(0x00 | 0x01 | 0xfe | 0xff));
    let before = at.checked_sub(1).and_then(|before| code.get(before));
    let has_distance = before.is_some_and(|byte| matches!(byte, 0xe8 | 0xe9) || byte & 0xc7 == 5);
    if is_small(at + 2) || has_distance && is_small(at + 3) {
        return None;
    }
    (at.saturating_sub(BEFORE)..at).rev().find_map(|start| {
        let mut state = State::default();
        let mut place = start;
        while place < at {
            place += state.step(&code[place..at])?;
        }
        if place == at { state.number } else { None }
    })
}

/// What is known of `eax`.
#[derive(Default)]
struct State {
    number: Option<Number>,
    pushed: Option<u32>,
}

/// The low bits of the prefix that makes registers longer, and more.
const WIDE: u8 = 8;
const MORE_REG: u8 = 4;
const MORE_RM: u8 = 1;

impl State {
    /// Goes over one instruction; how long it is. `None`: it is none that prepares a call.
    fn step(&mut self, code: &[u8]) -> Option<usize> {
        let mut at = 0;
        let is_short = code[at] == 0x66;
        at += usize::from(is_short);
        let mut prefix = 0;
        if let Some(byte @ 0x40..=0x4f) = code.get(at) {
            (prefix, at) = (byte & 0xf, at + 1);
        }
        let operation = *code.get(at)?;
        at += 1;
        match operation {
            // `mov` of a number.
            0xb8..=0xbf => {
                let length = if prefix & WIDE != 0 {
                    8
                } else if is_short {
                    2
                } else {
                    4
                };
                let value = code.get(at..at + length)?;
                if operation == 0xb8 && prefix & MORE_RM == 0 {
                    let is_long = value.iter().skip(4).any(|byte| *byte != 0);
                    self.number = match value.first_chunk::<4>() {
                        Some(low) if !is_long => Some(Number::Known(u32::from_le_bytes(*low))),
                        _ => None,
                    };
                }
                Some(at + length)
            }
            // `push` of a number, or a register; `pop`.
            0x6a => {
                self.pushed = Some(u32::from(*code.get(at)?));
                Some(at + 1)
            }
            0x50..=0x57 => {
                self.pushed = None;
                Some(at)
            }
            0x58..=0x5f => {
                if operation == 0x58 && prefix & MORE_RM == 0 {
                    self.number = self.pushed.map(Number::Known);
                }
                Some(at)
            }
            // `nop`, and the widening of `eax`.
            0x90 => Some(at),
            0x98 => {
                self.number = Some(Number::Any);
                Some(at)
            }
            // Jumps that are not taken.
            0x70..=0x7f => Some(at + 1),
            // `mov` between registers, and to and from memory; `lea`; arithmetic.
            0x01 | 0x09 | 0x11 | 0x19 | 0x21 | 0x29 | 0x31 | 0x89 => {
                let byte = *code.get(at)?;
                let is_same = prefix & (MORE_REG | MORE_RM) == 0 && byte == 0xc0;
                if byte & 0xc7 == 0xc0 && prefix & MORE_RM == 0 {
                    let is_zero = matches!(operation, 0x31 | 0x29) && is_same;
                    self.number = Some(if is_zero { Number::Known(0) } else { Number::Any });
                }
                operand(code, at)
            }
            0x03 | 0x0b | 0x13 | 0x1b | 0x23 | 0x2b | 0x33 | 0x63 | 0x8b | 0x8d => {
                let byte = *code.get(at)?;
                if byte & 0x38 == 0 && prefix & MORE_REG == 0 {
                    let is_zero = matches!(operation, 0x33 | 0x2b) && byte == 0xc0;
                    self.number = Some(if is_zero { Number::Known(0) } else { Number::Any });
                }
                operand(code, at)
            }
            // `cmp`, `test`.
            0x38..=0x3b | 0x84 | 0x85 => operand(code, at),
            // Arithmetic with a number of one byte, or four; `mov` of a number.
            0x83 | 0xc1 | 0x80 | 0xc6 => {
                self.may_change(operation == 0x83 || operation == 0xc1, *code.get(at)?, prefix);
                Some(operand(code, at)? + 1)
            }
            0x81 | 0xc7 => {
                let byte = *code.get(at)?;
                let end = operand(code, at)?;
                let length = if is_short { 2 } else { 4 };
                let value = code.get(end..end + length)?;
                self.may_change(operation == 0x81, byte, prefix);
                if operation == 0xc7 && byte == 0xc0 && prefix & MORE_RM == 0 {
                    let value = value.first_chunk::<4>();
                    self.number = value.map(|value| Number::Known(u32::from_le_bytes(*value)));
                }
                Some(end + length)
            }
            0x0f => {
                let second = *code.get(at)?;
                let byte = *code.get(at + 1)?;
                match second {
                    // Moves of much; `nop`.
                    0x10 | 0x11 | 0x1f | 0x28 | 0x29 => operand(code, at + 1),
                    // Moves on a condition; of less than a register.
                    0x40..=0x4f | 0xb6 | 0xb7 | 0xbe | 0xbf => {
                        if byte & 0x38 == 0 && prefix & MORE_REG == 0 {
                            self.number = Some(Number::Any);
                        }
                        operand(code, at + 1)
                    }
                    // Jumps that are not taken.
                    0x80..=0x8f => Some(at + 5),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// `eax` may be something else now.
    fn may_change(&mut self, is_whole: bool, byte: u8, prefix: u8) {
        // A comparison changes nothing.
        let changes = byte & 0xc7 == 0xc0 && byte & 0x38 != 0x38;
        if is_whole && changes && prefix & MORE_RM == 0 {
            self.number = Some(Number::Any);
        }
    }
}

/// Where an instruction goes on behind what says where its operands are.
fn operand(code: &[u8], at: usize) -> Option<usize> {
    let byte = *code.get(at)?;
    let (mode, rm) = (byte >> 6, byte & 7);
    let mut end = at + 1;
    if mode == 3 {
        return Some(end);
    }
    let mut is_far = mode == 2 || mode == 0 && rm == 5;
    if rm == 4 {
        is_far |= mode == 0 && *code.get(end)? & 7 == 5;
        end += 1;
    }
    end += if is_far { 4 } else { usize::from(mode == 1) };
    (end <= code.len()).then_some(end)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found(code: &[u8]) -> Vec<Number> {
        let mut found = Vec::new();
        calls(code, 0, |number| {
            found.push(number);
            true
        });
        found
    }

    #[test]
    fn calls_are_found_with_their_numbers() {
        // mov $44, %eax; xor %edi, %edi; syscall; ret
        let send = [0xb8, 44, 0, 0, 0, 0x31, 0xff, 0x0f, 0x05, 0xc3];
        assert_eq!(found(&send), [Number::Known(44)]);
        assert!(Number::Known(44).is_about_sockets() && !Number::Known(44).is_about_rings());
        // mov $426, %eax; syscall
        assert!(found(&[0xb8, 0xaa, 1, 0, 0, 0x0f, 0x05, 0xc3])[0].is_about_rings());
        // mov $231, %rax; syscall: `exit_group`.
        let ends = found(&[0x48, 0xc7, 0xc0, 231, 0, 0, 0, 0x0f, 0x05, 0xc3]);
        assert_eq!(ends, [Number::Known(231)]);
        assert!(!ends[0].is_about_sockets());
        // xor %eax, %eax; mov %r13d, %edi; syscall; push $7, pop %rax; syscall
        let two = [0x31, 0xc0, 0x44, 0x89, 0xef, 0x0f, 0x05, 0x6a, 7, 0x58, 0x0f, 0x05, 0x90];
        assert_eq!(found(&two), [Number::Known(0), Number::Known(7)]);
    }

    #[test]
    fn a_number_from_elsewhere_is_any() {
        // mov %rdi, %rax; mov %rsi, %rdi; mov 8(%rsp), %r9; syscall
        let code =
            [0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x4c, 0x8b, 0x4c, 0x24, 8, 0x0f, 0x05, 0xc3];
        assert_eq!(found(&code), [Number::Any]);
        assert!(Number::Any.is_about_sockets());
    }

    #[test]
    fn bytes_within_other_instructions_are_none() {
        // call, lea, and a jump by such a distance.
        assert!(found(&[0x89, 0xd0, 0xe8, 0x0f, 0x05, 0, 0, 0xc3]).is_empty());
        assert!(found(&[0x48, 0x8d, 0x3d, 0x12, 0x0f, 0x05, 0, 0x90]).is_empty());
        assert!(found(&[0x48, 0x89, 0xdf, 0xe8, 0x0f, 0x05, 0xfa, 0xff, 0x48]).is_empty());
        // Nothing says what is called.
        assert!(found(&[0x0f, 0x05, 0xc3]).is_empty());
    }

    proptest! {
        /// Whatever the bytes are, it comes to an end, and finds what is there wherever it is.
        #[test]
        fn any_bytes_are_gone_through(mut code in prop::collection::vec(any::<u8>(), 0..400)) {
            _ = found(&code);
            let before = found(&code).len();
            code.extend([0xc3, 0xb8, 232, 0, 0, 0, 0x89, 0xee, 0x0f, 0x05, 0xc3]);
            let after = found(&code);
            prop_assert!(after.contains(&Number::Known(232)) || after.len() > before);
        }
    }
}
