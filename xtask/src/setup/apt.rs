//! A private apt beside the machine's own: other suites, own lists, no root, no change to the machine.

use crate::report::quietly;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The machine's own Debian mirrors; no host name is ours to choose.
#[derive(Debug)]
pub(super) struct Mirrors {
    /// Debian's archive.
    pub(super) main: String,
    /// Debian's security archive.
    pub(super) security: String,
}

impl Mirrors {
    /// Reads them from the machine's apt configuration, in either of its formats.
    pub(super) fn of_this_machine() -> Result<Mirrors> {
        let format = "$(CREATED_BY)|$(ORIGIN)|$(LABEL)|$(SITE)|$(URI)";
        // Without lists (a fresh machine) apt does not know whose a source is: update, then ask again.
        let read = || -> Result<(Option<String>, Option<String>)> {
            let said = quietly(Command::new("apt-get").args(["indextargets", "--format", format]))?;
            Ok((site(&said, "Debian"), site(&said, "Debian-Security")))
        };
        let mut found = read()?;
        if found.0.is_none() || found.1.is_none() {
            quietly(super::packages::as_root("apt-get")?.arg("update"))?;
            found = read()?;
        }
        match found {
            (Some(main), Some(security)) => Ok(Mirrors { main, security }),
            (main, _) => {
                let lacking = if main.is_none() { "Debian's archive" } else { "Debian's security archive" };
                bail!(
                    "this machine's apt sources do not name {lacking}; the kernels and the guest come from there. \
                     Add it to /etc/apt/sources.list (see sources.list(5)) and run `cargo xtask setup` again"
                )
            }
        }
    }
}

fn site(indextargets: &str, label: &str) -> Option<String> {
    indextargets.lines().find_map(|line| {
        let mut fields = line.split('|');
        let matches = fields.next() == Some("Packages")
            && fields.next() == Some("Debian")
            && fields.next() == Some(label);
        matches.then(|| fields.next().map(|site| site.trim_end_matches('/').to_owned())).flatten()
    })
}

/// One private apt: its folder holds the sources, the lists and the downloads.
#[derive(Debug)]
pub(super) struct Apt {
    dir: PathBuf,
}

impl Apt {
    /// Sets up the folder for some `(URI, suite)` sources and fetches their lists.
    pub(super) fn new(dir: PathBuf, sources: &[(&str, &str)]) -> Result<Apt> {
        for sub in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(dir.join(sub)).with_context(|| format!("cannot create {}", dir.display()))?;
        }
        let lines: String = sources
            .iter()
            .map(|(uri, suite)| format!("deb [target=Packages signed-by={KEYRING}] {uri} {suite} main\n"))
            .collect();
        write(&dir.join("sources.list"), &lines)?;
        // An empty status: what is installed on the machine does not count.
        write(&dir.join("status"), "")?;
        let apt = Apt { dir };
        quietly(apt.command("apt-get").arg("update"))?;
        Ok(apt)
    }

    /// The newest version of a package and the names it depends on.
    pub(super) fn show(&self, package: &str) -> Result<Shown> {
        let said = quietly(self.command("apt-cache").args(["show", "--no-all-versions", package]))?;
        let field = |name: &str| said.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let Some(version) = field("Version:") else { bail!("apt knows no version of {package}") };
        let depends = field("Depends:").unwrap_or_default();
        let names = depends.split([',', '|']).filter_map(|one| one.split_whitespace().next());
        Ok(Shown { version: version.to_owned(), depends: names.map(str::to_owned).collect() })
    }

    /// Downloads packages into a folder.
    pub(super) fn download(&self, packages: &[String], into: &Path) -> Result<()> {
        quietly(self.command("apt-get").arg("download").args(packages).current_dir(into))?;
        Ok(())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let dir = self.dir.display();
        for option in [
            format!("Dir::Etc::SourceList={dir}/sources.list"),
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            "Dir::Etc::Preferences=/dev/null".to_owned(),
            "Dir::Etc::PreferencesParts=/dev/null".to_owned(),
            format!("Dir::State::Lists={dir}/lists"),
            format!("Dir::State::status={dir}/status"),
            format!("Dir::Cache={dir}/cache"),
            // The sandbox user cannot write to a home's cache.
            "APT::Sandbox::User=root".to_owned(),
            // A mirror that is a frozen copy has an old sid, and that is still a kernel to test on; signatures are checked.
            "Acquire::Check-Valid-Until=false".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::Retries=3".to_owned(),
        ] {
            command.arg("-o").arg(option);
        }
        command
    }
}

/// What `apt-cache show` says of a package.
#[derive(Debug)]
pub(super) struct Shown {
    /// The version, as Debian writes it.
    pub(super) version: String,
    /// The packages it depends on, without versions.
    pub(super) depends: Vec<String>,
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::site;

    #[test]
    fn finds_the_archive_by_its_label_and_not_other_peoples_sources() {
        let said = "Packages|Elsewhere|Debian|http://third.example/|x\nDEP-11|Debian|Debian|http://wrong/|x\n\
                    Packages|Debian|Debian|http://mirror.example/debian/|x\n\
                    Packages|Debian|Debian-Security|http://mirror.example/sec|x\n";
        assert_eq!(site(said, "Debian").as_deref(), Some("http://mirror.example/debian"));
        assert_eq!(site(said, "Debian-Security").as_deref(), Some("http://mirror.example/sec"));
        assert_eq!(site("", "Debian"), None);
    }
}
