//! The auditor of one user and one database, where no daemon serves: started by the first interceptor, ends when idle.

use super::{
    Error,
    mcp::{
        server,
        sessions::{Serving, Sessions},
        upkeep::Upkeep,
    },
    store::{self, SessionLimits},
    web,
};
use crate::{loopback, mcp::state::Places};
use nix::fcntl::{Flock, FlockArg};
use std::{
    fs::{self, File},
    os::unix::{fs::PermissionsExt, net::UnixListener},
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
pub(crate) fn run(places: &Places, port: u16, limits: SessionLimits) -> Result<(), Error> {
    let db = places.db.as_path();
    let state = |source| Error::State { path: db.to_owned(), uid: nix::unistd::geteuid().as_raw(), source };
    let Some(_lock) = lock(db).map_err(state)? else { return Ok(()) };
    drop(store::open(db, 0)?.writer);
    fs::set_permissions(db, fs::Permissions::from_mode(0o600)).map_err(state)?;
    let socket = places.socket().map_err(state)?;
    // The lock is ours: whoever made this socket is gone.
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).map_err(state)?;
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o600)).map_err(state)?;
    let sessions = Arc::new(Sessions::new(db.to_owned(), Serving::Own));
    let dashboard = loopback::bind(port).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    web::start(&sessions, web::runtime()?, dashboard.map_err(web::Error::Listen)?, Some(places.rules()))?;
    let spawn = |name: &str| thread::Builder::new().name(name.to_owned());
    let shared = Arc::clone(&sessions);
    spawn("accept").spawn(move || server::serve(&listener, &shared)).map_err(Error::Thread)?;
    let mut upkeep = Upkeep::new(Arc::clone(&sessions), limits, Some(places.clone()));
    let mut idle = Instant::now();
    while idle.elapsed() < IDLE {
        thread::sleep(Duration::from_millis(200));
        upkeep.look(Instant::now());
        if sessions.links.count(0) > 0
            || sessions.viewers.load(Ordering::SeqCst) > 0
            || sessions.used.swap(false, Ordering::Relaxed)
        {
            idle = Instant::now();
        }
    }
    let _ = fs::remove_file(&socket);
    upkeep.finish();
    Ok(())
}

fn lock(db: &Path) -> std::io::Result<Option<Flock<File>>> {
    let mut path = db.as_os_str().to_owned();
    path.push(".lock");
    let file = File::options().create(true).truncate(false).write(true).open(path)?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, errno)) => Err(errno.into()),
    }
}
