//! Host names: from a profile's text to what a worker is told and to the addresses that stand for names.

use super::{Lab, toml};
use crate::{
    compiled::CompiledPolicy,
    decide::{Decider, Why},
    meet_policies,
    remarks::remarks,
    *,
};
use proptest::prelude::*;
use ringfence_wire::egress::{MAX_EXACT_NAMES, NameOptions, NameRule};
use std::{
    fs,
    net::{IpAddr, Ipv4Addr},
};

const BLOCK: [u8; 3] = [198, 18, 7];

pub(super) fn net(granted: &[&str], denied: &[&str]) -> String {
    let list = |texts: &[&str]| texts.iter().map(|text| format!("\"{text}\"")).collect::<Vec<_>>().join(", ");
    toml(&format!("net = {{ only = [{}] }}", list(granted)), &format!("net = [{}]", list(denied)), "none")
}

fn compiled(granted: &[&str], denied: &[&str]) -> CompiledPolicy {
    Lab::new().compile(&net(granted, denied))
}

fn shown(policy: &CompiledPolicy, rules: &[NameRule]) -> Vec<String> {
    let one = |rule: &NameRule| {
        let port = rule.port.map(|port| format!(":{port}")).unwrap_or_default();
        let tcp = if rule.tcp { "tcp:" } else { "" };
        format!("{tcp}{}{port} by {}", rule.host, policy.rules[rule.rule as usize].id)
    };
    rules.iter().map(one).collect()
}

fn in_block(last: u8) -> IpAddr {
    let [a, b, c] = BLOCK;
    Ipv4Addr::new(a, b, c, last).into()
}

fn with_block(mut policy: CompiledPolicy) -> CompiledPolicy {
    policy.grant_block(format!("{}/24", in_block(0)).parse().unwrap());
    policy
}

#[test]
fn names_are_in_the_policy_and_no_address_is() {
    let policy = compiled(
        &["Example.ORG:443", "*.pypi.org", "tcp:git.example:22", "b\u{fc}cher.example", "10.0.0.0/8:80"],
        &["*.bad.pypi.org", "10.1.0.0/16"],
    );
    assert_eq!(
        shown(&policy, &policy.names.rules),
        [
            "example.org:443 by net:Example.ORG:443",
            "*.pypi.org by net:*.pypi.org",
            "tcp:git.example:22 by net:tcp:git.example:22",
            "xn--bcher-kva.example by net:b\u{fc}cher.example"
        ]
    );
    assert_eq!(shown(&policy, &policy.names.denies), ["*.bad.pypi.org by deny.net:*.bad.pypi.org"]);
    let addresses: Vec<String> = policy
        .names
        .addresses
        .iter()
        .map(|rule| format!("{} {:?} {}", rule.net, rule.port, rule.allow))
        .collect();
    assert_eq!(addresses, ["10.0.0.0/8 Some(80) true", "10.1.0.0/16 None false"]);
    assert_eq!(policy.names.exact(), ["example.org", "git.example", "xn--bcher-kva.example"]);
    let decider = Decider::new(&policy);
    assert!(!decider.address("198.18.7.1".parse().unwrap(), 443).allowed(), "no block yet");
    let none = compiled(&[], &[]);
    assert!(
        none.names.is_empty() && none == with_block(none.clone()),
        "nothing changes where there are no names"
    );
}

#[test]
fn a_name_is_decided_by_the_closest_rule_and_a_deny_beats_it() {
    let policy = compiled(&["*.a.org:443", "x.a.org", "tcp:y.a.org:22"], &["*.no.a.org", "x.a.org:80"]);
    let why = |host: &str, port| {
        let decision = Decider::new(&policy).host(host, port, false);
        let rule = decision.rule.map(|rule| policy.rules[rule as usize].id.clone());
        (decision.why, rule.unwrap_or_default())
    };
    assert_eq!(why("w.a.org", 443), (Why::Allowed, "net:*.a.org:443".to_owned()));
    assert_eq!(why("x.a.org", 443), (Why::Allowed, "net:x.a.org".to_owned()));
    assert_eq!(why("x.a.org", 80), (Why::Denied, "deny.net:x.a.org:80".to_owned()));
    assert_eq!(why("q.no.a.org", 443), (Why::Denied, "deny.net:*.no.a.org".to_owned()));
    assert_eq!(why("y.a.org", 22).0, Why::Allowed);
    for (host, port) in [("a.org", 443), ("w.a.org", 80), ("example.org", 443)] {
        assert_eq!(why(host, port).0, Why::Default, "{host}:{port}");
    }
    assert!(Decider::new(&policy).host("y.a.org", 22, true).allowed());
    assert!(!Decider::new(&policy).host("w.a.org", 443, true).allowed(), "that is looked at");
    let all = Lab::new().compile(&toml("net = \"all\"", "", "none"));
    assert_eq!(Decider::new(&all).host("example.org", 443, false).why, Why::All);
}

