//! `ringfence approvals approve --into-profile`: the host of a connection that waits is granted in its container's profile. Done by
//! whoever runs the command, who has to be able to write that file.

use super::{DecideArgs, decided, profile_text, trial, waiting};
use crate::cli::output;
use anyhow::{Context, bail};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use ringfence_base::{client as core, error::chain, escape::line as printable, paths::Paths};
use ringfence_client::places::Places;
use ringfence_files::{Access, Dir, ResolvedPath};
use ringfence_grant::{HostPattern, NetEntry};
use ringfence_policy::{self as profile, Dirs};
use ringfence_wire::{
    egress_asks::WaitingConnection,
    message::{AdminRequest, Reloaded},
    status::Status,
};
use std::{
    ffi::{OsStr, OsString},
    io::{self, IsTerminal as _, Read as _, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Most bytes of a profile.
const LONGEST: u64 = 4 << 20;

pub(super) fn approve(args: &DecideArgs) -> anyhow::Result<ExitCode> {
    let places = Places::on_record(args.db.as_deref())?;
    let call = waiting(&places, &args.call)?;
    let connection = call.connection.with_context(|| {
        format!("{} is a call of a tool, and no profile grants those: approve it with a scope", call.id)
    })?;
    let entry = entry(&connection)?;
    let status = core::admin::<Status>(&Paths::from_env().admin_socket(), &AdminRequest::Status, &[]).ok();
    is_outermost(&connection, status.as_ref())?;
    let file = file_of(&connection, status)?;
    let shown = printable(&file.display().to_string());
    eprintln!("ringfence: {shown}: {entry:?} goes into grant.net, for everybody who runs that profile");
    if io::stdin().is_terminal() && !output::agreed("Add it?")? {
        bail!("{shown} is left as it was, and the connection waits on");
    }
    let is_new = add(&file, &entry, &Dirs::system()).with_context(|| {
        format!("{} is left as it was, and the connection waits on", printable(&file.display().to_string()))
    })?;
    let mut out = io::stdout().lock();
    let what = if is_new { "added to" } else { "in" };
    writeln!(out, "{entry:?} is {what} grant.net of {}", printable(&file.display().to_string()))?;
    // Before the daemon hears of it: then it would be gone.
    match decided(&places, &call.id, true) {
        Ok(_) => {
            let WaitingConnection { host, port, container, .. } = &connection;
            let whereto = format!("{host} at port {port}, for container {container}");
            writeln!(out, "approved {}: {}", call.id, printable(&whereto))?;
        }
        Err(error) => eprintln!("ringfence: the connection was not approved any more: {}", chain(&*error)),
    }
    match core::admin::<Reloaded>(&Paths::from_env().admin_socket(), &AdminRequest::Reload, &[]) {
        Ok(Reloaded { errors, .. }) if errors.is_empty() => Ok(ExitCode::SUCCESS),
        Ok(Reloaded { errors, .. }) => {
            errors.iter().for_each(|error| eprintln!("ringfence: {}", printable(error)));
            bail!(
                "the daemon read its profiles again, and some cannot be used; `ringfence status` says which"
            )
        }
        Err(error) => {
            eprintln!(
                "ringfence: the daemon could not be told, and reads its profiles by itself: {}",
                chain(&error)
            );
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The line of the profile that grants it.
fn entry(connection: &WaitingConnection) -> anyhow::Result<String> {
    let entry = format!("{}:{}", connection.host, connection.port);
    match entry.parse() {
        Ok(NetEntry::Host { host: HostPattern::Exact(_), port: Some(_), tcp: false }) => Ok(entry),
        _ => bail!("no profile can grant {:?}", connection.host),
    }
}

/// Whether its profile alone says what it reaches. Around it another's has to grant the host as well; and whoever runs within a
/// container chose the profile that would be edited.
fn is_outermost(connection: &WaitingConnection, status: Option<&Status>) -> anyhow::Result<()> {
    let Some(within) = &connection.within else { return Ok(()) };
    let containers = status.into_iter().flat_map(|status| &status.containers);
    let outermost = containers.clone().find(|one| one.id == *within);
    let outermost =
        outermost.map_or_else(String::new, |one| format!(" (profile {})", printable(&one.profile)));
    bail!(
        "container {} (profile {}) was started within container {}{outermost}, whose profile has to grant the host as well: no profile was changed, and the connection waits on. Edit that profile, or approve the connection with --scope container",
        printable(&connection.container),
        printable(&connection.profile),
        printable(within)
    )
}

/// The file of the container's profile: by the daemon's word, else where the daemon looks.
fn file_of(connection: &WaitingConnection, status: Option<Status>) -> anyhow::Result<PathBuf> {
    let WaitingConnection { container, profile, .. } = connection;
    let known = status.and_then(|status| {
        status.containers.into_iter().find(|one| one.id == *container).map(|one| PathBuf::from(one.file))
    });
    let file = match known {
        Some(file) => file,
        None => Dirs::system().find(profile).map_err(|error| anyhow::anyhow!("{error}"))?,
    };
    if !file.is_file() {
        bail!(
            "the profile {} has no file of its own ({}): make one that has `extends = {profile:?}`, and run under that",
            printable(profile),
            printable(&file.display().to_string())
        );
    }
    Ok(file)
}

/// Adds an entry to a profile's file, which is replaced whole once it is known that it may be; whether it was not there before.
/// The daemon reads the file as soon as it is another.
fn add(file: &Path, entry: &str, dirs: &Dirs) -> anyhow::Result<bool> {
    let ResolvedPath { dir, name, .. } = Dir::resolve(file).context("it cannot be opened")?;
    let (text, access) = read(&dir, &name)?;
    let Some(changed) = profile_text::with_host(&text, entry)? else { return Ok(false) };
    // Whoever interrupts this has nothing left beside the profile.
    let held = Held::signals();
    let put = replace(&dir, &name, (&text, &changed, access), dirs);
    drop(held);
    put.map(|()| true)
}

fn replace(
    dir: &Dir,
    name: &OsStr,
    (text, changed, access): (&str, &str, Access),
    dirs: &Dirs,
) -> anyhow::Result<()> {
    // No profile for its name alone: nobody uses it meanwhile.
    let mut beside = OsString::from(format!(".{}.", std::process::id()));
    beside.push(name);
    dir.replace(&beside, changed.as_bytes(), access).context("nothing can be written beside it")?;
    let put = check(&dir.path().join(&beside), dirs)
        .and_then(|()| trial::dependants(dir, (name, &beside), dirs))
        .and_then(|()| swap(dir, (name, &beside), text));
    let _ = dir.remove(&beside);
    put
}

/// Puts what is beside in its place, if that is as it was: what somebody else wrote at the same moment is not lost.
fn swap(dir: &Dir, (name, beside): (&OsStr, &OsStr), text: &str) -> anyhow::Result<()> {
    const CHANGED: &str = "somebody changed it at the same moment: try again";
    if read(dir, name)?.0 != text {
        bail!(CHANGED);
    }
    // What was there is beside it then, whoever put it there since.
    match dir.exchange(beside, name) {
        // Not every file system can.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            return dir.rename(beside, name).context("it cannot be replaced");
        }
        exchanged => exchanged.context("it cannot be replaced")?,
    }
    if read(dir, beside).is_ok_and(|(before, _)| before == text) {
        return Ok(());
    }
    match dir.exchange(beside, name) {
        // And removed it since: it is theirs that comes back, unless there is another by now.
        Err(error) if error.kind() == io::ErrorKind::NotFound => dir.rename_new(beside, name),
        exchanged => exchanged,
    }
    .context("it cannot be put back as it was")?;
    bail!(CHANGED);
}

fn read(dir: &Dir, name: &OsStr) -> anyhow::Result<(String, Access)> {
    let opened = dir.read(name).context("it cannot be read")?;
    let access = Access::like(&opened).context("it cannot be read")?;
    let mut text = String::new();
    opened.take(LONGEST + 1).read_to_string(&mut text).context("it cannot be read")?;
    if text.len() as u64 > LONGEST {
        bail!("it has more than {LONGEST} bytes, which no profile has");
    }
    Ok((text, access))
}

/// Signals that would end this process wait, until this is dropped.
struct Held(SigSet);

impl Held {
    fn signals() -> Option<Self> {
        let ends = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];
        SigSet::from_iter(ends).thread_swap_mask(SigmaskHow::SIG_BLOCK).ok().map(Self)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.thread_set_mask();
    }
}

/// Whether a file is a profile.
fn check(file: &Path, dirs: &Dirs) -> anyhow::Result<()> {
    let file = file.to_str().context("its path is not UTF-8")?;
    match profile::load(file, dirs) {
        Ok(_) => Ok(()),
        Err(errors) => bail!("with that entry it would be no valid profile: {errors}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{LONGEST, add, is_outermost, read, swap};
    use ringfence_files::Dir;
    use ringfence_policy::Dirs;
    use ringfence_wire::egress_asks::WaitingConnection;
    use std::{
        ffi::OsStr,
        fs,
        os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    };

    const REST: &str = "fs_read = { only = [] }\nfs_write = { only = [] }\nexec = { only = [] }\nmax_calls = \"unlimited\"\nvalid_for_generation = \"all\"\n";

    #[test]
    fn no_profile_is_changed_for_what_runs_within_another_container() {
        let alone = WaitingConnection {
            host: "a.org".into(),
            port: 443,
            container: "0123456789ab".into(),
            profile: "deploy".into(),
            within: None,
        };
        assert!(is_outermost(&alone, None).is_ok());
        let within = WaitingConnection { within: Some("00000000000a".into()), ..alone };
        let why = is_outermost(&within, None).expect_err("an agent chose that profile").to_string();
        assert!(why.contains("within container 00000000000a") && why.contains("--scope container"), "{why}");
    }

    #[test]
    fn the_file_is_replaced_whole_and_only_by_a_profile() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, link) = (folder.path().join("p.toml"), folder.path().join("l.toml"));
        let dirs = Dirs { system: folder.path().join("profiles"), user: None };
        let profile = format!("# ours\n[grant]\nnet = {{ only = [\n  \"a.org:443\", # a\n] }}\n{REST}");
        fs::write(&file, &profile).expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("set");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        let names = || {
            let mut names: Vec<_> =
                folder.path().read_dir().expect("read").map(|one| one.expect("one").file_name()).collect();
            names.sort();
            names
        };
        assert!(add(&link, "b.org:443", &dirs).unwrap_or_else(|error| panic!("{error:#}")));
        let text = fs::read_to_string(&file).expect("read");
        assert_eq!(text, profile.replace("# a\n", "# a\n  \"b.org:443\",\n"));
        assert_eq!(fs::metadata(&file).expect("there").permissions().mode() & 0o777, 0o640);
        assert!(!add(&file, "b.org:443", &dirs).expect("read"), "it is there");
        assert!(fs::symlink_metadata(&link).expect("there").is_symlink());

        // A hundred and twenty-seven hosts are the most.
        let hosts: Vec<String> = (0..127).map(|at| format!("\"h{at}.org:443\"")).collect();
        let full = format!("[grant]\nnet = {{ only = [{}] }}\n{REST}", hosts.join(", "));
        fs::write(&file, &full).expect("written");
        let refused = add(&file, "one-more.org:443", &dirs).expect_err("too many").to_string();
        assert!(refused.contains("no valid profile") && refused.contains("127"), "{refused}");
        assert_eq!(fs::read_to_string(&file).expect("read"), full);
        assert_eq!(names(), ["l.toml", "p.toml"], "nothing is left");
    }

    #[test]
    fn what_no_profile_may_have_is_in_force_at_no_moment() {
        let folder = tempfile::tempdir().expect("a folder");
        let dirs = Dirs { system: folder.path().to_owned(), user: None };
        let path = |name: &str| folder.path().join(name);
        let write = |name: &str, text: &str| fs::write(path(name), text).expect("written");
        let file = path("p.toml");
        let profile = format!("[grant]\nnet = {{ only = [\"a.org:443\"] }}\n{REST}");
        write("p.toml", &profile);
        let hosts: Vec<String> = (0..126).map(|at| format!("\"h{at}.org:443\"")).collect();
        let wide = |extends: &str| {
            format!("extends = {extends:?}\n[grant]\nnet = {{ add = [{}] }}\n", hosts.join(", "))
        };
        write("broken.toml", "extends = \"nothing-of-that-name\"\n");
        // Whoever watches the file reads it when it is another one.
        let before = fs::metadata(&file).expect("there").ino();
        let by_path = file.to_str().expect("text").to_owned();
        for extends in ["p", &by_path] {
            write("wide.toml", &wide(extends));
            write("wider.toml", "extends = \"wide\"\n");
            let refused = add(&file, "b.org:443", &dirs).expect_err("too many").to_string();
            assert!(refused.contains("would not be valid: wide, wider"), "{refused}");
            assert_eq!(fs::metadata(&file).expect("there").ino(), before, "{extends}: nothing replaced it");
        }
        // By a path that another path leads to, nobody can tell.
        write("wide.toml", &format!("extends = {by_path:?}\n"));
        write("wider.toml", &wide(path("wide.toml").to_str().expect("text")));
        let refused = add(&file, "b.org:443", &dirs).expect_err("too many").to_string();
        assert!(refused.contains("through others") && refused.contains(": wider;"), "{refused}");
        assert_eq!(fs::metadata(&file).expect("there").ino(), before);

        fs::remove_file(path("wide.toml")).expect("removed");
        fs::remove_file(path("wider.toml")).expect("removed");
        write("narrow.toml", "extends = \"p\"\n");
        // One that has nothing to do with it, but a set of this host's own.
        fs::create_dir(path("sets")).expect("made");
        write("sets/ours.toml", "description = \"ours\"\n[hosts]\n\"c.org:443\" = \"ours\"\n");
        write("other.toml", &format!("[grant]\nnet = {{ only = [\"set:ours\"] }}\n{REST}"));
        assert!(ringfence_policy::load("other", &dirs).is_ok(), "the control");
        assert!(add(&file, "b.org:443", &dirs).unwrap_or_else(|error| panic!("the control: {error:#}")));
        assert!(fs::read_to_string(&file).expect("read").contains("b.org"));
        let mut names: Vec<_> =
            folder.path().read_dir().expect("read").map(|one| one.expect("one").file_name()).collect();
        names.sort();
        assert_eq!(names, ["broken.toml", "narrow.toml", "other.toml", "p.toml", "sets"], "nothing is left");
    }

    #[test]
    fn what_somebody_else_wrote_at_the_same_moment_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
        let dir = Dir::open(folder.path()).expect("opened");
        let (name, beside) = (OsStr::new("p.toml"), OsStr::new(".1.p.toml"));
        write("p.toml", "theirs");
        write(".1.p.toml", "ours");
        let refused = swap(&dir, (name, beside), "as it was").expect_err("another").to_string();
        assert!(refused.contains("at the same moment"), "{refused}");
        assert_eq!(read(&dir, name).expect("read").0, "theirs");
        swap(&dir, (name, beside), "theirs").expect("the control");
        assert_eq!(read(&dir, name).expect("read").0, "ours");
        write("p.toml", &"#".repeat(usize::try_from(LONGEST).expect("small") + 1));
        let refused = read(&dir, name).expect_err("too long").to_string();
        assert!(refused.contains("more than 4194304 bytes"), "{refused}");
    }
}
