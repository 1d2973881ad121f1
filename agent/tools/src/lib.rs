//! Tools that hold only what was granted. Each runs behind the gate of `ringfence-grant`; none runs without a context from it.
//!
//! | what | file |
//! |---|---|
//! | one command or a script of the safe subset, without a shell | [`shell`] |
//! | a page of the web as text | [`web`], with the feature `web` |
//! | files: read, write, edit, list, search | [`files`] |
//! | starting a tool's processes, and what holds them | [`spawn`] |
//! | what a bare program name finds | [`programs`] |
//!
//! ```
//! use ringfence_grant::{CountBound, Grant, Scope};
//! use serde_json::json;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! // Every tool that this package was built with, in one session.
//! let registry = ringfence_tools::registry();
//!
//! // A narrow grant: it may execute `echo` and nothing else, at most twice.
//! let granted = Grant {
//!     exec: Scope::only(["echo".parse()?]),
//!     max_calls: CountBound::AtMost(2),
//!     ..Grant::top()
//! };
//!
//! // Allowed: `echo` is granted, and there is budget.
//! let out = registry.dispatch("shell", json!({"program": "echo", "args": ["hello"]}), &granted).await?;
//! assert_eq!((&out["exit_code"], &out["stdout"]), (&json!(0), &json!("hello\n")));
//!
//! // Denied: `rm` is not. The gate says so before the tool runs anything, and it costs no call.
//! let denied = registry.dispatch("shell", json!({"program": "rm", "args": ["-rf", "/"]}), &granted).await;
//! let reason = denied.expect_err("rm is not granted").to_string();
//! assert_eq!(reason, "denied: exec of \"rm\" is not within the granted authority");
//! assert_eq!(registry.gate().used(), 1);
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! # What holds a tool
//!
//! [`registry`] has the gate alone: it holds what a call asks for, and each program, path and host that a tool comes to, but not
//! what a program does once it runs (a granted `git` may read what the user may). Each result says so, under `enforcement`.
//! `ringfence tools` puts the same grant on the kernel; a program of yours can by a [`spawn::Spawner`] of its own.
//!
//! # Async, and blocking
//!
//! [`dispatch`](Registry::dispatch) gives a future because [`web`] waits for sockets; that tool needs tokio, with time and I/O
//! enabled. The others run anywhere, but **block the thread that polls them** until the program has ended, 60 seconds unless the call
//! says otherwise: give them a thread, as by `tokio::task::spawn_blocking` or with a runtime of its own.
//!
//! # Features
//!
//! `shell`, by default: the confined shell. `web`: `web_fetch`, which brings HTTP, TLS and an HTML parser. The file tools are always
//! there.

pub mod files;
pub mod programs;

#[cfg(feature = "shell")]
pub mod shell;
pub mod spawn;
#[cfg(feature = "web")]
pub mod web;

use ringfence_grant::gate::{Gate, Registry};
use std::{path::PathBuf, sync::Arc};

/// What the tools of a registry work with.
pub struct ToolHost {
    /// Where relative paths start: absolute.
    pub dir: PathBuf,
    /// What bare program names find.
    pub programs: programs::HostPrograms,
    /// Who starts their processes.
    pub spawner: Arc<dyn spawn::Spawner>,
}

impl std::fmt::Debug for ToolHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { dir, programs, spawner: _ } = self;
        f.debug_struct("ToolHost").field("dir", dir).field("programs", programs).finish_non_exhaustive()
    }
}

impl Default for ToolHost {
    /// This process's directory and PATH, with no help from the kernel.
    fn default() -> Self {
        Self {
            dir: std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/")),
            programs: programs::HostPrograms::default(),
            spawner: Arc::new(spawn::PlainSpawner),
        }
    }
}

impl ToolHost {
    /// A gate that finds these programs.
    pub fn gate(&self) -> Gate {
        Gate::new(self.programs.clone())
    }

    /// Every tool that this package was built with, behind `gate`.
    pub fn registry(&self, gate: Gate) -> Registry {
        let registry = Registry::new(gate);
        #[cfg(feature = "shell")]
        let registry =
            registry.with(shell::Shell::new(&self.dir, &self.programs.path(), self.spawner.clone()));
        files::FileTool::all(&self.dir, &self.spawner).fold(registry, Registry::with)
    }
}

/// Every tool that this package was built with, in this process's directory, held by the gate alone. One registry is one
/// session: its budget is counted over all calls.
pub fn registry() -> Registry {
    let host = ToolHost::default();
    let registry = host.registry(host.gate());
    #[cfg(feature = "web")]
    let registry = registry.with(web::WebFetch::default());
    registry
}
