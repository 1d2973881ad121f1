//! The values of the programs' read-only globals on the running kernel, by the tables in `ringfence_common::fields`.

use std::{collections::BTreeMap, path::Path};

use ringfence_common::{
    fields::{
        DENTRY_WINDOW, FIELDS, Field, KEYS, LEGACY, OWNER_POINTED, PAIRS, SB_ENCODING, SETATTR_DENTRY,
        SYMBOLS, TASK_MARK,
    },
    hash::Keys,
};

use super::btf::{self, BtfError, KernelTypes};

/// A kernel function that exists since lookups in task storage no longer fail while the CPU's storage is busy (6.2).
const NOT_LEGACY: &str = "bpf_task_storage_get_recur";
/// The kernel's `DNAME_INLINE_LEN` is at least this; the programs read so much of a short name.
const SHORT_NAME: u64 = 32;

/// Why a value is missing.
#[derive(Debug, thiserror::Error)]
pub enum GlobalsError {
    /// The kernel lacks something.
    #[error(transparent)]
    Kernel(#[from] BtfError),
    /// The kernel puts fields where the programs cannot read them.
    #[error(
        "this kernel arranges {what} in a way that the programs cannot read; this kernel is not supported yet"
    )]
    Layout { what: String },
    /// The object wants a global that nobody sets.
    #[error("the eBPF programs inside this binary read a global `{0}` that is in no table; build it again")]
    Unknown(String),
}

/// Every global that may be set, with its value.
pub(crate) type Values = BTreeMap<&'static str, u64>;

/// Finds all values on the running kernel.
pub(crate) fn values(types: &KernelTypes, kallsyms: &Path, keys: &Keys) -> Result<Values, GlobalsError> {
    let mut all = Values::new();
    for field in FIELDS {
        all.insert(field.global, offset(types, field)?);
    }
    for (from, to, distance) in PAIRS {
        if all[from].checked_add(*distance) != Some(all[to]) {
            return Err(GlobalsError::Layout { what: format!("the fields behind {from} and {to}") });
        }
    }
    let (start, window) = DENTRY_WINDOW;
    let name = all["DENTRY_SHORT"];
    if name < all[start] || name + SHORT_NAME > all[start] + window {
        return Err(GlobalsError::Layout { what: "`struct dentry`".into() });
    }
    let symbols: Vec<&str> = SYMBOLS.iter().map(|(_, symbol)| *symbol).collect();
    let addresses = btf::symbols(kallsyms, &symbols)?;
    all.extend(SYMBOLS.iter().map(|(global, _)| *global).zip(addresses));
    all.extend(KEYS.into_iter().zip([keys.k0, keys.k1, keys.k2]));
    let legacy = !types.has_function(NOT_LEGACY);
    all.insert(LEGACY, u64::from(legacy));
    all.insert(TASK_MARK, all[if legacy { "TASK_CRED" } else { "TASK_STORAGE" }]);
    all.insert(
        SB_ENCODING,
        match types.offset("super_block", "s_encoding") {
            Err(BtfError::NoField { .. }) => 0,
            found => found?,
        },
    );
    all.insert(
        OWNER_POINTED,
        match types.offset("file", "f_owner.pid") {
            Err(BtfError::NoField { .. }) => 1,
            found => found.map(|_| 0)?,
        },
    );
    all.insert(SETATTR_DENTRY, types.parameter("bpf_lsm_inode_setattr", "dentry")?);
    Ok(all)
}

/// The sum of the steps; of several names of one field, the first that exists.
fn offset(types: &KernelTypes, field: &Field) -> Result<u64, BtfError> {
    field.steps.iter().try_fold(0, |sum, (structure, names)| {
        let mut error = None;
        for name in *names {
            match types.offset(structure, name) {
                Ok(at) => return Ok(sum + at),
                Err(other) => _ = error.get_or_insert(other),
            }
        }
        Err(error.unwrap_or_else(|| BtfError::NoStruct { structure: (*structure).into() }))
    })
}

/// Those values that the object asks for.
pub(crate) fn wanted<'a>(
    values: &'a Values,
    globals: &'a BTreeMap<String, u64>,
) -> Result<Vec<(&'a str, &'a u64)>, GlobalsError> {
    let value = |name: &'a String| values.get_key_value(name.as_str()).map(|(name, value)| (*name, value));
    globals.keys().map(|name| value(name).ok_or_else(|| GlobalsError::Unknown(name.clone()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Object;
    use std::io::Write;

    const KEYS: Keys = Keys { k0: 1, k1: 3, k2: 5 };

    /// On a machine that shows BTF, whatever its kernel.
    #[test]
    fn every_global_of_the_object_has_a_value() {
        if !Path::new(btf::VMLINUX).exists() {
            return;
        }
        let mut kallsyms = tempfile::NamedTempFile::new().unwrap();
        writeln!(
            kallsyms,
            "ffffffff81000010 D rename_lock\nffffffff81000020 D mount_lock\nffffffff81000030 T tty_ioctl"
        )
        .unwrap();
        let values = values(&KernelTypes::running().unwrap(), kallsyms.path(), &KEYS).unwrap();
        assert_eq!((values["K2"], values["MOUNT_LOCK"]), (5, 0xffff_ffff_8100_0020));
        let object = Object::embedded().unwrap();
        assert_eq!(wanted(&values, &object.globals).unwrap().len(), object.globals.len());
    }

    #[test]
    fn a_global_that_nobody_sets_is_an_error_that_names_it() {
        let object = BTreeMap::from([("K0".to_owned(), 8), ("SURPRISE".to_owned(), 8)]);
        let error = wanted(&Values::from([("K0", 1)]), &object).unwrap_err();
        assert!(error.to_string().contains("SURPRISE"), "{error}");
    }
}
