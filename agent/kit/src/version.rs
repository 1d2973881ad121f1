//! Which version of an agent a command is, from its files: running it to ask would cost more than all else of a start.

use serde::Deserialize;
use std::{
    env,
    ffi::OsStr,
    io::Read as _,
    path::{Path, PathBuf},
};

/// Most bytes of a package's description.
const MAX_BYTES: u64 = 256 << 10;
/// Directories above a program in which its package's description is looked for.
const ABOVE: usize = 4;

#[derive(Deserialize)]
struct Package {
    version: String,
}

/// The version of the program that PATH finds for a command: that of the npm package that it is in, or the name of its file,
/// where the agent's own installer names that by the version. None: nothing says.
pub fn of(command: &OsStr) -> Option<String> {
    let program = program(command)?.canonicalize().ok()?;
    let named = program.file_name().and_then(OsStr::to_str).filter(|name| is_version(name));
    if let Some(name) = named {
        return Some(name.to_owned());
    }
    program.ancestors().skip(1).take(ABOVE).find_map(package)
}

fn program(command: &OsStr) -> Option<PathBuf> {
    let path = Path::new(command);
    if path.components().count() > 1 {
        return Some(path.to_owned());
    }
    env::split_paths(&env::var_os("PATH")?).map(|dir| dir.join(path)).find(|file| file.is_file())
}

fn package(dir: &Path) -> Option<String> {
    let mut text = String::new();
    // A regular file: the open of a FIFO would wait for its writer.
    ringfence_files::read(&dir.join("package.json")).ok()?.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    let Package { version } = serde_json::from_str(&text).ok()?;
    // A package of one platform's program is named by that, too.
    let version = version.split_once("-linux-").map_or(&*version, |(version, _)| version);
    Some(version.to_owned()).filter(|version| is_version(version))
}

/// Whether a text is a version as npm writes it. It is shown on a terminal.
fn is_version(text: &str) -> bool {
    let known = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'+');
    text.len() <= 64
        && text.bytes().all(known)
        && text.split('.').count() >= 3
        && text.split('.').take(2).all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    #[test]
    fn a_version_is_read_from_the_package_or_from_the_name_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let package = dir.path().join("lib/agent");
        fs::create_dir_all(package.join("bin")).unwrap();
        fs::write(package.join("bin/agent.js"), "").unwrap();
        let link = dir.path().join("agent");
        symlink(package.join("bin/agent.js"), &link).unwrap();
        assert_eq!(of(link.as_os_str()), None);
        fs::write(package.join("package.json"), r#"{"name":"agent","version":"2.1.197"}"#).unwrap();
        assert_eq!(of(link.as_os_str()).as_deref(), Some("2.1.197"));
        fs::write(package.join("package.json"), r#"{"version":"0.169.0-linux-x64"}"#).unwrap();
        assert_eq!(of(link.as_os_str()).as_deref(), Some("0.169.0"));
        fs::write(dir.path().join("1.0.3"), "").unwrap();
        assert_eq!(of(dir.path().join("1.0.3").as_os_str()).as_deref(), Some("1.0.3"));
        fs::write(package.join("package.json"), r#"{"version":"2.1.\u001b[2J"}"#).unwrap();
        assert_eq!(of(link.as_os_str()), None, "what is no version is not shown");
    }
}
