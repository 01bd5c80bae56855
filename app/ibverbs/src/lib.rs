//! libibverbs.so.1: the C entry points.
