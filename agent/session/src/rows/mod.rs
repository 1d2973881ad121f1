//! Rows of the store, made by reading a journal.

pub mod ingest;
pub mod intent;
mod requests;
pub mod row;
pub mod stderr;
mod tasks;
mod tools;
