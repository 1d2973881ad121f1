//! The socket at loopback that the browser is sent back to. Anybody on this machine may connect: what is no answer to this login is
//! turned away, and nobody is waited for long.

use std::{
    io::{self, Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};
use zeroize::Zeroizing;

/// The path that the browser is sent back to.
pub(super) const PATH: &str = "/callback";
/// Most bytes of a request's head.
const MAX: usize = 16 << 10;
/// How long one connection may take.
const TIME: Duration = Duration::from_secs(5);
/// How often it is looked whether somebody has come.
const AGAIN: Duration = Duration::from_millis(50);
/// Most connections that are no answer: browsers ask for an icon, too.
const MOST: usize = 64;

/// What came: the query of the address. Its browser waits for [`Browser::say`].
pub(super) struct Browser {
    stream: TcpStream,
    pub(super) query: Zeroizing<String>,
}

/// Waits for the browser, until `end` or until `goes_on` says no.
///
/// # Errors
/// In words: nobody came.
pub(super) fn wait(
    listener: &TcpListener,
    end: Instant,
    goes_on: impl Fn() -> bool,
) -> Result<Browser, String> {
    listener.set_nonblocking(true).map_err(|error| error.to_string())?;
    let mut strangers = 0;
    while Instant::now() < end && goes_on() {
        match listener.accept() {
            Ok((stream, _)) => match query(stream) {
                Some(browser) => return Ok(browser),
                None => strangers += 1,
            },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(AGAIN),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(format!("cannot wait for the browser: {error}")),
        }
        if strangers > MOST {
            return Err(
                "others than the browser connect to the address it is sent back to; try again".to_owned()
            );
        }
    }
    Err("nobody logged in there in time; run it again, and open the address that it prints".to_owned())
}

/// The query of a request for our path; any other is answered at once.
fn query(stream: TcpStream) -> Option<Browser> {
    let end = Instant::now() + TIME;
    stream.set_nonblocking(false).ok()?;
    let mut head = Zeroizing::new(Vec::with_capacity(MAX));
    let mut chunk = Zeroizing::new([0_u8; 2048]);
    // A head ends with an empty line: what is answered before it was read may never arrive.
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || head.len() + chunk.len() > MAX {
            return None;
        }
        stream.set_read_timeout(Some(left)).ok()?;
        match (&stream).read(&mut chunk[..]) {
            Ok(0) | Err(_) => return None,
            Ok(n) => head.extend_from_slice(chunk.get(..n)?),
        }
    }
    let mut browser = Browser { stream, query: Zeroizing::default() };
    match target(&head) {
        Some(query) => {
            browser.query = Zeroizing::new(query.to_owned());
            Some(browser)
        }
        None => {
            browser.answer("404 Not Found", "This is not the address of a login.");
            None
        }
    }
}

/// The query of a GET of our path.
fn target(head: &[u8]) -> Option<&str> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let (path, query) = target.split_once('?')?;
    let is_ours = method == "GET" && path == PATH && version.starts_with("HTTP/1.") && words.next().is_none();
    is_ours.then_some(query)
}

impl Browser {
    /// Tells the user in the browser. `what` is ours.
    pub(super) fn say(self, is_done: bool, what: &str) {
        self.answer(if is_done { "200 OK" } else { "400 Bad Request" }, what);
    }

    fn answer(&self, status: &str, what: &str) {
        let text = what.replace('&', "&amp;").replace('<', "&lt;");
        let page = format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Ringfence</title><p>{text}</p></html>\n"
        );
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {}\r\nContent-Security-Policy: default-src 'none'\r\nReferrer-Policy: no-referrer\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n",
            page.len()
        );
        let _ = self.stream.set_write_timeout(Some(TIME));
        let _ = (&self.stream).write_all((head + &page).as_bytes());
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    #[test]
    fn only_a_get_of_our_path_is_an_answer() {
        let of = |line: &str| target(format!("{line}\r\nHost: x\r\n\r\n").as_bytes()).map(str::to_owned);
        assert_eq!(of("GET /callback?code=a&state=b HTTP/1.1").as_deref(), Some("code=a&state=b"));
        for other in [
            "",
            "GET /callback HTTP/1.1",
            "GET /callback?a",
            "POST /callback?a HTTP/1.1",
            "GET /favicon.ico?a HTTP/1.1",
            "GET /callback/?a HTTP/1.1",
            "GET /callback?a b HTTP/1.1",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    fn asked(address: SocketAddr, text: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    #[test]
    fn strangers_are_turned_away_until_the_browser_comes_or_the_time_is_over() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let far = Instant::now() + Duration::from_secs(600);
        let browser = thread::spawn(move || {
            let stranger = asked(address, "GET /favicon.ico HTTP/1.1\r\n\r\n");
            drop(TcpStream::connect(address).unwrap());
            (stranger, asked(address, "GET /callback?code=1 HTTP/1.1\r\n\r\n"))
        });
        let came = wait(&listener, far, || true).unwrap();
        assert_eq!(*came.query, "code=1");
        came.say(true, "a < b");
        let (stranger, answer) = browser.join().unwrap();
        assert!(stranger.starts_with("HTTP/1.1 404 "), "{stranger}");
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.contains("a &lt; b"), "{answer}");
        assert!(wait(&listener, Instant::now(), || true).is_err());
        assert!(wait(&listener, far, || false).is_err());
    }
}
