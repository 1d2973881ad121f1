//! Names to addresses.

use std::{
    future::Future,
    io,
    net::{IpAddr, ToSocketAddrs},
    pin::Pin,
    thread,
};
use tokio::sync::{Semaphore, oneshot};

/// How many look-ups of the system's resolver go on at a time. One that nobody waits for any more may go on for as long as
/// `resolv.conf` lets it, and holds its place.
const AT_ONCE: usize = 16;

/// A look-up that goes on.
pub type Lookup<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>>;

/// Finds the addresses of a name. What it finds is screened; it need not be trusted.
pub trait Resolve: Send + Sync {
    /// The addresses of `name`, best first.
    fn resolve<'a>(&'a self, name: &'a str) -> Lookup<'a>;
}

/// The system's resolver: `/etc/hosts`, DNS, and what else `nsswitch.conf` names. It cannot be interrupted, so each look-up
/// has a thread of its own, which no runtime waits for when it ends.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

static PLACES: Semaphore = Semaphore::const_new(AT_ONCE);

impl Resolve for SystemResolver {
    fn resolve<'a>(&'a self, name: &'a str) -> Lookup<'a> {
        let host = name.to_owned();
        Box::pin(async move {
            let place = PLACES.acquire().await.map_err(io::Error::other)?;
            let (done, found) = oneshot::channel();
            let look_up = move || {
                let found = (host.as_str(), 0).to_socket_addrs();
                // Nobody may wait for it any more.
                let _ = done.send(found.map(|found| found.map(|addr| addr.ip()).collect()));
                drop(place);
            };
            thread::Builder::new().name("resolve".into()).spawn(look_up)?;
            found.await.map_err(io::Error::other)?
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_knows_this_machine() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let found = runtime.block_on(SystemResolver.resolve("localhost")).unwrap();
        assert!(!found.is_empty() && found.iter().all(IpAddr::is_loopback), "{found:?}");
    }
}
