//! Asks a token endpoint, by a process of its own: what an endpoint says is not parsed here.

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use ringfence_base::{
    clock::{now_micros, since_boot},
    error::chain,
};
use ringfence_credentials::{Renewal, Renewed, Secret};
use ringfence_supervise::worker;
use ringfence_wire::{
    conn::Conn,
    frame::FrameError,
    mcp_login::ClientAuth,
    renewal::{MAX, Outcome as Answered, Renew},
};
use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{fs::FileTypeExt as _, net::UnixStream, process::CommandExt},
    },
    process::{Command, Stdio},
    time::Duration,
};

/// How long a message from or to that process may take: longer than it waits for the endpoint.
const PATIENCE: Duration = Duration::from_secs(145);
/// For how long the refresh token may be sent, in nanoseconds since it was looked whether it still is to be.
const DUE: u64 = 30 * 1_000_000_000;
/// How many seconds a credential is good for whose endpoint does not say: until then nobody takes it for one that is over.
pub(crate) const LIFE: u64 = 600;
/// A life of fewer seconds is none that an endpoint means: each call would ask it again.
pub(crate) const MIN_LIFE: u64 = 60;

/// Why there is no answer.
#[derive(Debug)]
pub(crate) struct Unanswered {
    /// In words.
    pub(crate) why: String,
    /// The refresh token may have been sent.
    pub(crate) was_sent: bool,
    /// It was not spent all the same.
    pub(crate) later: bool,
    /// The endpoint refused it: nothing was lost.
    pub(crate) is_refused: bool,
}

impl From<String> for Unanswered {
    /// Before anything was sent.
    fn from(why: String) -> Self {
        Self { why, was_sent: false, later: false, is_refused: false }
    }
}

/// Has a process of its own ask the token endpoint, unless `is_due` refuses it right before.
pub(crate) fn ask(
    renewal: &Renewal,
    token: &Secret,
    is_due: impl FnOnce() -> Result<(), String>,
) -> Result<Renewed, Unanswered> {
    let pipe = token.pipe().map_err(|error| chain(&error))?;
    let (ours, theirs) = UnixStream::pair().map_err(|error| error.to_string())?;
    let mut child = start(theirs).map_err(|error| error.to_string())?;
    let mut conn = Conn::new(ours, PATIENCE, MAX);
    let until = since_boot().saturating_add(DUE);
    let url = renewal.url.clone();
    let secret = renewal.secret.as_ref().map(|(secret, _)| secret.pipe()).transpose();
    let secret = secret.map_err(|error| chain(&error))?;
    let auth = match &renewal.secret {
        None => ClientAuth::None,
        Some((_, true)) => ClientAuth::Basic,
        Some((_, false)) => ClientAuth::Post,
    };
    let resource = renewal.resource.clone();
    let question = Renew { url, client: renewal.client.clone(), json: renewal.json, resource, auth, until };
    let answer = is_due().map_err(Unanswered::from).and_then(|()| {
        let beside: Vec<_> = [&pipe].into_iter().chain(&secret).map(AsFd::as_fd).collect();
        conn.send_with_descriptors(&question, &beside).map_err(|error| silent(&error))?;
        drop((pipe, secret));
        answer(&mut conn)
    });
    // It has read what an endpoint says: nobody waits for it to end by itself.
    let _ = child.kill();
    let _ = child.wait();
    answer
}

/// What the process says, which says first that it is about to send the token.
fn answer(conn: &mut Conn) -> Result<Renewed, Unanswered> {
    let mut was_sent = false;
    loop {
        let lost = |why| Unanswered { why, was_sent, later: false, is_refused: false };
        let (answered, descriptors) =
            conn.receive_with_descriptors::<Answered>().map_err(|error| lost(silent(&error)))?;
        match answered {
            Answered::Sending if !was_sent => was_sent = true,
            Answered::Renewed { expires_in } if was_sent => {
                return taken(expires_in, descriptors).map_err(lost);
            }
            Answered::Failed { why, was_sent: is_sent, later, is_refused } => {
                let why = worker::printable_reason(&why);
                return Err(Unanswered { why, was_sent: was_sent && is_sent, later, is_refused });
            }
            _ => return Err(lost("the process that asks for it says what it may not".to_owned())),
        }
    }
}

