//! Asks a token endpoint, by a process of its own: what an endpoint says is not parsed here.

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use ringfence_base::{clock::now_micros, error::chain};
use ringfence_credentials::{Renewal, Renewed, Secret};
use ringfence_supervise::worker;
use ringfence_wire::{
    conn::Conn,
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
const PATIENCE: Duration = Duration::from_secs(45);
/// How many seconds a credential is good for whose endpoint does not say: until then nobody takes it for one that is over.
const LIFE: u64 = 600;

/// Why there is no answer.
pub(crate) struct Unanswered {
    /// In words.
    pub(crate) why: String,
    /// The refresh token may have been sent.
    pub(crate) was_sent: bool,
}

impl From<String> for Unanswered {
    fn from(why: String) -> Self {
        Self { why, was_sent: true }
    }
}

/// Has a process of its own ask the token endpoint.
pub(crate) fn ask(renewal: &Renewal, token: &Secret) -> Result<Renewed, Unanswered> {
    let question = Renew { url: renewal.url.clone(), client: renewal.client.clone(), json: renewal.json };
    let pipe = token.pipe().map_err(|error| chain(&error))?;
    let (ours, theirs) = UnixStream::pair().map_err(|error| error.to_string())?;
    let mut child = start(theirs).map_err(|error| error.to_string())?;
    let mut conn = Conn::new(ours, PATIENCE, MAX);
    let answered = conn
        .send_with_descriptors(&question, &[pipe.as_fd()])
        .and_then(|()| conn.receive_with_descriptors::<Answered>());
    // It has read what an endpoint says: nobody waits for it to end by itself.
    let _ = child.kill();
    let _ = child.wait();
    match answered
        .map_err(|error| format!("the process that asks for it does not answer: {}", chain(&error)))?
    {
        (Answered::Renewed { expires_in }, descriptors) => Ok(taken(expires_in, descriptors)?),
        (Answered::Failed { why, was_sent }, _) => {
            Err(Unanswered { why: worker::printable_reason(&why), was_sent })
        }
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

fn taken(expires_in: Option<u64>, descriptors: Vec<OwnedFd>) -> Result<Renewed, String> {
    let mut descriptors = descriptors.into_iter();
    let access = descriptors.next().ok_or("the process that asks for it hands nothing over")?;
    let now = u64::try_from(now_micros() / 1000).unwrap_or_default();
    Ok(Renewed {
        access: handed_over(access)?,
        refresh: descriptors.next().and_then(|descriptor| handed_over(descriptor).ok()),
        expires: now.saturating_add(expires_in.unwrap_or(LIFE).saturating_mul(1000)),
    })
}

/// A token in a pipe. The process that hands it over has read what an endpoint says, and may hand over anything.
fn handed_over(descriptor: OwnedFd) -> Result<Secret, String> {
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
}
