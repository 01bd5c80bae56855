//! `libomniverb_sockets.so` interposes the socket functions of the C library
//! (docs/decisions/0046).
//!
//! Every call goes to the function that it would have gone to, and returns what that returns: the
//! result, `errno`, the cancellation point. Beside that the library records what each descriptor
//! is. Unless `OMNIVERB_SOCKETS` says otherwise, bytes of some connections go through shared memory
//! instead: [`carry`] and [`light`].
//!
//! # Modules
//!
//! * `interposed_functions.toml` lists the interposed names; `cargo xtask dist` makes an entry
//!   point for each. Those of `pass` jump to the next library's function. Those of `look` call a
//!   function of [`call_observers`] with the arguments first. `choose` is `syscall`, see
//!   `syscall_hook`. Those of `watch` are [`descriptor_hooks`], or [`io_hooks`] if they move bytes
//!   or wait for them.
//! * `dispatch` decides whether [`carry`], [`light`] or the kernel moves the bytes of a call;
//!   `readiness` asks all of them for calls that wait for several descriptors, and
//!   `look_history` remembers whether looking before a sleep paid off; `lifecycle` starts and ends
//!   both, `usage_report` counts what they moved.
//! * `descriptor_changes_by_calls` records what a call does to descriptors, before and after it.
//!   `syscall_hook` gives calls by `syscall()` to the hooks; `hook_macros` says which arguments
//!   hooks have.
//! * `table` has what is known of descriptors; `descriptor_probe` asks the kernel for the rest.
//! * `memory_owner` tells this process from a child of `vfork`, which runs in the same memory.
//! * `fork_refcount` counts the processes that share a socket by `fork`, in `count_slots`;
//!   `holder_count_at_exit` decides when an ending process stops counting.
//! * `syscall_scan` finds system calls among the program's own instructions, which no hook sees.
//! * `symbol_lookup` finds the next library's functions, which `native` calls; `library_fds` keeps
//!   the library's own descriptors.
//! * `user_memory` has types for what a hook is given pointers to, which are safe to use from there
//!   on; `anonymous_mappings` maps what the library has itself, `shared_memory` is what it has with
//!   others, `borrowed_fd` lends descriptors to system calls.
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
mod hook_macros;

mod anonymous_mappings;
mod borrowed_fd;
mod call_observers;
mod carry;
mod describe_descriptors_for_tests;
mod descriptor_changes_by_calls;
pub mod descriptor_hooks;
mod descriptor_probe;
mod descriptor_tables;
mod epoll_members;
mod errno;
pub mod fallback_ledger;
mod fork_refcount;
mod holder_count_at_exit;
pub mod io_hooks;
mod iovecs;
mod kernel_socket;
mod library_fds;
pub mod library_load_and_exit;
mod light;
mod next_library;
mod nontemporal;
mod ppoll_beyond_rlimit;
mod process_count_slots;
mod readiness;
mod running_call_counts;
mod scm_rights;
mod shared_memory;
mod socket_facts_by_fd;
mod sockets_observed_by_broker;
mod spin_history;
mod symbol_lookup;
pub mod syscall_hook;
mod syscall_scan;
mod table_memory;
mod text_buffer;
mod transport_choice;
mod transports_lifecycle;
mod tsc_clock;
#[cfg(test)]
mod unit_test_entry_stubs;
mod usage_report;
mod user_memory;
mod vfork_check;
