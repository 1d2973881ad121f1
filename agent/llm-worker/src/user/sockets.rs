//! An agent's listening sockets, as the user's service has them: its worker is handed them, and when it ends they stay, so that
//! whoever connects meanwhile waits for the next one.

use crate::http;
use ringfence_base::{
    lock::{Lock, LockError},
    loopback, sockets as serve,
};
use ringfence_policy::agents::{
    home::{Home, LOCK},
    registry::Http,
};
use std::{
    fs, io,
    net::TcpListener,
    os::{fd::OwnedFd, unix::net::UnixListener},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// How long the worker of an earlier service may take to end.
const HANDOVER: Duration = Duration::from_secs(10);
/// How long a socket may be served by nobody knows whom: a worker that ends closes what it has in no certain order.
const CLOSING: Duration = Duration::from_millis(500);

/// See the module.
pub(super) struct Sockets {
    socket: PathBuf,
    link: PathBuf,
    is_linked: bool,
    http_socket: PathBuf,
    /// The agent's own. None: nobody is to connect any more.
    agent: Option<UnixListener>,
    /// The provider's own API, where the profile has it served.
    http: Option<UnixListener>,
    /// The same on a port of loopback.
    loopback: Option<(u16, TcpListener)>,
}

impl Sockets {
    /// Binds an agent's own socket, and makes the link to it. Blocks while the worker of an earlier service ends.
    ///
    /// # Errors
    /// [`serve::Error`].
    pub(super) fn bind(home: &Home, name: &str, owner: Option<u32>) -> Result<Self, serve::Error> {
        let (socket, lock) = (home.socket(name), home.state(name).join(LOCK));
        let agent = Some(patiently(&lock, || serve::bind(&socket))?);
        // From here on it is ours, and goes with this.
        let mut sockets = Self {
            socket,
            link: home.socket_link(name),
            is_linked: false,
            http_socket: home.http_socket(name),
            agent,
            http: None,
            loopback: None,
        };
        sockets.share(owner)?;
        serve::link(&sockets.link, &sockets.socket)?;
        sockets.is_linked = true;
        Ok(sockets)
    }

    /// Lets another user connect to the agent's socket, or nobody else.
    ///
    /// # Errors
    /// [`serve::Error`].
    pub(super) fn share(&self, owner: Option<u32>) -> Result<(), serve::Error> {
        serve::share(&self.socket, owner)
    }

    /// Binds what the API needs as the profile has it, and closes what it does not need. True: there are other sockets than
    /// before. Beside it why one of them cannot be had: where that is the port's, the unix socket is there all the same.
    pub(super) fn fit(
        &mut self,
        wanted: Option<Http>,
        owner: Option<u32>,
    ) -> (bool, Result<(), http::Error>) {
        let Some(Http { port }) = wanted else {
            let was_there = self.http.is_some();
            self.close_api();
            return (was_there, Ok(()));
        };
        let mut changed = false;
        if self.http.is_none() {
            let bound = serve::bind(&self.http_socket);
            match bound {
                Ok(bound) => (self.http, changed) = (Some(bound), true),
                Err(error) => return (false, Err(http::Error::Socket(error))),
            }
        }
        if let Err(error) = serve::share(&self.http_socket, owner) {
            return (changed, Err(http::Error::Socket(error)));
        }
        if self.loopback.as_ref().map(|(port, _)| *port) == port {
            return (changed, Ok(()));
        }
        changed |= self.loopback.take().is_some();
        match port.map(|port| loopback::listen(port).map(|bound| (port, bound)).map_err(|e| (port, e))) {
            None => (changed, Ok(())),
            Some(Ok(bound)) => {
                self.loopback = Some(bound);
                (true, Ok(()))
            }
            Some(Err((port, error))) => (changed, Err(http::Error::Port(port, error))),
        }
    }

    /// Whether the API's are what a profile wants.
    pub(super) fn are(&self, wanted: Option<Http>) -> bool {
        let port = self.loopback.as_ref().map(|(port, _)| *port);
        self.http.as_ref().map(|_| Http { port }) == wanted
    }

    /// All of them, for a new worker, in the order in which it is handed them.
    ///
    /// # Errors
    /// No descriptors are left.
    pub(super) fn all(&self) -> io::Result<Vec<OwnedFd>> {
        let agent = self.agent.iter().map(|agent| agent.try_clone().map(OwnedFd::from));
        agent.chain(self.api()?.into_iter().map(Ok)).collect()
    }

    /// The API's, likewise.
    ///
    /// # Errors
    /// As [`Self::all`].
    pub(super) fn api(&self) -> io::Result<Vec<OwnedFd>> {
        let http = self.http.iter().map(|http| http.try_clone().map(OwnedFd::from));
        let loopback = self.loopback.iter().map(|(_, tcp)| tcp.try_clone().map(OwnedFd::from));
        http.chain(loopback).collect()
    }

    /// Which of the API's there are.
    pub(super) fn has_api(&self) -> (bool, bool) {
        (self.http.is_some(), self.loopback.is_some())
    }

    /// Nobody is to connect any more: the worker ends, and closes its own copies. The agent's file stays until it has.
    pub(super) fn close(&mut self) {
        self.close_api();
        self.agent = None;
    }

    fn close_api(&mut self) {
        if self.http.take().is_some() {
            let _ = fs::remove_file(&self.http_socket);
        }
        self.loopback = None;
    }
}

/// Tries to bind for as long as a worker of an earlier service, which was killed, may still have the socket: it holds the lock.
fn patiently<T>(lock: &Path, bind: impl Fn() -> Result<T, serve::Error>) -> Result<T, serve::Error> {
    let last = Instant::now() + HANDOVER;
    let mut until = Instant::now() + CLOSING;
    loop {
        match bind() {
            Err(serve::Error::Taken(_)) if Instant::now() < until.min(last) => {
                if matches!(Lock::take(lock), Err(LockError::Held { .. })) {
                    until = Instant::now() + CLOSING;
                }
                thread::sleep(Duration::from_millis(20));
            }
            bound => return bound,
        }
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        self.close();
        // A link that is somebody else's is not ours to remove.
        let link = if self.is_linked { &self.link } else { &self.socket };
        serve::unbind(link, &self.socket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn home(dir: &tempfile::TempDir) -> Home {
        let home = Home::choose(dir.path(), dir.path());
        serve::private_dir(&home.sockets()).unwrap();
        serve::private_dir(&home.state("a")).unwrap();
        home
    }

    #[test]
    fn the_api_s_sockets_follow_the_profile_and_all_go_in_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let home = home(&dir);
        let mut sockets = Sockets::bind(&home, "a", None).unwrap();
        let http = |port| Some(Http { port });
        assert!(sockets.are(None) && sockets.all().unwrap().len() == 1);
        assert!(matches!(sockets.fit(http(None), None), (true, Ok(()))));
        assert!(matches!(sockets.fit(http(None), None), (false, Ok(()))), "nothing changed");
        UnixStream::connect(home.http_socket("a")).unwrap();
        // A port that somebody has: the rest is there, and the port once it is free.
        let taken = loopback::listen(0).unwrap();
        let port = taken.local_addr().unwrap().port();
        assert!(matches!(sockets.fit(http(Some(port)), None), (false, Err(http::Error::Port(..)))));
        assert!(!sockets.are(http(Some(port))) && sockets.has_api() == (true, false));
        drop(taken);
        assert!(matches!(sockets.fit(http(Some(port)), None), (true, Ok(()))));
        assert!(sockets.are(http(Some(port))) && sockets.all().unwrap().len() == 3);
        assert!(matches!(sockets.fit(None, None), (true, Ok(()))));
        assert!(!home.http_socket("a").exists() && loopback::listen(port).is_ok());
        drop(sockets);
        assert!(!home.socket("a").parent().unwrap().exists() && !home.socket_link("a").exists());
    }

    #[test]
    fn the_socket_of_a_worker_that_ends_is_waited_for_and_another_s_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let home = home(&dir);
        let foreign = serve::bind(&home.socket("a")).unwrap();
        let begun = Instant::now();
        assert!(matches!(Sockets::bind(&home, "a", None), Err(serve::Error::Taken(_))));
        assert!(begun.elapsed() < HANDOVER / 2, "{:?}", begun.elapsed());
        let lock = Lock::take(&home.state("a").join(LOCK)).unwrap();
        let ends = thread::spawn(move || {
            thread::sleep(3 * CLOSING);
            drop((foreign, lock));
        });
        drop(Sockets::bind(&home, "a", None).unwrap());
        ends.join().unwrap();
    }
}
