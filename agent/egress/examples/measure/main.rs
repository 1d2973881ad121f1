//! What an egress worker adds to connections by name, beside direct ones and beside another proxy that ends TLS.
//!
//! `measure serve FOLDER HOST ADDRESS` is the servers' process, `measure RINGFENCE FOLDER CONNECTS OPEN [MITMDUMP]` measures, and prints a
//! figure on each line: a row, the way, the figure, with tabs between; `measure link RINGFENCE FOLDER PID ADDRESS` measures bulk alone, from
//! servers in a process's network namespace. `cargo xtask bench egress` makes a table of them.

mod client;
mod proxy;
mod server;
mod worker;

use anyhow::{Context, Result, bail};
use client::{Client, Way};
use std::{
    env,
    net::Ipv4Addr,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};
use worker::Worker;

/// Bytes of a body that is measured for its throughput.
const BULK: u64 = 512 << 20;
/// The same, over a link.
const LINK_BULK: u64 = 128 << 20;
/// How often: the ways take turns.
const BULK_ROUNDS: usize = 5;
/// Connections and questions that are not counted: caches fill.
const WARM_UP: usize = 20;
const QUESTIONS: usize = 2000;
const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// The server's name, on loopback and beyond a link.
const LOCALHOST: &str = "localhost";
const BEYOND: &str = "server.rf.test";

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["serve", folder, host, at] => server::serve(Path::new(folder), host, at.parse()?),
        ["link", ringfence, folder, pid, at] => {
            link(Path::new(ringfence), Path::new(folder), pid, at.parse()?)
        }
        [ringfence, folder, connects, open, rest @ ..] => {
            let mitmdump = rest.first().map(Path::new);
            measure(Path::new(ringfence), Path::new(folder), connects.parse()?, open.parse()?, mitmdump)
        }
        _ => bail!("usage: measure RINGFENCE FOLDER CONNECTS OPEN [MITMDUMP]"),
    }
}

