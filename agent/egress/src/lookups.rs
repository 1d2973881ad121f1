//! The addresses of names, by the host's resolver. Connections that look for the same at the same time share one look-up: a burst to one
//! name is one question, however slow the resolver is. What was found is not kept for those that come later.

use crate::{
    addresses::{Found, Own},
    hosts::Hosts,
    turns::Turns,
};
use std::{
    cell::RefCell,
    collections::HashMap,
    io,
    net::{IpAddr, ToSocketAddrs},
    rc::Rc,
    sync::Arc,
    thread,
    time::Duration,
};
use tokio::{
    sync::{Semaphore, oneshot, watch},
    task::spawn_local,
    time::timeout,
};

/// How long the host's resolver may take, its queue included.
pub(crate) const LOOKUP_TIME: Duration = Duration::from_secs(10);
/// Look-ups at once: each has a thread.
const MOST_LOOKUPS: usize = 16;
/// Bytes of such a thread's stack.
const STACK: usize = 512 << 10;

/// At least one address, best first; or why there is none.
pub(crate) type Answer = Result<Arc<[Found]>, String>;
/// Asks the host's resolver for a whole name.
type Resolve = fn(&str) -> io::Result<Vec<IpAddr>>;
/// By name and port.
type UnderWay = HashMap<(String, u16), watch::Receiver<Option<Answer>>>;

/// See the module.
pub(crate) struct Lookups {
    under_way: Rc<RefCell<UnderWay>>,
    places: Arc<Semaphore>,
    /// How many of them what one entry of the profile grants may have.
    turns: Turns,
    hosts: Arc<Hosts>,
    own: Arc<Own>,
    resolve: Resolve,
}

impl Default for Lookups {
    fn default() -> Self {
        Self::of(Hosts::default(), resolve)
    }
}

impl Lookups {
    pub(crate) fn of(hosts: Hosts, resolve: Resolve) -> Self {
        Self {
            under_way: Rc::default(),
            places: Arc::new(Semaphore::new(MOST_LOOKUPS)),
            turns: Turns::new(MOST_LOOKUPS / 4),
            hosts: Arc::new(hosts),
            own: Arc::default(),
            resolve,
        }
    }

    /// The addresses of a name, which `entry` of the profile grants.
    ///
    /// # Errors
    /// A sentence for the client: there are none, or nobody says so in time.
    pub(crate) async fn find(&self, entry: &str, name: &str, port: u16) -> Answer {
        let mut answered = self.begun(entry, name, port);
        let answer = timeout(LOOKUP_TIME, answered.wait_for(Option::is_some)).await;
        let answer = answer.ok().and_then(Result::ok).and_then(|answer| answer.clone());
        answer.unwrap_or_else(|| Err(late()))
    }

    /// The look-up that is under way, or a new one.
    fn begun(&self, entry: &str, name: &str, port: u16) -> watch::Receiver<Option<Answer>> {
        let key = (name.to_owned(), port);
        if let Some(answered) = self.under_way.borrow().get(&key) {
            return answered.clone();
        }
        let (tell, answered) = watch::channel(None);
        self.under_way.borrow_mut().insert(key.clone(), answered.clone());
        let (under_way, turns, places) =
            (Rc::clone(&self.under_way), self.turns.of(entry), Arc::clone(&self.places));
        let (hosts, own, resolve) = (Arc::clone(&self.hosts), Arc::clone(&self.own), self.resolve);
        let name = name.to_owned();
        // Not by whoever came first, who may give up.
        spawn_local(async move {
            let look_up = async {
                let turn = turns.acquire_owned().await.map_err(io::Error::other)?;
                let place = places.acquire_owned().await.map_err(io::Error::other)?;
                // It cannot be interrupted: its place is free when it is over, whoever still waits for it.
                let (tell, told) = oneshot::channel();
                let look_up = move || {
                    let found = addresses_of(&name, &hosts, resolve).and_then(|addrs| own.found(addrs, port));
                    drop((turn, place));
                    // Whoever asked may have given up.
                    let _ = tell.send(found);
                };
                // Not by tokio, which panics where there can be no thread: how many a user may have is shared with its other processes.
                let thread = thread::Builder::new().name("lookup".into()).stack_size(STACK).spawn(look_up);
                thread.map_err(|error| {
                    io::Error::new(error.kind(), format!("no thread can be started to ask it: {error}"))
                })?;
                told.await.map_err(io::Error::other)?
            };
            let answer = match timeout(LOOKUP_TIME, look_up).await {
                Ok(Ok(found)) if found.is_empty() => Err("the host's resolver finds no address".to_owned()),
                Ok(Ok(found)) => Ok(found.into()),
                Ok(Err(error)) => Err(format!("the host's resolver does not find it: {error}")),
                Err(_) => Err(late()),
            };
            under_way.borrow_mut().remove(&key);
            tell.send_replace(Some(answer));
        });
        answered
    }
}

