//! Credentials of the profile's `[net.credentials]`: read here, as whoever runs this, from where the profile says, before there is a
//! child; each sealed in a memfd, for the core to hand on unread. And what the command has in their place: the certificates that its
//! programs trust, and which variables lead them there.

use super::environment::{Environment, Variable};
use ringfence_base::client::SealedCredential;
use ringfence_credentials::{Secret, Source};
use ringfence_policy::{CompileContext, CompileErrors, Dirs, LoadErrors, Profile, ToolCredential, home};
use ringfence_wire::{credentials::SHORTEST, message::MAX_TRUSTED};
use rustix::{
    fs::{MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, memfd_create, open},
    io::Errno,
    process::{fchdir, geteuid},
};
use std::{
    collections::BTreeSet,
    env,
    ffi::OsString,
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::OwnedFd,
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

/// The variables that programs find the certificates by which they trust, and nothing else. The first names all of them; so do the
/// others of [`IN_PLACE`], in place of the host's. What [`BESIDE`] names is trusted besides.
const IN_PLACE: [&str; 9] = [
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "CARGO_HTTP_CAINFO",
    "AWS_CA_BUNDLE",
    "DENO_CERT",
    "NIX_SSL_CERT_FILE",
];
const BESIDE: &str = "NODE_EXTRA_CA_CERTS";
/// Where distributions keep the certificates that the host trusts, as one file.
const OF_HOST: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/etc/ca-certificates/extracted/tls-ca-bundle.pem",
];

