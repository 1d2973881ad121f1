//! Names on a file system that does not tell case apart, and whether a path is on one.

use std::{
    fs::symlink_metadata,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::Path,
};

/// A name as such file systems compare it, as far as that ends in ASCII: small letters; the letters that fold to ASCII ones,
/// and the characters that do not count, by the case folding of Unicode that ext4, f2fs and HFS+ use. What remains outside
/// ASCII cannot be opened there, see `ebpf/src/casing.rs`.
pub fn folded(name: &[u8]) -> Vec<u8> {
    let Ok(text) = std::str::from_utf8(name) else { return name.to_ascii_lowercase() };
    let mut folded = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            'ß' | 'ẞ' => folded.push_str("ss"),
            'ſ' => folded.push('s'),
            '\u{212a}' => folded.push('k'),
            'ﬀ' => folded.push_str("ff"),
            'ﬁ' => folded.push_str("fi"),
            'ﬂ' => folded.push_str("fl"),
            'ﬃ' => folded.push_str("ffi"),
            'ﬄ' => folded.push_str("ffl"),
            'ﬅ' | 'ﬆ' => folded.push_str("st"),
            '\u{37e}' => folded.push(';'),
            '\u{1fef}' => folded.push('`'),
            c if is_ignorable(c) => {}
            c => folded.push(c.to_ascii_lowercase()),
        }
    }
    folded.into_bytes()
}

/// Unicode's `Default_Ignorable_Code_Point`.
fn is_ignorable(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
        | '\u{fff0}'..='\u{fff8}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}')
}

/// Whether a component of the path may be found by another spelling: the spelling in the other case finds it, or it does not
/// exist and so cannot be tested.
pub fn may_fold(path: &Path) -> bool {
    path.ancestors().any(|path| {
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else { return false };
        let turned: Vec<u8> = name.as_bytes().iter().copied().map(turned).collect();
        if turned == name.as_bytes() {
            return !name.as_bytes().is_ascii();
        }
        match (symlink_metadata(path), symlink_metadata(above.join(std::ffi::OsStr::from_bytes(&turned)))) {
            (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
            (Ok(_), Err(_)) => false,
            (Err(_), _) => true,
        }
    })
}

/// The letter in the other case.
fn turned(byte: u8) -> u8 {
    if byte.is_ascii_lowercase() { byte.to_ascii_uppercase() } else { byte.to_ascii_lowercase() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_folds_to_ascii_is_folded() {
        for (name, wanted) in [
            ("Key.PEM", "key.pem"),
            ("straße", "strasse"),
            ("\u{212a}ey", "key"),
            ("ſecret", "secret"),
            ("con\u{ad}fig\u{200d}", "config"),
            ("ﬁle", "file"),
            ("Müller", "müller"),
        ] {
            assert_eq!(folded(name.as_bytes()), wanted.as_bytes(), "{name}");
        }
        assert_eq!(folded(b"A\xff"), b"a\xff");
    }

    #[test]
    fn a_path_whose_turned_spelling_is_the_same_file_may_fold() {
        let dir = tempfile::tempdir().unwrap();
        let (file, other) = (dir.path().join("key"), dir.path().join("KEY"));
        std::fs::write(&file, "").unwrap();
        assert!(!may_fold(&file));
        assert!(may_fold(&dir.path().join("missing")));
        // As a file system that folds case would have it.
        std::fs::hard_link(&file, &other).unwrap();
        assert!(may_fold(&file) && may_fold(&other.join("below")));
    }
}
