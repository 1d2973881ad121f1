//! The process that speaks HTTP to a remote server and lines to the interceptor.

pub(crate) mod confine;
mod failure;
mod http;
mod login;
pub mod role;
mod secrets;
mod session;
mod stream;
