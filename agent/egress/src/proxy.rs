//! The worker as a proxy, where there is no core and no kernel that leads connections to it: what a client asks for, until it is a
//! connection like any other.
//!
//! The port is everybody's on this host to connect to, so whoever has no token is told nothing and goes nowhere. What a client that
//! has it says is believed for where it wants to go, which the policy judges; what it says there is held to that as ever.

use crate::{
    connection::{Connection, set_up},
    held::Held,
    refusal::{Refusal, reset, say_last},
    share::Share,
    worker::Worker,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use ringfence_base::clock::now_micros;
use ringfence_names::proxy::{
    Host, Target,
    http::{NotServed, Reader},
    socks,
};
use ringfence_wire::egress::{EgressCause, EgressOutcome, PROXY_USER, ProxyToken};
use std::{
    io,
    rc::Rc,
    time::{Duration, Instant},
};
use subtle::ConstantTimeEq as _;
use tokio::{net::TcpStream, sync::Semaphore, time::timeout};

/// How long a client may take to say where it wants to go.
const ASKING: Duration = Duration::from_secs(10);
/// What a client of SOCKS5 is told that may go on: the address is none that it could use.
const GRANTED: [u8; 10] = [socks::VERSION, 0, 0, 1, 0, 0, 0, 0, 0, 0];
/// And one that may not: "connection not allowed by ruleset", "command not supported", "general failure".
const BY_RULESET: u8 = 2;
const NO_SUCH_COMMAND: u8 = 7;
const FAILURE: u8 = 1;
/// Most bytes by which a request is longer that is written anew: a space in each header, and `Connection: close`.
const LONGER: usize = 512;
/// No method is acceptable.
const NO_METHOD: [u8; 2] = [socks::VERSION, 0xff];

/// Who may use the proxy.
pub(crate) struct Access {
    /// The value of `Proxy-Authorization`, behind `Basic `.
    basic: String,
    token: String,
    /// Memory for what clients say until they are let in, where what each has of its own is too little: whoever has no token takes none
    /// of what others pass with.
    pool: Semaphore,
}

impl Access {
    pub(crate) fn new(ProxyToken(token): &ProxyToken, pool: Semaphore) -> Self {
        let basic = STANDARD.encode(format!("{PROXY_USER}:{token}"));
        Self { basic, token: token.clone(), pool }
    }

    fn may(&self, authorization: Option<&[u8]>) -> bool {
        let Some((scheme, said)) = authorization.and_then(|value| value.split_at_checked(6)) else {
            return false;
        };
        scheme.eq_ignore_ascii_case(b"Basic ") && said.trim_ascii().ct_eq(self.basic.as_bytes()).into()
    }

    fn may_by_socks(&self, said: &socks::Password) -> bool {
        let is_user = said.name.ct_eq(PROXY_USER.as_bytes());
        (is_user & said.password.ct_eq(self.token.as_bytes())).into()
    }
}

/// What a client speaks with the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Speaks {
    /// CONNECT: what follows is the server's.
    Tunnel,
    /// A request of plain HTTP, which is held as its server is to see it.
    Forward,
    Socks,
}

/// A client that is not served: what it is told.
struct Not(Vec<u8>);

impl From<io::Error> for Not {
    fn from(_: io::Error) -> Self {
        Self(Vec::new())
    }
}

/// Serves a client until it is over.
pub(crate) async fn serve(worker: Rc<Worker>, access: &Access, client: TcpStream) {
    let begun = (Instant::now(), now_micros());
    set_up(&client);
    let asks = Share::new(&access.pool);
    let mut held = Held::new(&asks);
    let (target, speaks) = match timeout(ASKING, asked(&worker, access, &client, &mut held)).await {
        Ok(Ok(asked)) => asked,
        Ok(Err(Not(said))) => {
            worker.count(|counts| counts.refused += 1);
            drop(held);
            return say_last(&worker.mover, client, &said).await;
        }
        Err(_) => {
            worker.count(|counts| counts.refused += 1);
            return reset(client);
        }
    };
    let (name, port, is_name) = match target {
        Target { host: Host::Name(name), port } => (name, port, true),
        Target { host, port } => (host.to_string(), port, false),
    };
    let share = Share::new(&worker.pool);
    let mut connection = Connection::new(&worker, &share, None, (name.clone(), port), begun);
    if speaks == Speaks::Forward {
        connection = connection.forwarded();
    }
    let judged = match is_name {
        true => connection.judge(&worker.policy()).map(drop),
        false => Err(Refusal::new(
            EgressCause::NotGranted,
            "it is an address, and the proxy reaches hosts by the names that the profile grants",
        )),
    };
    if let Err(refusal) = judged {
        let said = match speaks {
            Speaks::Socks => socks_failure(BY_RULESET),
            Speaks::Tunnel | Speaks::Forward => refusal.answer(&worker.profile, &name, port).into_bytes(),
        };
        connection.record(EgressOutcome::Refused, Some(refusal));
        drop(held);
        return say_last(&worker.mover, client, &said).await;
    }
    let said = match speaks {
        Speaks::Tunnel => &b"HTTP/1.1 200 Connection established\r\n\r\n"[..],
        Speaks::Socks => &GRANTED,
        Speaks::Forward => &[],
    };
    if say(&worker, &client, said).await.is_err() {
        return reset(client);
    }
    let Ok(held) = timeout(ASKING, held.of(&share)).await else {
        connection.record(EgressOutcome::Refused, Some(share.late("what the client says", ASKING)));
        return reset(client);
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

async fn say(worker: &Worker, client: &TcpStream, mut said: &[u8]) -> io::Result<()> {
    while !said.is_empty() {
        match worker.mover.send(client, said)? {
            Some(count) => said = said.get(count..).unwrap_or_default(),
            None => client.writable().await?,
        }
    }
    Ok(())
}

fn socks_failure(code: u8) -> Vec<u8> {
    let mut said = GRANTED;
    if let Some(place) = said.get_mut(1) {
        *place = code;
    }
    said.to_vec()
}

fn http_answer(status: &str, more: &str, why: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\n{more}Content-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{why}\n",
        why.len() + 1
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_run_s_token_opens_it() {
        let access = Access::new(&ProxyToken("5ec2e7".into()), Semaphore::new(0));
        let basic = |text: &str| format!("Basic {}", STANDARD.encode(text)).into_bytes();
        assert!(access.may(Some(&basic("ringfence:5ec2e7"))));
        assert!(access.may(Some(&[b"basic  ", &basic("ringfence:5ec2e7")[6..]].concat())));
        for wrong in ["ringfence:", "ringfence:5ec2e", "ringfence:5ec2e77", "other:5ec2e7", ":5ec2e7", ""] {
            assert!(!access.may(Some(&basic(wrong))), "{wrong}");
        }
        assert!(!access.may(None) && !access.may(Some(b"Bearer 5ec2e7")) && !access.may(Some(b"")));
        let said =
            |name: &str, password: &str| socks::Password { name: name.into(), password: password.into() };
        assert!(access.may_by_socks(&said("ringfence", "5ec2e7")));
        assert!(!access.may_by_socks(&said("ringfence", "")) && !access.may_by_socks(&said("", "5ec2e7")));
    }
}
