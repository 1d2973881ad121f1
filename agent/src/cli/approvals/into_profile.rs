//! `ringfence approvals approve --into-profile`: the host of a connection that waits is granted in its container's profile. Done by
//! whoever runs the command, who has to be able to write that file.

use super::{DecideArgs, decided, profile_text};
use crate::cli::output;
use anyhow::{Context, bail};
use ringfence_base::{client as core, error::chain, escape::line as printable, paths::Paths};
use ringfence_client::{places::Places, sessions as client};
use ringfence_files::{Access, Dir, ResolvedPath};
use ringfence_grant::{HostPattern, NetEntry};
use ringfence_policy::{self as profile, Dirs};
use ringfence_wire::{
    egress_asks::WaitingConnection,
    mcp::{McpReply, McpRequest, WaitingCall},
    message::{AdminRequest, Reloaded},
    status::Status,
};
use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    io::{self, IsTerminal as _, Read as _, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Fewest characters of an id's beginning that name it, as for any decision.
const LEAST_NAMED: usize = 4;
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
    let is_new = add(&file, &entry).with_context(|| {
        format!("{} is left as it was, and the connection waits on", printable(&file.display().to_string()))
    })?;
    let mut out = io::stdout().lock();
    let what = if is_new { "added to" } else { "in" };
    writeln!(out, "{entry:?} is {what} grant.net of {}", printable(&file.display().to_string()))?;
    // Before the daemon hears of it: then it would be gone.
    match decided(&places, &call.id, true) {
        Ok(_) => writeln!(out, "approved {}", call.id)?,
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

/// What waits by that id, or by its beginning.
fn waiting(places: &Places, named: &str) -> anyhow::Result<WaitingCall> {
    let McpReply::Waiting { calls } = client::ask(places, &McpRequest::Waiting)? else {
        bail!("the auditor sent an unexpected answer");
    };
    let is_it =
        |call: &WaitingCall| call.id == named || named.len() >= LEAST_NAMED && call.id.starts_with(named);
    let mut found = calls.into_iter().filter(is_it);
    match (found.next(), found.next()) {
        (Some(call), None) => Ok(call),
        (Some(_), Some(_)) => bail!("{named:?} is the beginning of more than one id; give more of it"),
        (None, _) => bail!(
            "nothing with the id {named:?} waits; `ringfence approvals` lists what does (give at least four characters of an id)"
        ),
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

/// Adds an entry to a profile's file, which is replaced whole if it is a profile then; whether it was not there before.
fn add(file: &Path, entry: &str) -> anyhow::Result<bool> {
    let ResolvedPath { dir, name, .. } = Dir::resolve(file).context("it cannot be opened")?;
    let (text, access) = read(&dir, &name)?;
    let Some(changed) = profile_text::with_host(&text, entry)? else { return Ok(false) };
    let valid = usable();
    // No profile for its name alone: nobody uses it meanwhile.
    let mut beside = OsString::from(format!(".{}.", std::process::id()));
    beside.push(&name);
    dir.replace(&beside, changed.as_bytes(), access).context("nothing can be written beside it")?;
    let put = check(&dir.path().join(&beside)).and_then(|()| {
        if read(&dir, &name)?.0 != text {
            bail!("somebody changed it at the same moment: try again");
        }
        dir.rename(&beside, &name).context("it cannot be replaced")?;
        // What extends it has its entries, too, and may have as many as there may be.
        let broken: Vec<String> = valid.difference(&usable()).cloned().collect();
        if broken.is_empty() {
            return Ok(());
        }
        dir.replace(&name, text.as_bytes(), access).context("it cannot be put back as it was")?;
        bail!("with that entry these profiles, which extend it, would not be valid: {}", broken.join(", "))
    });
    if put.is_err() {
        let _ = dir.remove(&beside);
    }
    put.map(|()| true)
}

fn read(dir: &Dir, name: &OsStr) -> anyhow::Result<(String, Access)> {
    let opened = dir.read(name).context("it cannot be read")?;
    let access = Access::like(&opened).context("it cannot be read")?;
    let mut text = String::new();
    opened.take(LONGEST).read_to_string(&mut text).context("it cannot be read")?;
    Ok((text, access))
}

/// The host's profiles that are valid.
fn usable() -> BTreeSet<String> {
    let dirs = Dirs::system();
    dirs.names().into_iter().filter(|name| profile::load(name, &dirs).is_ok()).collect()
}

/// Whether a file is a profile.
fn check(file: &Path) -> anyhow::Result<()> {
    let file = file.to_str().context("its path is not UTF-8")?;
    match profile::load(file, &Dirs::system()) {
        Ok(_) => Ok(()),
        Err(errors) => bail!("with that entry it would be no valid profile: {errors}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{add, is_outermost};
    use ringfence_wire::egress_asks::WaitingConnection;
    use std::{fs, os::unix::fs::PermissionsExt as _};

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
        assert!(add(&link, "b.org:443").unwrap_or_else(|error| panic!("{error:#}")));
        let text = fs::read_to_string(&file).expect("read");
        assert_eq!(text, profile.replace("# a\n", "# a\n  \"b.org:443\",\n"));
        assert_eq!(fs::metadata(&file).expect("there").permissions().mode() & 0o777, 0o640);
        assert!(!add(&file, "b.org:443").expect("read"), "it is there");
        assert!(fs::symlink_metadata(&link).expect("there").is_symlink());

        // A hundred and twenty-seven hosts are the most.
        let hosts: Vec<String> = (0..127).map(|at| format!("\"h{at}.org:443\"")).collect();
        let full = format!("[grant]\nnet = {{ only = [{}] }}\n{REST}", hosts.join(", "));
        fs::write(&file, &full).expect("written");
        let refused = add(&file, "one-more.org:443").expect_err("too many").to_string();
        assert!(refused.contains("no valid profile") && refused.contains("127"), "{refused}");
        assert_eq!(fs::read_to_string(&file).expect("read"), full);
        assert_eq!(names(), ["l.toml", "p.toml"], "nothing is left");
    }
}
