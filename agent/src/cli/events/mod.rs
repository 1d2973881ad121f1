//! `ringfence events`: what the kernel saw, and why it decided so.

mod list;
mod trace;
mod why;

pub(crate) use list::{Args as ListArgs, run as list};
pub(crate) use trace::{Args as TraceArgs, run as trace};
pub(crate) use why::{Args as WhyArgs, run as why};
