//! The C structs and constants of verbs.h, as repr(C) types.
