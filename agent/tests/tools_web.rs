//! `ringfence tools --web`: the real binary, over its standard input and output, against servers on loopback.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails there")]

use assert_cmd::cargo::cargo_bin;
use ringfence_test_support::{
    processes::children,
    wait::wait_until,
    web::{Server, ok, redirect},
};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

fn page(html: &str) -> Server {
    Server::page("text/html", html)
}

/// Redirects `/to` there; has a page elsewhere.
fn redirecting(location: String) -> Server {
    Server::new(move |head, stream| {
        let answer = match head.starts_with("GET /to ") {
            true => redirect(302, &location).into_bytes(),
            false => ok("Content-Type: text/plain\r\n", b"there"),
        };
        drop(stream.write_all(&answer));
    })
}

/// A grant of these net entries, or of `all`, and of nothing else.
fn grant(net: &[&str]) -> String {
    let net = if net == ["all"] { json!("all") } else { json!({ "only": net }) };
    let nothing = json!({ "only": [] });
    json!({
        "fs_read": nothing, "fs_write": nothing, "exec": nothing, "net": net,
        "max_calls": "unlimited", "valid_for_generation": "all",
    })
    .to_string()
}

/// One session: these lines in, every answer out, by id.
fn session(net: &[&str], variables: &[(&str, &str)], lines: &[Value]) -> Vec<Value> {
    let home = tempfile::tempdir().unwrap();
    let mut server = Command::new(cargo_bin("ringfence"))
        .args(["tools", "--web"])
        .env_clear()
        .env("HOME", home.path())
        .env("RINGFENCE_GRANT", grant(net))
        .envs(variables.iter().copied())
        .current_dir(home.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = server.stdin.take().unwrap();
    for line in lines {
        writeln!(input, "{line}").unwrap();
    }
    drop(input);
    let mut output = String::new();
    server.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    assert!(server.wait().unwrap().success());
    let mut answers: Vec<Value> = output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    answers.sort_by_key(|answer| answer["id"].as_u64());
    answers
}

/// What each URL's call came to: the envelope, or the error's text.
fn fetch_with(net: &[&str], variables: &[(&str, &str)], urls: &[&str]) -> Vec<Result<Value, String>> {
    let calls = urls.iter().enumerate().map(|(id, url)| {
        json!({"jsonrpc": "2.0", "id": id + 2, "method": "tools/call",
            "params": {"name": "web_fetch", "arguments": {"url": url}}})
    });
    let begin = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}});
    let answers = session(net, variables, &std::iter::once(begin).chain(calls).collect::<Vec<_>>());
    assert_eq!(answers.len(), urls.len() + 1);
    let come_to = |answer: &Value| {
        let result = &answer["result"];
        let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
        match result["isError"].as_bool() {
            Some(false) => Ok(serde_json::from_str(&text).unwrap()),
            Some(true) => Err(text),
            None => panic!("{answer}"),
        }
    };
    answers[1..].iter().map(come_to).collect()
}

fn fetch(net: &[&str], urls: &[&str]) -> Vec<Result<Value, String>> {
    fetch_with(net, &[], urls)
}

fn assert_all_denied(net: &[&str], urls: &[&str]) {
    for (url, result) in urls.iter().zip(fetch(net, urls)) {
        let error = result.err().unwrap_or_else(|| panic!("{url} was fetched"));
        assert!(error.starts_with("denied: "), "{url}: {error}");
    }
}

#[test]
fn a_granted_page_is_fetched_and_the_metadata_address_is_denied() {
    let site = page("<title>Example Domain</title><p>This domain is for use in documents.</p>");
    let granted = site.addr.to_string();
    let results = fetch(&[&granted], &[&site.url("/"), "http://169.254.169.254/latest/meta-data/"]);
    let page = results[0].as_ref().unwrap();
    assert_eq!(page["url"], site.url("/"));
    assert_eq!((&page["final_url"], &page["status"]), (&page["url"], &json!(200)));
    assert_eq!(page["title"], "Example Domain");
    assert_eq!(page["markdown"], "This domain is for use in documents.");
    assert_eq!(page["enforcement"]["net"], "gate");
    let denied = results[1].as_ref().unwrap_err();
    assert!(denied.starts_with("denied: net of \"169.254.169.254"), "{denied}");
    assert!(denied.ends_with("is not within the granted authority"), "{denied}");
}

#[test]
fn it_is_listed_only_where_some_host_is_granted() {
    let list = [json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})];
    for (net, is) in [(&["example.com"][..], true), (&["all"], true), (&[], false)] {
        let answers = session(net, &[], &list);
        let tools = answers[0]["result"]["tools"].as_array().unwrap();
        assert_eq!(tools.iter().any(|tool| tool["name"] == "web_fetch"), is, "{net:?}");
    }
}

