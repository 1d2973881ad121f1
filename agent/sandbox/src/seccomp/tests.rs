//! Each shipped rule denies, lets its neighbours through, and is needed: decided by running the compiled filter.

use super::{oci::Conditions, policy::*, *};
use nix::errno::Errno;
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Read, Seek, Write},
};

mod credentials;
mod egress;
mod roles;

const X86_64: u32 = 0xc000_003e;
const I386: u32 = 0x4000_0003;
const ALLOW: u32 = 0x7fff_0000;
const KILL_PROCESS: u32 = 0x8000_0000;

fn errno(errno: i32) -> u32 {
    0x0005_0000 | errno as u32
}

/// A filter's program, run here instead of in the kernel.
struct Program(Vec<[u8; 8]>);

impl Program {
    fn of(policy: &Policy) -> Program {
        let filter = Filter::compile(policy).unwrap();
        let mut file = tempfile::tempfile().unwrap();
        filter.context.export_bpf(&file).unwrap();
        let mut bytes = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut bytes).unwrap();
        Program(bytes.as_chunks::<8>().0.to_vec())
    }

    fn call(&self, name: &str, args: &[u64]) -> u32 {
        let Named::Here(number) = named(name) else { panic!("{name} is no call of this architecture") };
        self.run(number.as_raw_syscall() as u32, X86_64, args)
    }

    /// Classic BPF, as far as libseccomp uses it.
    fn run(&self, number: u32, arch: u32, args: &[u64]) -> u32 {
        self.answer_and_steps(number, arch, args).0
    }

    /// Instructions that are run for a call.
    fn steps(&self, number: u32) -> usize {
        self.answer_and_steps(number, X86_64, &[]).1
    }

    fn answer_and_steps(&self, number: u32, arch: u32, args: &[u64]) -> (u32, usize) {
        let mut data = [0u8; 64];
        data[0..4].copy_from_slice(&number.to_le_bytes());
        data[4..8].copy_from_slice(&arch.to_le_bytes());
        for (i, arg) in args.iter().enumerate() {
            data[16 + i * 8..24 + i * 8].copy_from_slice(&arg.to_le_bytes());
        }
        let (mut accumulator, mut at, mut steps) = (0u32, 0, 0);
        loop {
            steps += 1;
            let [c0, c1, yes, no, k @ ..] = self.0[at];
            let (code, k) = (u16::from_le_bytes([c0, c1]), u32::from_le_bytes(k));
            let jump = |taken: bool| usize::from(if taken { yes } else { no });
            at += 1 + match code {
                0x20 => {
                    let k = k as usize;
                    accumulator = u32::from_le_bytes(data[k..k + 4].try_into().unwrap());
                    0
                }
                0x54 => {
                    accumulator &= k;
                    0
                }
                0x05 => k as usize,
                0x15 => jump(accumulator == k),
                0x25 => jump(accumulator > k),
                0x35 => jump(accumulator >= k),
                0x45 => jump(accumulator & k != 0),
                0x06 => return (k, steps),
                _ => panic!("instruction {code:#x}"),
            };
        }
    }
}

/// Filters as they are loaded, the first first.
struct Stack(Vec<Program>);

impl Stack {
    fn of(policies: &[Policy]) -> Stack {
        Stack(policies.iter().map(Program::of).collect())
    }

    fn call(&self, name: &str, args: &[u64]) -> u32 {
        let Named::Here(number) = named(name) else { panic!("{name} is no call of this architecture") };
        self.run(number.as_raw_syscall() as u32, X86_64, args)
    }

    /// The strictest answer, as the kernel finds it: the smallest action as a signed number, and of equal actions that of the
    /// filter that was loaded last.
    fn run(&self, number: u32, arch: u32, args: &[u64]) -> u32 {
        let action = |answer: u32| (answer & 0xffff_0000).cast_signed();
        let answers = self.0.iter().rev().map(|program| program.run(number, arch, args));
        answers
            .reduce(|strictest, next| if action(next) < action(strictest) { next } else { strictest })
            .unwrap_or(ALLOW)
    }
}

fn default() -> Stack {
    Stack::of(&Policy::default_lists().unwrap())
}

fn strict() -> Stack {
    Stack::of(&Policy::strict_lists().unwrap())
}

/// What a list of calls says of each: the rule's reason and its action.
fn classes(policy: &Policy) -> BTreeMap<String, (String, Action)> {
    let mut classes = BTreeMap::new();
    for rule in &policy.rules {
        assert!(!rule.why.is_empty());
        for call in &rule.syscalls {
            assert_ne!(named(call), Named::Unknown, "{}: {call}", policy.name);
            let before = classes.insert(call.clone(), (rule.why.clone(), rule.action));
            assert_eq!(before, None, "{}: {call} is in two rules", policy.name);
        }
    }
    classes
}

