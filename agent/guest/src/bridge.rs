//! `bridge`: a unix socket on the container's own loopback, for clients that cannot dial a unix socket.
//!
//! Bytes are passed on as they come, in both directions, each ending on its own.

use std::{
    io::{self, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

/// Bytes of a pump's stack: it copies through the kernel or a buffer of 8 KiB.
const STACK: usize = 128 << 10;

/// How long accepting pauses when there are no descriptors or threads left.
const PAUSE: Duration = Duration::from_millis(200);

/// Serves a unix socket on this container's loopback, for SDKs that know HTTP addresses only.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  ringfence-runtime bridge --socket /run/ringfence/http.sock --port 8080\n  \
    ANTHROPIC_BASE_URL=http://127.0.0.1:8080 my-agent"
)]
pub struct Args {
    /// The unix socket, which each connection is passed on to
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// The port of 127.0.0.1, and of ::1 where there is IPv6; 0 takes a free one of 127.0.0.1 and prints it
    #[arg(long, value_name = "PORT")]
    port: u16,
    /// Most connections at a time; more are closed at once
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    max_connections: u16,
}

/// Runs until a signal ends it.
pub fn run(args: &Args) -> ExitCode {
    let first = match TcpListener::bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), args.port)) {
        Ok(listener) => listener,
        Err(error) => {
            say(format_args!("cannot listen on 127.0.0.1:{}: {error}", args.port));
            return ExitCode::FAILURE;
        }
    };
    match first.local_addr() {
        Ok(address) => {
            // A reader that is gone is no reason to stop.
            let _ = writeln!(io::stdout(), "listening on {address}");
        }
        Err(error) => say(format_args!("cannot tell the port: {error}")),
    }
    let bridge = Arc::new(Bridge {
        socket: args.socket.clone(),
        most: args.max_connections.into(),
        open: AtomicUsize::new(0),
    });
    // `localhost` is ::1 first for some clients; without IPv6 they go on to 127.0.0.1.
    if args.port != 0
        && let Ok(second) = TcpListener::bind(SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), args.port))
    {
        let bridge = Arc::clone(&bridge);
        let spawned = thread::Builder::new().stack_size(STACK).spawn(move || bridge.serve(&second));
        if let Err(error) = spawned {
            say(format_args!("cannot serve [::1]: {error}"));
        }
    }
    bridge.serve(&first)
}

#[derive(Debug)]
struct Bridge {
    socket: PathBuf,
    most: usize,
    open: AtomicUsize,
}

impl Bridge {
    fn serve(self: &Arc<Self>, listener: &TcpListener) -> ! {
        loop {
            match listener.accept() {
                Ok((client, _)) => self.admit(client),
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    say(format_args!("cannot accept a connection: {error}"));
                    thread::sleep(PAUSE);
                }
            }
        }
    }

    /// Starts passing on, unless there are too many; a connection that is dropped is closed.
    fn admit(self: &Arc<Self>, client: TcpStream) {
        let permit = ConnectionPermit(Arc::clone(self));
        if self.open.fetch_add(1, Ordering::Relaxed) >= self.most {
            say(format_args!("{} connections are open, which is the most: one more was closed", self.most));
            return;
        }
        let spawned = thread::Builder::new().stack_size(STACK).spawn(move || {
            if let Err(error) = forward(client, &permit.0.socket) {
                say(format_args!("{}: {error}", permit.0.socket.display()));
            }
            drop(permit);
        });
        if let Err(error) = spawned {
            say(format_args!("cannot start a thread: {error}"));
        }
    }
}

/// One of the connections that are counted.
struct ConnectionPermit(Arc<Bridge>);

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Passes bytes both ways until both have ended. An error is one of starting; how a connection ends is its own business.
fn forward(client: TcpStream, socket: &Path) -> io::Result<()> {
    let server = UnixStream::connect(socket)?;
    // Small pieces of a stream must not wait for each other.
    client.set_nodelay(true)?;
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    let up = thread::Builder::new().stack_size(STACK).spawn(move || {
        let ended = io::copy(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Write);
        if ended.is_err() {
            let _ = from_client.shutdown(Shutdown::Both);
        }
    })?;
    let (mut from_server, mut to_client) = (server, client);
    let ended = io::copy(&mut from_server, &mut to_client);
    let _ = to_client.shutdown(Shutdown::Write);
    if ended.is_err() {
        // The client is gone: the server's other half must not wait for it.
        let _ = from_server.shutdown(Shutdown::Both);
    }
    let _ = up.join();
    Ok(())
}

fn say(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "ringfence-runtime: bridge: {line}");
}