#[test]
fn no_spelling_of_a_private_address_is_fetched_even_where_everything_is_granted() {
    assert_all_denied(
        &["all"],
        &[
            "http://169.254.169.254/",
            "http://127.0.0.1/",
            "http://2130706433/",
            "http://0x7f000001/",
            "http://0177.0.0.1/",
            "http://127.1/",
            "http://0/",
            "http://[::1]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[64:ff9b::7f00:1]/",
            "http://[64:ff9b:1::7f00:1]/",
            "http://[2002:7f00:1::]/",
            "http://[2001::80ff:fffe]/",
            "http://10.0.0.1/",
            "http://100.64.0.1/",
            "http://[fd00::1]/",
            "http://[fe80::1]/",
            "http://localhost/",
            "http://LOCALHOST./",
        ],
    );
}

#[test]
fn what_no_url_may_be_is_denied() {
    let urls =
        ["file:///etc/passwd", "ftp://example.com/", "data:text/plain,x", "http://user:pass@example.com/"];
    assert_all_denied(&["all"], &urls);
    assert_all_denied(
        &["example.com"],
        &["http://example.com:22/", "http://example.com.evil.test/", "http://evil.test/"],
    );
}

#[test]
fn redirects_are_followed_only_to_what_is_granted() {
    let elsewhere = page("<p>secret</p>");
    let port = elsewhere.addr.port();
    for location in [
        elsewhere.url("/"),
        format!("http://2130706433:{port}/"),
        format!("http://[::ffff:127.0.0.1]:{port}/"),
        format!("http://localhost:{port}/"),
        "http://169.254.169.254/".to_owned(),
        "http://[64:ff9b::a9fe:a9fe]/".to_owned(),
    ] {
        let site = redirecting(location.clone());
        let results = fetch(&[&site.addr.to_string()], &[&site.url("/to")]);
        let error = results[0].as_ref().unwrap_err();
        assert!(error.starts_with("denied: "), "{location}: {error}");
        assert_eq!(site.asked().len(), 1);
    }
    let site = redirecting("file:///etc/passwd".into());
    let error = fetch(&[&site.addr.to_string()], &[&site.url("/to")]).remove(0).unwrap_err();
    assert!(error.contains("the scheme \"file\""), "{error}");
    assert_eq!(elsewhere.asked().len(), 0);
    // The control: a redirect to what is granted.
    let site = redirecting("/there".into());
    let page = fetch(&[&site.addr.to_string()], &[&site.url("/to")]).remove(0).unwrap();
    assert_eq!((&page["markdown"], &page["final_url"]), (&json!("there"), &json!(site.url("/there"))));
}

/// A name that is granted leads where `/etc/hosts` says: to loopback, which is not.
#[test]
fn a_granted_name_reaches_a_private_address_only_if_that_is_granted_too() {
    let site = page("<p>here</p>");
    let port = site.addr.port();
    let (url, name) = (format!("http://localhost:{port}/"), format!("localhost:{port}"));
    let error = fetch(&[&name], &[&url]).remove(0).unwrap_err();
    assert!(error.starts_with("denied: \"localhost\" leads to") && error.contains("is loopback"), "{error}");
    assert_eq!(site.asked().len(), 0);
    // Where the machine has IPv6, it may lead there too.
    let page = fetch(&[&name, "127.0.0.0/8", "::1"], &[&url]).remove(0).unwrap();
    assert_eq!(page["markdown"], "here");
}

#[test]
fn no_proxy_that_a_variable_names_is_asked() {
    let proxy = page("<p>proxied</p>");
    let site = page("<p>direct</p>");
    let at = format!("http://{}", proxy.addr);
    let names = ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];
    let variables: Vec<(&str, &str)> = names.iter().map(|name| (*name, at.as_str())).collect();
    let results = fetch_with(&[&site.addr.to_string()], &variables, &[&site.url("/")]);
    assert_eq!(results[0].as_ref().unwrap()["markdown"], "direct");
    assert_eq!((proxy.asked().len(), site.asked().len()), (0, 1));
}

#[test]
fn of_a_body_without_end_five_mebibytes_are_read() {
    let site = Server::new(|_, stream| {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1073741824\r\n\r\n";
        let mut more = stream.write_all(head.as_bytes());
        for _ in 0..1 << 14 {
            more = more.and_then(|()| stream.write_all(&[b'x'; 1 << 16]));
        }
    });
    let page = fetch(&[&site.addr.to_string()], &[&site.url("/")]).remove(0).unwrap();
    assert_eq!((&page["bytes"], page["markdown"].as_str().unwrap().len()), (&json!(5 << 20), 5 << 20));
    assert!(page["cut"].as_str().unwrap().contains("the server announced 1073741824"));
}

