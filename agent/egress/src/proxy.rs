//! The worker as a proxy, where there is no core and no kernel that leads connections to it: what a client asks for, until it is a
//! connection like any other.
//!
//! | what | file |
//! |---|---|
//! | who may ask, and how many of whom that is not known yet | [`access`] |
//! | what clients are told, in what they speak | [`speaks`] |
//!
//! The port is everybody's on this host to connect to, so whoever has no token is told nothing and goes nowhere. What a client that
//! has it says is believed for where it wants to go, which the policy judges; what it says there is held to that as ever.

mod access;
mod speaks;

use crate::{
    connection::{self, Connection, set_up},
    held::Held,
    refusal::{reset, say_last},
    share::Share,
    worker::{Open, Worker},
};
pub(crate) use access::Access;
use ringfence_base::clock::now_micros;
use ringfence_names::proxy::{
    Host, Target,
    http::{NotServed, Reader},
    socks,
};
pub(crate) use speaks::Speaks;
use speaks::{http_answer, socks_failure};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    rc::Rc,
    time::{Duration, Instant},
};
use tokio::{net::TcpStream, sync::OwnedSemaphorePermit, time::timeout};

/// How long memory may take to be had for what a client said at once.
const KEEPING: Duration = Duration::from_secs(10);
/// What a client of SOCKS5 is told whose command is not served, and that cannot be served.
const NO_SUCH_COMMAND: u8 = 7;
const FAILURE: u8 = 1;
/// Most bytes by which a request is longer that is written anew: a space in each header, its host, and `Connection: close`.
const LONGER: usize = 512;
/// No method is acceptable.
const NO_METHOD: [u8; 2] = [socks::VERSION, 0xff];

/// What a client asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Where it wants to go, if that is an address and no name.
    pub(crate) address: Option<IpAddr>,
    pub(crate) speaks: Speaks,
}

/// A client that is not served: what it is told.
struct Not(Vec<u8>);

impl From<io::Error> for Not {
    fn from(_: io::Error) -> Self {
        Self(Vec::new())
    }
}

/// Serves a client until it is over. `asks`: its place among those of which is not known yet whose they are.
pub(crate) async fn serve(
    worker: Rc<Worker>,
    access: Rc<Access>,
    client: TcpStream,
    from: SocketAddr,
    asks: OwnedSemaphorePermit,
) {
    let begun = (Instant::now(), now_micros());
    set_up(&client);
    // Another user of this host has no way to the token, and takes nobody's place.
    let is_of_the_run = connection::whose(&worker, from).await.is_ok_and(|flow| flow.is_some());
    drop(asks);
    worker.count(|counts| counts.connections += 1);
    if !is_of_the_run {
        worker.count(|counts| counts.refused += 1);
        return reset(client);
    }
    let Some(_open) = Open::new(&worker) else {
        worker.count(|counts| counts.refused += 1);
        worker.is_full(&access.complained);
        return connection::full(&worker, client, None).await;
    };
    let asks = Share::new(access.pool());
    let mut held = Held::new(&asks);
    let place = access.enter();
    let asked = tokio::select! {
        biased;
        asked = timeout(place.patience(), asked(&worker, &access, &client, &mut held)) => asked.ok(),
        () = place.taken() => None,
    };
    drop(place);
    let (target, speaks) = match asked {
        Some(Ok(asked)) => asked,
        Some(Err(Not(said))) => {
            worker.count(|counts| counts.refused += 1);
            drop(held);
            return say_last(&worker.mover, client, &said).await;
        }
        None => {
            worker.count(|counts| counts.refused += 1);
            return reset(client);
        }
    };
    let Target { host, port } = target;
    let address = match host {
        Host::Address(address) => Some(address),
        Host::Name(_) => None,
    };
    let share = Share::new(&worker.pool);
    let place = (host.to_string(), port);
    let connection =
        Connection::new(&worker, &share, None, place, begun).asked_for(Asked { address, speaks });
    let Ok(held) = timeout(KEEPING, held.of(&share)).await else {
        return connection.refuse(client, share.late("what the client says", KEEPING)).await;
    };
    connection.go(client, held).await;
}