#[test]
fn each_name_has_its_address_at_its_ports() {
    let policy = with_block(compiled(
        &["b.org:443", "*.c.org:443", "a.org", "x.c.org:80", "tcp:*.d.org:22", "gone.org"],
        &["a.org:25", "gone.org", "10.0.0.0/8"],
    ));
    assert!(policy.inet);
    let decider = Decider::new(&policy);
    let at = |last, port| {
        let decision = decider.address(in_block(last), port);
        (
            decision.allowed(),
            decision.rule.map(|rule| policy.rules[rule as usize].id.as_str()).unwrap_or_default(),
        )
    };
    assert_eq!(at(1, 443), (true, "net:b.org:443"));
    assert_eq!(at(1, 80), (false, ""));
    assert_eq!(at(2, 8080), (true, "net:a.org"));
    assert_eq!(at(2, 25), (false, "deny.net:a.org:25"));
    assert_eq!(at(3, 80), (true, "net:x.c.org:80"));
    assert_eq!(at(3, 443), (true, "net:*.c.org:443"), "a wildcard grants it, too");
    assert_eq!(at(4, 443), (false, "deny.net:gone.org"));
    for last in [128, 200, 254] {
        assert_eq!((at(last, 443).0, at(last, 22).0, at(last, 80).0), (true, true, false), "{last}");
    }
    for last in [0, 5, 127] {
        assert!(!at(last, 443).0, "{last}");
    }
    for other in ["198.18.6.1", "198.18.8.1", "198.18.7.0", "8.8.8.8"] {
        assert!(!decider.address(other.parse().unwrap(), 443).allowed(), "{other}");
    }
}

#[test]
fn a_changed_policy_grants_each_name_where_it_was() {
    let first = compiled(&["a.org:443", "tcp:b.org:22"], &[]);
    let mut second = compiled(&["tcp:b.org:22", "c.org:80"], &[]);
    second.names.keep_places(&first.names);
    let second = with_block(second);
    let open = |last, port| Decider::new(&second).address(in_block(last), port).allowed();
    assert!(open(2, 22) && open(3, 80), "where it was, and behind it");
    for (last, port) in [(1, 443), (1, 22), (1, 80), (2, 80), (3, 22)] {
        assert!(!open(last, port), ".{last}:{port}");
    }
}

#[test]
fn a_denied_range_takes_the_addresses_of_names_with_it() {
    let policy = with_block(compiled(&["b.org:443", "*.c.org"], &["198.18.0.0/15"]));
    let decider = Decider::new(&policy);
    assert!(!decider.address(in_block(1), 443).allowed() && !decider.address(in_block(200), 443).allowed());
}

