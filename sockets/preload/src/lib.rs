//! `libomniverb_sockets.so`: stands before the functions of the C library by which a program comes
//! to its sockets (docs/decisions/0046).
//!
//! Every call goes to the function that it would have gone to, and gives what that gives: the
//! result, `errno`, the cancellation point. What is kept beside is what each descriptor is. Unless
//! `OMNIVERB_SOCKETS` says otherwise bytes of some connections go through memory instead:
//! [`carry`].
//!
//! # Who does what
//!
//! * `names.toml` lists the names; `cargo xtask dist` makes an entry point for each. Most are a
//!   jump to the next library's function. Some call a function of [`looks`] with the arguments
//!   first. The rest are functions of [`hooks`], and of [`data`] if they move bytes.
//! * `call` is what a call does to descriptors: before and after it, whoever makes it. For calls
//!   by `syscall()` `syscall_effects` says that; `syscall_hook` gives them to hooks of their names.
//! * `table` has what is known; `kernel` asks the kernel where nothing is.
//! * `place` knows whether this memory is this process's: a child of `vfork` runs in its parent's.
//! * `sole` knows which sockets no other process has that it has shared, by `rows`; `ending` when
//!   this one has them no more.
//! * `code` finds system calls among the program's own instructions, which nothing here sees.
//! * `next` finds the next library's functions; `own` keeps descriptors that are the library's own.
//!
//! # Rules for code in here
//!
//! It runs in signal handlers, in children of `vfork`, before any constructor, and is left by
//! `longjmp` and `pthread_cancel` at any call of a next function. So: no lock, no allocation, no
//! thread, nothing that must be dropped across such a call, `errno` only as the next function left
//! it. System calls of our own go by rustix, which neither calls the C library nor sets `errno`.
// UNSAFETY: this crate is a C ABI, and calls one; every entry point takes raw pointers from C.
#![expect(unsafe_code)]

#[macro_use]
mod functions;

mod call;
mod carry;
pub mod data;
mod describe;
mod ending;
mod errno;
pub mod hooks;
mod kernel;
pub mod ledger;
mod light;
mod looks;
mod marks;
mod messages;
mod next;
mod own;
mod own_syscalls;
mod past;
mod place;
mod room;
mod rows;
mod sets;
mod shared;
mod slots;
mod sole;
pub mod start;
mod syscall_effects;
pub mod syscall_hook;
mod table;
mod uncounted;
mod wanted;
mod words;
