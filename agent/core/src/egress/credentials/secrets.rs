//! What a launcher hands over before it asks for an enrolment: credentials in sealed memfds, which are kept and never read here.

use crate::enroll::EnrollError;
use ringfence_wire::{
    credentials::{MAX_HOSTS, MAX_SECRET, SecretFor},
    message::MAX_TRUSTED,
};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use std::{
    collections::BTreeMap,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, PoisonError},
};

/// Most descriptors that all containers of one user have this core keep.
const MOST_OF_USER: usize = 512;
/// Most processes with credentials that one user's containers have: each may take [`super::MEMORY`].
const MOST_PROCESSES: usize = 16;

/// Why something that came cannot be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotKept {
    /// Not exactly one descriptor beside the message.
    #[error("one descriptor belongs beside it, and {0} came")]
    Descriptors(usize),
    /// It could change.
    #[error("it is not in a memfd that is sealed against every change")]
    NotSealed,
    /// Its size.
    #[error("it has {size} bytes, and may have 1 to {most}")]
    Size {
        /// What it has.
        size: u64,
        /// What it may have.
        most: usize,
    },
    /// More than there can be.
    #[error("a container has at most {MAX_HOSTS} of them")]
    TooMany,
    /// More than are kept for one user.
    #[error("the user's containers have as many of them as they may ({MOST_OF_USER}); end some")]
    Full,
    /// A second one.
    #[error("there is one already")]
    Twice,
}

/// How much of something each user has.
#[derive(Debug, Clone)]
pub(crate) struct Ledger {
    most: usize,
    lent: Arc<Mutex<BTreeMap<u32, usize>>>,
}

impl Ledger {
    fn new(most: usize) -> Self {
        Self { most, lent: Arc::default() }
    }

    /// One more for a user; as many as it likes for root. `None`: it has as many as it may.
    pub(crate) fn take(&self, owner: u32) -> Option<Lease> {
        let mut lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        let has = lent.entry(owner).or_default();
        if owner != 0 && *has >= self.most {
            return None;
        }
        *has += 1;
        Some(Lease { of: self.clone(), owner })
    }
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    of: Ledger,
    owner: u32,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut lent = self.of.lent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(has) = lent.get_mut(&self.owner) {
            *has = has.saturating_sub(1);
            if *has == 0 {
                lent.remove(&self.owner);
            }
        }
    }
}

/// What all containers' credentials are bounded by.
#[derive(Debug, Clone)]
pub(crate) struct Bounds {
    descriptors: Ledger,
    pub(crate) processes: Ledger,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { descriptors: Ledger::new(MOST_OF_USER), processes: Ledger::new(MOST_PROCESSES) }
    }
}

/// Something in a sealed memfd.
#[derive(Debug)]
pub(crate) struct Sealed {
    memory: OwnedFd,
    _lease: Option<Lease>,
}

impl Sealed {
    /// Of at most so many bytes, and at least one.
    ///
    /// # Errors
    /// [`NotKept`].
    pub(super) fn new(memory: OwnedFd, most: usize, lease: Option<Lease>) -> Result<Self, NotKept> {
        let all = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
        // Nothing but memory has seals.
        let seals = fcntl_get_seals(&memory).map_err(|_| NotKept::NotSealed)?;
        if !seals.contains(all) {
            return Err(NotKept::NotSealed);
        }
        let size = fstat(&memory).ok().and_then(|stat| u64::try_from(stat.st_size).ok()).unwrap_or_default();
        if size == 0 || size > most as u64 {
            return Err(NotKept::Size { size, most });
        }
        Ok(Self { memory, _lease: lease })
    }
}

impl AsFd for Sealed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

/// All that came before the request itself.
#[derive(Debug, Default)]
pub(crate) struct Handed {
    pub(crate) secrets: Vec<(SecretFor, Sealed)>,
    pub(crate) trusted: Option<Sealed>,
}

impl Handed {
    /// A credential, beside a message that says whose it is.
    ///
    /// # Errors
    /// [`EnrollError::Handed`].
    pub(crate) fn secret(
        &mut self,
        of: SecretFor,
        descriptors: Vec<OwnedFd>,
        bounds: &Bounds,
        owner: u32,
    ) -> Result<(), EnrollError> {
        let what = format!("the credential of {}", printable(&of.host));
        let kept = || {
            if self.secrets.len() >= MAX_HOSTS {
                return Err(NotKept::TooMany);
            }
            let lease = bounds.descriptors.take(owner).ok_or(NotKept::Full)?;
            Sealed::new(one(descriptors)?, MAX_SECRET, Some(lease))
        };
        let kept = kept().map_err(|source| EnrollError::Handed { what, source })?;
        self.secrets.push((of, kept));
        Ok(())
    }