#[test]
fn inside_another_container_names_are_the_meet() {
    let inner = compiled(&["a.org:443", "*.b.org", "tcp:c.org:22", "10.1.0.0/16"], &["x.b.org"]);
    let outer = compiled(
        &["a.org", "y.b.org:443", "c.org:22", "d.org", "10.0.0.0/8:443"],
        &["*.y.b.org", "10.1.1.0/24"],
    );
    let met = meet_policies(&inner, &outer);
    assert_eq!(
        shown(&met, &met.names.rules),
        [
            "a.org:443 by net:a.org:443",
            "y.b.org:443 by outer:net:y.b.org:443",
            "c.org:22 by outer:net:c.org:22"
        ]
    );
    assert_eq!(
        shown(&met, &met.names.denies),
        ["x.b.org by deny.net:x.b.org", "*.y.b.org by outer:deny.net:*.y.b.org"]
    );
    let addresses: Vec<String> = met
        .names
        .addresses
        .iter()
        .map(|rule| format!("{} {:?} {}", rule.net, rule.port, rule.allow))
        .collect();
    assert_eq!(addresses, ["10.1.0.0/16 Some(443) true", "10.1.1.0/24 None false"]);
    // Its own block, and nothing of the outer one's.
    let met = meet_policies(&inner, &with_block(outer.clone()));
    assert!(met.nets.iter().all(|rule| !rule.allow || rule.port == Some(443) && rule.prefix == 96 + 16));
    let none = compiled(&["10.0.0.0/8", "0.0.0.0/0"], &[]);
    assert!(meet_policies(&inner, &none).names.is_empty(), "addresses are no names");
    let all = Lab::new().compile(&toml("net = \"all\"", "net = [\"10.1.2.0/24\"]", "none"));
    for met in [meet_policies(&inner, &all), meet_policies(&all, &inner)] {
        assert_eq!(met.names.rules.len(), 3, "all is every name, too");
        assert!(
            met.names.addresses.iter().any(|rule| !rule.allow && rule.net == "10.1.2.0/24".parse().unwrap())
        );
        assert!(
            met.names.addresses.iter().any(|rule| rule.allow && rule.net == "10.1.0.0/16".parse().unwrap())
        );
    }
}

#[test]
fn a_meet_has_no_more_names_than_a_block_has_addresses() {
    let below =
        |host: &str| -> Vec<String> { (0..MAX_EXACT_NAMES).map(|at| format!("a{at}.{host}")).collect() };
    let with = |exact: &[String], wildcard: &str| {
        let all: Vec<&str> = exact.iter().map(String::as_str).chain([wildcard]).collect();
        compiled(&all, &[])
    };
    let met = meet_policies(&with(&below("own.org"), "*.its.org"), &with(&below("its.org"), "*.own.org"));
    assert_eq!(met.names.exact().len(), MAX_EXACT_NAMES, "of twice as many");
    assert_eq!(met.names.rules.len(), MAX_EXACT_NAMES);
    assert!(with_block(met).nets.iter().all(|rule| rule.prefix == 128));
}

#[test]
fn options_are_read_inherited_and_met() {
    let lab = Lab::new();
    let options = |keys: &str| {
        let text = net(&["a.org"], &[]) + "[net]\n" + keys;
        lab.load(&text).map(|profile| profile.net_options)
    };
    let of = |ech, max_upload| NameOptions { ech, max_upload, ask: None };
    for (keys, expected) in [
        ("", of(false, None)),
        ("ech = true\nmax_upload = \"1MB\"\n", of(true, Some(1_000_000))),
        ("max_upload = 4096\n", of(false, Some(4096))),
        ("max_upload = \"2 KiB\"\n", of(false, Some(2048))),
        ("max_upload = \"16TiB\"\n", of(false, Some(16 << 40))),
    ] {
        assert_eq!(options(keys).unwrap_or_else(|e| panic!("{e}")), expected, "{keys}");
    }
    for keys in [
        "max_upload = \"1\"\n",
        "max_upload = \"MB\"\n",
        "max_upload = \"1mb\"\n",
        "max_upload = \"-1MB\"\n",
        "max_upload = \"1.5MB\"\n",
        "max_upload = \"99999999TB\"\n",
        "max_upload = 0\n",
        "max_upload = \"0B\"\n",
        "max_upload = true\n",
        "ech = \"yes\"\n",
        "ask = \"yes\"\n",
        "ask_timeout = 4\n",
        "ask_timeout = 601\n",
        "ask_timeout = \"60\"\n",
    ] {
        let errors = options(keys).unwrap_err().to_string();
        assert!(errors.contains("net.") && !errors.contains("grant.net"), "{keys}: {errors}");
    }
    let base = lab.root().join("base.toml");
    fs::write(&base, net(&["a.org"], &[]) + "[net]\nech = true\nmax_upload = \"1MB\"\n").unwrap();
    let text = format!("extends = {base:?}\n[net]\nmax_upload = \"2MB\"\n");
    assert_eq!(lab.load(&text).unwrap_or_else(|e| panic!("{e}")).net_options, of(true, Some(2_000_000)));
    let policy = |keys: &str| lab.compile(&(net(&["a.org"], &[]) + "[net]\n" + keys));
    let (a, b) = (policy("ech = true\nmax_upload = 7\n"), policy("max_upload = 9\n"));
    assert_eq!(meet_policies(&a, &b).names.options, of(false, Some(7)));
    assert_eq!(meet_policies(&a, &a).names.options, of(true, Some(7)));
}

