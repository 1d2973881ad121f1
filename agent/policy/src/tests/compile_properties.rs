//! Compiled policies against the profile's text and against each other, over small alphabets.

use super::{Lab, toml};
use crate::{
    compiled::{self, CompiledPolicy, Kind, Place, PlaceRule},
    decide::Decider,
    meet_policies, nets,
};
use proptest::prelude::*;
use ringfence_common::policy::axis::{READ, WRITE};
use ringfence_wire::{
    credentials::{CredentialPlace, HostCredential, Otherwise},
    requests::Target,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv6Addr},
};

fn path_text() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec!["a", "b", "c"]);
    let dirs = prop::collection::vec(name.clone(), 0..4).prop_map(|c| format!("/{}", c.join("/")));
    prop_oneof![
        4 => dirs.clone(),
        1 => dirs.clone().prop_map(|d| format!("{}/*", d.trim_end_matches('/'))),
        1 => dirs.prop_map(|d| format!("{}/**", d.trim_end_matches('/'))),
        2 => name.prop_map(|n| format!("**/{n}")),
    ]
}

fn universe() -> Vec<String> {
    let mut all = vec!["/".to_owned()];
    let mut last = vec![String::new()];
    for _ in 0..4 {
        last = last.iter().flat_map(|p| ["a", "b", "c", "d"].map(|n| format!("{p}/{n}"))).collect();
        all.extend(last.iter().cloned());
    }
    all
}

/// Whether a rule's text means a path: by text alone.
fn means(rule: &str, path: &str) -> bool {
    if let Some(name) = rule.strip_prefix("**/") {
        return path.split('/').any(|c| c == name);
    }
    let below = |dir: &str| path != "/" && (dir.is_empty() || path.starts_with(&format!("{dir}/")));
    if let Some(dir) = rule.strip_suffix("/**") {
        return below(dir);
    }
    if let Some(dir) = rule.strip_suffix("/*") {
        return below(dir) && !path[dir.len() + 1..].contains('/');
    }
    path == rule || below(rule.trim_end_matches('/'))
}

fn quoted(rules: &[String]) -> String {
    let unique: BTreeSet<_> = rules.iter().collect();
    unique.into_iter().map(|r| format!("\"{r}\"")).collect::<Vec<_>>().join(", ")
}

/// Hosts with credentials, each at most once.
fn credentials() -> impl Strategy<Value = Vec<HostCredential>> {
    let host = prop::sample::select(vec![("a.org", 443u16), ("a.org", 8443), ("b.org", 443)]);
    let rules = prop::collection::btree_set(prop::sample::select(vec!["GET /a", "GET /b", "* /*"]), 1..3);
    let one = (rules, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(rules, passes, cookies, is_basic)| HostCredential {
            host: String::new(),
            port: 0,
            place: if is_basic { CredentialPlace::basic("u").unwrap() } else { CredentialPlace::Bearer },
            allow: rules.into_iter().map(|rule| rule.parse().unwrap()).collect(),
            otherwise: if passes { Otherwise::Pass } else { Otherwise::Refuse },
            cookies,
        },
    );
    prop::collection::btree_map(host, one, 0..3).prop_map(|all| {
        let named = |((host, port), one): ((&str, u16), HostCredential)| HostCredential {
            host: host.into(),
            port,
            ..one
        };
        all.into_iter().map(named).collect()
    })
}

fn place_rule() -> impl Strategy<Value = PlaceRule> {
    let name = prop::sample::select(vec!["a", "b", "c"]);
    let path = prop::collection::vec(name.clone(), 0..4)
        .prop_map(|c| Place::Path(format!("/{}", c.join("/")).into()));
    let named = |of: fn(Vec<u8>) -> Place| name.clone().prop_map(move |n| of(n.into()));
    let place = prop_oneof![
        10 => path,
        2 => named(Place::Name),
        1 => named(Place::Prefix),
        1 => named(Place::Suffix),
    ];
    let kind = prop::sample::select(vec![Kind::Tree, Kind::Tree, Kind::Below, Kind::Children, Kind::Exact]);
    let bits = prop::sample::select(vec![
        (READ, 0, 0),
        (READ, 0, 0),
        (READ, 0, 0),
        (0, READ, 0),
        (0, 0, READ),
        (READ, 0, READ),
    ]);
    (place, kind, bits)
        .prop_map(|(place, kind, (allow, deny, reset))| PlaceRule {
            // Only trees reset, and only trees are filed under a name.
            kind: if reset != 0 || !matches!(place, Place::Path(_)) { Kind::Tree } else { kind },
            place,
            allow,
            deny,
            reset,
            allow_rules: [(allow != 0).then_some(0); 5],
            deny_rules: [(deny != 0).then_some(0); 5],
            reset_rule: (reset != 0).then_some(0),
        })
        .prop_map(|rule| match rule.place {
            // Patterns only deny.
            Place::Prefix(_) | Place::Suffix(_) => PlaceRule {
                deny: READ,
                deny_rules: [Some(0); 5],
                ..PlaceRule::nothing(rule.place, Kind::Tree)
            },
            _ => rule,
        })
}