/// Each deny list as it is used, with the rules that are in it because of the condition (`None`: always).
fn deny_lists() -> Vec<(Policy, Option<When>)> {
    let [_, arguments] = Policy::default_lists().unwrap().try_into().unwrap();
    let mut lists = vec![(arguments, None), (Policy::fallback_list(&[]).unwrap(), None)];
    let conditions = [
        When::NoInet,
        When::NoUnix,
        When::NoWrite,
        When::TcpPorts,
        When::NoUdp,
        When::NoListen,
        When::NoDomain,
    ];
    for when in conditions {
        lists.push((Policy::fallback_list(&[when]).unwrap(), Some(when)));
    }
    lists
}

/// Arguments that satisfy a rule, one set for each value it names, and arguments that just miss.
fn examples(rule: &Rule) -> (Vec<[u64; 6]>, Vec<[u64; 6]>) {
    let mut hits = vec![[0; 6]];
    let mut misses = Vec::new();
    for arg in &rule.args {
        let (hit, miss): (Vec<u64>, Vec<u64>) = match &arg.test {
            Test::OneOf(values) => {
                let over = (0..).find(|value| !values.contains(value)).unwrap_or_default();
                // The kernel ignores the upper half, so that is no way around.
                let wide = values.iter().map(|value| u64::from(*value) | 0xdead << 32);
                (values.iter().map(|value| u64::from(*value)).chain(wide).collect(), vec![u64::from(over)])
            }
            Test::AnyBit(bits) => (set_bits(*bits).map(u64::from).collect(), vec![u64::from(!bits), 0]),
            Test::Masked { mask, values } => (
                values.iter().flat_map(|value| [u64::from(*value), u64::from(*value | !mask)]).collect(),
                (0..=2).filter(|value| !values.contains(value)).map(u64::from).collect(),
            ),
            Test::BitUnless { bit, value } => {
                let value = u64::from(*value);
                let hits = (0..32).filter(|other| other != bit).map(|other| value & !(1 << other));
                (hits.chain([1 << bit]).collect(), vec![value, 0, value & !(1 << bit)])
            }
            Test::Above(limit) => (vec![limit + 1, u64::from(u32::MAX), 1 << 40], vec![*limit]),
            Test::Oci(..) => panic!("not in a shipped list"),
        };
        for value in miss {
            let mut args = hits[0];
            args[arg.index as usize] = value;
            misses.push(args);
        }
        hits = hits
            .iter()
            .flat_map(|before| {
                hit.iter().map(|value| {
                    let mut args = *before;
                    args[arg.index as usize] = *value;
                    args
                })
            })
            .collect();
    }
    (hits, misses)
}

fn calls_here(rule: &Rule) -> impl Iterator<Item = &String> {
    rule.syscalls.iter().filter(|call| matches!(named(call), Named::Here(_)))
}

#[test]
fn each_rule_of_a_deny_list_denies_and_is_needed() {
    for (policy, when) in deny_lists() {
        let whole = Program::of(&policy);
        for (index, rule) in policy.rules.iter().enumerate() {
            let Action::Errno(error) = rule.action else { panic!("{}: not a denial", rule.why) };
            let mut without = policy.clone();
            without.rules.remove(index);
            let without = Program::of(&without);
            let mut needed = false;
            for call in calls_here(rule) {
                for args in examples(rule).0 {
                    assert_ne!(whole.call(call, &args), ALLOW, "{}: {call} {args:x?}", rule.why);
                    needed |= whole.call(call, &args) == errno(error) && without.call(call, &args) == ALLOW;
                }
            }
            assert!(needed || rule.when != when, "{}: nothing changes without it", rule.why);
        }
    }
}

#[test]
fn what_just_misses_a_rule_is_let_through() {
    for (policy, _) in deny_lists() {
        for rule in &policy.rules {
            // Alone, for another rule may be about the neighbour.
            let alone = Policy { rules: vec![rule.clone()], ..policy.clone() };
            let program = Program::of(&alone);
            for call in calls_here(rule) {
                for args in examples(rule).1 {
                    assert_eq!(program.call(call, &args), ALLOW, "{}: {call} {args:x?}", rule.why);
                }
            }
            assert_eq!(program.call("read", &[0; 6]), ALLOW);
        }
    }
}

/// A call whose arguments no rule minds.
const PLAIN: [u64; 6] = [0; 6];