#[test]
fn a_person_is_asked_for_names_where_the_profile_says_so_and_no_deny() {
    let lab = Lab::new();
    let policy = |granted: &[&str], denied: &[&str], keys: &str| {
        lab.compile(&(net(granted, denied) + "[net]\n" + keys))
    };
    let asks = |policy: &CompiledPolicy| policy.names.options.ask;
    let (control, none) = (policy(&["a.org:443"], &[], ""), policy(&[], &[], "ask_timeout = 9\n"));
    assert_eq!((asks(&control), asks(&none), none.names.is_empty()), (None, None, true));
    let asked = policy(&["a.org:443", "b.org:80"], &["a.org:22", "evil.org"], "ask = true\n");
    let soon = policy(&[], &[], "ask = true\nask_timeout = 5\n");
    assert_eq!((asks(&asked), asks(&soon), soon.names.is_empty()), (Some(60), Some(5), false));

    // Every address of the block leads to the worker, at every port but the denied ones of exact names.
    let allowed = |policy: CompiledPolicy, last: u8, port: u16| {
        let policy = with_block(policy);
        let decision = Decider::new(&policy).address(in_block(last), port);
        let rule = decision.rule.map(|rule| policy.rules[rule as usize].id.clone());
        (decision.why == Why::Allowed).then(|| rule.unwrap())
    };
    let by = |rule: &str| Some(rule.to_owned());
    assert_eq!(allowed(asked.clone(), 1, 443), by("net:a.org:443"));
    assert_eq!(allowed(asked.clone(), 1, 8443), by("net.ask"));
    assert_eq!((allowed(asked.clone(), 1, 22), allowed(asked.clone(), 2, 22)), (None, by("net.ask")));
    assert_eq!(allowed(asked.clone(), 200, 443), by("net.ask"));
    assert_eq!(allowed(soon.clone(), 128, 443), by("net.ask"), "no name at all is granted");
    assert_eq!((allowed(control.clone(), 1, 8443), allowed(control.clone(), 200, 443)), (None, None));
    let outside = Decider::new(&with_block(asked.clone())).address("198.18.8.1".parse().unwrap(), 443);
    assert_eq!(outside.why, Why::Default, "another container's");

    // Nobody is asked for what the container around does not have asked for.
    assert_eq!(asks(&meet_policies(&asked, &control)), None);
    assert_eq!(asks(&meet_policies(&control, &asked)), None);
    assert_eq!(asks(&meet_policies(&asked, &soon)), Some(5));
    let all = lab.compile(&(toml("net = \"all\"", "", "none") + "[net]\nask = true\n"));
    assert_eq!(asks(&all), None, "everything is granted");
    assert_eq!(asks(&meet_policies(&all, &asked)), Some(60));

    let profile =
        lab.load(&(net(&[], &["evil.org"]) + "[net]\nask = true\n")).unwrap_or_else(|e| panic!("{e}"));
    let policy = lab.compile(&(net(&[], &["evil.org"]) + "[net]\nask = true\n"));
    let said = remarks(&profile, &policy, &lab.root(), None);
    assert!(said.denies.is_empty(), "a deny has something to deny: {:?}", said.denies);
    assert!(show::text(&profile, &policy, &[]).contains("a person is asked for others, for 60 s"));
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let lab = Lab::new();
    let listed = |hosts: Vec<String>| {
        let lines: Vec<String> = hosts.iter().map(|host| format!("  \"{host}\",")).collect();
        format!("net = {{ only = [\n{}\n] }}", lines.join("\n"))
    };
    let whole = |net: &str| {
        let axes = "fs_read = { only = [] }\nfs_write = { only = [] }\nexec = { only = [] }";
        format!("[grant]\nmax_calls = \"unlimited\"\nvalid_for_generation = \"all\"\n{axes}\n{net}\n")
    };
    let said = |net: &str| {
        let errors = lab.load(&whole(net)).unwrap_err();
        let text = errors.to_string();
        text.lines()
            .map(|line| line.rsplit_once("/p.toml").map_or(line, |(_, rest)| rest).to_owned())
            .collect::<Vec<_>>()
    };
    let one = |entry: &str| said(&format!("net = {{ only = [\"{entry}\"] }}"));
    for (entry, expected) in [
        (
            "*.co.uk",
            &[
                ":7: grant.net: \"*.co.uk\": anyone can have a name below co.uk, which is a public suffix",
                "    hint: name the domains that are meant: `*.example.co.uk`, `example.co.uk`",
            ][..],
        ),
        (
            "a.*.org",
            &[
                ":7: grant.net: \"a.*.org\": a `*` can only stand in front, as a whole label: `*.example.org` is every name \
                 below example.org",
                "    hint: write `*.` and a domain, or each name",
            ],
        ),
        ("tcp:git.example", &[":7: grant.net: \"tcp:git.example\": `tcp:` needs a port: `tcp:HOST:PORT`"]),
        (
            "tcp:10.0.0.1:22",
            &[
                ":7: grant.net: \"tcp:10.0.0.1:22\": `tcp:` is for host names: what is said to an address is not looked at \
                 anyway",
                "    hint: leave `tcp:` out",
            ],
        ),
        ("xn--a.example", &[":7: grant.net: \"xn--a.example\": it is not a name that DNS can have (IDNA)"]),
        (
            "10.0.0.256",
            &[
                ":7: grant.net: \"10.0.0.256\": it is neither an address, an address range, a host name nor a unix socket",
                "    hint: write ip[:port], cidr[:port], [v6]:port, host[:port], *.host[:port], tcp:host:port, set:NAME, \
                 unix:/path or unix:@abstract",
            ],
        ),
        (
            "set:registry",
            &[
                ":7: grant.net: no set of hosts is named \"registry\"",
                "    hint: there are: git-hosts, registries; others are files sets/NAME.toml, in the directory of the profile",
            ],
        ),
        (
            "set:../x",
            &[
                ":7: grant.net: no set of hosts is named \"../x\"",
                "    hint: there are: git-hosts, registries; others are files sets/NAME.toml, in the directory of the profile",
            ],
        ),
    ] {
        assert_eq!(one(entry), expected, "{entry}");
    }
    let many: Vec<String> = (0..=MAX_EXACT_NAMES).map(|at| format!("h{at}.example")).collect();
    let expected = [
        ":135: grant.net: is one host name more than 127, which is what a container has addresses for",
        "    hint: `*.example.org` is one entry for every name below example.org; each host of a set counts",
    ];
    assert_eq!(said(&listed(many.clone())), expected);
    let most = lab.load(&whole(&listed(many[1..].to_vec()))).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(most.rules.net.listed().len(), 127, "the control");
    let repeated: Vec<String> =
        many[1..].iter().cloned().chain(many[1..].iter().map(|host| format!("{host}:80"))).collect();
    assert!(lab.load(&whole(&listed(repeated))).is_ok(), "the same names again take no more addresses");
    let wildcards: Vec<String> = (0..=1024).map(|at| format!("*.h{at}.example")).collect();
    assert!(
        said(&listed(wildcards))[0]
            .starts_with(":1032: grant.net: is one entry of host names more than 1024")
    );
}

