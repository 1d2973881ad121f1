//! Where things are: the checkout, its target directory, the user's cache.

use std::path::{Path, PathBuf};

/// The top of the checkout.
pub(crate) fn workspace() -> &'static Path {
    // xtask is always run from its own checkout; its manifest is one level below the top.
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// Cargo's target directory for the host workspace.
pub(crate) fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from) {
        Some(dir) if dir.is_absolute() => dir,
        Some(dir) => std::env::current_dir().unwrap_or_default().join(dir),
        None => workspace().join("target"),
    }
}
