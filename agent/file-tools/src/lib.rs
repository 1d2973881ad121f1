//! The tools that work on files, for the runtime in the container and for the tool server on the host.
//!
//! | what | file |
//! |---|---|
//! | names, descriptions and schemas of the tools; running one by its name | [`tool`] |
//! | where a tool works, who may refuse it a path, until when | [`workspace`] |
//! | a tool's output, cut to a number of characters | [`output`] |
//! | the tools themselves | `read`, `write`, `edit`, `list`, `search` |
//!
//! A tool writes its result to a writer as it goes, so that nobody has to hold more than what is shown of it. Nothing here
//! decides what is granted: a [`workspace::Gate`] does, and behind it the kernel.

mod edit;
mod error;
mod list;
pub mod output;
mod read;
mod replace;
mod search;
pub mod tool;
pub mod workspace;
mod write;

pub use error::Error;
pub use tool::Tool;
