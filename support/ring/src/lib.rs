//! SPSC ring, ready map, doorbells, shared-memory-safe types.
