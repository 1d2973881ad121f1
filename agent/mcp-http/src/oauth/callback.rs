//! The socket at loopback that the browser is sent back to. Anybody on this machine may connect, and web pages may: what is no answer
//! to this login is turned away and ends nothing, and nobody is waited for while another waits.

use super::answer::Refusal;
use std::{
    collections::VecDeque,
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
/// How often it is looked whether something has come.
const AGAIN: Duration = Duration::from_millis(50);
/// Most connections at a time that have not said what they want. The oldest goes: a browser says it at once.
const MOST: usize = 64;

/// Who brought the answer, and waits for [`Browser::say`].
pub(super) struct Browser {
    stream: TcpStream,
}

/// A connection that has not said what it wants.
struct Visitor {
    stream: TcpStream,
    head: Zeroizing<Vec<u8>>,
    end: Instant,
}

/// What a connection turned out to be.
enum Visit {
    Unfinished(Visitor),
    Over,
    /// The query of a request for our path.
    Answer(Browser, Zeroizing<String>),
}

/// Waits for the browser, until `end` or until `goes_on` says no. `read` reads the query that it was sent back with; what is another
/// login's is turned away.
///
/// # Errors
/// In words: nobody came.
pub(super) fn wait<T>(
    listener: &TcpListener,
    end: Instant,
    goes_on: impl Fn() -> bool,
    read: impl Fn(&str) -> Result<T, Refusal>,
) -> Result<(Browser, Result<T, Refusal>), String> {
    listener.set_nonblocking(true).map_err(|error| error.to_string())?;
    let (mut visitors, mut came) = (VecDeque::<Visitor>::new(), false);
    while Instant::now() < end && goes_on() {
        match listener.accept() {
            Ok((stream, _)) if stream.set_nonblocking(true).is_ok() => {
                if visitors.len() == MOST {
                    visitors.pop_front();
                }
                let head = Zeroizing::new(Vec::with_capacity(MAX));
                visitors.push_back(Visitor { stream, head, end: Instant::now() + TIME });
            }
            Ok(_) => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(AGAIN),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {}
            Err(error) => return Err(format!("cannot wait for the browser: {error}")),
        }
        for visitor in std::mem::take(&mut visitors) {
            match visitor.visit() {
                Visit::Unfinished(visitor) => visitors.push_back(visitor),
                Visit::Over => {}
                Visit::Answer(browser, query) => match read(&query) {
                    Err(refusal @ Refusal::State) => {
                        came = true;
                        browser.say(false, &format!("You are not logged in: {refusal}."));
                    }
                    answer => return Ok((browser, answer)),
                },
            }
        }
    }
    let strange =
        if came { "; what came in the browser was not this login's (its state is another)" } else { "" };
    Err(format!("nobody logged in there in time{strange}; run it again, and open the address that it prints"))
}

impl Visitor {
    /// Reads what has come. A request that is not for our path is answered at once.
    fn visit(mut self) -> Visit {
        let mut chunk = Zeroizing::new([0_u8; 2048]);
        // A head ends with an empty line: what is answered before it was read may never arrive.
        while !self.head.windows(4).any(|four| four == b"\r\n\r\n") {
            if Instant::now() >= self.end || self.head.len() + chunk.len() > MAX {
                return Visit::Over;
            }
            match (&self.stream).read(&mut chunk[..]) {
                Ok(read @ 1..) => self.head.extend_from_slice(chunk.get(..read).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Visit::Unfinished(self),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => return Visit::Over,
            }
        }
        let browser = Browser { stream: self.stream };
        match target(&self.head) {
            Some(query) => Visit::Answer(browser, Zeroizing::new(query.to_owned())),
            None => {
                browser.answer("404 Not Found", "This is not the address of a login.");
                Visit::Over
            }
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
        // It fits into what the kernel takes: nobody is waited for who does not read.
        let _ = self.stream.set_nonblocking(true);
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

    /// As `answer::code` does.
    fn of_this_login(query: &str) -> Result<String, Refusal> {
        if query.contains("state=s1") { Ok(query.to_owned()) } else { Err(Refusal::State) }
    }

    #[test]
    fn strangers_are_turned_away_until_the_browser_comes_or_the_time_is_over() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let far = Instant::now() + Duration::from_secs(600);
        let browser = thread::spawn(move || {
            // More than are waited for at a time, which say nothing.
            let idle: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
            let stranger = asked(address, "GET /favicon.ico HTTP/1.1\r\n\r\n");
            drop(TcpStream::connect(address).unwrap());
            let wrong = asked(address, "GET /callback?code=1&state=s2 HTTP/1.1\r\n\r\n");
            let right = asked(address, "GET /callback?code=1&state=s1 HTTP/1.1\r\n\r\n");
            drop(idle);
            (stranger, wrong, right)
        });
        let (came, answer) = wait(&listener, far, || true, of_this_login).unwrap();
        assert_eq!(answer, Ok("code=1&state=s1".into()));
        came.say(true, "a < b");
        let (stranger, wrong, right) = browser.join().unwrap();
        assert!(stranger.starts_with("HTTP/1.1 404 "), "{stranger}");
        assert!(wrong.starts_with("HTTP/1.1 400 ") && wrong.contains("its state is another"), "{wrong}");
        assert!(right.starts_with("HTTP/1.1 200 OK") && right.contains("a &lt; b"), "{right}");
        let nobody = |end, goes_on: bool| wait(&listener, end, || goes_on, of_this_login).err().unwrap();
        assert!(!nobody(Instant::now(), true).contains("state"));
        assert!(nobody(far, false).contains("nobody logged in"));
    }

    #[test]
    fn an_answer_that_was_not_this_login_s_is_said_at_the_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let far = Instant::now() + Duration::from_secs(600);
        let browser = thread::spawn(move || asked(address, "GET /callback?state=s2 HTTP/1.1\r\n\r\n"));
        let waited = wait(&listener, far, || !browser.is_finished(), of_this_login);
        assert!(waited.err().unwrap().contains("its state is another"));
        assert!(browser.join().unwrap().starts_with("HTTP/1.1 400 "));
    }
}
