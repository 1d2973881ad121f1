//! Why the store cannot do what it was asked for.

use rusqlite::ErrorCode;
use std::{io, path::PathBuf};

/// Why the store cannot do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be opened or created.
    #[error("cannot open the audit database {}; the directory must exist and be writable for this user", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: rusqlite::Error,
    },
    /// A later version wrote it.
    #[error("the audit database {} is of a later Ringfence (schema {found}, this one knows {known}); run that one, or move the file away", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: usize,
        /// Ours.
        known: usize,
    },
    /// A corrupt file could not be moved aside.
    #[error("the audit database {} is corrupt and cannot be moved aside", path.display())]
    MoveAside {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A user names ever new rule files.
    #[error(
        "this user has more rule files than the audit database remembers; name one of those that are in use"
    )]
    TooManyRuleFiles,
    /// A user's rule file is another one each time.
    #[error("the rule file in force was changed again and again while a new one was compared with it")]
    ChangingRuleFile,
    /// A rule file that no interceptor reads.
    #[error(
        "the rule file is not taken: {0}, and it would be kept for as long as it is in use, in a database that all users share"
    )]
    LongRuleFile(String),
    /// A user adds ever new rules.
    #[error(
        "the database holds {} rules of this user's already, those of subordinate ids included; put more into a rule file",
        ringfence_wire::mcp::MAX_STORED_RULES
    )]
    TooManyRules,
    /// A user has as many approvals as may stand.
    #[error(
        "{} approvals of this user's stand already, those of subordinate ids included; `ringfence approvals standing` lists them, `ringfence approvals revoke` ends one",
        ringfence_wire::approvals::MOST_APPROVALS
    )]
    TooManyApprovals,
    /// The file was exchanged for another one while it was in use.
    #[error("the audit database was replaced; sessions are read again from their journals")]
    Replaced,
    /// The database is as full as it may be, and most of it is this user's.
    #[error(
        "the sessions of uid {uid} fill the audit database; their journals wait until retention has made room"
    )]
    Crowded {
        /// The user.
        uid: u32,
    },
    /// A table that is not shown, or not known to this version.
    #[error("this version has no table of that name to show")]
    NoTable,
    /// A statement failed.
    #[error("the audit database cannot {what}")]
    Sql {
        /// What was tried.
        what: &'static str,
        /// Why.
        #[source]
        source: rusqlite::Error,
    },
}

impl Error {
    /// Whether the file's content is broken, so that only a new one helps.
    pub fn is_corrupt(&self) -> bool {
        let (Self::Open { source, .. } | Self::Sql { source, .. }) = self else { return false };
        matches!(source.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
    }

    /// Whether what was to be written can never be written, now or later, to this or a new file.
    pub fn is_hopeless(&self) -> bool {
        let Self::Sql { source, .. } = self else { return false };
        matches!(
            source.sqlite_error_code(),
            Some(
                ErrorCode::ConstraintViolation
                    | ErrorCode::TooBig
                    | ErrorCode::TypeMismatch
                    | ErrorCode::ApiMisuse
                    | ErrorCode::ParameterOutOfRange
            )
        )
    }

    /// Whether the question had no answer in the time that it was given.
    pub fn is_late(&self) -> bool {
        let Self::Sql { source, .. } = self else { return false };
        source.sqlite_error_code() == Some(ErrorCode::OperationInterrupted)
    }

    /// Whether trying again later may help: a full disk, a failing or busy one.
    pub fn may_pass(&self) -> bool {
        let (Self::Open { source, .. } | Self::Sql { source, .. }) = self else { return false };
        matches!(
            source.sqlite_error_code(),
            Some(
                ErrorCode::DiskFull
                    | ErrorCode::SystemIoFailure
                    | ErrorCode::DatabaseBusy
                    | ErrorCode::DatabaseLocked
            )
        )
    }
}

/// The error of a statement that was to do this.
pub(crate) fn sql(what: &'static str) -> impl Fn(rusqlite::Error) -> Error {
    move |source| Error::Sql { what, source }
}
