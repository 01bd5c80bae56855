//! `libibverbs.so.1`: the C entry points.
//!
//! Programs and their header inlines come in here with C structs; what goes out are calls into the
//! device (`omniverb_device`, `omniverb_client`) and C structs again. No RDMA logic lives here.
//!
//! # How a symbol gets out
//!
//! Functions are called `ov_<C name>`, so that the tests of this crate can sit beside a real
//! libibverbs without taking its place. `symbols.toml` lists every public symbol; `cargo xtask
//! dist` makes one jump per line, from `ibv_x@@NODE` to `ov_ibv_x`.
//!
//! To add a verb:
//! 1. write `#[unsafe(no_mangle)] pub unsafe extern "C" fn ov_ibv_x(...)` in a file of `verbs/`,
//!    with the exact C signature; return errors with the helpers of [`errno`];
//! 2. set its line in `symbols.toml` to `{ status = "works" }`;
//! 3. run `cargo xtask matrix` to renew docs/verbs-matrix.md.
//!
//! `cargo xtask abi` fails if the table, the functions, the library and the matrix differ. A verb
//! that is not offered needs no code: its line says `unsupported` and the jump goes to one of
//! the functions of [`unsupported_verbs`].
//!
//! # Rules for code in here
//!
//! It runs in other people's processes: no thread, log, or file access before it is needed, system
//! calls through rustix (they neither disturb `errno` nor meet interposed libc functions), and
//! nothing from outside is trusted further than C obliges us to.
// UNSAFETY: this crate is a C ABI; every entry point takes raw pointers from C.
#![expect(unsafe_code)]

pub mod enum_names;
pub mod errno;
pub mod ibv_fork_init;
pub mod kernel_abi_conversion;
pub mod private_abi;
pub mod rate_conversion;
pub mod read_sysfs_file;
mod refusal_log;
pub mod stateless_verbs;
pub mod unsupported_verbs;
pub mod verbs;