/// Why the command cannot have its requests bear credentials.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A profile that has no say about them.
    #[error("the profile's credentials are not used:\n{0}")]
    NotOwn(LoadErrors),
    /// What runs could say what they are.
    #[error("the profile's credentials are not used:\n{0}")]
    InReach(CompileErrors),
    /// Of a user without a home.
    #[error("the credential of {0} is in the home of a user who has none: give its file's absolute path")]
    NoHome(String),
    /// It cannot be had.
    #[error("the credential of {host}, of {origin}, cannot be used")]
    Source {
        /// The host.
        host: String,
        /// The kind and name of its source.
        origin: String,
        /// Why.
        #[source]
        source: ringfence_credentials::Error,
    },
    /// Another name of the same file.
    #[error(
        "the credential of {host}: {} has {names} names (hard links), and by another one what runs under the profile could read \
         it; make it a file of its own: cp FILE FILE.new && mv FILE.new FILE", .path.display()
    )]
    Linked {
        /// The host.
        host: String,
        /// The file.
        path: PathBuf,
        /// How many names it has.
        names: u64,
    },
    /// It would be found everywhere.
    #[error(
        "the credential of {0} has fewer than {SHORTEST} characters: it could not be kept from coming back in what the host answers"
    )]
    Short(String),
    /// No memory for it.
    #[error("cannot keep the profile's credentials for the daemon")]
    Memory(#[source] io::Error),
    /// What the host trusts.
    #[error(
        "no certificates of authorities were found that the command's programs trust ({}): install ca-certificates, or name them by SSL_CERT_FILE",
        OF_HOST.join(", ")
    )]
    NoAuthorities,
    /// A file with certificates.
    #[error("cannot read the certificates that {variable} names ({})", .path.display())]
    Authorities {
        /// The variable.
        variable: String,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Variables, and the files that they name.
type Missing = Vec<(&'static str, PathBuf)>;

/// What the core is handed.
pub(crate) struct Credentials {
    pub(crate) sealed: Vec<SealedCredential>,
    pub(crate) trusted: OwnedFd,
}

/// Reads them, if the profile has any, from what whoever runs this has. What the daemon would refuse of the profile is refused before
/// anything is read or run.
///
/// # Errors
/// [`Error`]: the command is not to run.
pub(crate) fn read(profile: &Profile, dirs: &Dirs, workdir: &Path) -> Result<Option<Credentials>, Error> {
    if profile.credentials.is_empty() {
        return Ok(None);
    }
    let home = home::of(geteuid().as_raw());
    let profile = profile.clone().with_tokens_of(home.as_deref());
    if !geteuid().is_root() {
        profile.require_roots_credentials(dirs).map_err(Error::NotOwn)?;
    }
    profile.require_own_credentials(dirs, workdir).map_err(Error::NotOwn)?;
    let context = CompileContext::new(Path::new("/"), Some(workdir.to_owned()));
    profile.require_closed_credentials(&context, &|name| env::var_os(name)).map_err(Error::InReach)?;
    let sealed = profile.credentials.iter().map(|one| seal_one(one, home.as_deref()));
    let sealed = sealed.collect::<Result<_, Error>>()?;
    let (trusted, missing) = trusted(|name| env::var_os(name))?;
    for (variable, path) in missing {
        eprintln!(
            "ringfence: {variable}: {} is not there, so its certificates are not among those that the command's programs trust",
            path.display()
        );
    }
    let trusted = seal("ringfence-trusted", &trusted).map_err(Error::Memory)?;
    Ok(Some(Credentials { sealed, trusted }))
}

/// The variables of our own environment that have credentials of the profile's, or say where they are.
pub fn variables(profile: &Profile) -> impl Iterator<Item = &str> {
    profile.credentials.iter().filter_map(|one| one.source.variable())
}

fn seal_one(one: &ToolCredential, home: Option<&Path>) -> Result<SealedCredential, Error> {
    let host = one.rules.host.clone();
    let source = one.source_of(home).ok_or_else(|| Error::NoHome(host.clone()))?;
    let unread = |error| Error::Source { host: host.clone(), origin: one.origin(), source: error };
    if let Some(path) = source.file()
        && let Ok(meta) = path.metadata()
        && meta.nlink() > 1
    {
        return Err(Error::Linked { host, path, names: meta.nlink() });
    }
    let secret: Secret = elsewhere(&source).map_err(unread)?;
    if secret.expose().len() < SHORTEST {
        return Err(Error::Short(host));
    }
    let memory = seal("ringfence-credential", secret.expose().as_bytes()).map_err(Error::Memory)?;
    Ok(SealedCredential { of: (&one.rules).into(), memory })
}

/// Reads a source. A command runs where no agent works: programs take their configuration from where they are started.
fn elsewhere(source: &Source) -> Result<Secret, ringfence_credentials::Error> {
    let Source::Command(_) = source else { return source.read() };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let moved = open(".", flags, Mode::empty()).and_then(|here| {
        let root = open("/", flags, Mode::empty())?;
        fchdir(&root)?;
        Ok(here)
    });
    let here = moved.map_err(|errno| ringfence_credentials::Error::Handover(errno.into()))?;
    let read = source.read();
    fchdir(&here).map_err(|errno| ringfence_credentials::Error::Handover(errno.into()))?;
    read
}

/// Bytes in a memfd that nobody can change any more.
fn seal(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // A host may ask for it, and older kernels know no such flag.
    let made = memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL);
    let made = match made {
        Err(Errno::INVAL) => memfd_create(name, flags),
        made => made,
    };
    let mut file = File::from(made?);
    file.write_all(bytes)?;
    fcntl_add_seals(&file, SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE)?;
    Ok(file.into())
}

/// The certificates that programs trust which are led by these variables, one after the other; and the variables that name files that
/// are not there, which many programs pass over.
fn trusted(variable: impl Fn(&str) -> Option<OsString>) -> Result<(Vec<u8>, Missing), Error> {
    let (mut all, mut missing) = (Vec::new(), Missing::new());
    let mut read = BTreeSet::new();
    let named = |name: &str| variable(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    match named("SSL_CERT_FILE") {
        Some(path) => add(&mut all, &mut read, path, "SSL_CERT_FILE")?,
        None => {
            let path = OF_HOST.iter().map(PathBuf::from).find(|path| path.is_file());
            add(&mut all, &mut read, path.ok_or(Error::NoAuthorities)?, "the host")?;
        }
    }
    for name in IN_PLACE.into_iter().skip(1).chain([BESIDE]) {
        // Some of them may name a directory.
        if let Some(path) = named(name).filter(|path| !path.is_dir()) {
            match add(&mut all, &mut read, path.clone(), name) {
                Err(Error::Authorities { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                    missing.push((name, path));
                }
                added => added?,
            }
        }
    }
    Ok((all, missing))
}

fn add(all: &mut Vec<u8>, read: &mut BTreeSet<PathBuf>, path: PathBuf, variable: &str) -> Result<(), Error> {
    let error = |source| Error::Authorities { variable: variable.to_owned(), path: path.clone(), source };
    if !read.insert(path.canonicalize().map_err(error)?) {
        return Ok(());
    }
    // Without O_NONBLOCK the open of a FIFO would wait for its writer.
    let file = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(&path);
    let file = file.map_err(error)?;
    if !file.metadata().map_err(error)?.is_file() {
        return Err(error(io::Error::other("it is not a regular file")));
    }
    let room = MAX_TRUSTED.saturating_sub(all.len());
    let before = all.len();
    file.take(room as u64).read_to_end(all).map_err(error)?;
    if all.len() - before == room {
        let why = format!("all that is trusted comes to more than {MAX_TRUSTED} bytes");
        return Err(error(io::Error::new(io::ErrorKind::FileTooLarge, why)));
    }
    all.push(b'\n');
    Ok(())
}

impl Environment {
    /// The same without what the profile's credentials come from: the variables of ours that have them, unless the user set them to
    /// something of their own. Which of those the user asked for by name is said.
    pub(crate) fn without_credentials(
        mut self,
        profile: &Profile,
        named: &[Variable],
    ) -> (Self, Vec<String>) {
        let mut asked = Vec::new();
        for name in variables(profile) {
            let is_set = |of: &Variable| matches!(of, Variable::Set(known, _) if known == name);
            if named.iter().any(is_set) {
                continue;
            }
            if named.iter().any(|of| matches!(of, Variable::Pass(known) if known == name)) {
                asked.push(name.to_owned());
            }
            self.unset(name);
        }
        (self, asked)
    }

    /// The same for a command whose programs are to trust the certificates in this file, but for the variables that the user named.
    pub(crate) fn trusting(self, bundle: &Path, named: &[Variable]) -> Self {
        let bundle = bundle.display().to_string();
        let variables = IN_PLACE.into_iter().chain([BESIDE]).map(|name| (name, bundle.clone())).collect();
        self.led(variables, named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_base::error::chain;
    use rustix::fs::fcntl_get_seals;
    use std::fs;

    #[test]
    fn what_is_sealed_is_read_and_never_changed() {
        let memory = seal("ringfence-test", b"secret-token").unwrap();
        let all = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
        assert!(fcntl_get_seals(&memory).unwrap().contains(all));
        let mut file = File::from(memory);
        assert!(file.write_all(b"x").is_err());
        assert!(rustix::io::fcntl_getfd(&file).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        io::Seek::rewind(&mut file).unwrap();
        let mut read = String::new();
        file.read_to_string(&mut read).unwrap();
        assert_eq!(read, "secret-token");
    }

    #[test]
    fn what_is_trusted_begins_with_what_the_user_s_variables_name() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| dir.path().join(name);
        for name in ["company", "node"] {
            fs::write(file(name), format!("<{name}>")).unwrap();
        }
        let of = |pairs: &[(&str, PathBuf)]| {
            let pairs = pairs.to_vec();
            trusted(move |name| pairs.iter().find(|(of, _)| *of == name).map(|(_, path)| path.clone().into()))
        };
        let both = [("SSL_CERT_FILE", file("company")), ("NODE_EXTRA_CA_CERTS", file("node"))];
        assert_eq!(of(&both).unwrap(), (b"<company>\n<node>\n".to_vec(), vec![]));
        let twice = [("SSL_CERT_FILE", file("company")), ("CURL_CA_BUNDLE", file("company"))];
        assert_eq!(of(&twice).unwrap().0, b"<company>\n");
        // What is left over in somebody's environment is passed over; but the first of them is what all programs go by.
        std::os::unix::fs::symlink(file("gone"), file("dangling")).unwrap();
        for (variable, name) in [("NODE_EXTRA_CA_CERTS", "none"), ("PIP_CERT", "dangling")] {
            let left = [("SSL_CERT_FILE", file("company")), (variable, file(name))];
            let (all, missing) = of(&left).unwrap();
            assert_eq!((all.as_slice(), missing), (&b"<company>\n"[..], vec![(variable, file(name))]));
        }
        let missing = of(&[("SSL_CERT_FILE", file("none"))]).unwrap_err();
        assert!(missing.to_string().contains("SSL_CERT_FILE"), "{missing}");
        fs::write(file("long"), vec![b'x'; MAX_TRUSTED]).unwrap();
        assert!(chain(&of(&[("SSL_CERT_FILE", file("long"))]).unwrap_err()).contains("more than"));
    }

    #[test]
    fn the_command_has_no_variable_that_has_a_credential() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.toml");
        let text = concat!(
            "[grant]\nfs_read = { only = [] }\nfs_write = { only = [] }\nexec = { only = [] }\n",
            "net = { only = [\"a.org\"] }\nmax_calls = \"unlimited\"\nvalid_for_generation = \"all\"\n",
            "[net.credentials.\"a.org\"]\ntoken_env = \"THE_TOKEN\"\nallow = [\"GET /a\"]\n"
        );
        fs::write(&path, text).unwrap();
        let dirs = Dirs { system: dir.path().to_owned(), user: None };
        let profile = ringfence_policy::load("p", &dirs).unwrap_or_else(|error| panic!("{error}"));
        let inherited = [("THE_TOKEN", "secret-token"), ("OTHER", "x")].map(|(k, v)| (k.into(), v.into()));
        let whole = || Environment::whole(inherited.clone());
        let (environment, asked) = whole().without_credentials(&profile, &[]);
        assert!(asked.is_empty() && environment.value("THE_TOKEN").is_none());
        assert!(environment.value("OTHER").is_some(), "the control");
        let passed: Vec<Variable> = vec!["THE_TOKEN".parse().unwrap()];
        let (built, _) = Environment::build(inherited.clone(), &passed, None);
        let (environment, asked) = built.without_credentials(&profile, &passed);
        assert_eq!((asked, environment.value("THE_TOKEN")), (vec!["THE_TOKEN".to_owned()], None));
        // Some programs do not try without any.
        let set: Vec<Variable> = vec!["THE_TOKEN=placeholder".parse().unwrap()];
        let (built, _) = Environment::build(inherited, &set, None);
        let (environment, _) = built.without_credentials(&profile, &set);
        assert!(environment.value("THE_TOKEN").is_some_and(|value| value == "placeholder"));
    }

    #[test]
    fn programs_are_led_to_the_certificates_unless_the_user_named_others() {
        let named: Vec<Variable> = vec!["CURL_CA_BUNDLE=/mine".parse().unwrap()];
        let (environment, _) = Environment::build([], &named, None);
        let environment = environment.trusting(Path::new("/run/b.pem"), &named);
        assert!(environment.value("CURL_CA_BUNDLE").is_some_and(|value| value == "/mine"));
        for name in ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"] {
            assert!(environment.value(name).is_some_and(|value| value == "/run/b.pem"), "{name}");
        }
    }
}
