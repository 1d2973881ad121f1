//! The process that speaks HTTP to a remote server and lines to the interceptor.

mod confine;
mod failure;
mod http;
pub mod role;
mod secrets;
mod session;
mod stream;
