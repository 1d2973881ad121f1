//! The privileged role: supervises, keeps containers, enrols.
//!
//! | file | what it holds |
//! |---|---|
//! | `daemon` | start to stop: lock, load or adopt, drop privileges, sockets, the main loop |
//! | `server`, `peer`, `quota` | the admin and enrolment sockets: who may speak, how much |
//! | `enroll`, `running` | who may put which task under which profile; processes that run already |
//! | `state`, `containers`, `past` | every container from its enrolment to its last task, its record on disk, and what outlives it |
//! | `reload`, `watch`, `report` | profiles read again when they change; what `ringfence status` shows |
//! | `link`, `outbox`, `reports`, `supervise` | the auditor: kept running, fed with raw records, sent again what it did not store; what agents report, fair to each |
//! | `agents` | the agents' LLM workers: kept running, told who their peers are, tags for their tool calls |
//! | `vouch` | who the auditor's peers are, which its sandbox cannot see |
//! | `client` | the other end of the sockets |
//!
//! # Threads
//! The main one waits for signals, connections and the tick. `records` is the only reader of the rings;
//! `profiles` reads profiles again; `vouch` answers the auditor.
//! Each agent has one, which starts and answers its worker. Each connection has one for as long as it lasts. One lock guards [`state::State`]; profiles are compiled outside it when a
//! task is enrolled, inside it when profiles are read again.
//!
//! # What it parses
//! Profiles (root's files), its own records, and frames of bounded size from local peers: see `ringfence_wire`. It does not
//! look inside an event's record, and takes from the auditor nothing but two kinds of number, and questions that are a
//! descriptor each. From an agent's worker it takes counts, questions that are descriptors, and bytes for the auditor.
//!
//! # Capabilities
//! The service's bounding set is [`crate::kernel::caps::CORE`] and `CORE_START`; each entry says what it is for. Once the
//! programs are loaded and the sockets are there, the daemon keeps `CORE` only, sets `no_new_privs` and is not dumpable. It
//! stays uid 0, for the pins, the runtime directory and the profiles are root's; it has no `CAP_DAC_OVERRIDE`,
//! `CAP_SYS_ADMIN` or `CAP_NET_ADMIN`.

pub(crate) mod agents;
pub(crate) mod client;
pub(crate) mod containers;
pub(crate) mod daemon;
pub(crate) mod enforcer;
pub(crate) mod enroll;
pub(crate) mod link;
pub(crate) mod lock;
pub(crate) mod notify;
pub(crate) mod outbox;
mod past;
pub(crate) mod paths;
pub(crate) mod peer;
mod privileges;
pub(crate) mod quota;
pub(crate) mod reload;
pub(crate) mod report;
pub(crate) mod reports;
pub(crate) mod running;
pub(crate) mod server;
pub(crate) mod state;
pub(crate) mod supervise;
mod vouch;
pub(crate) mod watch;
