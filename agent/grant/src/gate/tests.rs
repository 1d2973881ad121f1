//! The gate's own rules, with tools that do nothing.

use super::*;
use crate::{ExecEntry, PathEntry};
use serde_json::json;
use std::{
    pin::pin,
    sync::Mutex,
    task::{Context, Poll, Waker},
    thread,
};

/// Executes what its argument `run` names, reads what `read` names.
struct Probe;

impl Tool for Probe {
    fn name(&self) -> &str {
        "probe"
    }

    fn description(&self) -> &str {
        "Asks."
    }

    fn schema(&self) -> Value {
        json!({"type": "object"})
    }

    fn required(&self, args: &Value) -> Result<Grant, ToolError> {
        let fs_read = match args["read"].as_str() {
            None => Scope::none(),
            Some(path) => Scope::only([PathEntry::exact(path)
                .map_err(|why| ToolError::Arguments { tool: "probe".into(), why: why.to_string() })?]),
        };
        Ok(Grant { fs_read, ..Grant::bottom() })
    }

    fn precheck(&self, ctx: &ToolContext, args: &Value) -> Result<(), ToolError> {
        let program = args["run"].as_str().filter(|_| args["begin"] != true);
        Ok(program.map_or(Ok(()), |program| ctx.rule_out_exec(program))?)
    }

    fn wanted(&self, args: &Value) -> Result<Grant, ToolError> {
        if args["unsound"] == true {
            return Ok(Grant::bottom());
        }
        Ok(Grant { exec: Scope::All, fs_write: Scope::none(), ..Grant::top() })
    }

    fn call<'a>(&'a self, ctx: &'a ToolContext, args: Value) -> CallFuture<'a> {
        Box::pin(async move {
            if args["begin"] == true {
                ctx.begin();
            }
            if let Some(program) = args["run"].as_str() {
                ctx.check_exec(Path::new(program))?;
            }
            if let Some(path) = args["write"].as_str() {
                ctx.check_write(Path::new(path))?;
            }
            if args["wait"] == true {
                std::future::pending::<()>().await;
            }
            Ok(json!("done"))
        })
    }
}

/// `/usr/bin` has git, rm, and awk, which is a link to mawk; `/tmp/evil` has a git.
struct Few;

