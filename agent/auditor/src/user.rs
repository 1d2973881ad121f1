//! The auditor of one user and one database, where no daemon serves: started by the first interceptor, ends when idle.

use super::{
    accept,
    error::Error,
    mcp::{
        sessions::{Serving, Sessions},
        upkeep::Upkeep,
    },
    web,
};
use nix::fcntl::{Flock, FlockArg};
use ringfence_base::{closing, loopback};
use ringfence_client::places::Places;
use ringfence_files::Dir;
use ringfence_store::{self as store, Retention};
use std::{
    fs::File,
    io,
    path::Path,
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

/// How long nobody must need the auditor before it ends.
const IDLE: Duration = Duration::from_secs(30);

/// Serves a database until it is idle. Does nothing where another auditor serves it already.
///
/// # Errors
/// [`Error`].
pub fn run(places: &Places, port: u16, retention: Retention) -> Result<(), Error> {
    let db = places.db.as_path();
    let state = |source| Error::State { path: db.to_owned(), uid: nix::unistd::geteuid().as_raw(), source };
    let Some(_lock) = lock(db).map_err(state)? else { return Ok(()) };
    drop(store::open(db, 0)?.writer);
    close(db).map_err(state)?;
    let (runtime, name) = places.socket_in().map_err(state)?;
    // The lock is ours: whoever made this socket is gone.
    runtime.remove(name.as_ref()).map_err(state)?;
    let (listener, socket) = runtime.bind(name.as_ref()).map_err(state)?;
    socket.set_mode(0o600).map_err(state)?;
    let sessions = Arc::new(Sessions::new(db.to_owned(), Serving::Own).with_rule_file(places.rules()));
    let dashboard = loopback::bind(port).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    web::start(&sessions, web::prepare()?, dashboard.map_err(web::Error::Listen)?)?;
    closing::prepare();
    accept::start(listener, Arc::clone(&sessions)).map_err(Error::Thread)?;
    let mut upkeep = Upkeep::new(Arc::clone(&sessions), retention, Some(places.clone()));
    let mut idle = Instant::now();
    while idle.elapsed() < IDLE {
        thread::sleep(Duration::from_millis(200));
        upkeep.look(Instant::now());
        if sessions.links.count(0) > 0
            || sessions.agents.count(0) > 0
            || sessions.pages.count(0) > 0
            || sessions.used.swap(false, Ordering::Relaxed)
        {
            idle = Instant::now();
        }
    }
    let _ = runtime.remove(name.as_ref());
    upkeep.finish();
    Ok(())
}

/// Keeps others from reading the database.
fn close(db: &Path) -> io::Result<()> {
    let found = Dir::resolve(db)?;
    let entry = found.dir.entry(&found.name)?.ok_or(io::ErrorKind::NotFound)?;
    if !entry.meta()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    entry.set_mode(0o600)
}

fn lock(db: &Path) -> io::Result<Option<Flock<File>>> {
    let mut path = db.as_os_str().to_owned();
    path.push(".lock");
    let (dir, name) = Dir::of(Path::new(&path))?;
    let file = dir.update(&name)?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, errno)) => Err(errno.into()),
    }
}
