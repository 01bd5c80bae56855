//! What travels in a link: descriptors, credits, validation.
