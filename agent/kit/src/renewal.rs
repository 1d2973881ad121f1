//! Logins that are over or refused: read again, and renewed where their kit says how. The token endpoint is asked by a
//! process of its own; here its answer is put into the login's file, as the agent itself would.

use ringfence_base::{clock::now_micros, error::chain, lock::Lock};
use ringfence_credentials::{Error, Login, Renewal, Renewed, Secret, Source};
use ringfence_files::{self as files, Access, Dir, Others};
use ringfence_policy::agents::home::Home;
use ringfence_supervise::worker;
use ringfence_wire::{
    conn::Conn,
    renewal::{MAX, Outcome, Renew},
};
use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Command, Stdio},
    thread,
    time::Duration,
};

/// How long a renewal may take: longer than the process that asks waits for the token endpoint.
const PATIENCE: Duration = Duration::from_secs(45);
/// How often it is looked whether another run's renewal is done.
const AGAIN: Duration = Duration::from_millis(200);

/// The credential at a place. A login is renewed where it is over, or is the one that was refused, and its kit says how.
///
/// # Errors
/// [`Error`].
pub(crate) fn read(source: &Source, is_refused: impl Fn(&Secret) -> bool) -> Result<Secret, Error> {
    let (login, renewal) = match source {
        Source::Login(login) => match &login.renewal {
            Some(renewal) => (login, renewal),
            None => return login.read(),
        },
        other => return other.read(),
    };
    match login.read() {
        Ok(secret) if !is_refused(&secret) => return Ok(secret),
        Ok(_) | Err(Error::Expired(_)) => {}
        Err(error) => return Err(error),
    }
    let failed = |why| Error::NotRenewed { path: login.path.clone(), why };
    let _lock = lock().map_err(failed)?;
    // Another run, or the agent, may have done it meanwhile. Asked twice, an endpoint takes the same token once.
    match login.read() {
        Ok(secret) if !is_refused(&secret) => Ok(secret),
        Ok(_) | Err(Error::Expired(_)) => renewed(login, renewal).map_err(failed),
        Err(error) => Err(error),
    }
}

/// One renewal of this user's at a time.
fn lock() -> Result<Lock, String> {
    let home = Home::from_env().ok_or("the home directory is not known; set HOME")?;
    let dir = home.state("renewal");
    Dir::make_private(&dir).map_err(|error| error.to_string())?;
    let mut tries = PATIENCE.as_millis() / AGAIN.as_millis();
    loop {
        match Lock::take(&dir.join("lock")) {
            Ok(lock) => return Ok(lock),
            Err(error) if tries == 0 => return Err(format!("another renewal is under way: {error}")),
            Err(_) => thread::sleep(AGAIN),
        }
        tries -= 1;
    }
}

fn renewed(login: &Login, renewal: &Renewal) -> Result<Secret, String> {
    // Dotfiles may be links to where they are kept.
    let place = Dir::resolve(&login.path).map_err(|error| error.to_string())?;
    if nix::unistd::geteuid().is_root()
        && !files::is_roots(&login.path, Others::AddNames).map_err(|error| error.to_string())?
    {
        return Err("it is another user's, and root renews no other user's login".to_owned());
    }
    let token = login.refresh_token().map_err(|error| chain(&error))?.ok_or("nothing renews it")?;
    let new = ask(renewal, &token)?;
    let written = login.renewed(&new).map_err(|error| chain(&error)).and_then(|text| {
        let like = place.dir.read(&place.name).and_then(Access::like);
        let replaced = like.and_then(|access| place.dir.replace(&place.name, text.as_bytes(), access));
        replaced.map_err(|error| error.to_string())
    });
    if let Err(why) = written {
        // The endpoint may take the token in the file no more: whoever reads it later is told why.
        eprintln!(
            "ringfence: the login in {} was renewed, but cannot be written there: {why}; this run goes on with it, and the agent \
             may have to log in again",
            login.path.display()
        );
    }
    Ok(new.access)
}

/// Has a process of its own ask the token endpoint.
fn ask(renewal: &Renewal, token: &Secret) -> Result<Renewed, String> {
    let question = Renew { url: renewal.url.clone(), client: renewal.client.clone(), json: renewal.json };
    let pipe = token.pipe().map_err(|error| chain(&error))?;
    let (ours, theirs) = UnixStream::pair().map_err(|error| error.to_string())?;
    let mut child = start(theirs).map_err(|error| error.to_string())?;
    let mut conn = Conn::new(ours, PATIENCE, MAX);
    let answered = conn
        .send_with_descriptors(&question, &[pipe.as_fd()])
        .and_then(|()| conn.receive_with_descriptors::<Outcome>());
    if answered.is_err() {
        let _ = child.kill();
    }
    let _ = child.wait();
    match answered
        .map_err(|error| format!("the process that asks for it does not answer: {}", chain(&error)))?
    {
        (Outcome::Renewed { expires_in }, descriptors) => {
            taken(expires_in, descriptors).map_err(|error| chain(&error))
        }
        (Outcome::Failed { why }, _) => Err(worker::printable_reason(&why)),
    }
}

fn start(link: UnixStream) -> io::Result<std::process::Child> {
    Command::new("/proc/self/exe")
        .arg0("ringfence")
        .arg("llm-renewal")
        .stdin(OwnedFd::from(link))
        .stdout(Stdio::null())
        .current_dir("/")
        .env_clear()
        .envs(worker::of_user())
        .env(worker::QUIET.0, worker::QUIET.1)
        .spawn()
}

fn taken(expires_in: Option<u64>, descriptors: Vec<OwnedFd>) -> Result<Renewed, Error> {
    let mut tokens = descriptors.into_iter().map(Secret::from_descriptor);
    let access = tokens.next().ok_or_else(|| Error::Empty("the answer".to_owned()))??;
    let now = u64::try_from(now_micros() / 1000).unwrap_or_default();
    Ok(Renewed {
        access,
        refresh: tokens.next().transpose()?,
        expires: expires_in.map(|seconds| now.saturating_add(seconds.saturating_mul(1000))),
    })
}
