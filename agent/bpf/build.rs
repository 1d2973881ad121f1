//! Builds the eBPF object and tells the crate where it is: `RINGFENCE_EBPF` names the file to embed, the object compressed.

use flate2::{Compression, write::ZlibEncoder};
use std::error::Error;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut cause = error.source();
            eprintln!("error: {error}");
            while let Some(error) = cause {
                eprintln!("  because: {error}");
                cause = error.source();
            }
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let variable = |name| std::env::var_os(name).ok_or(format!("cargo did not set {name}"));
    if variable("CARGO_CFG_TARGET_OS")? != "linux" {
        // There is nothing to load there.
        return Ok(());
    }
    let out = PathBuf::from(variable("OUT_DIR")?);
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH")?;
    let ebpf = Path::new(&variable("CARGO_MANIFEST_DIR")?).join("../../ebpf").canonicalize()?;
    for source in ["src", "common/src", "common/Cargo.toml", "Cargo.toml", "Cargo.lock"] {
        println!("cargo::rerun-if-changed={}", ebpf.join(source).display());
    }
    println!("cargo::rerun-if-env-changed=RINGFENCE_CACHE");

    let object = ringfence_ebpf_build::build(&ebpf, &target_dir(&out).join("ebpf"), &arch)?;
    // A copy of our own: builds of several profiles share the target directory of the object.
    let embedded = out.join("ringfence.bpf.o.z");
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::best());
    packed.write_all(&ringfence_ebpf_build::without_dwarf(&std::fs::read(&object)?)?)?;
    std::fs::write(&embedded, packed.finish()?)?;
    println!("cargo::rustc-env=RINGFENCE_EBPF={}", embedded.display());
    Ok(())
}

/// Cargo's target directory, found by the tag that cargo leaves at its top; else the build script's own directory.
fn target_dir(out: &Path) -> &Path {
    out.ancestors().find(|dir| dir.join("CACHEDIR.TAG").is_file()).unwrap_or(out)
}
