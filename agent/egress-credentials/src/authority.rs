//! The container's own certificate authority: its key is made here, and kept in a sealed file in memory, which the core has for the
//! next process of the container and does not read. That one makes a certificate of its own with it: programs that trust the one of
//! before trust it as well, and nothing but the key is taken from a process that may have been taken over.
//!
//! Its certificate says what it may vouch for: the hosts that have a credential, what is below them in DNS, and no address. So a
//! program that trusts it trusts it for no other host, whatever becomes of the key.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::{SignedDuration, Timestamp, civil::Date, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints, PKCS_ECDSA_P256_SHA256,
    date_time_ymd,
};
use ringfence_wire::credentials::{Certificate, MAX_AUTHORITY, NotACertificate};
use rustix::{
    fs::{MemfdFlags, SealFlags, SeekFrom, fcntl_add_seals, memfd_create, seek},
    io::read,
};
use rustls::{
    ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
    server::NoServerSessionStorage,
};
use std::{
    cell::RefCell,
    collections::HashMap,
    fs::File,
    io::{self, Write},
    os::fd::OwnedFd,
    sync::Arc,
};
use zeroize::Zeroizing;

/// The one protocol that is spoken where TLS is ended.
pub(crate) const ALPN: &[u8] = b"http/1.1";
/// How long the authority's certificate is good for: no container is older.
const AUTHORITY_DAYS: i64 = 365;
/// How long a host's is.
const HOST_DAYS: i64 = 2;
/// It is made anew so long after it was made, by the clock that certificates are checked by: another one stands still while the
/// host sleeps.
const RENEWED: SignedDuration = SignedDuration::from_hours(12);
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
    /// Keeping its key.
    #[error("cannot keep the key of the container's authority in memory")]
    Key(#[source] io::Error),
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
    made: RefCell<HashMap<String, (Arc<ServerConfig>, Timestamp)>>,
}

impl Authority {
    /// An authority for these hosts.
    ///
    /// # Errors
    /// [`Error`].
    pub(crate) fn new<'h>(
        container: &str,
        hosts: impl Iterator<Item = &'h str>,
        key: KeyPair,
    ) -> Result<Self, Error> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name = named(&format!("Ringfence container {container}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.name_constraints = Some(NameConstraints {
            permitted_subtrees: hosts.map(|host| GeneralSubtree::DnsName(host.to_owned())).collect(),
            // Names of DNS say nothing of addresses.
            excluded_subtrees: [CidrSubnet::V4([0; 4], [0; 4]), CidrSubnet::V6([0; 16], [0; 16])]
                .map(GeneralSubtree::IpAddress)
                .into(),
        });
        // No two certificates of one issuer have the same.
        params.serial_number = Some(Timestamp::now().as_microsecond().unsigned_abs().into());
        valid_for(&mut params, AUTHORITY_DAYS);
        let certificate = params.self_signed(&key)?.der().clone();
        let provider = Arc::new(ring::default_provider());
        Ok(Self { issuer: Issuer::new(params, key), certificate, provider, made: RefCell::default() })
    }

    /// Its certificate, as PEM.
    ///
    /// # Errors
    /// It is too long.
    pub(crate) fn pem(&self) -> Result<Certificate, NotACertificate> {
        let encoded = STANDARD.encode(&self.certificate);
        let mut pem = "-----BEGIN CERTIFICATE-----\n".to_owned();
        for line in encoded.as_bytes().chunks(PEM_LINE) {
            pem.extend(line.iter().copied().map(char::from));
            pem.push('\n');
        }
        (pem + "-----END CERTIFICATE-----\n").try_into()
    }

    /// What is served as this host, whatever name a client asks for.
    ///
    /// # Errors
    /// [`Error`].
    pub(crate) fn serve_as(&self, host: &str) -> Result<Arc<ServerConfig>, Error> {
        if let Some((config, since)) = self.made.borrow().get(host)
            && is_good(*since, Timestamp::now())
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
        self.made.borrow_mut().insert(host.to_owned(), (Arc::clone(&config), Timestamp::now()));
        Ok(config)
    }
}

