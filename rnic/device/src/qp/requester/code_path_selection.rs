//! Selects the path of requests: the fast one, the plain one, or the one that traces them or checks
//! them strictly.

use super::trace_psns::Tracing;
use omniverb_link::Tracer;
use std::sync::Arc;

/// The fast path.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum FastPathState {
    /// The state of the QP does not allow it.
    #[default]
    Closed,
    /// The state does, but requests are not plain.
    Barred,
    Open,
}

/// How exactly attributes of the two ends have to fit each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttributeRules {
    /// As on direct links without more: what has no effect there is not looked at.
    Lenient,
    /// As a wire may make them count: `OMNIVERB_STRICT`.
    Strict,
}

/// What is traced, or looked at strictly, does not take the fast path.
#[derive(Default)]
pub(crate) struct PathSelection {
    fast_path: FastPathState,
    /// Nothing is done that a wire would not do. For good.
    is_strict: bool,
    /// Some links are traced.
    tracing: Option<Box<Tracing>>,
}

impl PathSelection {
    /// Whether requests may take the fast path.
    #[inline(always)]
    pub(super) fn is_fast(&self) -> bool {
        self.fast_path == FastPathState::Open
    }

    /// Whether requests are neither traced nor looked at strictly.
    #[inline(always)]
    pub(super) fn is_plain(&self) -> bool {
        !self.is_strict && self.tracing.is_none()
    }

    /// Whether requests are looked at strictly.
    pub(super) fn is_strict(&self) -> bool {
        self.is_strict
    }

    /// Whether requests are traced.
    #[inline(always)]
    pub(super) fn is_traced(&self) -> bool {
        self.tracing.is_some()
    }

    /// For a QP in RESET; the rules stay.
    pub(crate) fn new(rules: AttributeRules) -> PathSelection {
        PathSelection { is_strict: rules == AttributeRules::Strict, ..PathSelection::default() }
    }

    /// The QP's new state allows the fast path, if requests are plain.
    pub(super) fn open_fast_path(&mut self) {
        self.fast_path = if self.is_plain() { FastPathState::Open } else { FastPathState::Barred };
    }

    /// It does not.
    pub(super) fn close_fast_path(&mut self) {
        self.fast_path = FastPathState::Closed;
    }

    /// Whether requests are plain has changed.
    fn choose_anew(&mut self) {
        if self.fast_path != FastPathState::Closed {
            self.open_fast_path();
        }
    }

    /// Requests are traced from now on, with fresh numbers unless it is there already.
    pub(crate) fn trace(&mut self, tracer: &Arc<Tracer>) {
        if !self.tracing.as_ref().is_some_and(|tracing| tracing.writes_to(tracer)) {
            self.tracing = Some(Box::new(Tracing::new(tracer.clone())));
            self.choose_anew();
        }
    }

    /// Requests are traced no longer.
    pub(crate) fn untrace(&mut self) {
        self.tracing = None;
        self.choose_anew();
    }

    /// What writes traces, if they are written.
    pub(super) fn tracing(&self) -> Option<&Tracing> {
        self.tracing.as_deref()
    }

    /// The same, to number packets.
    pub(super) fn tracing_mut(&mut self) -> Option<&mut Tracing> {
        self.tracing.as_deref_mut()
    }
}