fn policy() -> impl Strategy<Value = CompiledPolicy> {
    let net = (
        prop::sample::select(vec![0u8, 120, 124, 126, 127, 128]),
        0u8..16,
        prop::sample::select(vec![None, Some(1), Some(2)]),
        any::<bool>(),
    );
    let initial = prop::sample::select(vec![0, 0, READ]);
    (initial, prop::collection::vec(place_rule(), 0..7), prop::collection::vec(net, 0..6)).prop_map(
        |(initial, places, nets)| {
            let mut unique = BTreeMap::new();
            for rule in places {
                unique.entry((rule.place.clone(), rule.kind)).or_insert(rule);
            }
            let mut collected = nets::Nets::default();
            for (len, low, port, allow) in nets {
                let prefix = nets::Prefix { port, addr: u128::from(low), len: 128 }.shortened(len);
                if allow { collected.allow(prefix, 0) } else { collected.deny(prefix, 0) }
            }
            let (nets, inet) = collected.finish();
            CompiledPolicy {
                profile: "p".into(),
                audit_mode: false,
                initial,
                record: 0,
                inet,
                capabilities: crate::Capabilities::NONE,
                flags: 0,
                places: unique.into_values().collect(),
                nets,
                names: Default::default(),
                rules: vec![compiled::RuleSource {
                    id: "r".into(),
                    file: None,
                    line: 0,
                    key: String::new(),
                    text: String::new(),
                }],
            }
        },
    )
}

/// Without resets and names, the kernel's terms can say exactly what two policies have in common.
fn plain(policy: &CompiledPolicy) -> bool {
    policy.places.iter().all(|r| r.reset == 0 && !matches!(r.place, Place::Name(_)))
}

