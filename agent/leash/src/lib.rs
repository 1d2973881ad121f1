//! Tools that hold only what was granted. Each runs behind the gate of `ringfence-grant`; none runs without a context from it.
//!
//! | what | file |
//! |---|---|
//! | one command or a script of the safe subset, without a shell | [`shell`] |
//! | a page of the web as text | [`web`], with the feature `web` |

#[cfg(feature = "shell")]
pub mod shell;
#[cfg(feature = "web")]
pub mod web;