impl Programs for Few {
    fn resolve(&self, program: &Path) -> io::Result<ResolvedProgram> {
        let found =
            |path: &str, target: &str| Ok(ResolvedProgram { path: path.into(), target: target.into() });
        match program.to_str() {
            Some("git" | "/usr/bin/git" | "/bin/git") => found("/usr/bin/git", "/usr/bin/git"),
            Some("rm" | "/usr/bin/rm") => found("/usr/bin/rm", "/usr/bin/box"),
            Some("echo" | "/usr/bin/echo") => found("/usr/bin/echo", "/usr/bin/box"),
            Some("awk" | "/usr/bin/awk") => found("/usr/bin/awk", "/usr/bin/mawk"),
            Some("mawk" | "/usr/bin/mawk") => found("/usr/bin/mawk", "/usr/bin/mawk"),
            Some("/tmp/evil/git") => found("/tmp/evil/git", "/tmp/evil/git"),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

fn wait<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("these tools never wait"),
    }
}

fn registry() -> Registry {
    Registry::new(Gate::new(Few)).with(Probe)
}

fn exec(entries: &[&str]) -> Grant {
    let entries = entries.iter().map(|e| e.parse::<ExecEntry>().unwrap());
    Grant { exec: Scope::only(entries), ..Grant::top() }
}

/// The refusal's text, or nothing.
fn asked(granted: &Grant, args: Value) -> Option<String> {
    wait(registry().dispatch("probe", args, granted)).err().map(|error| error.to_string())
}

#[test]
fn denies_programs_that_are_not_granted_in_the_words_that_clients_know() {
    let denied = asked(&exec(&["git"]), json!({"run": "rm"}));
    assert_eq!(denied.as_deref(), Some("denied: exec of \"rm\" is not within the granted authority"));
    assert_eq!(asked(&exec(&["git"]), json!({"run": "git"})), None);
}

#[test]
fn a_bare_name_is_the_program_that_path_finds() {
    for (granted, program, allowed) in [
        ("git", "/usr/bin/git", true),
        ("git", "/bin/git", true),
        ("git", "/tmp/evil/git", false),
        ("git", "./git", false),
        ("git", "", false),
        ("awk", "awk", true),
        ("awk", "/usr/bin/awk", true),
        ("awk", "/usr/bin/mawk", true),
        ("mawk", "awk", false),
        // Another link to the same file is another command.
        ("echo", "rm", false),
        ("echo", "/usr/bin/rm", false),
        ("/usr/bin", "rm", true),
        ("/usr/bin/git", "git", true),
        ("/usr/bin/git", "rm", false),
        ("/tmp/evil", "git", false),
    ] {
        let denied = asked(&exec(&[granted]), json!({"run": program}));
        assert_eq!(denied.is_none(), allowed, "{program} under {granted}: {denied:?}");
    }
    let absent = asked(&exec(&["absent"]), json!({"run": "absent"})).unwrap();
    assert!(absent.ends_with("there is no such program"), "{absent}");
    let hidden = asked(&exec(&["git"]), json!({"run": "absent"})).unwrap();
    assert!(hidden.ends_with("granted authority"), "{hidden}");
}

#[test]
fn what_is_required_and_not_granted_is_refused_before_the_tool_runs() {
    let granted = Grant { fs_read: Scope::only(["/work".parse().unwrap()]), ..Grant::top() };
    assert_eq!(asked(&granted, json!({"read": "/work/a"})), None);
    let denied = asked(&granted, json!({"read": "/etc/shadow", "run": "absent"})).unwrap();
    assert_eq!(denied, "denied: read of \"/etc/shadow\" is not within the granted authority");
}

#[test]
fn a_tool_gets_no_more_than_it_wants() {
    let denied = asked(&Grant::top(), json!({"write": "/tmp/a"})).unwrap();
    assert_eq!(denied, "denied: write of \"/tmp/a\" is not within the granted authority");
    let unsound = asked(&Grant::top(), json!({"read": "/a", "unsound": true})).unwrap();
    assert!(unsound.contains("requires more than it wants"), "{unsound}");
}

#[test]
fn looks_at_the_generation_first_then_at_the_budget() {
    let nothing = Grant::bottom();
    let registry = registry();
    let dispatch =
        |granted: &Grant| wait(registry.dispatch("probe", json!({"run": "rm"}), granted)).unwrap_err();
    assert_eq!(dispatch(&nothing).to_string(), Denied::Never.to_string());
    let later = Grant { valid_for_generation: Scope::only([1]), ..nothing.clone() };
    assert!(dispatch(&later).to_string().contains("generation 0"));
    let held = Grant { valid_for_generation: Scope::only([0]), ..nothing };
    assert!(dispatch(&held).to_string().contains("the 0 granted calls are used up"));
    let once = Grant { max_calls: CountBound::AtMost(1), ..held };
    assert!(dispatch(&once).to_string().contains("exec of \"rm\""));
    registry.gate().set_generation(1);
    assert!(dispatch(&once).to_string().contains("generation 1"));
}

#[test]
fn a_denial_costs_no_call_unless_something_was_done_before() {
    let granted = Grant { max_calls: CountBound::AtMost(2), ..exec(&["git"]) };
    let registry = registry();
    let call = |args| wait(registry.dispatch("probe", args, &granted));
    for _ in 0..5 {
        assert!(call(json!({"run": "rm"})).is_err());
    }
    assert_eq!(registry.gate().used(), 0);
    assert!(call(json!({"begin": true, "run": "rm"})).is_err());
    assert_eq!(registry.gate().used(), 1);
    call(json!({"run": "git"})).unwrap();
    let spent = call(json!({"run": "git"})).unwrap_err();
    assert_eq!(spent.to_string(), "denied: the 2 granted calls are used up");
}

#[test]
fn the_budget_holds_under_concurrency() {
    let granted = Grant { max_calls: CountBound::AtMost(50), ..exec(&["git"]) };
    let registry = registry();
    let allowed: usize = thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let call = |_: &usize| {
                        // Denials among them, which take one and put it back.
                        let _ = wait(registry.dispatch("probe", json!({"run": "rm"}), &granted));
                        wait(registry.dispatch("probe", json!({"run": "git"}), &granted)).is_ok()
                    };
                    (0..100).filter(call).count()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(allowed, 50);
    assert_eq!(registry.gate().used(), 50);
}

#[test]
fn every_decision_is_recorded_with_its_reason() {
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = said.clone();
    let gate = Gate::new(Few).with_record(move |decision: &Decision<'_>| {
        let outcome = match decision.outcome {
            Outcome::Allowed => "allowed".to_owned(),
            Outcome::Denied(denied) => denied.to_string(),
            Outcome::Refused(why) | Outcome::Cancelled(why) => why.to_owned(),
        };
        heard.lock().unwrap().push(format!("{} {:?}: {outcome}", decision.tool, decision.question));
    });
    let registry = Registry::new(gate).with(Probe);
    let granted = exec(&["git"]);
    let call = |args| wait(registry.dispatch("probe", args, &granted)).is_ok();
    assert!(call(json!({"run": "git"})));
    assert!(!call(json!({"run": "rm"})));
    assert!(!call(json!({"read": "relative"})));
    assert_eq!(
        *said.lock().unwrap(),
        [
            "probe Call: allowed",
            "probe Exec(\"git\"): allowed",
            "probe Call: allowed",
            "probe Exec(\"rm\"): denied: exec of \"rm\" is not within the granted authority",
            "probe Call: probe cannot use these arguments: it is not an absolute path",
        ]
    );
}

