//! The container's own certificate authority: its key is made here, and never leaves this process.
//!
//! Its certificate says which hosts it may vouch for: those that have a credential, and no others. So a program that trusts it
//! trusts it for these alone, whatever becomes of the key.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::{SignedDuration, Timestamp, civil::Date, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, GeneralSubtree,
    IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints, date_time_ymd,
};
use rustls::{
    ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer},
    server::NoServerSessionStorage,
};
use std::{
    cell::RefCell,
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// The one protocol that is spoken where TLS is ended.
pub(crate) const ALPN: &[u8] = b"http/1.1";
/// How long the authority's certificate is good for: no container is older.
const AUTHORITY_DAYS: i64 = 365;
/// How long a host's is.
const HOST_DAYS: i64 = 2;
/// After so long it is made anew.
const RENEWED: Duration = Duration::from_secs(12 * 60 * 60);
/// Clocks differ.
const EARLIER_DAYS: i64 = 1;
/// Bytes of a line of PEM.
const PEM_LINE: usize = 64;

/// Why there are no certificates.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Making one.
    #[error("cannot make a certificate")]
    Certificate(#[from] rcgen::Error),
    /// Serving one.
    #[error("cannot set up TLS with a certificate")]
    Tls(#[from] rustls::Error),
}

/// See the module.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
    /// What is served for each host, and since when.
    made: RefCell<HashMap<String, (Arc<ServerConfig>, Instant)>>,
}

impl Authority {
    /// An authority for these hosts.
    ///
    /// # Errors
    /// [`Error`].
    pub(crate) fn new<'h>(container: &str, hosts: impl Iterator<Item = &'h str>) -> Result<Self, Error> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name = named(&format!("Ringfence container {container}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.name_constraints = Some(NameConstraints {
            permitted_subtrees: hosts.map(|host| GeneralSubtree::DnsName(host.to_owned())).collect(),
            excluded_subtrees: Vec::new(),
        });
        valid_for(&mut params, AUTHORITY_DAYS);
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.der().clone();
        let provider = Arc::new(ring::default_provider());
        Ok(Self { issuer: Issuer::new(params, key), certificate, provider, made: RefCell::default() })
    }

    /// Its certificate, as PEM.
    pub(crate) fn pem(&self) -> String {
        let encoded = STANDARD.encode(&self.certificate);
        let mut pem = "-----BEGIN CERTIFICATE-----\n".to_owned();
        for line in encoded.as_bytes().chunks(PEM_LINE) {
            pem.extend(line.iter().copied().map(char::from));
            pem.push('\n');
        }
        pem + "-----END CERTIFICATE-----\n"
    }

    /// What is served as this host, whatever name a client asks for.
    ///
    /// # Errors
    /// [`Error`].
    pub(crate) fn serve_as(&self, host: &str) -> Result<Arc<ServerConfig>, Error> {
        if let Some((config, since)) = self.made.borrow().get(host)
            && since.elapsed() < RENEWED
        {
            return Ok(Arc::clone(config));
        }
        let mut params = CertificateParams::new([host.to_owned()])?;
        params.distinguished_name = named(if host.len() <= PEM_LINE { host } else { "Ringfence" });
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        valid_for(&mut params, HOST_DAYS);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.der().clone();
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate, self.certificate.clone()], key)?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        // Each connection shows what it trusts.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        let config = Arc::new(config);
        self.made.borrow_mut().insert(host.to_owned(), (Arc::clone(&config), Instant::now()));
        Ok(config)
    }
}

fn named(name: &str) -> DistinguishedName {
    let mut whole = DistinguishedName::new();
    whole.push(DnType::CommonName, name);
    whole
}

fn valid_for(params: &mut CertificateParams, days: i64) {
    let now = Timestamp::now();
    let day = |later: i64| -> Date {
        let then = now.checked_add(SignedDuration::from_hours(later * 24)).unwrap_or(now);
        then.to_zoned(TimeZone::UTC).date()
    };
    let at = |date: Date| {
        date_time_ymd(date.year().into(), date.month().unsigned_abs(), date.day().unsigned_abs())
    };
    (params.not_before, params.not_after) = (at(day(-EARLIER_DAYS)), at(day(days)));
}