/// Where a client wants to go. What is held then comes behind that.
async fn asked(
    worker: &Worker,
    access: &Access,
    client: &TcpStream,
    held: &mut Held<'_>,
) -> Result<(Target, Speaks), Not> {
    more(worker, client, held).await?;
    match held.bytes().first() {
        Some(&socks::VERSION) => by_socks(worker, access, client, held).await,
        _ => by_http(worker, access, client, held).await,
    }
}

async fn by_http(
    worker: &Worker,
    access: &Access,
    client: &TcpStream,
    held: &mut Held<'_>,
) -> Result<(Target, Speaks), Not> {
    let mut reader = Reader::default();
    let (asked, length) = loop {
        match reader.read(held.bytes()) {
            Ok(Some(asked)) => break asked,
            Ok(None) => more(worker, client, held).await?,
            Err(error) => return Err(Not(http_answer("400 Bad Request", "", &malformed(&error)))),
        }
    };
    if !access.may(asked.authorization.as_deref()) {
        let why = "This proxy serves one run of ringfence, to whoever has the password that HTTPS_PROXY names there.";
        let challenge = "Proxy-Authenticate: Basic realm=\"ringfence\"\r\n";
        return Err(Not(http_answer("407 Proxy Authentication Required", challenge, why)));
    }
    let speaks = match asked.forward {
        Some(head) => {
            held.replace(length, &head);
            Speaks::Forward
        }
        None => {
            held.forward(length);
            Speaks::Tunnel
        }
    };
    Ok((asked.target, speaks))
}

fn malformed(error: &NotServed) -> String {
    format!("Ringfence's proxy cannot serve this: {error}.")
}

async fn by_socks(
    worker: &Worker,
    access: &Access,
    client: &TcpStream,
    held: &mut Held<'_>,
) -> Result<(Target, Speaks), Not> {
    let not_socks = |_| Not(Vec::new());
    let by_password = loop {
        if let Some((by_password, length)) = socks::greeting(held.bytes()).map_err(not_socks)? {
            held.forward(length);
            break by_password;
        }
        more(worker, client, held).await?;
    };
    if !by_password {
        return Err(Not(NO_METHOD.to_vec()));
    }
    say(worker, client, &[socks::VERSION, socks::BY_PASSWORD]).await?;
    let may = loop {
        if let Some((password, length)) = socks::password(held.bytes()).map_err(not_socks)? {
            held.forward(length);
            break access.may_by_socks(&password);
        }
        more(worker, client, held).await?;
    };
    if !may {
        return Err(Not(vec![1, 1]));
    }
    say(worker, client, &[1, 0]).await?;
    loop {
        match socks::request(held.bytes()) {
            Ok(Some((target, length))) => {
                held.forward(length);
                return Ok((target, Speaks::Socks));
            }
            Ok(None) => more(worker, client, held).await?,
            Err(socks::NotServed::Command(_)) => return Err(Not(socks_failure(NO_SUCH_COMMAND))),
            Err(socks::NotServed::Target(_)) => return Err(Not(socks_failure(FAILURE))),
            Err(socks::NotServed::NotSocks) => return Err(Not(Vec::new())),
        }
    }
}

/// Takes more of what a client says.
async fn more(worker: &Worker, client: &TcpStream, held: &mut Held<'_>) -> io::Result<()> {
    match worker.mover.hold(client, held, |_| LONGER).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

/// Says all of this to a client.
pub(crate) async fn say(worker: &Worker, client: &TcpStream, mut said: &[u8]) -> io::Result<()> {
    while !said.is_empty() {
        match worker.mover.send(client, said)? {
            Some(count) => said = said.get(count..).unwrap_or_default(),
            None => client.writable().await?,
        }
    }
    Ok(())
}