#[test]
fn every_system_call_is_in_one_rule_of_the_default_list_and_gets_what_that_says() {
    let lists = Policy::default_lists().unwrap();
    let classes = classes(&lists[0]);
    assert_eq!(lists[0].default, Action::Errno(Errno::ENOSYS as i32));
    assert!(lists[0].rules.iter().all(|rule| rule.args.is_empty() && rule.when.is_none()));
    let all = table::all();
    assert_eq!(all.len(), 385);
    let stack = Stack::of(&lists);
    for (number, name) in &all {
        let (why, action) = classes.get(name).unwrap_or_else(|| panic!("{name} is in no rule"));
        let expected = match action {
            Action::Allow => ALLOW,
            Action::Errno(error) => errno(*error),
            other => panic!("{why}: {other:?}"),
        };
        assert_eq!(stack.run(*number as u32, X86_64, &PLAIN), expected, "{name}: {why}");
    }
    assert_eq!(classes.len(), all.len(), "a rule names a call that this architecture does not have");
    // What is narrowed by arguments is allowed without them.
    for call in lists[1].rules.iter().flat_map(|rule| &rule.syscalls) {
        assert_eq!(classes[call].1, Action::Allow, "{call}");
    }
}

#[test]
fn every_call_that_the_default_list_allows_is_in_one_rule_of_the_strict_one() {
    let lists = Policy::strict_lists().unwrap();
    let (narrow, wide) = (classes(&lists[0]), classes(&lists[1]));
    let allowed = |classes: &BTreeMap<String, (String, Action)>| {
        let allowed = classes.iter().filter(|(_, (_, action))| *action == Action::Allow);
        allowed.map(|(call, _)| call.clone()).collect::<BTreeSet<_>>()
    };
    // clone3 is allowed by `strict` for `default` to answer: with EPERM a C library would not go on to clone.
    let clone3 = BTreeSet::from(["clone3".to_owned()]);
    assert_eq!(narrow.keys().cloned().collect::<BTreeSet<_>>(), &allowed(&wide) | &clone3);
    assert!(allowed(&narrow).len() < allowed(&wide).len(), "it is narrower");
    let stack = strict();
    for rule in &lists[0].rules {
        for call in &rule.syscalls {
            let (hits, misses) = examples(rule);
            let expected = match rule.action {
                _ if call == "clone3" => errno(Errno::ENOSYS as i32),
                Action::Errno(error) => errno(error),
                _ => ALLOW,
            };
            for args in hits {
                assert_eq!(stack.call(call, &args), expected, "{call} {args:x?}");
            }
            for args in misses {
                assert_eq!(stack.call(call, &args), errno(Errno::EPERM as i32), "{call} {args:x?}");
            }
        }
    }
    // What the default list refuses, and how, stays as it is.
    for (call, (why, action)) in &wide {
        if let Action::Errno(error) = action {
            assert_eq!(stack.call(call, &PLAIN), errno(*error), "{call}: {why}");
        }
    }
}

#[test]
fn numbers_that_nobody_knows_are_not_implemented() {
    for stack in [default(), strict()] {
        let unknown = (337..424).chain(table::LAST as u32 + 1..1024).chain([0x3fff_ffff, u32::MAX]);
        for number in unknown {
            let answer = stack.run(number, X86_64, &PLAIN);
            assert_eq!(answer, errno(Errno::ENOSYS as i32), "{number}");
        }
    }
}

#[test]
fn each_rule_of_the_allow_lists_is_needed() {
    for lists in [Policy::default_lists().unwrap(), Policy::strict_lists().unwrap()] {
        let whole = Stack::of(&lists);
        for (index, rule) in lists[0].rules.iter().enumerate() {
            // A refusal that is also the list's default is there for its reason.
            if rule.action == lists[0].default {
                continue;
            }
            let mut without = lists.clone();
            without[0].rules.remove(index);
            let without = Stack::of(&without);
            let (hits, _) = examples(rule);
            let changes =
                |call: &String| hits.iter().any(|args| whole.call(call, args) != without.call(call, args));
            assert!(rule.syscalls.iter().any(changes), "{}: nothing changes without it", rule.why);
        }
    }
}

