//! Limits of objects that cost the daemon nothing; per opened device. `ibv_query_device` reports
//! them.

/// Protection domains.
pub const PD_MAX: u32 = 32768;
/// Completion queues.
pub const CQ_MAX: u32 = 65536;
/// Shared receive queues.
pub const SRQ_MAX: u32 = 4096;
/// Bytes of device memory, all pieces together: enough for counters and doorbells, for which
/// programs take it.
pub const DM_BYTES_MAX: u64 = 4 << 20;
/// Binary logarithm of the largest alignment of such a piece.
pub const DM_ALIGNMENT_LOG_MAX: u32 = 20;
/// Completion counters: two for each queue pair that a device can have.
pub const COUNTER_COUNT_MAX: u32 = 16384;
/// Address handles.
pub const AH_MAX: u32 = 65536;
/// Bytes of one memory region: all of the address space a program has.
pub const MR_BYTES_MAX: u64 = 1 << 47;