/// Asks the net axis, as a tool would.
fn net(granted: &[&str], host: &str, addr: Option<&str>, port: u16) -> Result<(), Denied> {
    let granted = granted.iter().map(|e| e.parse().unwrap());
    let granted = Grant { net: Scope::only(granted), ..Grant::top() };
    let gate = Arc::new(Gate::new(NoPrograms));
    let context = gate.authorize(&Probe, &json!({}), &granted).unwrap();
    context.check_net(host, addr.map(|addr| addr.parse().unwrap()), port)
}

#[test]
fn hosts_addresses_and_ports() {
    for (granted, host, addr, port, allowed) in [
        ("example.com", "example.com", None, 443, true),
        ("example.com", "EXAMPLE.com.", None, 443, true),
        ("example.com", "www.example.com", None, 443, false),
        ("example.com:443", "example.com", None, 80, false),
        ("example.com:8080", "example.com", Some("10.0.0.1"), 8080, true),
        ("*.example.com", "www.example.com", None, 443, true),
        ("*.example.com", "example.com", None, 443, false),
        ("*.example.com", "*.example.com", None, 443, false),
        ("tcp:example.com:443", "example.com", None, 443, true),
        ("tcp:example.com:443", "tcp:example.com", None, 443, false),
        ("xn--bcher-kva.example", "b\u{fc}cher.example", None, 443, true),
        ("*.example.com", "10.0.0.1", Some("10.0.0.1"), 443, false),
        ("10.0.0.0/8", "10.1.2.3", None, 80, true),
        ("10.0.0.0/8", "intern.example", Some("10.1.2.3"), 80, true),
        ("10.0.0.0/8", "intern.example", Some("::ffff:10.1.2.3"), 80, true),
        ("10.0.0.0/8", "intern.example", Some("11.1.2.3"), 80, false),
        ("10.0.0.0/8", "intern.example", None, 80, false),
        ("::1", "[::1]", None, 80, true),
        ("::1", "::1", None, 80, true),
        ("127.0.0.1", "2130706433", None, 80, false),
        ("127.0.0.1", "0177.0.0.1", None, 80, false),
        ("example.com", "example.com", None, 0, false),
        ("example.com", "", None, 80, false),
        ("example.com", "example.com:443", None, 80, false),
        ("example.com", "user@example.com", None, 80, false),
    ] {
        let decided = net(&[granted], host, addr, port);
        assert_eq!(decided.is_ok(), allowed, "{host} {addr:?} {port} under {granted}: {decided:?}");
    }
}

/// Forbids what its rules name, by the target for programs.
struct Forbids;

impl Veto for Forbids {
    fn forbids(&self, question: Question<'_>, found: Option<&ResolvedProgram>) -> Option<String> {
        match (question, found) {
            (Question::Exec(_), Some(found)) => {
                (found.target == Path::new("/usr/bin/mawk")).then(|| "mawk".to_owned())
            }
            (Question::Write(path), _) => path.starts_with("/etc").then(|| "/etc".to_owned()),
            _ => None,
        }
    }
}

