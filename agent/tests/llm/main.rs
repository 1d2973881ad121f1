//! Black-box tests of the LLM worker: the real binary, its real sockets, a provider that is scripted.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails there")]

mod call_ids;
mod clients;
mod config;
mod conversation;
mod crash;
mod crowd;
mod cut_off;
mod fixed;
mod frames;
mod gemini;
mod held_open;
mod http;
mod http_answers;
mod lifecycle;
mod mcp;
mod mcp_mock;
mod memory;
mod mock;
mod played_core;
mod provider_tools;
mod providers;
mod responses;
mod role;
mod rounds;
mod run_reports;
mod seed;
mod sends;
mod support;
mod tool_pins;
mod tools;
mod workers;
