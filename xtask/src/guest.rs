//! The binaries that live in containers: built static and small, and checked to be so.

use crate::build;
use crate::paths;
use crate::report::{brief, tail};
use crate::setup;
use anyhow::{Context, Result, bail, ensure};
use object::LittleEndian;
use object::elf::{DT_NEEDED, FileHeader64, PT_INTERP};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Most bytes of a binary that is copied into images.
const MOST_BYTES: u64 = 2_000_000;

/// The programs for containers, as they ship.
#[derive(Debug)]
pub(crate) struct Programs {
    /// `ringfence-runtime`.
    pub(crate) runtime: PathBuf,
    /// `ringfence-toolrunner`.
    pub(crate) toolrunner: PathBuf,
}

/// Builds them into a folder that has nothing else; each is checked.
pub(crate) fn programs() -> Result<Programs> {
    Ok(Programs { runtime: runtime()?, toolrunner: toolrunner()? })
}

/// Builds the runtime alone. It starts once, so it is linked with what every toolchain has.
pub(crate) fn runtime() -> Result<PathBuf> {
    program("ringfence-runtime", &format!("{}-unknown-linux-gnu", std::env::consts::ARCH))
}

/// Builds the tool runner alone. A shim starts with every tool: musl has it ready in a fraction of glibc's time.
pub(crate) fn toolrunner() -> Result<PathBuf> {
    program("ringfence-toolrunner", setup::quick_target())
}

fn program(name: &str, target: &str) -> Result<PathBuf> {
    let mut cargo = build::cargo();
    cargo.args(["build", "--package", "ringfence-guest", "--bin", name]);
    cargo.args(["--profile", "guest", "--target", target]);
    // With a target of its own, the flag is for the program and not for the macros that compile it.
    cargo.env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static").stdin(Stdio::null());
    brief(&format!("building {name}, for containers"), || {
        let output = cargo.output().context("cannot start cargo")?;
        if !output.status.success() {
            bail!("building {name} failed:\n{}", tail(&String::from_utf8_lossy(&output.stderr), 60));
        }
        Ok(())
    })?;
    let built = paths::target().join(target).join("guest").join(name);
    check(&built).with_context(|| format!("{} cannot ship", built.display()))?;
    build::place(&built, &paths::target().join("container"), name)
}

/// A program that any image can run: no interpreter, no library, not large.
fn check(binary: &Path) -> Result<()> {
    let bytes = std::fs::read(binary).context("cannot read it")?;
    let elf = FileHeader64::<LittleEndian>::parse(&*bytes).context("not an ELF file")?;
    let endian = elf.endian().context("not an ELF file")?;
    for header in elf.program_headers(endian, &*bytes).context("no program headers")? {
        ensure!(header.p_type(endian) != PT_INTERP, "it is not static: it names an interpreter");
        let entries = header.dynamic(endian, &*bytes).context("a broken dynamic section")?;
        let is_linked = entries.into_iter().flatten().any(|entry| entry.tag(endian) == DT_NEEDED);
        ensure!(!is_linked, "it is not static: it needs a library");
    }
    let length = bytes.len() as u64;
    ensure!(length <= MOST_BYTES, "it has {length} bytes; {MOST_BYTES} is the most");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{MOST_BYTES, check};
    use std::path::Path;

    #[test]
    fn a_program_with_an_interpreter_cannot_ship() {
        let said = format!("{:#}", check(Path::new("/proc/self/exe")).unwrap_err());
        assert!(said.contains("interpreter"), "{said}");
    }

    #[test]
    fn what_is_no_program_or_too_large_cannot_ship() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("program");
        std::fs::write(&file, "#!/bin/sh\n").unwrap();
        assert!(check(&file).is_err());
        // A header without program headers is static; then only its length is wrong.
        let mut header = vec![0; 64];
        header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        header[52] = 64;
        std::fs::write(&file, &header).unwrap();
        check(&file).unwrap();
        header.resize(MOST_BYTES as usize + 1, 0);
        std::fs::write(&file, &header).unwrap();
        assert!(check(&file).unwrap_err().to_string().contains("2000001 bytes"));
    }
}
