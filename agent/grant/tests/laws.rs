//! The lattice's laws, over small alphabets so that entries often meet, and against the sets that entries mean.

#![expect(clippy::unwrap_used, reason = "a strategy helper that fails is a failed test")]

use proptest::prelude::*;
use ringfence_grant::{CountBound, Entry, ExecEntry, Grant, NetEntry, PathEntry, Reach, Scope};

fn path_text() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec!["a", "b", "c"]);
    let dirs = prop::collection::vec(name.clone(), 0..4).prop_map(|c| format!("/{}", c.join("/")));
    prop_oneof![
        6 => (dirs, prop::sample::select(vec!["", "/*", "/**"]))
            .prop_map(|(dir, glob)| if glob.is_empty() { dir } else { format!("{}{glob}", dir.trim_end_matches('/')) }),
        2 => name.prop_map(|n| format!("**/{n}")),
    ]
}

/// Entries as written, and intersections of up to three of them.
fn path_entry() -> impl Strategy<Value = PathEntry> {
    prop::collection::vec(path_text(), 1..4).prop_map(|texts| {
        let mut entries = texts.iter().map(|t| t.parse::<PathEntry>().unwrap());
        let first = entries.next().unwrap();
        entries.fold(first, |met, e| met.meet(&e).unwrap_or(met))
    })
}

fn exec_entry() -> impl Strategy<Value = ExecEntry> {
    let one = prop_oneof![
        path_entry().prop_map(ExecEntry::from),
        prop::sample::select(vec!["git", "sh"]).prop_map(|p| p.parse().unwrap()),
    ];
    (one.clone(), one).prop_map(|(a, b): (ExecEntry, ExecEntry)| a.meet(&b).unwrap_or(a))
}

/// Hosts of a few labels, with ports and without, looked at and not.
fn host_text() -> impl Strategy<Value = String> {
    let host = prop::sample::select(vec!["x.org", "a.x.org", "b.a.x.org", "y.org", "a.y.org"]);
    let forms = [("", ""), ("", ":80"), ("", ":443"), ("tcp:", ":80"), ("tcp:", ":443")];
    (host, prop::sample::select(vec!["", "*."]), prop::sample::select(forms.to_vec()))
        .prop_map(|(host, star, (tcp, port))| format!("{tcp}{star}{host}{port}"))
}

fn net_entry() -> impl Strategy<Value = NetEntry> {
    let port = prop::sample::select(vec!["", ":80", ":443"]);
    let base = prop::sample::select(vec![
        "10.0.0.0/8",
        "10.0.0.0/16",
        "10.0.0.1",
        "0.0.0.0/0",
        "[::/0]",
        "[2001:db8::/32]",
        "[::1]",
    ]);
    prop_oneof![
        (base, port).prop_map(|(b, p)| format!("{b}{p}").parse().unwrap()),
        host_text().prop_map(|text| text.parse().unwrap()),
        path_entry().prop_map(NetEntry::Unix),
        prop::sample::select(vec!["unix:@a", "unix:@b"]).prop_map(|t| t.parse().unwrap()),
    ]
}

fn scope<E: Entry + 'static>(entry: impl Strategy<Value = E> + 'static) -> impl Strategy<Value = Scope<E>> {
    prop_oneof![1 => Just(Scope::All), 6 => prop::collection::vec(entry, 0..5).prop_map(Scope::only)]
}

fn grant() -> impl Strategy<Value = Grant> {
    let bound = prop_oneof![Just(CountBound::Unlimited), (0u64..4).prop_map(CountBound::AtMost)];
    (scope(path_entry()), scope(path_entry()), scope(exec_entry()), scope(net_entry()), bound, scope(0u64..4))
        .prop_map(|(fs_read, fs_write, exec, net, max_calls, valid_for_generation)| Grant {
            fs_read,
            fs_write,
            exec,
            net,
            max_calls,
            valid_for_generation,
        })
}

/// Every path of up to four components over an alphabet one larger than the entries'.
fn universe() -> Vec<String> {
    let mut all = vec!["/".to_owned()];
    let mut last = vec![String::new()];
    for _ in 0..4 {
        last = last.iter().flat_map(|p| ["a", "b", "c", "d"].map(|n| format!("{p}/{n}"))).collect();
        all.extend(last.iter().cloned());
    }
    all
}

