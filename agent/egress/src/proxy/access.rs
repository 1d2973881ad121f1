//! Who may use the proxy, and who is asked whether it may: whoever has shown no token yet is one of few.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ringfence_names::proxy::socks;
use ringfence_wire::egress::{PROXY_USER, ProxyToken};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    time::{Duration, Instant},
};
use subtle::ConstantTimeEq as _;
use tokio::sync::{Notify, Semaphore};

/// Most clients that have not said yet where they want to go, with a token; and of all connections that there may be, one in so many.
const MOST: u64 = 256;
const PART: u64 = 4;
/// How long each may take for that, and where more than half of the places are taken.
const PATIENCE: Duration = Duration::from_secs(10);
const CROWDED: Duration = Duration::from_secs(2);

/// See the module.
pub(crate) struct Access {
    /// The value of `Proxy-Authorization`, behind `Basic `.
    basic: String,
    token: String,
    /// Memory for what clients say until they are let in, where what each has of its own is too little: whoever has no token takes none
    /// of what others pass with.
    pool: Semaphore,
    /// Places of those who are asked.
    most: usize,
    last: Cell<u64>,
    asked: RefCell<BTreeMap<u64, Rc<Notify>>>,
    /// When the user was last told that there is no room.
    pub(super) complained: Cell<Option<Instant>>,
}

/// A place among those who are asked.
pub(super) struct Place<'a> {
    access: &'a Access,
    id: u64,
    is_crowded: bool,
    taken: Rc<Notify>,
}

impl Access {
    /// `connections`: how many there may be in all.
    pub(crate) fn new(ProxyToken(token): &ProxyToken, pool: Semaphore, connections: u64) -> Self {
        let basic = STANDARD.encode(format!("{PROXY_USER}:{token}"));
        let most = usize::try_from((connections / PART).clamp(1, MOST)).unwrap_or(1);
        Self {
            basic,
            token: token.clone(),
            pool,
            most,
            last: Cell::new(0),
            asked: RefCell::default(),
            complained: Cell::new(None),
        }
    }

    pub(super) fn pool(&self) -> &Semaphore {
        &self.pool
    }

    pub(super) fn may(&self, authorization: Option<&[u8]>) -> bool {
        let Some((scheme, said)) = authorization.and_then(|value| value.split_at_checked(6)) else {
            return false;
        };
        scheme.eq_ignore_ascii_case(b"Basic ") && said.trim_ascii().ct_eq(self.basic.as_bytes()).into()
    }

    pub(super) fn may_by_socks(&self, said: &socks::Password) -> bool {
        let is_user = said.name.ct_eq(PROXY_USER.as_bytes());
        (is_user & said.password.ct_eq(self.token.as_bytes())).into()
    }

    /// Takes a place; where there is none, that of whoever has had one for longest.
    pub(super) fn enter(&self) -> Place<'_> {
        let mut asked = self.asked.borrow_mut();
        if asked.len() >= self.most
            && let Some((_, oldest)) = asked.pop_first()
        {
            oldest.notify_one();
        }
        let id = self.last.get() + 1;
        self.last.set(id);
        let taken = Rc::new(Notify::new());
        asked.insert(id, Rc::clone(&taken));
        Place { access: self, id, is_crowded: asked.len() > self.most / 2, taken }
    }
}

impl Place<'_> {
    /// How long it may be had.
    pub(super) fn patience(&self) -> Duration {
        if self.is_crowded { CROWDED } else { PATIENCE }
    }

    /// Waits until another has it.
    pub(super) async fn taken(&self) {
        self.taken.notified().await;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.access.asked.borrow_mut().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_run_s_token_opens_it() {
        let access = Access::new(&ProxyToken("5ec2e7".into()), Semaphore::new(0), 64);
        let basic = |text: &str| format!("Basic {}", STANDARD.encode(text)).into_bytes();
        assert!(access.may(Some(&basic("ringfence:5ec2e7"))));
        assert!(access.may(Some(&[b"basic  ", &basic("ringfence:5ec2e7")[6..]].concat())));
        for wrong in ["ringfence:", "ringfence:5ec2e", "ringfence:5ec2e77", "other:5ec2e7", ":5ec2e7", ""] {
            assert!(!access.may(Some(&basic(wrong))), "{wrong}");
        }
        assert!(!access.may(None) && !access.may(Some(b"Bearer 5ec2e7")) && !access.may(Some(b"")));
        let said =
            |name: &str, password: &str| socks::Password { name: name.into(), password: password.into() };
        assert!(access.may_by_socks(&said("ringfence", "5ec2e7")));
        assert!(!access.may_by_socks(&said("ringfence", "")) && !access.may_by_socks(&said("", "5ec2e7")));
    }

    #[test]
    fn who_says_nothing_keeps_no_place_from_whoever_comes() {
        let access = Access::new(&ProxyToken("5ec2e7".into()), Semaphore::new(0), 64);
        let is_taken = |place: &Place<'_>| {
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            std::pin::pin!(place.taken()).poll(&mut context).is_ready()
        };
        let mut places: Vec<_> = (0..16).map(|_| access.enter()).collect();
        assert!(places.iter().take(8).all(|place| place.patience() == PATIENCE));
        assert!(places.iter().skip(8).all(|place| place.patience() == CROWDED));
        assert!(!places.iter().any(is_taken));
        // One that has said where it wants to go has its place no more, and is left alone.
        drop(places.remove(3));
        places.push(access.enter());
        assert!(!places.iter().any(is_taken), "there was one");
        let next = [access.enter(), access.enter()];
        assert!(is_taken(&places[0]) && is_taken(&places[1]), "the oldest");
        assert!(!places.iter().skip(2).chain(&next).any(is_taken));
        drop((places, next));
        assert!(access.asked.borrow().is_empty() && access.enter().patience() == PATIENCE);
    }
}
