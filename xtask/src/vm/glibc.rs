//! Whether a program built on this machine can start in the guest: the guest's C library is Debian 12's.

use anyhow::{Context, Result, bail};
use std::path::Path;

/// The minor version of the guest's glibc, 2.36.
const GUEST: u32 = 36;

/// Refuses a program that asks for a newer C library than the guest has.
pub(super) fn check(program: &Path) -> Result<()> {
    let bytes = std::fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    match newest(&bytes) {
        Some(minor) if minor > GUEST => bail!(
            "{} needs glibc 2.{minor}, and the guest (Debian 12) has 2.{GUEST}: this machine is newer than the guest. \
             Build on Debian 12, or in a container of it",
            program.display()
        ),
        _ => Ok(()),
    }
}

/// The highest `2.N` among the version names `GLIBC_2.N` in an executable.
fn newest(bytes: &[u8]) -> Option<u32> {
    const NAME: &[u8] = b"GLIBC_2.";
    let starts = bytes.windows(NAME.len()).enumerate().filter(|(_, window)| *window == NAME);
    starts
        .filter_map(|(start, _)| {
            let digits = bytes[start + NAME.len()..].iter().take(4).take_while(|byte| byte.is_ascii_digit());
            String::from_utf8(digits.copied().collect()).ok()?.parse().ok()
        })
        .max()
}

#[cfg(test)]
mod tests {
    use super::newest;

    #[test]
    fn the_highest_version_counts() {
        assert_eq!(newest(b"\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_PRIVATE\0"), Some(34));
        assert_eq!(newest(b"static"), None);
        assert_eq!(newest(b"GLIBC_2."), None);
    }
}
