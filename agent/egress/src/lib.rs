//! The egress worker: what one container reaches by name. `ringfence egress-worker`, which the core starts, or `ringfence run` where
//! there is no core: then the worker is a proxy, for the command's clients to use.
//!
//! | file | what |
//! |---|---|
//! | `role`, `confine` | the worker as a process of its own; what it may still do once it runs |
//! | `link` | its link to the core: whose each connection is, other policies |
//! | `worker` | what all connections share: the policy, the table of names, counts |
//! | `dns` | the container's resolver |
//! | `connection` | one connection, from its first byte to its record; `head`: what is said first |
//! | `asks` | questions for a person, and how long connections wait for an answer |
//! | `proxy` | the same where there is no core: what a client asks the proxy for, before all that |
//! | `credentials` | handing a connection to the process that has the container's credentials |
//! | `dial`, `lookups`, `hosts`, `route`, `addresses` | from a name to a server, and which addresses one may have |
//! | `turns` | how many connections to what one entry grants look for its server at once |
//! | `pass` | bytes both ways, and what of them is still looked at |
//! | `held` | bytes of a client's that are judged before they go on |
//! | `share` | how much memory a connection may take, and for how long |
//! | `flow`, `pipes` | bytes from one socket to another, without a buffer for each |
//! | `refusal` | why a connection is refused, and how its client learns of it |
//! | `uploads` | how much was sent to what each entry of the profile grants, over all workers |
//! | `records`, `line` | what is for the record, until the auditor has it |
//! | `rate` | how many there may be of what whoever is governed makes up |
//!
//! What DNS messages, ClientHellos and HTTP heads say is read in `ringfence-names`, which rule decides in `ringfence-wire`
//! (`names`).

// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// Where nobody reads standard output any more (`| head`), `println!` panics.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

mod addresses;
mod asks;
mod confine;
mod connection;
mod credentials;
mod dial;
mod dns;
mod flow;
mod held;
mod hosts;
mod line;
mod link;
mod lookups;
mod pass;
mod pipes;
mod proxy;
mod rate;
mod records;
mod refusal;
pub mod role;
mod route;
mod search;
mod share;
mod turns;
mod uploads;
mod worker;
