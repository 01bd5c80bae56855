//! One rule of the specification each: packets by hand in, packets as they print themselves out.

mod atomic_write_and_flush;
mod requester;
mod requester_reads;
mod requester_refused_by_peer;
mod requester_retries;
mod responder;
mod responder_answers;
mod scripted_upper_layer;
mod snapshots;
mod unreliable_connection;
mod write_packet_runs;
mod xrc;