#[test]
fn what_was_seen_to_get_out_by_a_system_call_is_refused_by_default() {
    let (default, strict) = (default(), strict());
    for stack in [&default, &strict] {
        // The kernel reads the low half of a command.
        for upper in [0, 0xdead << 32] {
            assert_ne!(stack.call("ioctl", &[0, 0x5412 | upper]), ALLOW, "TIOCSTI");
            assert_ne!(stack.call("unshare", &[0x1000_0000 | upper]), ALLOW, "CLONE_NEWUSER");
            assert_ne!(stack.call("clone", &[0x1000_0011 | upper]), ALLOW, "CLONE_NEWUSER");
        }
        for call in [
            "mount_setattr",
            "fsopen",
            "fsconfig",
            "open_tree_attr",
            "request_key",
            "keyctl",
            "io_uring_setup",
        ] {
            assert_ne!(stack.call(call, &PLAIN), ALLOW, "{call}");
        }
        assert_eq!(stack.call("ioctl", &[0, 0x5401]), ALLOW, "TCGETS");
        assert_eq!(stack.call("clone", &[0x11]), ALLOW, "fork");
    }
    assert_eq!(default.call("unshare", &[0x400]), ALLOW, "CLONE_FILES");
    // Left to eBPF, which has an event for it.
    for call in ["mount", "ptrace", "socket", "chroot"] {
        assert_eq!(default.call(call, &PLAIN), ALLOW, "{call}");
    }
}

#[test]
fn a_long_list_is_searched_and_not_walked_through() {
    let program = Program::of(&Policy::default_lists().unwrap()[0]);
    for (number, name) in table::all() {
        let steps = program.steps(number as u32);
        // 385 numbers are nine halvings; libseccomp ends each with a few that it compares one by one.
        assert!(steps <= 32, "{name}: {steps} instructions");
    }
}

#[test]
fn no_list_names_a_call_that_nobody_knows() {
    for (policy, _) in deny_lists() {
        assert_eq!(unknown_calls(&policy.rules), Vec::<String>::new());
    }
}

#[test]
fn foreign_architectures_end_the_process() {
    for program in [default(), strict()] {
        assert_eq!(program.run(0, X86_64, &[0; 6]), ALLOW);
        assert_eq!(program.run(0, I386, &[0; 6]), KILL_PROCESS);
        assert_eq!(program.run(0x4000_0000, X86_64, &[0; 6]), KILL_PROCESS, "x32");
    }
}

#[test]
fn conditions_of_the_fallback_list_take_effect() {
    const DENIED: u32 = 0x0005_0000 | Errno::EACCES as u32;
    let inet = [2, 1, 0, 0, 0, 0];
    let unix = [1, 1, 0, 0, 0, 0];
    let netlink = [16, 3, 0, 0, 0, 0];
    let program = |when: &[When]| Program::of(&Policy::fallback_list(when).unwrap());
    let open = program(&[]);
    assert_eq!(open.call("socket", &inet), ALLOW);
    assert_eq!(open.call("socket", &unix), ALLOW);
    assert_eq!(open.call("chmod", &[0; 6]), ALLOW);
    assert_ne!(open.call("socket", &netlink), ALLOW);
    assert_eq!(open.call("prlimit64", &[0, 7, 0, 0, 0, 0]), ALLOW, "its own");
    assert_ne!(open.call("prlimit64", &[4711, 0, 0, 0, 0, 0]), ALLOW, "another process's");
    assert_ne!(open.call("prlimit64", &[u64::from(u32::MAX), 0, 0, 0, 0, 0]), ALLOW);
    let no_inet = program(&[When::NoInet]);
    assert_ne!(no_inet.call("socket", &inet), ALLOW);
    assert_eq!(no_inet.call("socket", &unix), ALLOW);
    let no_udp = program(&[When::NoUdp]);
    assert_ne!(no_udp.call("socket", &[2, 2, 0, 0, 0, 0]), ALLOW);
    assert_ne!(no_udp.call("socket", &[10, 2 | 0o2000000, 0, 0, 0, 0]), ALLOW);
    assert_eq!(no_udp.call("socket", &inet), ALLOW);
    assert_eq!(no_udp.call("socket", &[1, 2, 0, 0, 0, 0]), ALLOW, "a unix datagram");
    assert_ne!(program(&[When::NoListen]).call("listen", &[3, 1, 0, 0, 0, 0]), ALLOW);
    assert_eq!(open.call("listen", &[3, 1, 0, 0, 0, 0]), ALLOW);
    let no_unix = program(&[When::NoUnix]);
    assert_ne!(no_unix.call("socket", &unix), ALLOW);
    for (kind, expected) in [(1, ALLOW), (5, ALLOW), (2, DENIED), (3, DENIED), (2 | 0o2000000, DENIED)] {
        let answer = no_unix.call("socketpair", &[1, kind, 0, 0, 0, 0]);
        assert_eq!(
            answer, expected,
            "{kind:#x}: a pair of streams reaches nobody, datagrams go where they name"
        );
    }
    assert_ne!(program(&[When::NoWrite]).call("chmod", &[0; 6]), ALLOW);
}

