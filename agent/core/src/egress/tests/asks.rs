//! Containers that have a person asked for names.

use super::*;
use ringfence_policy::compiled::NetRule;

#[test]
fn a_container_that_only_has_a_person_asked_has_a_worker_until_it_has_not() {
    let mut fixture = Fixture::new();
    let asking = |fixture: &Fixture, keys: &str| {
        profile(fixture, "");
        let file = fixture.dir.path().join("profiles/n.toml");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, format!("{text}[net]\n{keys}")).unwrap();
    };
    asking(&fixture, "ask = true\n");
    let child = Sleeper::start();
    let (_, raw) = admit(&mut fixture, &child).unwrap();
    assert_eq!(log(&fixture), ["redirect", "install 0", "enroll"], "with no name");
    let (block, port) = redirect(&fixture, raw).unwrap();
    assert!(answer(to(port)).2.is_empty(), "no name is granted");
    let allows = |fixture: &Fixture| {
        let policy = fixture.kernel.with(|inner| inner.containers[&raw].1.clone().unwrap());
        let all = |rule: &NetRule| {
            rule.allow && rule.port.is_none() && (rule.addr, rule.prefix) == (block.to_ipv6_mapped(), 96 + 24)
        };
        policy.nets.iter().any(all)
    };
    assert!(allows(&fixture), "every address of its block leads to its worker");
    asking(&fixture, "ask = false\n");
    assert_eq!(fixture.state.reload().errors, Vec::<String>::new());
    assert!(redirect(&fixture, raw).is_none() && !allows(&fixture));
}
