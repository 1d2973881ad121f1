//! Whether this kernel takes LSM programs from this process.

use aya::{programs::ProgramType, sys::is_program_supported};
use ringfence_sandbox::host::errno_text;
use std::io;

/// Whether the kernel takes an LSM program from this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BpfLsm {
    /// It does.
    Permitted,
    /// It knows the type and refuses: the operator's choice, or missing privilege.
    Refused(String),
    /// It does not know the type.
    Unsupported,
    /// Only root can ask.
    NotChecked,
}

/// Asks the kernel to check a two-instruction LSM program, attached to nothing and gone at once.
pub fn bpf_lsm() -> BpfLsm {
    if !nix::unistd::geteuid().is_root() {
        return BpfLsm::NotChecked;
    }
    match is_program_supported(ProgramType::Lsm(aya::programs::LsmAttachType::Mac)) {
        Ok(true) => BpfLsm::Permitted,
        Ok(false) => BpfLsm::Unsupported,
        Err(error) => BpfLsm::Refused(cause(&error)),
    }
}

/// The innermost reason, which for a refused system call is the kernel's own.
fn cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.downcast_ref::<io::Error>().map_or_else(|| error.to_string(), errno_text)
}
