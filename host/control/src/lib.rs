//! Client sessions, object life cycle, pairing, clean-up after death.
