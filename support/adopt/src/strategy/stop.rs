//! Placeholder.
use crate::error::AdoptError;
use crate::work::Work;
pub(super) fn perform(_work: &Work<'_>) -> Result<(), AdoptError> {
    Err(AdoptError::NotPermitted)
}
