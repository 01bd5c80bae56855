//! Decides what sockets in user memory answer, without I/O, clocks or unsafe code.
//!
//! * [`peer_wait_budget`]: bounds the time that a process waits for other processes, in all.
//! * [`descriptors`]: keeps what is open at each descriptor, and which epoll sets have it.
//! * [`processes_per_socket`]: counts the processes that have a socket.
//! * [`light`]: connections that have no socket of the kernel's.
//! * [`readiness`]: what calls that wait for several descriptors ask for and answer.
//! * [`backoff`]: spaces out attempts that may fail, and learns how long something takes.
//! * [`critical_section_threads`]: waits for threads inside a critical section, which may be
//!   cancelled there.
//!
//! `sockets/preload` makes the system calls and owns the memory; what it shares with other
//! processes has its layout in `sockets/formats`.

pub mod backoff;
pub mod critical_section_threads;
pub mod descriptors;
pub mod light;
pub mod peer_wait_budget;
pub mod processes_per_socket;
pub mod readiness;
