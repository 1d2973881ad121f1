//! Where tools, kernels and images are kept between builds: the user's cache folder, never the checkout.

use std::path::PathBuf;

/// The bpf-linker that setup installs when the user has none.
pub const BPF_LINKER_VERSION: &str = "0.13.0";

/// `$RINGFENCE_CACHE`, else `$XDG_CACHE_HOME/ringfence`, else `~/.cache/ringfence`. Without a home, `/var/cache/ringfence`.
#[must_use]
pub fn cache_dir() -> PathBuf {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("RINGFENCE_CACHE")
        .or_else(|| absolute("XDG_CACHE_HOME").map(|dir| dir.join("ringfence")))
        .or_else(|| absolute("HOME").map(|dir| dir.join(".cache/ringfence")))
        .unwrap_or_else(|| PathBuf::from("/var/cache/ringfence"))
}

/// The `--root` that bpf-linker is installed under; the program is `bin/bpf-linker` in it.
#[must_use]
pub fn bpf_linker_root() -> PathBuf {
    cache_dir().join("tools").join(format!("bpf-linker-{BPF_LINKER_VERSION}"))
}