/// Its 30 seconds are the only thing that ends this one: nothing here is asked to be quicker.
#[test]
fn a_drip_ends_after_its_thirty_seconds() {
    let site = Server::new(|_, stream| {
        let mut more = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n");
        while more.is_ok() {
            thread::sleep(Duration::from_millis(200));
            more = stream.write_all(b"x");
        }
    });
    let begun = Instant::now();
    let error = fetch(&[&site.addr.to_string()], &[&site.url("/")]).remove(0).unwrap_err();
    assert!(error.contains("the time for this fetch was used up while reading the body"), "{error}");
    assert!(begun.elapsed() >= Duration::from_secs(29), "{:?}", begun.elapsed());
}

/// A session whose processes are looked at.
struct Live {
    server: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    _home: tempfile::TempDir,
}

impl Live {
    fn new(net: &[&str]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut server = Command::new(cargo_bin("ringfence"));
        server.args(["tools", "--web"]).env_clear().env("HOME", home.path()).current_dir(home.path());
        server.env("RINGFENCE_GRANT", grant(net)).env("RINGFENCE_RUNTIME_DIR", home.path());
        server.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut server = server.spawn().unwrap();
        let input = server.stdin.take().unwrap();
        let output = BufReader::new(server.stdout.take().unwrap());
        Self { server, input, output, _home: home }
    }

    /// The envelope's text; the error's.
    fn fetch(&mut self, url: &str) -> Result<Value, String> {
        self.fetch_up_to(url, 16 << 20)
    }

