//! What the running kernel's BTF and symbol table say: where fields are, which functions and symbols there are.
//!
//! The eBPF object is the same for every kernel; these numbers are set as its read-only globals before it is loaded.
//! A field that is not found is an error that names it, never a default.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
};

use btf_rs::{Btf, Member, Parameter, Type};

/// Where the kernel shows its types.
pub(crate) const VMLINUX: &str = "/sys/kernel/btf/vmlinux";
/// Where the kernel shows its symbols.
pub(crate) const KALLSYMS: &str = "/proc/kallsyms";

/// Why the running kernel cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BtfError {
    /// No BTF, or not readable as BTF.
    #[error(
        "{path}: the kernel's type information (BTF) cannot be read; a kernel with CONFIG_DEBUG_INFO_BTF=y is needed"
    )]
    Types {
        path: PathBuf,
        #[source]
        source: btf_rs::Error,
    },
    /// A type is missing.
    #[error(
        "this kernel has no `struct {structure}`, which the programs read; this kernel is not supported yet"
    )]
    NoStruct { structure: String },
    /// A field is missing.
    #[error(
        "this kernel's `struct {structure}` has no `{field}`, which the programs read; this kernel is not supported yet"
    )]
    NoField { structure: String, field: String },
    /// A parameter is missing.
    #[error(
        "this kernel's function `{function}` is missing or takes no `struct {structure}`; this kernel is not supported yet"
    )]
    NoParameter { function: String, structure: String },
    /// A field is a bit field.
    #[error("this kernel's `{structure}.{field}` is a bit field; this kernel is not supported yet")]
    BitField { structure: String, field: String },
    /// Two structs of that name disagree.
    #[error(
        "this kernel has several `struct {structure}` that put `{field}` in different places; this kernel is not supported yet"
    )]
    Ambiguous { structure: String, field: String },
    /// The symbol table cannot be read.
    #[error("{path}: the kernel's symbols cannot be read; is /proc mounted?")]
    Symbols {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A symbol is missing.
    #[error("this kernel has no symbol `{symbol}` in {path}; a kernel with CONFIG_KALLSYMS_ALL=y is needed")]
    NoSymbol { symbol: String, path: PathBuf },
    /// Addresses are hidden.
    #[error(
        "{path} hides the address of `{symbol}`: run as root with kernel.kptr_restrict at most 1 (sysctl kernel.kptr_restrict=1)"
    )]
    Hidden { symbol: String, path: PathBuf },
}

/// The types of a kernel.
pub(crate) struct KernelTypes {
    btf: Btf,
}

impl KernelTypes {
    /// Reads the running kernel's types. Takes some tens of milliseconds.
    pub(crate) fn running() -> Result<Self, BtfError> {
        Self::from_file(Path::new(VMLINUX))
    }

    /// Reads types from a file of raw BTF.
    pub(crate) fn from_file(path: &Path) -> Result<Self, BtfError> {
        // Mapped rather than parsed: a few dozen look-ups out of a hundred thousand types.
        Btf::from_file(path)
            .map(|btf| Self { btf })
            .map_err(|source| BtfError::Types { path: path.into(), source })
    }

    /// Byte offset of a field; `path` may go through embedded structs (`d_name.len`) and finds members of anonymous
    /// structs and unions by themselves.
    pub(crate) fn offset(&self, structure: &str, path: &str) -> Result<u64, BtfError> {
        let no_struct = || BtfError::NoStruct { structure: structure.into() };
        let types = self.btf.resolve_types_by_name(structure).map_err(|_| no_struct())?;
        let mut found = None;
        let mut seen = false;
        for kind in types {
            let Type::Struct(kind) = kind else { continue };
            seen = true;
            let Some(bits) = self.walk(kind.members.as_slice(), path) else { continue };
            if bits % 8 != 0 {
                return Err(BtfError::BitField { structure: structure.into(), field: path.into() });
            }
            if found.is_some_and(|other| other != bits) {
                return Err(BtfError::Ambiguous { structure: structure.into(), field: path.into() });
            }
            found = Some(bits);
        }
        if !seen {
            return Err(no_struct());
        }
        let bits =
            found.ok_or_else(|| BtfError::NoField { structure: structure.into(), field: path.into() })?;
        Ok(u64::from(bits) / 8)
    }

    /// Whether the kernel has a function of this name that programs can be attached to.
    pub(crate) fn has_function(&self, name: &str) -> bool {
        self.btf
            .resolve_types_by_name(name)
            .is_ok_and(|types| types.iter().any(|kind| matches!(kind, Type::Func(_))))
    }

    /// Which parameter of a function is a pointer to `struct structure`: the first such, counted from 0.
    pub(crate) fn parameter(&self, function: &str, structure: &str) -> Result<u64, BtfError> {
        let types = self.btf.resolve_types_by_name(function).unwrap_or_default();
        let found = types.iter().find_map(|kind| {
            let Type::Func(function) = kind else { return None };
            let Type::FuncProto(prototype) = self.btf.resolve_chained_type(function).ok()? else {
                return None;
            };
            prototype.parameters.iter().position(|parameter| self.points_to(parameter, structure))
        });
        found
            .map(|at| at as u64)
            .ok_or_else(|| BtfError::NoParameter { function: function.into(), structure: structure.into() })
    }

