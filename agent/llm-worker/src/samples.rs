//! A configuration for tests.

use ringfence_policy::agents::registry::AgentConfig;
use serde_json::json;

/// Of an agent without MCP servers and limits.
pub(crate) fn config() -> AgentConfig {
    serde_json::from_value(json!({
        "name": "a", "file": "/a.toml", "log_reader": null, "socket_owner": null, "governed": false, "notices": [],
        "mcp": [], "http": null,
        "limits": { "turns_per_minute": null, "tokens_per_day": null, "cost_per_day": null },
        "llm": {
            "name": "m", "provider": "Anthropic", "model": "m", "base_url": null, "max_tokens": 10, "options": {},
            "price": { "input": 0.0, "output": 0.0, "cache_read": 0.0, "cache_write": 0.0 },
            "models": [], "auth": null, "provider_tools": [], "prompt_cache": true, "max_mcp_rounds": 5, "max_rounds": 5,
            "timeout": {"secs": 120, "nanos": 0}, "runtime_timeout": {"secs": 120, "nanos": 0},
        },
    }))
    .unwrap()
}
