//! A client by the resolver of the C library that it is linked with: in the guest that has other parties' clients, musl's, which
//! asks every nameserver at once from one socket and looks where an answer comes from.
//!
//! `reach HOST` prints the addresses of HOST; `reach HOST PORT PATH` the body of what HTTP has there.

use anyhow::{Context, Result, bail};
use std::{
    io::{Read as _, Write as _},
    net::{TcpStream, ToSocketAddrs as _},
};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [host] => {
            let found = (*host, 0).to_socket_addrs().with_context(|| format!("cannot resolve {host}"))?;
            found.for_each(|address| println!("{}", address.ip()));
            Ok(())
        }
        [host, port, path] => get(host, port.parse().context("PORT is no number")?, path),
        _ => bail!("reach HOST [PORT PATH]"),
    }
}

fn get(host: &str, port: u16, path: &str) -> Result<()> {
    let mut stream =
        TcpStream::connect((host, port)).with_context(|| format!("cannot connect to {host}:{port}"))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).context("cannot ask")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).context("the answer is broken off")?;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").context("no whole answer")?;
    let (head, body) = answer.split_at(end + 4);
    let head = String::from_utf8_lossy(head);
    if !head.starts_with("HTTP/1.1 200 ") {
        bail!("{head}");
    }
    std::io::stdout().write_all(body).context("cannot write")
}
