//! vNICs, quotas, pairing: pure decisions.
