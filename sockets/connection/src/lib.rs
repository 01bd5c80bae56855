//! What carried sockets mean, without a call to anybody (docs/decisions/0046).
//!
//! * [`allowance`]: how long a process waits for others, in all.
//! * [`descriptors`]: what a process knows of its descriptors.
//! * [`holders`]: how many processes have a socket.
//! * [`carried`]: one connection whose bytes take the way through shared memory: which way the
//!   next ones go, and what calls answer.
//! * [`light`]: connections that have no socket of the kernel's.
//! * [`pace`]: how often something is tried that may be in vain.
//! * [`set`]: which events an epoll set tells, and when.
//! * [`turn`]: who of several holders may touch a direction.
//! * [`under_way`]: threads that others wait for, which may be cancelled.
//!
//! Each is tested beside the kernel: the same random operations on real sockets and here must give
//! the same (`tests/`).

pub mod allowance;
pub mod carried;
pub mod descriptors;
pub mod holders;
pub mod light;
pub mod pace;
pub mod set;
pub mod turn;
pub mod under_way;
