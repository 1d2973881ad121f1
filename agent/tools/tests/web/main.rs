//! `web_fetch` behind the gate, against servers and a resolver of the tests' own: nothing here leaves the machine.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails there")]

mod denied;
mod limits;
mod pages;
mod redirects;
mod support;
mod tls;
