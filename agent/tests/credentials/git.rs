//! git over HTTPS, with basic auth that only the host knows.

use crate::{
    site::{Asked, Site},
    support::{HOST, KEY, Proxy, Rules},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use ringfence_wire::credentials::CredentialPlace;
use std::{
    io::{self, Write},
    path::Path,
    process::{Command, Output, Stdio},
};

fn git(dir: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    Command::new("git")
        .current_dir(dir)
        .args(["-c", "user.name=t", "-c", "user.email=t@t.example", "-c", "init.defaultBranch=main"])
        .args(arguments)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("HOME", dir)
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("no_proxy", "*")
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

fn fine(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Answers as `git http-backend` does.
fn backend(root: &Path, asked: &Asked) -> Vec<u8> {
    let (path, query) = asked.target.split_once('?').unwrap_or((&asked.target, ""));
    let mut backend = Command::new("git")
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("HOME", root)
        .env("PATH_INFO", path)
        .env("QUERY_STRING", query)
        .env("REQUEST_METHOD", &asked.method)
        .env("CONTENT_TYPE", asked.header("content-type").unwrap_or_default())
        .env("CONTENT_LENGTH", asked.body.len().to_string())
        .env("HTTP_CONTENT_ENCODING", asked.header("content-encoding").unwrap_or_default())
        .env("HTTP_GIT_PROTOCOL", asked.header("git-protocol").unwrap_or_default())
        .env("REMOTE_USER", "me")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = backend.stdin.take().unwrap();
    let body = asked.body.clone();
    let writes = std::thread::spawn(move || drop(stdin.write_all(&body)));
    let output = backend.wait_with_output().unwrap().stdout;
    writes.join().unwrap();
    let end = output.windows(4).position(|at| at == b"\r\n\r\n").unwrap() + 4;
    let head = String::from_utf8_lossy(&output[..end]).into_owned();
    let status = head.lines().find_map(|line| line.strip_prefix("Status: ")).unwrap_or("200 OK");
    let mut answer =
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{head}", output.len() - end).into_bytes();
    answer.extend(&output[end..]);
    answer
}

#[test]
fn git_fetches_and_pushes_what_its_rules_name() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_owned();
    for bare in ["acme/tool.git", "acme/other.git"] {
        fine(&git(&root, &["init", "-q", "--bare", bare], &[]));
    }
    let wanted = format!("Basic {}", STANDARD.encode(format!("me:{KEY}")));
    let serving = root.clone();
    let site = Site::new(HOST, move |asked, stream| {
        let answer = match asked.header("authorization") == Some(&wanted) {
            true => backend(&serving, asked),
            false => {
                b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n".to_vec()
            }
        };
        stream.write_all(&answer)?;
        stream.flush().map(|()| true)
    });
    let rules = Rules {
        place: CredentialPlace::basic("me").unwrap(),
        allow: vec![
            "GET /acme/tool.git/info/refs",
            "POST /acme/tool.git/git-upload-pack",
            "POST /acme/tool.git/git-receive-pack",
            "GET /acme/other.git/info/refs?service=git-upload-pack",
            "POST /acme/other.git/git-upload-pack",
        ],
        ..Rules::default()
    };
    let proxy = Proxy::start(&rules, site.port, &site.root);
    let ca = proxy.authority();
    let resolved = format!("http.curloptResolve={HOST}:{}:127.0.0.1", proxy.port);
    let variables = [("GIT_SSL_CAINFO", ca.to_str().unwrap())];
    let url = |name: &str| format!("https://{HOST}:{}/acme/{name}.git", proxy.port);
    let with =
        |dir: &Path, arguments: &[&str]| git(dir, &[&["-c", &resolved], arguments].concat(), &variables);
    let work = root.join("work");
    fine(&with(&root, &["clone", "-q", &url("tool"), "work"]));
    // Larger than what git sends at once: in chunks.
    let large: Vec<u8> =
        (0..3_000_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13).to_le_bytes()[0]).collect();
    std::fs::write(work.join("large"), large).unwrap();
    fine(&git(&work, &["add", "large"], &[]));
    fine(&git(&work, &["commit", "-qm", "one"], &[]));
    fine(&with(&work, &["push", "-q", "origin", "HEAD:main"]));
    let there = git(&root.join("acme/tool.git"), &["rev-parse", "main"], &[]);
    let here = git(&work, &["rev-parse", "HEAD"], &[]);
    assert_eq!(there.stdout, here.stdout);
    let again = root.join("again");
    fine(&with(&root, &["clone", "-q", &url("tool"), again.to_str().unwrap()]));
    assert_eq!(std::fs::metadata(again.join("large")).unwrap().len(), 3_000_000);
    // What may be read of another is not written.
    fine(&with(&root, &["ls-remote", &url("other")]));
    let refused = with(&work, &["push", &url("other"), "HEAD:main"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("403"), "{said}");
    let nothing = git(&root.join("acme/other.git"), &["rev-parse", "-q", "--verify", "main"], &[]);
    assert!(!nothing.status.success());
    let configuration = std::fs::read_to_string(work.join(".git/config")).unwrap();
    assert!(!configuration.contains(KEY));
}

#[test]
fn the_test_s_server_asks_for_the_credential() -> io::Result<()> {
    let asked = Asked { method: "GET".into(), target: "/none.git/info/refs".into(), ..Asked::default() };
    let dir = tempfile::tempdir()?;
    assert!(backend(dir.path(), &asked).starts_with(b"HTTP/1.1 404 "));
    Ok(())
}