proptest! {
    #![proptest_config(ringfence_test_support::properties::config(200))]

    #[test]
    fn a_policy_means_what_its_text_says(
        allows in prop::collection::vec(path_text(), 0..5),
        denies in prop::collection::vec(path_text(), 0..3),
        all in prop::bool::weighted(0.2),
    ) {
        let lab = Lab::new();
        let scope = if all { "\"all\"".to_owned() } else { format!("{{ only = [{}] }}", quoted(&allows)) };
        // What is written twice in two forms is an error; here it is only noise.
        let text = toml(&format!("fs_read = {scope}"), &format!("fs_read = [{}]", quoted(&denies)), "none");
        let policy = lab.compile(&text);
        let decider = Decider::new(&policy);
        for path in universe() {
            let expected = (all || allows.iter().any(|r| means(r, &path))) && !denies.iter().any(|r| means(r, &path));
            let decision = decider.path(READ, path.as_bytes());
            prop_assert_eq!(decision.allowed(), expected, "{}", path);
            prop_assert!(!decider.path(WRITE, path.as_bytes()).allowed());
        }
    }

    #[test]
    fn nested_policies_allow_only_what_both_allow(a in policy(), b in policy()) {
        let met = meet_policies(&a, &b);
        let (of_a, of_b, of_met) = (Decider::new(&a), Decider::new(&b), Decider::new(&met));
        let exact = plain(&a) && plain(&b);
        for path in universe() {
            let both = of_a.path(READ, path.as_bytes()).allowed() && of_b.path(READ, path.as_bytes()).allowed();
            let got = of_met.path(READ, path.as_bytes()).allowed();
            prop_assert!(both || !got, "{} is allowed to the nested alone", path);
            prop_assert!(!exact || got == both, "{} should be allowed", path);
        }
        for low in 0u8..16 {
            for port in [1, 2, 3] {
                let addr = IpAddr::V6(Ipv6Addr::from(u128::from(low)));
                let both = of_a.address(addr, port).allowed() && of_b.address(addr, port).allowed();
                prop_assert_eq!(of_met.address(addr, port).allowed(), both);
            }
        }
    }

    /// A host that has its requests judged in one of two has them judged in their meet, by no wider rules.
    #[test]
    fn a_nested_container_reaches_no_host_without_the_rules_of_both(
        (a, b) in (credentials(), credentials()),
        (all_of_a, all_of_b) in (any::<bool>(), any::<bool>()),
    ) {
        let of = |credentials: &[HostCredential], all: bool| {
            let net = if all { "net = \"all\"" } else { "net = { only = [\"a.org:443\", \"a.org:8443\", \"b.org:443\"] }" };
            let mut policy = Lab::new().compile(&toml(net, "", "none"));
            policy.names.credentials = credentials.to_vec();
            policy
        };
        let met = meet_policies(&of(&a, all_of_a), &of(&b, all_of_b)).names.credentials;
        for (host, port) in [("a.org", 443), ("a.org", 8443), ("b.org", 443), ("c.org", 443)] {
            let find = |of: &[HostCredential]| -> Vec<HostCredential> {
                of.iter().filter(|one| one.host == host && one.port == port).cloned().collect()
            };
            let (of_a, of_b, of_met) = (find(&a), find(&b), find(&met));
            prop_assert_eq!(of_met.len(), of_a.len().max(of_b.len()), "{}:{}", host, port);
            for (one, met) in of_a.iter().chain(&of_b).zip(of_met.iter().cycle()) {
                for target in ["/a", "/b", "/c"].map(|text| Target::read(text).unwrap()) {
                    let has = |of: &HostCredential| of.allow.iter().any(|rule| rule.allows("GET", &target));
                    let passes = |of: &HostCredential| has(of) || of.otherwise == Otherwise::Pass;
                    prop_assert!(!has(met) || has(one), "{:?} has more than {:?}", met, one);
                    prop_assert!(!passes(met) || passes(one), "{:?} lets more through than {:?}", met, one);
                }
                prop_assert!(one.cookies || !met.cookies);
            }
        }
    }

    #[test]
    fn nets_mean_what_their_text_says(
        rules in prop::collection::vec((
            prop::sample::select(vec!["10.0.0.0/8", "10.0.0.0/16", "10.0.0.1", "0.0.0.0/0", "[::/0]", "[::1]", "[fe80::/10]", "[::fffe:0:0/95]"]),
            prop::sample::select(vec!["", ":80", ":443"]),
            any::<bool>(),
        ), 0..7),
    ) {
        let lab = Lab::new();
        let texts = |deny: bool| {
            rules.iter().filter(|(.., d)| *d == deny).map(|(net, port, _)| format!("{net}{port}")).collect::<Vec<_>>()
        };
        let (allows, denies) = (texts(false), texts(true));
        let text = toml(&format!("net = {{ only = [{}] }}", quoted(&allows)), &format!("net = [{}]", quoted(&denies)), "none");
        let policy = lab.compile(&text);
        let decider = Decider::new(&policy);
        let entries = |texts: &[String]| texts.iter().map(|t| t.parse().unwrap()).collect::<Vec<ringfence_grant::NetEntry>>();
        let (allows, denies) = (entries(&allows), entries(&denies));
        for addr in ["10.0.0.1", "10.0.0.2", "10.1.0.1", "11.0.0.1", "::1", "::2", "fe80::1", "2001:db8::1", "::fffe:1:1", "::ffff:10.0.0.1"] {
            let addr: IpAddr = addr.parse().unwrap();
            for port in [80, 443, 22] {
                let expected = allows.iter().any(|e| e.has(addr, port)) && !denies.iter().any(|e| e.has(addr, port));
                prop_assert_eq!(decider.address(addr, port).allowed(), expected, "{} {}", addr, port);
            }
        }
        prop_assert_eq!(policy.inet, !allows.is_empty());
    }

    #[test]
    fn no_text_makes_the_loader_or_the_compiler_panic(
        cuts in prop::collection::vec((any::<prop::sample::Index>(), 0usize..9, "\\PC{0,4}|[\\[\\]{}\"'=.,\n$*/\\\\]{0,6}"), 0..6),
    ) {
        let lab = Lab::new();
        let mut text: Vec<char> = include_str!("../../../../profiles/coder.toml").chars().collect();
        for (at, length, put) in cuts {
            let at = at.index(text.len());
            let end = (at + length).min(text.len());
            text.splice(at..end, put.chars());
        }
        let text: String = text.into_iter().collect();
        match lab.load(&text) {
            Ok(profile) => drop(lab.compile_in(&profile, Some("/workdir"))),
            Err(errors) => prop_assert!(!errors.0.is_empty() && !errors.to_string().is_empty()),
        }
    }
}