fn measure(
    ringfence: &Path,
    folder: &Path,
    connects: usize,
    open: usize,
    mitmdump: Option<&Path>,
) -> Result<()> {
    let mut server = Command::new(env::current_exe()?);
    server
        .arg("serve")
        .arg(folder)
        .args([LOCALHOST, &LOOPBACK.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut server = worker::Ended(server.spawn().context("cannot start the servers")?);
    let [tls, plain] = server::ports(&mut server.0)?;
    let worker = Worker::start(ringfence, LOCALHOST, "127.0.0.0/8", &[tls, plain])?;
    let proxy = mitmdump.map(|program| proxy::start(program, folder)).transpose()?;

    let direct = |port| Client::new(folder, LOCALHOST, Way::Direct((LOOPBACK, port).into()), port);
    let through = |port| Client::new(folder, LOCALHOST, Way::Worker(&worker), port);
    let mut secure = vec![("direct", direct(tls)?), ("ringfence", through(tls)?)];
    if let Some((_, at)) = &proxy {
        secure.push(("mitmproxy", Client::new(folder, LOCALHOST, Way::Proxy(*at), tls)?));
    }
    first_bytes(&secure, connects)?;
    bulk("bulk over TLS", BULK, &secure, Client::body_tls)?;
    bulk(
        "bulk over plain HTTP",
        BULK,
        &[("direct", direct(plain)?), ("ringfence", through(plain)?)],
        Client::body,
    )?;
    names(&worker)?;
    many(&worker, &through(plain)?, open)
}

/// Bulk from servers in the network namespace of a process, which have this address there.
fn link(ringfence: &Path, folder: &Path, pid: &str, at: Ipv4Addr) -> Result<()> {
    let mut server = Command::new("nsenter");
    server.args(["--target", pid, "--net"]).arg(env::current_exe()?).arg("serve").arg(folder);
    server.args([BEYOND, &at.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut server = worker::Ended(server.spawn().context("cannot start the servers beyond the link")?);
    let [tls, plain] = server::ports(&mut server.0)?;
    let worker = Worker::start(ringfence, BEYOND, &format!("{at}/32"), &[tls, plain])?;
    let both = |port| -> Result<_> {
        let way = |way| Client::new(folder, BEYOND, way, port);
        Ok([("direct", way(Way::Direct((at, port).into()))?), ("ringfence", way(Way::Worker(&worker))?)])
    };
    bulk("bulk over TLS, 1 Gbit/s link", LINK_BULK, &both(tls)?, Client::body_tls)?;
    bulk("bulk over plain HTTP, 1 Gbit/s link", LINK_BULK, &both(plain)?, Client::body)
}

fn told(row: &str, way: &str, figure: f64) {
    println!("{row}\t{way}\t{figure}");
}

/// The one at so many hundredths of them, sorted.
fn at(took: &mut [Duration], hundredth: usize) -> f64 {
    took.sort_unstable();
    let place = (took.len() * hundredth / 100).min(took.len().saturating_sub(1));
    took.get(place).map_or(f64::NAN, Duration::as_secs_f64)
}

/// From connect(2) to the first byte of an answer over TLS, with a whole handshake.
fn first_bytes(ways: &[(&str, Client<'_>)], connects: usize) -> Result<()> {
    let mut took = vec![Vec::new(); ways.len()];
    for round in 0..connects + WARM_UP {
        for ((name, client), took) in ways.iter().zip(&mut took) {
            let begin = Instant::now();
            client.first_byte().with_context(|| format!("{name}: no first byte"))?;
            if round >= WARM_UP {
                took.push(begin.elapsed());
            }
        }
    }
    for ((name, _), took) in ways.iter().zip(&mut took) {
        told("TLS connect and first byte, p50, ms", name, at(took, 50) * 1e3);
        told("TLS connect and first byte, p99, ms", name, at(took, 99) * 1e3);
    }
    Ok(())
}

fn bulk<'w>(
    row: &str,
    bytes: u64,
    ways: &[(&str, Client<'w>)],
    body: impl Fn(&Client<'w>, u64) -> Result<()>,
) -> Result<()> {
    let mut took = vec![Vec::new(); ways.len()];
    for _ in 0..BULK_ROUNDS {
        for ((name, client), took) in ways.iter().zip(&mut took) {
            // The proxy that ends TLS needs a while for less.
            let size = if *name == "mitmproxy" { bytes / 16 } else { bytes };
            let begin = Instant::now();
            body(client, size).with_context(|| format!("{name}: the body is not whole"))?;
            took.push(begin.elapsed().mul_f64(bytes as f64 / size as f64));
        }
    }
    for ((name, _), took) in ways.iter().zip(&mut took) {
        told(&format!("{row}, MB/s"), name, bytes as f64 / 1e6 / at(took, 50));
    }
    Ok(())
}

/// From a question to its answer.
fn names(worker: &Worker) -> Result<()> {
    let mut took = Vec::new();
    let resolver = worker.resolver()?;
    for round in 0..QUESTIONS + WARM_UP {
        let begin = Instant::now();
        resolver.ask()?;
        if round >= WARM_UP {
            took.push(begin.elapsed());
        }
    }
    told("a resolved name, p50, ms", "ringfence", at(&mut took, 50) * 1e3);
    told("a resolved name, p99, ms", "ringfence", at(&mut took, 99) * 1e3);
    Ok(())
}

/// Connections that have had an answer, and stay.
fn many(worker: &Worker, client: &Client<'_>, open: usize) -> Result<()> {
    told("memory without a connection, MB", "ringfence", worker.memory()?);
    let mut kept = Vec::with_capacity(open);
    for number in 0..open {
        kept.push(client.kept().with_context(|| format!("connection {number} of {open}"))?);
    }
    told(&format!("memory with {open} connections open, MB"), "ringfence", worker.memory()?);
    Ok(())
}
