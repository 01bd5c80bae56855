//! Names the results of looking after one queue pair: in a poll (`poll_link.rs`), and in a turn of
//! the progress thread (`progress.rs`).

/// What a look at a link found.
pub(crate) enum PollOutcome {
    /// Something; so many completions went straight to the caller.
    News(usize),
    /// Nothing, for so many looks.
    Quiet(u32),
}

/// What came of looking after a QP with unfinished requests.
pub(crate) enum WaitOutcome {
    /// Nothing is unfinished any more.
    Over,
    /// Something is. `moved`: not all of what was before. `deadline`: when to look again at the
    /// latest, in nanoseconds of the host's clock; `None`: news will come by itself.
    On { moved: bool, deadline: Option<u64> },
}