#[test]
fn a_veto_takes_from_what_is_granted() {
    let gate = Arc::new(Gate::new(Few).with_veto(Forbids));
    let granted = Grant { fs_write: Scope::All, ..Grant::top() };
    let context = gate.authorize(&Probe, &json!({}), &granted).unwrap();
    context.check_exec(Path::new("git")).unwrap();
    let denied = context.check_exec(Path::new("awk")).unwrap_err();
    assert_eq!(denied.to_string(), "denied: exec of \"awk\" is forbidden by the rule mawk");
    // What is not granted is refused for that.
    let outside = context.check_write(Path::new("/etc/hosts")).unwrap_err();
    assert!(matches!(outside, Denied::Scope { .. }), "{outside}");
}

#[test]
fn what_no_look_could_change_is_decided_when_a_call_begins() {
    let registry = registry();
    let begin = |granted: &Grant, program: &str| {
        registry.authorize("probe", json!({"run": program}), granted, Cancel::default()).map(drop)
    };
    // The first three are not looked for; what the others are shows only then.
    for (granted, program, decided) in [
        ("git", "rm", true),
        ("git", "absent", true),
        ("**/git", "rm", false),
        ("git", "git", false),
        ("git", "/tmp/evil/git", false),
        ("/usr/bin", "rm", false),
    ] {
        let begun = begin(&exec(&[granted]), program);
        assert_eq!(begun.is_err(), decided, "{program} under {granted}");
        if let Err(error) = begun {
            assert!(error.to_string().ends_with("is not within the granted authority"), "{error}");
        }
    }
    begin(&Grant::top(), "rm").unwrap();
    assert!(registry.authorizes_without_io("probe") && registry.authorizes_without_io("absent"));
    let unknown = registry.authorize("absent", json!({}), &Grant::top(), Cancel::default());
    assert!(matches!(unknown, Err(ToolError::Unknown(_))));
}

#[test]
fn a_call_is_cancelled_before_it_runs_while_it_waits_and_not_after() {
    let recorded = Arc::new(Mutex::new(Vec::new()));
    let heard = recorded.clone();
    let gate = Gate::new(Few).with_record(move |decision: &Decision<'_>| {
        if let Outcome::Cancelled(why) = decision.outcome {
            heard.lock().unwrap().push(why.to_owned());
        }
    });
    let registry = Registry::new(gate).with(Probe);
    let begin = |args: Value, cancel: &Cancel| {
        registry.authorize("probe", args, &Grant::top(), cancel.clone()).map(AuthorizedCall::run)
    };

    // Before it is begun, and before it runs: nothing is counted.
    let cancel = Cancel::default();
    cancel.cancel("first");
    assert!(matches!(begin(json!({}), &cancel), Err(ToolError::Cancelled)));
    let cancel = Cancel::default();
    let waiting = begin(json!({"begin": true}), &cancel).unwrap();
    cancel.cancel("second");
    assert!(matches!(wait(waiting), Err(ToolError::Cancelled)));
    assert_eq!(registry.gate().used(), 0);

    // While it waits: it is woken, and its future is dropped. It had begun, and counts.
    let cancel = Cancel::default();
    let mut running = Box::pin(begin(json!({"begin": true, "wait": true}), &cancel).unwrap());
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let hooked = Arc::new(AtomicU64::new(0));
    let hook = hooked.clone();
    cancel.on_cancel(move || {
        hook.fetch_add(1, Ordering::SeqCst);
    });
    assert!(running.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    cancel.cancel("third");
    cancel.cancel("again");
    assert_eq!((woken.0.load(Ordering::SeqCst), hooked.load(Ordering::SeqCst)), (1, 1));
    assert!(matches!(wait(running), Err(ToolError::Cancelled)));
    assert_eq!(registry.gate().used(), 1);

    // After its end it has its result, and a cancellation changes nothing.
    let cancel = Cancel::default();
    assert_eq!(wait(begin(json!({}), &cancel).unwrap()).unwrap(), "done");
    cancel.cancel("late");
    cancel.on_cancel(|| panic!("it has ended"));
    assert!(!cancel.is_cancelled());
    assert_eq!(*recorded.lock().unwrap(), ["first", "second", "third"]);
}

#[derive(Default)]
struct Woken(AtomicU64);

impl std::task::Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}
