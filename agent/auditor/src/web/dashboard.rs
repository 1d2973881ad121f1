//! What the dashboard's handlers share.

use super::feed::Feed;
use crate::mcp::sessions::Sessions;
use ringfence_base::socket_owners::SocketOwners;
use ringfence_http::turns::Turns;
use std::{
    fmt::Display,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

/// What the handlers share.
#[derive(Debug)]
pub(super) struct Dashboard {
    pub(super) sessions: Arc<Sessions>,
    pub(super) port: u16,
    pub(super) feed: Feed,
    pub(super) turns: Turns,
    pub(super) owners: SocketOwners,
}

impl Dashboard {
    /// Logs that somebody was refused something: whose the connection is, as far as the kernel says.
    pub(super) fn log_refusal(&self, peer: Option<SocketAddr>, what: &str, why: &dyn Display) {
        let ours = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let uid = peer.and_then(|peer| self.owners.of(peer, ours));
        let from = peer.map_or_else(|| "an unknown address".to_owned(), |peer| peer.to_string());
        self.sessions.refused_pages.log_user(uid, || format!("{what}, from {from}, is"), &why);
    }
}