#[test]
fn a_deny_of_a_name_beside_every_address_is_for_tools_alone() {
    let lab = Lab::new();
    let text = toml("net = \"all\"", "net = [\"example.org\", \"10.0.0.1\"]", "none");
    let errors = lab.try_compile(&text, None).unwrap_err().to_string();
    assert!(errors.contains("p.toml:9: deny.net: \"example.org\" is a host name"), "{errors}");
    assert!(!errors.contains("10.0.0.1") && lab.load(&text).is_ok(), "{errors}");
    let idle = |granted: &[&str], denied: &[&str]| {
        let profile = lab.load(&net(granted, denied)).unwrap_or_else(|e| panic!("{e}"));
        let (policy, _) = lab.compile_in(&profile, None).unwrap();
        let mut noted = remarks(&profile, &policy, &lab.root(), None).denies;
        noted.retain(|line| line.contains("can never match"));
        noted
    };
    assert!(idle(&["*.a.org:443"], &["x.a.org", "*.org.example", "*.b.a.org:443"]).len() == 1);
    assert!(idle(&["a.org:443"], &["a.org:80"])[0].contains("no such name is granted"));
    assert!(idle(&["10.0.0.1"], &["a.org"])[0].contains("reached whatever it is called"));
}

#[test]
fn a_deny_can_have_every_name_below_a_public_suffix() {
    let lab = Lab::new();
    let profile =
        lab.load(&net(&["*.a.com", "b.io", "a.github.io"], &["*.com", "*.github.io", "tcp:*.io:22"]));
    let profile = profile.unwrap_or_else(|e| panic!("{e}"));
    let (policy, _) = lab.compile_in(&profile, None).unwrap();
    let open = |host: &str, port| Decider::new(&policy).host(host, port, false).allowed();
    assert!(open("b.io", 443) && !open("b.io", 22) && !open("x.a.com", 443) && !open("a.github.io", 443));
    for granted in ["*.com", "*.github.io", "*.internal"] {
        let errors = lab.load(&net(&[granted], &[])).unwrap_err().to_string();
        assert!(errors.contains("public suffix"), "{granted}: {errors}");
    }
}

