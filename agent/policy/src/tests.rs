//! Tests of the whole way from a profile's text to a compiled policy, and what they share.

mod compile;
mod compile_properties;
mod credential_reach;
mod credentials;
mod extend;
mod fixed;
mod names;
mod pattern_properties;
mod sets;

use crate::{compiled::CompiledPolicy, *};
use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
};

pub(crate) struct Lab {
    dir: tempfile::TempDir,
}

impl Lab {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("root")).unwrap();
        Self { dir }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    pub(crate) fn dir(&self, path: &str) {
        fs::create_dir_all(self.root().join(path)).unwrap();
    }

    pub(crate) fn link(&self, at: &str, target: &str) {
        symlink(target, self.root().join(at)).unwrap();
    }

    pub(crate) fn program(&self, path: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "x").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub(crate) fn load(&self, toml: &str) -> Result<Profile, LoadErrors> {
        let file = self.dir.path().join("p.toml");
        fs::write(&file, toml).unwrap();
        load(file.to_str().unwrap(), &Dirs::system())
    }

    pub(crate) fn compile_in(
        &self,
        profile: &Profile,
        workdir: Option<&str>,
    ) -> Result<(CompiledPolicy, Vec<String>), LoadErrors> {
        let root = self.root();
        let ctx = CompileContext::new(&root, workdir.map(PathBuf::from));
        profile.compile_whole(&ctx).map(|done| (done.policy, done.notes))
    }

    fn try_compile(
        &self,
        toml: &str,
        workdir: Option<&str>,
    ) -> Result<(CompiledPolicy, Vec<String>), LoadErrors> {
        let profile = self.load(toml).unwrap_or_else(|e| panic!("{e}"));
        self.compile_in(&profile, workdir)
    }

    pub(crate) fn compile(&self, toml: &str) -> CompiledPolicy {
        self.try_compile(toml, None).unwrap_or_else(|e| panic!("{e}")).0
    }
}

/// A profile of some axes; those not given are empty.
pub(crate) fn toml(axes: &str, deny: &str, base: &str) -> String {
    let mut text = String::from("[grant]\nmax_calls = \"unlimited\"\nvalid_for_generation = \"all\"\n");
    for axis in ["fs_read", "fs_write", "exec", "net"] {
        match axes.lines().find(|l| l.trim().starts_with(axis)) {
            Some(line) => text += &format!("{line}\n"),
            None => text += &format!("{axis} = {{ only = [] }}\n"),
        }
    }
    text + &format!("[deny]\n{deny}\n[kernel]\nbase = \"{base}\"\n")
}