/// What an entry means, written down a second time: by text.
fn has(entry: &PathEntry, path: &str) -> bool {
    let anchor = entry.anchor().trim_end_matches('/');
    let below = path.strip_prefix(anchor).filter(|r| r.starts_with('/') && r.len() > 1);
    let is = path == entry.anchor();
    let reached = match entry.reach() {
        Reach::Tree => is || below.is_some(),
        Reach::Below => below.is_some(),
        Reach::Children => below.is_some_and(|r| !r[1..].contains('/')),
        Reach::Exact => is,
    };
    reached && entry.names().all(|n| path.split('/').any(|c| c == n))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn order_is_partial(a in grant(), b in grant(), c in grant()) {
        prop_assert!(a.leq(&a));
        if a.leq(&b) && b.leq(&a) {
            prop_assert_eq!(&a, &b);
        }
        if a.leq(&b) && b.leq(&c) {
            prop_assert!(a.leq(&c));
        }
    }

    #[test]
    fn meet_is_the_greatest_lower_bound(a in grant(), b in grant(), c in grant()) {
        let met = a.meet(&b);
        prop_assert!(met.leq(&a) && met.leq(&b), "a meet amplifies");
        // `c` made a lower bound of both, so that the premise is not almost always false.
        let lower = c.meet(&a).meet(&b);
        prop_assert!(lower.leq(&met));
        prop_assert_eq!(a.leq(&b), met == a);
    }

    #[test]
    fn meet_is_commutative_associative_idempotent(a in grant(), b in grant(), c in grant()) {
        prop_assert_eq!(a.meet(&b), b.meet(&a));
        prop_assert_eq!(a.meet(&b).meet(&c), a.meet(&b.meet(&c)));
        prop_assert_eq!(a.meet(&a), a);
    }

    #[test]
    fn top_is_the_identity_and_bottom_the_zero(a in grant()) {
        prop_assert_eq!(a.meet(&Grant::top()), a.clone());
        prop_assert_eq!(a.meet(&Grant::bottom()), Grant::bottom());
        prop_assert!(Grant::bottom().leq(&a) && a.leq(&Grant::top()));
    }

    #[test]
    fn serialises_and_reads_back(a in grant()) {
        let json = serde_json::to_string(&a).unwrap();
        prop_assert_eq!(serde_json::from_str::<Grant>(&json).unwrap(), a.clone());
        let text = toml::to_string(&a).unwrap();
        prop_assert_eq!(toml::from_str::<Grant>(&text).unwrap(), a);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_meet_of_entries_is_the_intersection_of_their_paths(a in path_entry(), b in path_entry()) {
        let met = a.meet(&b);
        for path in universe() {
            let both = has(&a, &path) && has(&b, &path);
            prop_assert_eq!(met.as_ref().is_some_and(|m| has(m, &path)), both, "{} in {} and {}", path, a, b);
        }
    }
}

/// What an entry of a host means, written down a second time: by text. At `(name, port, whether TLS or HTTP names it)`.
fn means(entry: &str, (name, port, named): (&str, u16, bool)) -> bool {
    let (rest, tcp) = entry.strip_prefix("tcp:").map_or((entry, false), |rest| (rest, true));
    let (host, of_port) = rest.split_once(':').map_or((rest, None), |(host, at)| (host, Some(at)));
    let of_host = match host.strip_prefix("*") {
        Some(end) => name.ends_with(end) && name.len() > end.len(),
        None => name == host,
    };
    of_host && of_port.is_none_or(|of| of == port.to_string()) && (tcp || named)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_meet_of_hosts_is_the_intersection_of_their_names(a in host_text(), b in host_text()) {
        let read = |text: &str| text.parse::<NetEntry>().unwrap();
        let met = read(&a).meet(&read(&b)).map(|met| met.to_string());
        let names = ["org", "x.org", "a.x.org", "c.x.org", "b.a.x.org", "c.b.a.x.org", "y.org", "a.y.org", "xx.org"];
        let asked = names.iter().flat_map(|name| [80, 443, 8080].map(|port| (*name, port)));
        for (name, port) in asked {
            for named in [true, false] {
                let asked = (name, port, named);
                let is = met.as_deref().is_some_and(|met| means(met, asked));
                prop_assert_eq!(is, means(&a, asked) && means(&b, asked), "{:?} in {} and {}", asked, a, b);
                let NetEntry::Host { host, port: at, .. } = read(&a) else { panic!("{a}") };
                let matched = host.matches(name) && at.is_none_or(|at| at == port);
                prop_assert_eq!(matched, means(&a, (name, port, true)), "{:?} in {}", asked, a);
            }
        }
        prop_assert_eq!(read(&a).leq(&read(&b)), met.as_deref() == Some(a.as_str()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// However a name is written, what is stored is one spelling, and nothing else is a name.
    #[test]
    fn a_host_has_one_spelling(text in "(tcp:)?([*][.])?([a-zA-Z0-9_-]|xn--|[.]|\\PC|[\u{300}-\u{36f}\u{ff10}-\u{ff5a}\u{3002}]){1,24}(:[0-9]{1,5})?") {
        if let Ok(entry) = text.parse::<NetEntry>()
            && let NetEntry::Host { host, .. } = &entry
        {
            let stored = entry.to_string();
            prop_assert_eq!(stored.parse::<NetEntry>(), Ok(entry.clone()), "{}", stored);
            let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.".contains(&b);
            prop_assert!(host.host().bytes().all(plain) && host.host().len() <= 253, "{}", stored);
            prop_assert!(host.host().parse::<std::net::IpAddr>().is_err(), "{}", stored);
            let is_exact = !stored.contains('*');
            prop_assert_eq!(host.matches(host.host()), is_exact, "{}", stored);
            prop_assert_eq!(host.matches(&format!("a.{}", host.host())), !is_exact, "{}", stored);
        }
    }
}

#[test]
fn reads_the_shape_of_the_seed() {
    let json = r#"{"fs_read":"all","fs_write":"all","exec":{"only":["git","cargo"]},"net":"all",
        "max_calls":{"at_most":50},"valid_for_generation":"all"}"#;
    let grant: Grant = serde_json::from_str(json).unwrap();
    assert_eq!(grant.max_calls, CountBound::AtMost(50));
    assert!(grant.exec.contains(&"git".parse().unwrap()));
    assert!(!grant.exec.contains(&"rm".parse().unwrap()));
    let toml = "fs_read = \"all\"\nfs_write = { only = [] }\nexec = \"all\"\nnet = \"all\"\nmax_calls = \"unlimited\"\n\
                valid_for_generation = { only = [1, 2] }";
    let grant: Grant = toml::from_str(toml).unwrap();
    assert!(grant.fs_write.is_none());
    assert!(grant.valid_for_generation.contains(&2) && !grant.valid_for_generation.contains(&3));
}

#[test]
fn refuses_missing_and_unknown_fields() {
    let read = |json: &str| serde_json::from_str::<Grant>(json).map_err(|e| e.to_string());
    let full = r#"{"fs_read":"all","fs_write":"all","exec":"all","net":"all","max_calls":"unlimited","valid_for_generation":"all"}"#;
    assert!(read(full).is_ok());
    for field in ["fs_read", "fs_write", "exec", "net", "max_calls", "valid_for_generation"] {
        let mut value: serde_json::Value = serde_json::from_str(full).unwrap();
        value.as_object_mut().unwrap().remove(field);
        assert!(read(&value.to_string()).unwrap_err().contains(&format!("missing field `{field}`")));
    }
    let extra = full.replacen('{', r#"{"gpu":"all","#, 1);
    assert!(read(&extra).unwrap_err().contains("unknown field `gpu`"));
    for bad in [r#""most""#, r#"{"only":["x"],"but":[]}"#, r#"{}"#, "[]", "null", r#"{"only":[["/a","/b"]]}"#]
    {
        let json = full.replacen(r#""fs_read":"all""#, &format!(r#""fs_read":{bad}"#), 1);
        assert!(read(&json).is_err(), "{bad}");
    }
}

#[test]
fn large_scopes_meet_quickly() {
    let many =
        |n: u32| Scope::only((0..n).map(|i| format!("/srv/{}/{i}", i % 100).parse::<PathEntry>().unwrap()));
    let (a, b) = (many(20_000), many(10_000));
    assert_eq!(a.meet(&b), b);
}