fn late() -> String {
    format!("the host's resolver did not find it within {} s", LOOKUP_TIME.as_secs())
}

/// A name is the whole name: with the dot of the root, so that no domain of the host's search list is put behind it, which nobody
/// granted. In /etc/hosts names have no dot, so that is looked at first.
fn addresses_of(
    name: &str,
    hosts: &Hosts,
    resolve: impl FnOnce(&str) -> io::Result<Vec<IpAddr>>,
) -> io::Result<Vec<IpAddr>> {
    let there = hosts
        .find(name)
        .map_err(|error| io::Error::new(error.kind(), format!("cannot read /etc/hosts: {error}")))?;
    if there.is_empty() { resolve(&format!("{name}.")) } else { Ok(there) }
}

fn resolve(name: &str) -> io::Result<Vec<IpAddr>> {
    Ok((name, 0).to_socket_addrs()?.map(|addr| addr.ip()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        thread::sleep,
        time::Instant,
    };
    use tokio::task::LocalSet;

    fn no_hosts() -> (tempfile::TempDir, Hosts) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hosts");
        std::fs::write(&path, "").unwrap();
        (dir, Hosts::at(path))
    }

    #[test]
    fn no_domain_is_put_behind_a_name_and_the_hosts_file_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hosts");
        std::fs::write(&path, "127.0.0.1 localhost\n10.1.2.3 git.corp.example git\n").unwrap();
        let hosts = Hosts::at(path);
        let none = |name: &str| -> io::Result<Vec<IpAddr>> { panic!("{name}") };
        let found = addresses_of("git.corp.example", &hosts, none).unwrap();
        assert_eq!(found, ["10.1.2.3".parse::<IpAddr>().unwrap()]);
        let mut asked = String::new();
        let found = addresses_of("git.corp.example.org", &hosts, |name| {
            name.clone_into(&mut asked);
            Ok(Vec::new())
        });
        assert_eq!((asked.as_str(), found.unwrap().len()), ("git.corp.example.org.", 0));
        let error = addresses_of("a.example", &Hosts::at(dir.path().into()), none).unwrap_err();
        assert!(error.to_string().contains("cannot read /etc/hosts"), "{error}");
    }

    #[tokio::test]
    async fn a_burst_to_one_name_is_one_question_and_those_who_come_later_ask_again() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        let (_dir, hosts) = no_hosts();
        let lookups = Lookups::of(hosts, |_| {
            sleep(Duration::from_millis(200));
            // Another one each time.
            let last = u8::try_from(ASKED.fetch_add(1, Ordering::SeqCst) + 1).unwrap();
            Ok(vec![IpAddr::from([192, 0, 2, last])])
        });
        let find = async |name: &str| lookups.find("*.a.example", name, 443).await.map(|found| found[0].addr);
        LocalSet::new()
            .run_until(async {
                let burst: [_; 4] = tokio::join!(
                    find("x.a.example"),
                    find("x.a.example"),
                    find("x.a.example"),
                    find("x.a.example")
                )
                .into();
                assert!(burst.iter().all(|found| *found == Ok([192, 0, 2, 1].into())), "{burst:?}");
                assert_eq!(find("x.a.example").await, Ok([192, 0, 2, 2].into()));
                assert!(lookups.under_way.borrow().is_empty());
            })
            .await;
    }

    #[tokio::test]
    async fn what_one_entry_grants_does_not_have_all_threads() {
        static RUNNING: AtomicUsize = AtomicUsize::new(0);
        static MOST: AtomicUsize = AtomicUsize::new(0);
        let (_dir, hosts) = no_hosts();
        let lookups = Lookups::of(hosts, |_| {
            let until = Instant::now() + Duration::from_secs(60);
            MOST.fetch_max(RUNNING.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            // Two at least are there together, however late one begins.
            while MOST.load(Ordering::SeqCst) < 2 && Instant::now() < until {
                sleep(Duration::from_millis(1));
            }
            sleep(Duration::from_millis(10));
            RUNNING.fetch_sub(1, Ordering::SeqCst);
            Err(io::ErrorKind::NotFound.into())
        });
        LocalSet::new()
            .run_until(async {
                for number in 0..12 {
                    drop(lookups.begun("*.a.example", &format!("{number}.a.example"), 443));
                }
                let error = lookups.find("*.a.example", "0.a.example", 443).await.unwrap_err();
                assert!(error.starts_with("the host's resolver does not find it: "), "{error}");
                while !lookups.under_way.borrow().is_empty() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            })
            .await;
        assert!((2..=MOST_LOOKUPS / 4).contains(&MOST.load(Ordering::SeqCst)), "{MOST:?}");
    }
}
