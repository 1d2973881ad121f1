//! Black-box tests of the LLM worker: the real binary, its real sockets, a provider that is scripted.

mod config;
mod conversation;
mod frames;
mod lifecycle;
mod mock;
mod providers;
mod sends;
mod support;
mod tools;