fn remarks_on(granted: &[&str], denied: &[&str]) -> Vec<String> {
    let lab = Lab::new();
    let profile = lab.load(&net(granted, denied)).unwrap_or_else(|e| panic!("{e}"));
    let (policy, _) = lab.compile_in(&profile, None).unwrap();
    remarks(&profile, &policy, &lab.root(), None).denies
}

#[test]
fn a_deny_that_leaves_the_names_below_is_noted() {
    for (granted, denied, add) in [
        (&["*.x.org"][..], &["ads.x.org"][..], Some("\"*.ads.x.org\"")),
        (&["*.x.org:443"], &["ads.x.org:443"], Some("\"*.ads.x.org:443\"")),
        (&["*.x.org"], &["ads.x.org", "*.ads.x.org:80"], Some("\"*.ads.x.org\"")),
        (&["*.x.org", "x.org"], &["x.org"], Some("\"*.x.org\"")),
        (&["*.x.org"], &["ads.x.org", "*.ads.x.org"], None),
        (&["*.x.org"], &["ads.x.org:80", "*.ads.x.org"], None),
        (&["*.x.org:443", "ads.x.org:80"], &["ads.x.org:80"], None),
        (&["ads.x.org", "b.ads.x.org"], &["ads.x.org"], None),
        (&["*.x.org"], &["*.ads.x.org"], None),
    ] {
        let noted: Vec<String> =
            remarks_on(granted, denied).into_iter().filter(|line| line.contains("names below")).collect();
        assert_eq!(noted.len(), usize::from(add.is_some()), "{granted:?} {denied:?}: {noted:?}");
        assert!(add.is_none_or(|add| noted[0].contains(add)), "{noted:?}");
    }
}

#[test]
fn an_entry_that_opens_a_nameserver_beside_names_is_noted() {
    for (granted, expected) in [
        (&["a.org", "10.0.0.0/8"][..], 0),
        (&["a.org", "10.0.0.2", "[::1]:53"], 1),
        (&["a.org", "10.0.0.2:53"], 1),
        (&["a.org", "10.0.0.0/8:443"], 0),
        (&["10.0.0.0/8", "10.0.0.2:53"], 0),
    ] {
        let noted: Vec<String> =
            remarks_on(granted, &[]).into_iter().filter(|line| line.contains("carry data")).collect();
        assert_eq!(noted.len(), expected, "{granted:?}: {noted:?}");
    }
}

