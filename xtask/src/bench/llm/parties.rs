//! The provider's own API over HTTP: alone, through our endpoint, and through other gateways.

use super::client::Http;
use super::served::{self, Program, User, free_port};
use super::{Bench, Way, in_memory, on_disk};
use crate::bench::compared;
use crate::report::say;
use anyhow::{Context, Result};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

/// From PyPI.
const LITELLM: &str = "litellm[proxy]==1.106.2";
/// From npm.
const PORTKEY: &str = "@portkey-ai/gateway@1.15.2";
/// LiteLLM asks for a key of its own.
const MASTER: &str = "sk-bench-master-0123456789";
/// The slow ones get so many times fewer requests.
const SLOWER: usize = 4;
const REQUEST: &str = r#"{"model":"m","messages":[{"role":"system","content":"You help."},{"role":"user","content":"Which files are in the source directory?"}]}"#;
const WANTED: &str = "It has three files";

/// Measures whole answers: Portkey's streams fail with Debian's and other newer versions of Node.
pub(super) fn http(bench: &mut Bench<'_>, alone: bool) -> Result<()> {
    let url = format!("{}/v1", bench.provider.url());
    let mut targets = vec![("direct", bench.provider.port, String::new())];
    let (memory, disk) = (in_memory()?, on_disk()?);
    let homes = (in_memory()?, in_memory()?);
    let mut users = Vec::new();
    for (name, home, data) in [
        ("ringfence agent start", homes.0.path(), memory.path()),
        ("ringfence agent start, log on disk", homes.1.path(), disk.path()),
    ] {
        let port = free_port()?;
        let before = format!("http = true\nhttp_port = {port}");
        let profile = served::profile(&before, "openai", "m", &url);
        let mut user = User::start(bench.ringfence, home, data, &profile, &[])?;
        targets.push((name, port, format!("Authorization: Bearer {}\r\n", user.token(data)?)));
        users.push(user);
    }
    let dir = in_memory()?;
    let mut programs = Vec::new();
    if !alone {
        let (program, port) = litellm(dir.path(), &url)?;
        programs.push(program);
        targets.push(("LiteLLM", port, format!("Authorization: Bearer {MASTER}\r\n")));
        let (program, port) = portkey(dir.path())?;
        programs.push(program);
        let to = format!(
            "Authorization: Bearer sk-x\r\nx-portkey-provider: openai\r\nx-portkey-custom-host: {url}\r\n"
        );
        targets.push(("Portkey", port, to));
    }
    for (program, (name, port, headers)) in programs.iter_mut().zip(targets.iter().skip(3)) {
        program.wait_for(name, || ask_once(*port, headers).ok()).with_context(|| said(dir.path()))?;
    }
    say(&format!("HTTP: {} rounds of {} requests", bench.rounds, bench.calls));
    let calls = bench.calls;
    let few = move |name: &str| {
        let is_slow = matches!(name, "LiteLLM" | "Portkey");
        if is_slow { (calls / SLOWER).max(20) } else { calls }
    };
    let all = bench.compare(few, |_| {
        targets
            .iter()
            .map(|(name, port, headers)| {
                let mut http = Http::connect(*port, head(*port, headers))?;
                Ok(Way::new(name, move || http.ask(REQUEST.as_bytes(), WANTED).map(|(took, _)| took)))
            })
            .collect()
    })?;
    let added = "HTTP: added to direct";
    bench.add("an HTTP request, p50, ms", added, &all);
    for (party, aim) in [("LiteLLM", "at least 20"), ("Portkey", "at least 5")] {
        let found = (bench.table.find(added, party), bench.table.find(added, "ringfence agent start"));
        if let (Some(theirs), Some(ours)) = found {
            let row = format!("added p50, {party}'s to ours");
            bench.table.add(&row, "ringfence agent start", theirs / ours);
            bench.table.aim(&row, "ringfence agent start", aim);
        }
    }
    Ok(())
}

fn head(port: u16, headers: &str) -> String {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n{headers}"
    )
}

fn ask_once(port: u16, headers: &str) -> Result<()> {
    Http::connect(port, head(port, headers))?.ask(REQUEST.as_bytes(), WANTED).map(drop)
}

/// What the gateways wrote last, for an error.
fn said(dir: &Path) -> String {
    let end = |name: &str| {
        let text = fs::read(dir.join(name)).unwrap_or_default();
        String::from_utf8_lossy(&text[text.len().saturating_sub(1500)..]).into_owned()
    };
    format!("LiteLLM said: {}\nPortkey said: {}", end("litellm.log"), end("portkey.log"))
}

/// LiteLLM's proxy, without a database, telemetry, or its list of prices from the network.
fn litellm(dir: &Path, url: &str) -> Result<(Program, u16)> {
    let place = compared::from_pypi(LITELLM, "LiteLLM")?;
    let (config, port) = (dir.join("litellm.yaml"), free_port()?);
    fs::write(
        &config,
        format!(
            "model_list:\n  - model_name: m\n    litellm_params:\n      model: openai/m\n      api_base: {url}\n      \
             api_key: sk-bench-0123456789\nlitellm_settings:\n  telemetry: false\n"
        ),
    )?;
    let mut command = Command::new(place.join("bin/litellm"));
    command.args(["--host", "127.0.0.1", "--port", &port.to_string(), "--config"]).arg(&config);
    command.env("LITELLM_LOCAL_MODEL_COST_MAP", "True").env("LITELLM_MASTER_KEY", MASTER);
    Ok((Program::start(quiet(&mut command, dir, "litellm.log")?)?, port))
}

fn portkey(dir: &Path) -> Result<(Program, u16)> {
    let place = compared::from_npm(PORTKEY, "Portkey")?;
    let port = free_port()?;
    let mut command = Command::new("node");
    command.arg("node_modules/@portkey-ai/gateway/build/start-server.js");
    command.args(["--headless", &format!("--port={port}")]).current_dir(place);
    Ok((Program::start(quiet(&mut command, dir, "portkey.log")?)?, port))
}

/// A home of its own, and its words in a file.
fn quiet<'c>(command: &'c mut Command, dir: &Path, log: &str) -> Result<&'c mut Command> {
    let log = File::create(dir.join(log))?;
    command.env("HOME", dir).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    Ok(command)
}
