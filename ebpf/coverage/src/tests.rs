//! The table reads, names nothing twice, and finds what is not in it.

use super::{Group, TEXT, Table};
use std::collections::BTreeSet;

fn table() -> Table {
    Table::parse(TEXT).unwrap()
}

#[test]
fn nothing_is_named_twice() {
    let table = table();
    for groups in [&table.hooks, &table.calls, &table.families] {
        let mut seen = BTreeSet::new();
        for name in groups.iter().flat_map(|group| &group.names) {
            assert!(seen.insert(&name.name), "{} is there twice", name.name);
        }
    }
}

#[test]
fn whoever_decides_has_a_case() {
    let table = table();
    let all = [&table.hooks, &table.calls, &table.families];
    let without: Vec<&Group> = all
        .into_iter()
        .flatten()
        .filter(|group| group.by.iter().any(|by| by != "seccomp") && group.case.is_none())
        .collect();
    assert!(without.is_empty(), "{without:?}");
}

#[test]
fn what_a_kernel_has_beyond_the_table_is_found_by_name() {
    let table = table();
    let symbols =
        ["bpf_lsm_file_open", "__x64_sys_openat", "vfs_read", "bpf_lsm_func_proto", "__x64_sys_ni_syscall"];
    assert!(table.unknown(symbols).is_empty());
    let unknown =
        table.unknown(["bpf_lsm_coffee_brew", "__x64_sys_brew", "__x64_sys_brew", "__x64_sys_read"]);
    assert_eq!((unknown.hooks, unknown.calls), (vec!["coffee_brew".to_owned()], vec!["brew".to_owned()]));
}

#[test]
fn a_range_that_is_none_is_an_error() {
    let with = |name: &str| {
        Table::parse(&format!(
            "not_hooks = []\nnot_calls = []\nfamily = []\ncall = []\n[[hook]]\nabout = \"a\"\nwhy = \"b\"\nnames = [\"{name}\"]"
        ))
    };
    for good in ["file_open", "file_open 6.2..", "file_open ..6.8", "file_open 6.2..6.8"] {
        assert!(with(good).is_ok(), "{good}");
    }
    for bad in ["", "file_open 6.2", "file_open ..", "file_open new.."] {
        assert!(with(bad).unwrap_err().to_string().contains("6.2.."), "{bad}");
    }
}