#[test]
fn what_is_granted_by_name_is_shown() {
    let lab = Lab::new();
    let text = net(&["*.a.org:443", "tcp:b.org:22"], &["x.a.org"]) + "[net]\nmax_upload = \"1MB\"\n";
    let profile = lab.load(&text).unwrap_or_else(|e| panic!("{e}"));
    let (policy, notes) = lab.compile_in(&profile, None).unwrap();
    let text = show::text(&profile, &policy, &notes);
    for line in [
        "names        at most 1000000 bytes are sent to one name\n",
        "  allow    *.a.org port 443   net:*.a.org:443  (",
        "  allow    tcp:b.org port 22  net:tcp:b.org:22  (",
        "  deny     x.a.org            deny.net:x.a.org  (",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let json: serde_json::Value =
        serde_json::from_str(&show::json(&profile, &policy, None, &notes).unwrap()).unwrap();
    assert_eq!(json["net"]["max_upload"], 1_000_000);
    let localhost = lab.load(&net(&["localhost:80", "*.a.localhost"], &[])).unwrap();
    let (_, notes) = lab.compile_in(&localhost, None).unwrap();
    assert_eq!(
        notes.iter().filter(|note| note.contains("grant 127.0.0.1 and [::1]")).count(),
        2,
        "{notes:?}"
    );
}

fn host_texts() -> impl Strategy<Value = Vec<String>> {
    let host = prop::sample::select(vec!["x.org", "a.x.org", "b.a.x.org", "y.org", "a.y.org"]);
    let form =
        prop::sample::select(vec![("", ""), ("", ":80"), ("", ":443"), ("tcp:", ":80"), ("tcp:", ":443")]);
    let one = (host, prop::sample::select(vec!["", "*."]), form)
        .prop_map(|(host, star, (tcp, port))| format!("{tcp}{star}{host}{port}"));
    prop::collection::btree_set(one, 0..6).prop_map(|texts| texts.into_iter().collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_meet_grants_what_both_do_and_addresses_follow_the_names(
        (a, b) in ((host_texts(), host_texts()), (host_texts(), host_texts())),
    ) {
        fn texts(texts: &[String]) -> Vec<&str> {
            texts.iter().map(String::as_str).collect()
        }
        let of = |(granted, denied): &(Vec<String>, Vec<String>)| compiled(&texts(granted), &texts(denied));
        let (a, b) = (of(&a), of(&b));
        let met = meet_policies(&a, &b);
        let how = |policy: &CompiledPolicy, name: &str, port: u16| match policy.names.denied(name, port) {
            Some(_) => 0,
            None => policy.names.granted(name, port).map_or(0, |rule| if rule.tcp { 2 } else { 1 }),
        };
        let names = ["x.org", "a.x.org", "c.x.org", "b.a.x.org", "c.b.a.x.org", "y.org", "a.y.org", "z.a.y.org", "org"];
        for name in names {
            for port in [80, 443, 22] {
                let both = how(&a, name, port).min(how(&b, name, port));
                prop_assert_eq!(how(&met, name, port), both, "{}:{}", name, port);
            }
            let open = [80, 443, 22].iter().any(|port| how(&met, name, *port) > 0);
            prop_assert!(!open || met.names.has(name), "{}", name);
        }
        let blocked = with_block(met.clone());
        let decider = Decider::new(&blocked);
        for (last, name) in (1u8..).zip(met.names.exact()) {
            for port in [80, 443, 22] {
                let open = decider.address(in_block(last), port).allowed();
                prop_assert_eq!(open, how(&met, name, port) > 0, "{}:{}", name, port);
            }
        }
        for port in [80, 443, 22] {
            let of_port = |rule: &NameRule| rule.host.starts_with("*.") && rule.port.is_none_or(|of| of == port);
            let open = met.names.rules.iter().any(of_port);
            prop_assert_eq!(decider.address(in_block(254), port).allowed(), open);
            for other in [0, u8::try_from(met.names.exact().len()).unwrap() + 1, 127] {
                prop_assert!(!decider.address(in_block(other), port).allowed(), "{}", other);
            }
        }
    }
}
