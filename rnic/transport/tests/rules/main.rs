//! One rule of the specification each: packets by hand in, packets as they print themselves out.

mod answering;
mod executing;
mod extended;
mod reading;
mod refusing;
mod requester;
mod responder;
mod retrying;
mod runs;
mod script;
mod unreliable;