    fn fetch_up_to(&mut self, url: &str, max_bytes: usize) -> Result<Value, String> {
        let params = json!({"name": "web_fetch", "arguments": {"url": url, "max_bytes": max_bytes}});
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
        writeln!(self.input, "{call}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let answer: Value = serde_json::from_str(&line).unwrap();
        let result = &answer["result"];
        let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
        if result["isError"] == true { Err(text) } else { Ok(serde_json::from_str(&text).unwrap()) }
    }

    /// The process that starts one for each page: beside the server, but with one thread. To be called after a page.
    fn reader(&self) -> Pid {
        let [guard] = children(self.server.id())[..] else { panic!("no guard") };
        let threads = |pid: &i32| fs::read_dir(format!("/proc/{pid}/task")).unwrap().count();
        let beside: Vec<i32> = children(guard).into_iter().filter(|pid| threads(pid) == 1).collect();
        let [reader] = beside[..] else { panic!("{beside:?}") };
        Pid::from_raw(reader).unwrap()
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// A page of 12 MiB, and a small one, as HTML and as text.
fn pages() -> Server {
    let large = format!("<title>large</title><p>{}</p>", "word ".repeat((12 << 20) / 5));
    Server::new(move |head, stream| {
        let (kind, body) = match head.split(' ').nth(1) {
            Some("/large") => ("html", large.as_str()),
            Some("/small") => ("html", "<title>small</title><p>still here</p>"),
            _ => ("plain", "still here"),
        };
        drop(stream.write_all(&ok(&format!("Content-Type: text/{kind}\r\n"), body.as_bytes())));
    })
}

#[test]
fn a_page_that_takes_too_much_memory_is_an_error_and_the_session_goes_on() {
    let site = pages();
    let mut live = Live::new(&[&site.addr.to_string()]);
    // The control: what a page may take is enough for it.
    assert_eq!(live.fetch(&site.url("/large")).unwrap()["title"], "large");
    let reader = live.reader();
    let status = fs::read_to_string(format!("/proc/{}/status", reader.as_raw_pid())).unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let size: u64 = size.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    // Its stack, and 16 MiB more: the large page, three times copied at least, does not fit.
    let limit = Some((size << 10) + (32 << 20));
    prlimit(Some(reader), Resource::As, Rlimit { current: limit, maximum: limit }).unwrap();
    for _ in 0..2 {
        let error = live.fetch(&site.url("/large")).unwrap_err();
        assert!(error.contains("the process that reads HTML ended over it"), "{error}");
        assert_eq!(live.fetch(&site.url("/small")).unwrap()["markdown"], "still here");
    }
}

/// The largest pages that are read, each of a kind that is hard on a parser. How much of them comes out depends on the
/// machine's speed; that there is an answer within the bounds, and a session after it, does not.
#[test]
fn the_largest_pages_end_within_their_bounds() {
    const MOST: usize = 25 << 20;
    let attributes = (0..2_000_000).map(|n| format!(" a{n}")).collect::<String>();
    let kinds = [
        ("words", "<title>words</title><p>".to_owned() + &"x".repeat(MOST)),
        ("deep", "<p>before".to_owned() + &"<div>".repeat(MOST / 5)),
        ("attributes", format!("<p>before<p{attributes}>after")),
        ("elements", "<p title=a lang=b>x".repeat(MOST / 18)),
    ];
    let paged = kinds.clone();
    let site = Server::new(move |head, stream| {
        let name = head.split(' ').nth(1).unwrap_or_default().trim_start_matches('/');
        let body = paged.iter().find(|(kind, _)| *kind == name).map_or("<p>still here", |(_, page)| page);
        drop(stream.write_all(&ok("Content-Type: text/html\r\n", body.as_bytes())));
    });
    let mut live = Live::new(&[&site.addr.to_string()]);
    for (kind, page) in &kinds {
        match live.fetch_up_to(&site.url(&format!("/{kind}")), MOST) {
            Ok(read) => {
                assert_eq!(read["bytes"], page.len().min(MOST), "{kind}");
                let text = read["markdown"].as_str().unwrap();
                assert!(text.len() <= MOST, "{kind}: {}", text.len());
                assert!(read["cut"].is_string(), "{kind}: all of it cannot be there");
            }
            Err(error) => assert!(error.contains("the time for this fetch was used up"), "{kind}: {error}"),
        }
        assert_eq!(live.fetch(&site.url("/")).unwrap()["markdown"], "still here", "{kind}");
    }
}

/// Markdown escapes what a page has of its own signs: the text is longer than the page.
#[test]
fn a_text_is_no_longer_than_what_may_be_read_for_it() {
    let site = page("<p>**********");
    let mut live = Live::new(&[&site.addr.to_string()]);
    let whole = live.fetch(&site.url("/")).unwrap();
    assert_eq!((&whole["markdown"], &whole["cut"]), (&json!("\\*".repeat(10)), &Value::Null), "the control");
    let cut = live.fetch_up_to(&site.url("/"), 15).unwrap();
    assert_eq!((&cut["markdown"], &cut["bytes"]), (&json!("\\*".repeat(7) + "\\"), &json!(13)));
    assert!(cut["cut"].as_str().unwrap().contains("comes to more than 15 bytes"), "{cut}");
}

/// Without the cancel there would be an answer, after its time: an error.
#[test]
fn a_fetch_that_waits_is_cancelled() {
    let site = Server::new(|_, stream| drop(stream.read(&mut [0])));
    let mut live = Live::new(&[&site.addr.to_string()]);
    let params = json!({"name": "web_fetch", "arguments": {"url": site.url("/")}});
    writeln!(live.input, "{}", json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}))
        .unwrap();
    wait_until("it is asked for", || !site.asked().is_empty());
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}});
    writeln!(live.input, "{cancel}").unwrap();
    writeln!(live.input, "{}", json!({"jsonrpc": "2.0", "method": "exit"})).unwrap();
    let mut said = String::new();
    live.output.read_to_string(&mut said).unwrap();
    assert_eq!(said, "");
    assert!(live.server.wait().unwrap().success());
}

#[test]
fn without_its_reader_the_session_goes_on_without_html() {
    let site = pages();
    let mut live = Live::new(&[&site.addr.to_string()]);
    assert_eq!(live.fetch(&site.url("/small")).unwrap()["title"], "small");
    kill_process(live.reader(), Signal::KILL).unwrap();
    let error = live.fetch(&site.url("/small")).unwrap_err();
    assert!(error.contains("the process that reads HTML"), "{error}");
    assert_eq!(live.fetch(&site.url("/text")).unwrap()["markdown"], "still here");
}

#[test]
fn hostile_html_leaves_the_server_standing() {
    let site = Server::new(|head, stream| {
        let html = match head.starts_with("GET /deep ") {
            true => format!("<p>begin</p>{}", "<div>".repeat(100_000)),
            false => "<p>after</p>".to_owned(),
        };
        drop(stream.write_all(&ok("Content-Type: text/html\r\n", html.as_bytes())));
    });
    let results = fetch(&[&site.addr.to_string()], &[&site.url("/deep"), &site.url("/after")]);
    let deep = results[0].as_ref().unwrap();
    assert_eq!(deep["markdown"], "begin");
    assert!(deep["cut"].as_str().unwrap().contains("nests deeper than 512"), "{deep}");
    assert_eq!(results[1].as_ref().unwrap()["markdown"], "after");
}
