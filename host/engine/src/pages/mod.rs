//! Applications' pages that are mapped here, and what is done on them without the application.

pub(crate) mod budget;
pub(crate) mod grant;
pub(crate) mod granted;
pub(crate) mod placing;
pub(crate) mod reads;
pub(crate) mod rows;
pub(crate) mod sources;
pub(crate) mod together;
