//! `ringfence mcp --listen`: an endpoint on loopback; each session of its clients is a `ringfence mcp` of its own.

use crate::cli::output;
use anyhow::{Context as _, bail};
use ringfence_base::loopback;
use ringfence_client::places::Places;
use ringfence_credentials::Source;
use ringfence_files::{Access, Dir};
use ringfence_mcp_http::endpoint::{self, Endpoint, gate::PATH};
use std::{
    ffi::{OsStr, OsString},
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    process::ExitCode,
    time::Duration,
};

/// The endpoint, and how long its sessions may do nothing.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Clients that speak HTTP")]
pub(crate) struct ListenArgs {
    /// Serve clients that speak streamable HTTP on this address of loopback, in place of one client on standard input: each of
    /// their sessions is recorded as one. Port 0 is any free one. The address for clients is printed; it holds a secret, which
    /// stays the same for the same port and database.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Seconds of inactivity after which a client's session ends, 10 to 604800.
    #[arg(long, value_name = "N", default_value_t = 1800, requires = "listen", value_parser = clap::value_parser!(u64).range(10..=604_800))]
    idle_timeout: u64,
    /// Of a session that `--listen` started: whose it is.
    #[arg(long, hide = true, value_name = "NAME", conflicts_with = "listen")]
    for_client: Option<String>,
}

/// Options of the endpoint alone, each with a value.
const OWN: [&str; 2] = ["--listen", "--idle-timeout"];

impl ListenArgs {
    /// Where to listen, if anywhere.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.listen
    }

    /// The client that this session is for, where it is one of an endpoint's.
    pub(super) fn client(&self) -> Option<&str> {
        self.for_client.as_deref()
    }

    /// Serves until a signal ends it.
    pub(super) fn serve(
        &self,
        address: SocketAddr,
        places: &Places,
        max_line: u64,
    ) -> anyhow::Result<ExitCode> {
        if address.ip() != Ipv4Addr::LOCALHOST {
            bail!(
                "--listen {address}: only 127.0.0.1 can be listened on; whoever reaches the endpoint may call the server's tools"
            );
        }
        let listener = loopback::listen(address.port());
        let listener =
            listener.with_context(|| format!("cannot listen on {address}; is another endpoint there?"))?;
        let address = listener.local_addr().context("the listening socket has no address")?;
        let secret = secret(places, self.listen.map_or(0, |asked| asked.port()))?;
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        // The first is this program, the second `mcp`.
        let (program, arguments) = (program.into_os_string(), without_own(std::env::args_os().skip(2)));
        output::print(&format!("listening on http://{address}{PATH}/{secret}\n"))?;
        let (max_line, idle) =
            (usize::try_from(max_line).unwrap_or(usize::MAX), Duration::from_secs(self.idle_timeout));
        endpoint::serve(listener, Endpoint { secret, program, arguments, max_line, idle })?;
        Ok(ExitCode::SUCCESS)
    }
}

/// This process's arguments without those of the endpoint. What stands behind `--` is the server's.
fn without_own(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let (mut kept, mut arguments) = (Vec::new(), arguments);
    while let Some(argument) = arguments.next() {
        if argument == "--" {
            kept.push(argument);
            kept.extend(arguments);
            break;
        }
        let is_own = |own: &&str| argument == OsStr::new(own);
        if OWN.iter().any(is_own) {
            arguments.next();
            continue;
        }
        let text = argument.to_string_lossy();
        if OWN.iter().any(|own| text.strip_prefix(own).is_some_and(|rest| rest.starts_with('='))) {
            continue;
        }
        kept.push(argument);
    }
    kept
}

/// The secret of a port: a file beside the database, so that clients need be told once. A port that is any has a new one.
fn secret(places: &Places, port: u16) -> anyhow::Result<String> {
    let fresh = format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
    if port == 0 {
        return Ok(fresh);
    }
    let folder = places.db.parent().unwrap_or(Path::new("/"));
    let file = folder.join(format!("listen-{port}.secret"));
    let wrong = || format!("cannot use {} for the secret of the endpoint", file.display());
    if file.exists() {
        let kept = Source::File(file.clone()).read().with_context(wrong)?;
        if kept.expose().len() < 32 || !kept.expose().bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            bail!(
                "{}: it does not contain an endpoint secret; delete it, then give clients the new address",
                wrong()
            );
        }
        return Ok(kept.expose().to_owned());
    }
    let (dir, name) = Dir::of(&file).with_context(wrong)?;
    dir.replace(&name, format!("{fresh}\n").as_bytes(), Access::Mode(0o600)).with_context(wrong)?;
    Ok(fresh)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_gets_all_arguments_but_the_endpoint_s() {
        let of = |words: &[&str]| without_own(words.iter().map(OsString::from));
        let words = ["--listen", "127.0.0.1:0", "--lenient", "--idle-timeout=20", "--url", "https://h/"];
        assert_eq!(of(&words), ["--lenient", "--url", "https://h/"]);
        let words = ["--listen=127.0.0.1:0", "--", "server", "--listen", "x"];
        assert_eq!(of(&words), ["--", "server", "--listen", "x"]);
    }
}
