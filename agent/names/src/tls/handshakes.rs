//! What real clients send, from their hello to their first data: rustls at both ends, and this module between.

use super::{Client, State};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, SupportedProtocolVersion,
    crypto::{CryptoProvider, SupportedKxGroup, ring},
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    version::{TLS12, TLS13},
};
use std::{
    io::{Read, Write},
    sync::Arc,
};

const NAME: &str = "a.example";

/// A client and a server that know each other.
struct Parties {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

fn provider(groups: &[&'static dyn SupportedKxGroup]) -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider { kx_groups: groups.to_vec(), ..ring::default_provider() })
}

impl Parties {
    /// The server takes the groups of keys in `server_groups` only.
    fn new(
        version: &'static SupportedProtocolVersion,
        server_groups: &[&'static dyn SupportedKxGroup],
    ) -> Self {
        let rcgen::CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(cert.der().clone()).unwrap();
        let mut client = ClientConfig::builder_with_provider(provider(ring::ALL_KX_GROUPS))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        client.enable_early_data = true;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
        let mut server = ServerConfig::builder_with_provider(provider(server_groups))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .unwrap();
        server.max_early_data_size = 4096;
        Self { client: client.into(), server: server.into() }
    }

    /// Connects and sends a request, as early data if that is possible. The states after each flight of the client.
    fn connect(&self) -> Vec<State> {
        let mut client = ClientConnection::new(self.client.clone(), NAME.try_into().unwrap()).unwrap();
        let mut server = ServerConnection::new(self.server.clone()).unwrap();
        if let Some(mut early) = client.early_data() {
            assert_eq!(early.write(b"request").unwrap(), 7);
        }
        let (mut watched, mut states) = (Client::new(), Vec::new());
        let (mut has_asked, mut arrived) = (false, Vec::new());
        for _ in 0..20 {
            if !client.is_handshaking() && !has_asked {
                has_asked = true;
                client.writer().write_all(b"request").unwrap();
            }
            let mut flight = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut flight).unwrap();
            }
            if !flight.is_empty() {
                states.push(watched.feed(&flight).unwrap());
                // The hello is all there with the first flight: the server has answered nothing yet.
                assert_eq!(watched.hello().unwrap().server_name.as_deref(), Some(NAME));
            }
            let mut flight = &flight[..];
            while !flight.is_empty() {
                server.read_tls(&mut flight).unwrap();
                server.process_new_packets().unwrap();
            }
            if let Some(mut early) = server.early_data() {
                early.read_to_end(&mut arrived).unwrap();
            }
            let _ = server.reader().read_to_end(&mut arrived);
            let mut answer = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut answer).unwrap();
            }
            let mut answer = &answer[..];
            while !answer.is_empty() {
                client.read_tls(&mut answer).unwrap();
                client.process_new_packets().unwrap();
            }
        }
        assert!(arrived.starts_with(b"request"), "the handshake was made");
        states
    }
}

#[test]
fn a_usual_handshake_is_watched_for_one_more_record() {
    for version in [&TLS13, &TLS12] {
        let parties = Parties::new(version, ring::ALL_KX_GROUPS);
        let states = parties.connect();
        assert_eq!(states[0], State::Watching, "{version:?}");
        assert!(
            states[1..].iter().all(|state| *state == State::Done) && states.len() > 1,
            "{version:?}: {states:?}"
        );
    }
}

#[test]
fn a_second_hello_of_an_honest_client_passes() {
    let parties = Parties::new(&TLS13, &[ring::kx_group::SECP384R1]);
    let states = parties.connect();
    assert_eq!(states[..2], [State::Watching, State::Done]);
}

#[test]
fn an_earlier_session_is_gone_on_with() {
    for version in [&TLS13, &TLS12] {
        let parties = Parties::new(version, ring::ALL_KX_GROUPS);
        parties.connect();
        let states = parties.connect();
        // Of TLS 1.3 with early data: nothing tells that no second hello comes.
        let last = if version == &TLS13 { State::Watching } else { State::Done };
        assert_eq!((states[0], states.last()), (State::Watching, Some(&last)), "{version:?}: {states:?}");
    }
}
