//! memfd and seals, mappings, eventfd, fd passing, pidfd, network namespaces.
