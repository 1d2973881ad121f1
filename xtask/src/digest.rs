//! Short names for contents: what a cached thing was made from.

use sha2::{Digest, Sha256};

/// Twelve hexadecimal digits that change when any of the parts does.
pub(crate) fn short(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}