/// A key, and the sealed file that has it.
///
/// # Errors
/// [`Error::Key`].
pub(crate) fn make_key() -> Result<(KeyPair, OwnedFd), Error> {
    let key = KeyPair::generate()?;
    let file = keep(&key).map_err(Error::Key)?;
    Ok((key, file))
}

fn keep(key: &KeyPair) -> io::Result<OwnedFd> {
    let bytes = Zeroizing::new(key.serialize_der());
    let mut file = File::from(memfd_create("authority", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.write_all(&bytes)?;
    fcntl_add_seals(&file, SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE)?;
    Ok(file.into())
}

/// The key that an earlier process of the container kept.
///
/// # Errors
/// It is none: that process may have been anybody's at its end.
pub(crate) fn kept_key(file: &OwnedFd) -> io::Result<KeyPair> {
    let mut bytes = Zeroizing::new(vec![0; MAX_AUTHORITY + 1]);
    // It is where an earlier process left it. A file in memory is read as a whole.
    seek(file, SeekFrom::Start(0))?;
    let count = read(file, bytes.as_mut_slice())?;
    let key = bytes.get(..count).filter(|key| !key.is_empty() && key.len() <= MAX_AUTHORITY);
    let key = key.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
    KeyPair::from_pkcs8_der_and_sign_algo(&PrivatePkcs8KeyDer::from(key), &PKCS_ECDSA_P256_SHA256)
        .map_err(io::Error::other)
}

/// Whether a certificate that was made then may still be served.
fn is_good(made: Timestamp, now: Timestamp) -> bool {
    // Also where the clock was set back.
    let age = now.duration_since(made);
    !age.is_negative() && age < RENEWED
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::fcntl_get_seals;

    #[test]
    fn the_key_survives_in_a_file_that_nobody_can_change() {
        let (key, file) = make_key().unwrap();
        let all = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
        assert!(fcntl_get_seals(&file).unwrap().contains(all));
        assert!(File::from(file.try_clone().unwrap()).write_all(b"x").is_err());
        assert_eq!(kept_key(&file).unwrap().serialize_der(), key.serialize_der());
        assert_eq!(
            kept_key(&file).unwrap().serialize_der(),
            key.serialize_der(),
            "as often as it is asked for"
        );
        for bytes in [b"".as_slice(), b"no key", &[b'x'; MAX_AUTHORITY + 1]] {
            let file = OwnedFd::from(File::from(memfd_create("none", MemfdFlags::CLOEXEC).unwrap()));
            File::from(file.try_clone().unwrap()).write_all(bytes).unwrap();
            assert!(kept_key(&file).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn what_is_served_is_good_by_the_clock_on_the_wall() {
        let made: Timestamp = "2026-01-02T03:00:00Z".parse().unwrap();
        for (now, is) in [
            ("2026-01-02T03:00:00Z", true),
            ("2026-01-02T14:59:59Z", true),
            ("2026-01-02T15:00:00Z", false),
            ("2026-01-05T03:00:00Z", false),
            ("2026-01-01T03:00:00Z", false),
        ] {
            assert_eq!(is_good(made, now.parse().unwrap()), is, "{now}");
        }
        let authority = Authority::new("c", ["a.org"].into_iter(), make_key().unwrap().0).unwrap();
        let one = authority.serve_as("a.org").unwrap();
        assert!(Arc::ptr_eq(&one, &authority.serve_as("a.org").unwrap()));
        // As after three days of suspend.
        let then = Timestamp::now().checked_sub(SignedDuration::from_hours(72)).unwrap();
        authority.made.borrow_mut().get_mut("a.org").unwrap().1 = then;
        assert!(!Arc::ptr_eq(&one, &authority.serve_as("a.org").unwrap()));
    }
}
