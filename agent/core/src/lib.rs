//! The privileged role: keeps containers, enrols, supervises.
//!
//! | file | what it holds |
//! |---|---|
//! | `daemon` | start to stop: lock, load or adopt, drop privileges, sockets, the main loop |
//! | `notify` | what the service manager is told |
//! | `server`, `quota` | the admin and enrolment sockets: who may speak, how much |
//! | `run_line` | what a run reports of the container that it enrolled |
//! | `enroll`, `running`, `privileges` | who may put which task under which profile; processes that already run |
//! | `state`, `containers` | every container from enrolment to its last task, and its record on disk |
//! | `link_targets` | where links led that a container could have made: it outlives the container |
//! | `enforcer` | what the core needs of the kernel, as a trait |
//! | `reload`, `status` | profiles read again when they change; what `ringfence status` shows |
//! | `link`, `outbox`, `auditor_role` | the auditor: kept running, fed raw records, resent what it did not store |
//! | `report_queue`, `pace` | what agents report, queued fairly for each; how fast a line is read |
//! | `agents` | the agents' LLM workers: kept running, told who their peers are, tags for their tool calls |
//! | `egress` | outbound names: each such container's addresses, sockets and worker |
//! | `peer_resolver` | who the auditor's peers are, which its sandbox cannot see |
//!
//! Elsewhere: who is at a socket's other end is `ringfence-process` (`peer`); the clients of these sockets and the
//! watch on profiles are `ringfence-base` (`client`, `watch`).
//!
//! # Threads
//! The main thread waits for signals, connections and the tick. `records` is the only reader of the rings; `profiles`
//! reads profiles again; `peers` answers the auditor. Each agent has a thread, which starts and answers its worker, and so has
//! each container that may reach names. A thread that enters another network namespace ends there.
//! Each connection has a thread for as long as it lasts, and each run's line is one, of which a user has a few. One lock guards [`state::State`]; profiles are compiled
//! outside it when a task is enrolled, inside it when profiles are read again.
//!
//! # What it parses
//! Profiles (root's files), its own records, and frames of bounded size from local peers: see `ringfence_wire`. It does
//! not look inside an event's record. From the auditor it takes only two kinds of number, and questions that are a
//! descriptor each. From an agent's worker it takes counts, questions that are descriptors, and raw JSON for the auditor; from a run
//! that JSON alone. From an egress worker it takes numbers, and a sentence for the operator.
//!
//! # Capabilities
//! The service's bounding set is [`ringfence_sandbox::caps::CORE`] and `CORE_START`; each entry says what it is for.
//! Once the programs are loaded and the sockets exist, the daemon keeps `CORE` only, sets `no_new_privs` and is not
//! dumpable. It stays uid 0, because root owns the pins, the runtime directory and the profiles; it has no
//! `CAP_DAC_OVERRIDE` or `CAP_NET_ADMIN`, and `CAP_SYS_ADMIN` is in force only in a thread that is about to enter a network
//! namespace, and ends.

// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// Where nobody reads standard output any more (`| head`), `println!` panics.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

pub mod agents;
pub mod auditor_role;
mod call_tags;
pub mod containers;
pub mod daemon;
pub mod egress;
pub mod enforcer;
pub mod enroll;
pub mod link;
mod link_targets;
pub mod notify;
pub(crate) mod outbox;
mod pace;
mod peer_resolver;
mod privileges;
pub mod quota;
pub mod reload;
pub mod report_queue;
mod run_line;
pub mod running;
pub mod server;
pub mod state;
pub mod status;