fn oci(text: &str, conditions: &Conditions) -> Result<Policy, Error> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    Policy::from_oci(file.path(), conditions)
}

fn bare() -> Conditions {
    Conditions { kernel: (6, 1), capabilities: Default::default() }
}

#[test]
fn an_oci_allow_list_is_read() {
    let text = r#"{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38, "architectures": ["SCMP_ARCH_X86_64"],
        "syscalls": [
          {"names": ["read", "vm86", "call_of_tomorrow"], "action": "SCMP_ACT_ALLOW"},
          {"names": ["mount"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN"]}},
          {"names": ["ptrace"], "action": "SCMP_ACT_ALLOW", "includes": {"minKernel": "4.8"}},
          {"names": ["acct"], "action": "SCMP_ACT_ALLOW", "includes": {"minKernel": "6.2"}},
          {"names": ["clone"], "action": "SCMP_ACT_ALLOW", "excludes": {"arches": ["s390", "s390x"]},
           "args": [{"index": 0, "value": 2114060288, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]},
          {"names": ["personality"], "action": "SCMP_ACT_ALLOW",
           "args": [{"index": 0, "value": 0, "op": "SCMP_CMP_EQ"}, {"index": 0, "value": 8, "op": "SCMP_CMP_EQ"}]}
        ]}"#;
    let policy = oci(text, &bare()).unwrap();
    assert!(policy.notices[0].contains("call_of_tomorrow"), "{:?}", policy.notices);
    let denied = errno(Errno::ENOSYS as i32);
    let program = Program::of(&policy);
    assert_eq!(program.call("read", &[0; 6]), ALLOW);
    assert_eq!(program.call("write", &[0; 6]), denied);
    assert_eq!(program.call("mount", &[0; 6]), denied);
    assert_eq!(program.call("ptrace", &[0; 6]), ALLOW);
    assert_eq!(program.call("acct", &[0; 6]), denied);
    assert_eq!(program.call("clone", &[17]), ALLOW);
    assert_eq!(program.call("clone", &[0x1000_0011]), denied);
    for (persona, expected) in [(0, ALLOW), (8, ALLOW), (1, denied)] {
        assert_eq!(program.call("personality", &[persona]), expected);
    }
    let privileged = Conditions { capabilities: [::caps::Capability::CAP_SYS_ADMIN].into(), ..bare() };
    assert_eq!(Program::of(&oci(text, &privileged).unwrap()).call("mount", &[0; 6]), ALLOW);
}

#[test]
fn an_unknown_name_in_a_deny_list_is_an_error_and_a_newer_one_is_denied() {
    let list = |name: &str| {
        let text = format!(
            r#"{{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{{"names": ["{name}"], "action": "SCMP_ACT_ERRNO"}}]}}"#
        );
        oci(&text, &bare()).unwrap()
    };
    assert!(matches!(Filter::compile(&list("moun")), Err(Error::UnknownCall { call, .. }) if call == "moun"));
    let program = Program::of(&list("open_tree_attr"));
    assert_eq!(program.call("open_tree_attr", &[0; 6]), errno(Errno::EPERM as i32));
    assert_eq!(program.call("mount", &[0; 6]), ALLOW);
}

#[test]
fn files_that_are_no_profile_are_refused_with_their_name() {
    for (text, expected) in [
        ("", "not a seccomp profile"),
        ("[]", "not a seccomp profile"),
        (r#"{"defaultAction": "SCMP_ACT_ALLOW", "surprise": 1}"#, "not a seccomp profile"),
        (r#"{"defaultAction": "SCMP_ACT_PERHAPS"}"#, "unknown action"),
        (r#"{"defaultAction": "SCMP_ACT_NOTIFY"}"#, "nobody would answer"),
        (r#"{"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/x"}"#, "listenerPath"),
        (r#"{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 70000}"#, "not an error number"),
        (
            r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": [], "action": "SCMP_ACT_ERRNO"}]}"#,
            "no system call",
        ),
        (
            r#"{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ALLOW",
                "args": [{"index": 6, "value": 0, "op": "SCMP_CMP_EQ"}]}]}"#,
            "no argument 6",
        ),
    ] {
        let error = oci(text, &bare()).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    assert!(matches!(oci(&" ".repeat((1 << 20) + 1), &bare()), Err(Error::Large { .. })));
    let missing = Policy::from_oci("/nonexistent/seccomp.json".as_ref(), &bare()).unwrap_err().to_string();
    assert!(missing.contains("/nonexistent/seccomp.json"), "{missing}");
}
