//! Moves pages of a running process onto a memfd and back without losing a store.
