//! What the running kernel offers beyond the table of every way into the kernel (`ringfence-coverage`).

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
};

use ringfence_coverage::{TEXT, Table, Unknown};

use super::btf::{BtfError, KALLSYMS};

/// Hooks and system calls of the running kernel that the table does not name. The names are readable for everybody,
/// the addresses behind them need not be.
///
/// # Errors
/// [`BtfError::Symbols`].
pub fn unknown() -> Result<Unknown, BtfError> {
    among(&table(), Path::new(KALLSYMS))
}

/// The table inside this binary.
pub fn table() -> Table {
    // A test of the crate reads it: a table that cannot be read is no build that passes. Read as empty, everything is
    // unknown, which is refused.
    Table::parse(TEXT).unwrap_or_default()
}

/// What a symbol table has beyond a table of ways in.
pub fn among(table: &Table, symbols: &Path) -> Result<Unknown, BtfError> {
    let unreadable = |source| BtfError::Symbols { path: symbols.into(), source };
    let mut names = Vec::new();
    for line in BufReader::new(File::open(symbols).map_err(unreadable)?).lines() {
        let line = line.map_err(unreadable)?;
        let mut words = line.split_ascii_whitespace().skip(1);
        // Functions only, and not the parts that the compiler split off. A module's symbol has a word more.
        if let (Some("t" | "T" | "w" | "W"), Some(name), None) = (words.next(), words.next(), words.next())
            && (name.starts_with("bpf_lsm_") || name.starts_with("__x64_sys_"))
            && !name.contains('.')
        {
            names.push(name.to_owned());
        }
    }
    Ok(table.unknown(names.iter().map(String::as_str)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_is_in_no_line_of_the_table_is_found_among_a_kernels_symbols() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        write!(
            file,
            "ffffffff81000010 T bpf_lsm_file_open\nffffffff81000020 T bpf_lsm_coffee_brew\n\
             ffffffff82000010 D bpf_lsm_hooks\nffffffff81000030 t __x64_sys_brew.cold\n\
             0000000000000000 T __x64_sys_brew\n0000000000000000 T __x64_sys_read\n\
             ffffffffc0000000 t __x64_sys_module\t[brewer]\n"
        )
        .unwrap();
        let found = among(&table(), file.path()).unwrap();
        assert_eq!((found.hooks, found.calls), (vec!["coffee_brew".to_owned()], vec!["brew".to_owned()]));
    }

    #[test]
    fn the_table_inside_this_binary_reads() {
        assert!(!table().hooks.is_empty() && !table().calls.is_empty());
    }
}