    /// What the command's programs trust.
    ///
    /// # Errors
    /// [`EnrollError::Handed`].
    pub(crate) fn trusted(
        &mut self,
        descriptors: Vec<OwnedFd>,
        bounds: &Bounds,
        owner: u32,
    ) -> Result<(), EnrollError> {
        let kept = || {
            if self.trusted.is_some() {
                return Err(NotKept::Twice);
            }
            let lease = bounds.descriptors.take(owner).ok_or(NotKept::Full)?;
            Sealed::new(one(descriptors)?, MAX_TRUSTED, Some(lease))
        };
        let what = "what the command's programs trust".to_owned();
        self.trusted = Some(kept().map_err(|source| EnrollError::Handed { what, source })?);
        Ok(())
    }
}

fn one(descriptors: Vec<OwnedFd>) -> Result<OwnedFd, NotKept> {
    let [one] = <[OwnedFd; 1]>::try_from(descriptors).map_err(|all| NotKept::Descriptors(all.len()))?;
    Ok(one)
}

fn printable(host: &str) -> String {
    host.chars().filter(|c| c.is_ascii_graphic()).take(253).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_wire::credentials::CredentialPlace;
    use rustix::fs::{MemfdFlags, fcntl_add_seals, memfd_create};
    use std::{fs::File, io::Write};

    const ALL: SealFlags =
        SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::WRITE);

    fn memory(bytes: &[u8], seals: SealFlags) -> OwnedFd {
        let memory = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        let mut file = File::from(memory);
        file.write_all(bytes).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file.into()
    }

    fn of(host: &str) -> SecretFor {
        SecretFor { host: host.into(), port: 443, place: CredentialPlace::Bearer }
    }

    #[test]
    fn what_could_change_or_has_no_sensible_size_is_not_kept() {
        assert!(Sealed::new(memory(b"secret", ALL), 6, None).is_ok(), "the control");
        for missing in [SealFlags::SEAL, SealFlags::SHRINK, SealFlags::GROW, SealFlags::WRITE] {
            let open = memory(b"secret", ALL.difference(missing));
            assert_eq!(Sealed::new(open, 6, None).unwrap_err(), NotKept::NotSealed, "{missing:?}");
        }
        let pipe: OwnedFd = std::io::pipe().unwrap().0.into();
        let file: OwnedFd = tempfile::tempfile().unwrap().into();
        for other in [pipe, file, File::open("/dev/zero").unwrap().into()] {
            assert_eq!(Sealed::new(other, 6, None).unwrap_err(), NotKept::NotSealed);
        }
        for (bytes, size) in [(&b""[..], 0), (b"secret!", 7)] {
            let error = Sealed::new(memory(bytes, ALL), 6, None).unwrap_err();
            assert_eq!(error, NotKept::Size { size, most: 6 });
        }
    }

    #[test]
    fn a_user_has_so_many_kept_and_root_is_not_counted() {
        let bounds = Bounds { descriptors: Ledger::new(2), ..Bounds::default() };
        let mut handed = Handed::default();
        for host in ["a.org", "b.org"] {
            handed.secret(of(host), vec![memory(b"secret", ALL)], &bounds, 1000).unwrap();
        }
        let full = handed.secret(of("c.org"), vec![memory(b"secret", ALL)], &bounds, 1000).unwrap_err();
        assert!(full.message().contains("c.org") && full.message().contains("as many of them"), "{full}");
        let mut other = Handed::default();
        other.secret(of("c.org"), vec![memory(b"secret", ALL)], &bounds, 1001).unwrap();
        drop(handed);
        Handed::default().secret(of("c.org"), vec![memory(b"secret", ALL)], &bounds, 1000).unwrap();
        let mut roots = Handed::default();
        for _ in 0..MAX_HOSTS {
            roots.secret(of("a.org"), vec![memory(b"secret", ALL)], &bounds, 0).unwrap();
        }
        let many = roots.secret(of("a.org"), vec![memory(b"secret", ALL)], &bounds, 0).unwrap_err();
        assert!(many.message().contains("at most 64"), "{}", many.message());
        let none = Handed::default().secret(of("a.org"), Vec::new(), &bounds, 0).unwrap_err();
        assert!(none.message().contains("0 came"), "{}", none.message());
        roots.trusted(vec![memory(b"PEM", ALL)], &bounds, 0).unwrap();
        let twice = roots.trusted(vec![memory(b"PEM", ALL)], &bounds, 0).unwrap_err();
        assert!(twice.message().contains("already"), "{}", twice.message());
    }
}