    fn points_to(&self, parameter: &Parameter, structure: &str) -> bool {
        let Ok(Type::Ptr(pointer)) = self.btf.resolve_chained_type(parameter) else { return false };
        match self.btf.resolve_chained_type(&pointer) {
            Ok(Type::Struct(inner)) => self.btf.resolve_name(&inner).is_ok_and(|name| name == structure),
            _ => false,
        }
    }

    fn walk(&self, members: &[Member], path: &str) -> Option<u32> {
        let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
        let (member, at) = self.member(members, name, 0, 8)?;
        match rest {
            None if member.bitfield_size().is_some_and(|bits| bits != 0) => Some(at | 1),
            None => Some(at),
            Some(rest) => self.walk(&self.inside(&member)?, rest).map(|below| at + below),
        }
    }

    /// The member called `name` and its offset in bits, looking into anonymous members at most `depth` deep.
    fn member(&self, members: &[Member], name: &str, base: u32, depth: u32) -> Option<(Member, u32)> {
        members.iter().find_map(|member| {
            let at = base + member.bit_offset();
            match self.btf.resolve_name(member).unwrap_or_default() {
                own if own == name => Some((member.clone(), at)),
                own if own.is_empty() && depth > 0 => self.member(&self.inside(member)?, name, at, depth - 1),
                _ => None,
            }
        })
    }

    fn inside(&self, member: &Member) -> Option<Vec<Member>> {
        let mut kind = self.btf.resolve_chained_type(member).ok()?;
        for _ in 0..8 {
            kind = match kind {
                Type::Struct(inner) | Type::Union(inner) => return Some(inner.members),
                Type::Typedef(alias) => self.btf.resolve_chained_type(&alias).ok()?,
                Type::Const(alias) => self.btf.resolve_chained_type(&alias).ok()?,
                Type::Volatile(alias) => self.btf.resolve_chained_type(&alias).ok()?,
                _ => return None,
            };
        }
        None
    }
}

/// Addresses of symbols, in the order asked for.
///
/// # Errors
/// [`BtfError::NoSymbol`], or [`BtfError::Hidden`] where the kernel shows zero.
pub(crate) fn symbols(path: &Path, names: &[&str]) -> Result<Vec<u64>, BtfError> {
    let unreadable = |source| BtfError::Symbols { path: path.into(), source };
    let mut found: Vec<Option<u64>> = vec![None; names.len()];
    for line in BufReader::new(File::open(path).map_err(unreadable)?).lines() {
        let line = line.map_err(unreadable)?;
        let mut words = line.split_ascii_whitespace();
        let (Some(address), Some(_kind), Some(symbol), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            continue; // a module's symbol has a fourth word
        };
        if let Some(at) = names.iter().position(|name| *name == symbol) {
            found[at] = u64::from_str_radix(address, 16).ok();
            if found.iter().all(Option::is_some) {
                break;
            }
        }
    }
    let address = |(found, name): (Option<u64>, &&str)| match found {
        None => Err(BtfError::NoSymbol { symbol: (*name).into(), path: path.into() }),
        Some(0) => Err(BtfError::Hidden { symbol: (*name).into(), path: path.into() }),
        Some(address) => Ok(address),
    };
    found.into_iter().zip(names).map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn kallsyms(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    #[test]
    fn symbols_are_found_and_a_modules_do_not_count() {
        let file = kallsyms(
            "ffffffff81000010 D rename_lock\t[other]\nffffffff81000020 D rename_lock\nffffffff81000030 d mount_lock\n",
        );
        assert_eq!(
            symbols(file.path(), &["mount_lock", "rename_lock"]).unwrap(),
            [0xffff_ffff_8100_0030, 0xffff_ffff_8100_0020]
        );
    }

    #[test]
    fn a_missing_and_a_hidden_symbol_are_different_errors() {
        let file = kallsyms("0000000000000000 D rename_lock\n");
        assert!(matches!(symbols(file.path(), &["rename_lock"]), Err(BtfError::Hidden { .. })));
        let error = symbols(file.path(), &["mount_lock"]).unwrap_err();
        assert!(matches!(error, BtfError::NoSymbol { .. }));
        assert!(error.to_string().contains("mount_lock"));
    }

    #[test]
    fn a_file_that_is_not_btf_is_refused() {
        let file = kallsyms("not BTF");
        assert!(matches!(KernelTypes::from_file(file.path()), Err(BtfError::Types { .. })));
    }

    /// Where the machine shows BTF: fields through anonymous unions, nested paths, and a name that is not there.
    #[test]
    fn fields_of_the_running_kernel() {
        if !Path::new(VMLINUX).exists() {
            return;
        }
        let types = KernelTypes::running().unwrap();
        let name = types.offset("dentry", "d_name").unwrap();
        let len = types.offset("dentry", "d_name.len").unwrap();
        assert_eq!(len, name + types.offset("qstr", "len").unwrap());
        assert!(types.offset("file", "f_path.dentry").unwrap() > types.offset("file", "f_path.mnt").unwrap());
        let error = types.offset("dentry", "d_nonsense").map(drop).unwrap_err();
        assert!(error.to_string().contains("d_nonsense"), "{error}");
        assert!(matches!(types.offset("no_such_struct", "x"), Err(BtfError::NoStruct { .. })));
        assert_eq!(types.parameter("bpf_lsm_path_unlink", "dentry").unwrap(), 1);
        assert!(types.parameter("bpf_lsm_path_unlink", "file").is_err());
        assert!(types.has_function("bpf_lsm_file_open") && !types.has_function("bpf_lsm_no_such_hook"));
    }
}
