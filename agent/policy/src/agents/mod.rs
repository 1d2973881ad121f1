//! Agents: what profiles and the registry say of their models, MCP servers and limits.

pub mod config;
pub mod home;
pub mod registry;
