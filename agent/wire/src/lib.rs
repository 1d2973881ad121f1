//! Messages between Ringfence's roles: frames of a length and JSON. Blocking; no async runtime.
//!
//! | layer | file |
//! |---|---|
//! | length-prefixed frames over any `Read` and `Write` | [`frame`] |
//! | bytes with descriptors beside them | [`rights`] |
//! | one connection: a deadline for each message, file descriptors beside it | [`conn`] |
//! | the end of a connection of which not everything was read | [`ending`] |
//! | whole messages that do not depend on each other, descriptors beside them | [`packets`] |
//! | what is said on the admin, enrolment and query sockets | [`message`] |
//! | what `ringfence status` is answered | [`status`] |
//! | an event, as everyone but the kernel sees it | [`event`] |
//! | what is said about MCP sessions | [`mcp`] |
//! | what a tool call does, what is decided about it | [`tool_call`] |
//! | approvals of more than one call | [`approvals`] |
//! | reasons that are not counted in certain calls | [`exception`] |
//! | what the core and the auditor say to each other | [`audit`] |
//! | what the core and an agent's LLM worker say to each other | [`agent`] |
//! | what an agent's worker tells the auditor of its tools | [`agent_tools`] |
//! | what a container may reach by name, and what its egress worker says | [`egress`] |
//! | what it asks a person | [`egress_asks`] |
//! | which rule decides about a name | `names` |
//! | credentials that are put into requests on the host | [`credentials`] |
//! | which requests those are | [`requests`] |
//! | what `ringfence run` asks who renews a login | [`renewal`] |
//! | what is said about a login at a remote MCP server | [`mcp_login`] |
//! | what a worker reports, and the trace that is made of it | [`trace`] |
//! | the list of tool calls, whatever carried them | [`calls`] |
//! | what a run's container says on the socket of its ties | [`tie`] |
//! | what is said on the tool runner's socket, in a container | [`runner`] |

#[macro_use]
mod words;

pub mod agent;
pub mod agent_tools;
pub mod approvals;
pub mod audit;
pub mod calls;
pub mod conn;
pub mod credentials;
pub mod depth;
pub mod egress;
pub mod egress_asks;
pub mod ending;
pub mod event;
pub mod exception;
pub mod frame;
pub mod mcp;
pub mod mcp_login;
pub mod message;
mod names;
pub mod packets;
pub mod renewal;
pub mod requests;
pub mod rights;
pub mod runner;
pub mod status;
pub mod tie;
pub mod tool_call;
pub mod trace;
