//! What runs inside an application: daemon session, progress thread, grants.