fn silent(error: &FrameError) -> String {
    format!("the process that asks for it does not answer: {}", chain(error))
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

fn taken(expires_in: Option<u64>, descriptors: Vec<OwnedFd>) -> Result<Renewed, String> {
    let mut descriptors = descriptors.into_iter();
    let access = descriptors.next().ok_or("the process that asks for it hands nothing over")?;
    let now = u64::try_from(now_micros() / 1000).unwrap_or_default();
    let life = expires_in.filter(|seconds| *seconds >= MIN_LIFE).unwrap_or(LIFE);
    Ok(Renewed {
        access: handed_over(access)?,
        refresh: descriptors.next().and_then(|descriptor| handed_over(descriptor).ok()),
        expires: now.saturating_add(life.saturating_mul(1000)),
    })
}

/// A token in a pipe. The process that hands it over has read what an endpoint says, and may hand over anything.
pub(crate) fn handed_over(descriptor: OwnedFd) -> Result<Secret, String> {
    let pipe = File::from(descriptor);
    if !pipe.metadata().is_ok_and(|meta| meta.file_type().is_fifo()) {
        return Err("the process that asks for it hands over what is no pipe".to_owned());
    }
    fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(|error| error.to_string())?;
    Secret::from_descriptor(pipe.into()).map_err(|error| chain(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn only_a_pipe_that_is_written_to_its_end_hands_a_token_over() {
        let token = Secret::from("sk-fresh".to_owned());
        let none = || {
            let (read, mut write) = io::pipe().unwrap();
            write.write_all(b"sk-fresh").unwrap();
            (OwnedFd::from(read), write)
        };
        let new = taken(Some(60), vec![token.pipe().unwrap(), token.pipe().unwrap()]).unwrap();
        assert_eq!((&new.access, new.refresh), (&token, Some(token.clone())));
        let (open, _writer) = none();
        assert!(handed_over(open).is_err(), "it was waited for");
        let (socket, mut other) = UnixStream::pair().unwrap();
        other.write_all(b"sk-fresh").unwrap();
        drop(other);
        assert!(handed_over(socket.into()).unwrap_err().contains("no pipe"));
        // A refresh token that cannot be had costs no access token.
        let (open, _writer) = none();
        assert_eq!(taken(None, vec![token.pipe().unwrap(), open]).unwrap().refresh, None);
        assert!(taken(None, vec![]).is_err());
    }

    #[test]
    fn a_life_that_is_too_short_is_none_that_was_said() {
        let token = Secret::from("sk-fresh".to_owned());
        let now = u64::try_from(now_micros() / 1000).unwrap();
        let life = |said| taken(said, vec![token.pipe().unwrap()]).unwrap().expires - now;
        // Of seconds, and the milliseconds that the test takes are of the same kind.
        assert!(life(Some(0)) >= 600_000 && life(Some(59)) >= 600_000 && life(None) >= 600_000);
        assert!((60_000..600_000).contains(&life(Some(60))), "the control");
    }

    #[test]
    fn nothing_was_sent_until_the_process_says_so() {
        let told = |outcomes: &[Answered]| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let mut child = Conn::new(theirs, PATIENCE, MAX);
            for outcome in outcomes {
                child.send(outcome).unwrap();
            }
            drop(child);
            answer(&mut Conn::new(ours, PATIENCE, MAX)).map(|_| ()).map_err(|error| error.was_sent)
        };
        let failed =
            |was_sent| Answered::Failed { why: "x".into(), was_sent, later: false, is_refused: false };
        assert_eq!(told(&[]), Err(false));
        assert_eq!(told(&[failed(true)]), Err(false));
        assert_eq!(told(&[Answered::Renewed { expires_in: None }]), Err(false));
        for (after, was_sent) in [
            (vec![], true),
            (vec![failed(false)], false),
            (vec![failed(true)], true),
            (vec![Answered::Sending], true),
            (vec![Answered::Renewed { expires_in: None }], true),
        ] {
            let mut said = vec![Answered::Sending];
            said.extend(after);
            assert_eq!(told(&said), Err(was_sent), "{said:?}");
        }
    }
}
