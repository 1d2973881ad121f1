//! Enrolments that fail, profiles that change, and cores that are started again.

use super::*;

#[test]
fn nothing_is_left_of_an_enrolment_that_failed() {
    let mut fixture = Fixture::new();
    profile(&fixture, EXAMPLE);
    let child = Sleeper::start();
    fixture.kernel.with(|inner| inner.no_redirects = true);
    assert!(matches!(admit(&mut fixture, &child), Err(EnrollError::Egress(EgressError::Redirect(_)))));
    fixture.kernel.with(|inner| (inner.no_redirects, inner.full) = (false, true));
    assert!(matches!(admit(&mut fixture, &child), Err(EnrollError::Policy(_))));
    fixture.kernel.with(|inner| inner.full = false);
    let other = ringfence_bpf::Membership { container: Some(ContainerId::from_raw(77)), next: None };
    fixture.kernel.with(|inner| inner.tags.insert(child.0.id(), other));
    assert!(matches!(admit(&mut fixture, &child), Err(EnrollError::Task(_))));
    assert!(fixture.kernel.with(|inner| inner.containers.is_empty() && inner.redirects.is_empty()));
    let free = || std::iter::from_fn(|| fixture.state.opener.take_block(0).ok()).collect::<Vec<_>>().len();
    wait_for("all blocks are free again", || free() == 510);
    // What nobody made ready is not enrolled without it.
    let request = Request { asked: "n".into(), workdir: None, audit: false, uid: 0, home: None };
    let place = fixture.place(None);
    let bare = compiled(&request, &place, &fixture.state).unwrap();
    fixture.kernel.with(|inner| inner.tags.clear());
    let error = fixture.state.enroll(&request, bare, place, child.pidfd()).unwrap_err();
    assert!(matches!(error, EnrollError::Egress(EgressError::NotPrepared)), "{error}");
}

#[test]
fn names_come_and_go_with_the_profile_and_never_before_they_are_served() {
    let mut fixture = Fixture::new();
    profile(&fixture, "\"203.0.113.7:443\"");
    let child = Sleeper::start();
    let (id, raw) = admit(&mut fixture, &child).unwrap();
    log(&fixture);
    profile(&fixture, EXAMPLE);
    assert_eq!(fixture.state.reload().changed, [id.as_str()]);
    assert_eq!(log(&fixture), ["redirect", "install 1"]);
    let (block, port) = redirect(&fixture, raw).unwrap();
    assert_eq!(answer(to(port)).2, ["example.org"]);
    // Others: the same worker is told.
    let pid = status(fixture.only()).pid;
    profile(&fixture, "\"example.org:443\", \"a.test:80\"");
    assert_eq!(fixture.state.reload().changed, [id.as_str()]);
    assert_eq!(log(&fixture), ["install 2"]);
    wait_for("it is told", || answer(to(port)).2.len() == 2);
    assert_eq!(redirect(&fixture, raw), Some((block, port)));
    assert_eq!(status(fixture.only()).pid, pid);
    assert_eq!(fixture.only().record.egress.as_ref().unwrap().names.rules.len(), 2);
    assert!(fixture.state.reload().changed.is_empty(), "nothing changed");
    // Another order, without the first: each name stays at the address that it had.
    profile(&fixture, "\"b.test\", \"a.test:80\"");
    fixture.state.reload();
    assert_eq!(log(&fixture), ["install 2"]);
    let allows = |last: u32, port: u16| {
        let policy = fixture.kernel.with(|inner| inner.containers[&raw].1.clone().unwrap());
        let address = Ipv4Addr::from_bits(block.to_bits() + last).to_ipv6_mapped();
        policy
            .nets
            .iter()
            .any(|rule| rule.allow && rule.addr == address && rule.port.is_none_or(|its| its == port))
    };
    assert!(!allows(1, 443) && !allows(1, 80), "that of the one that is gone is nobody's");
    assert!(allows(2, 80) && !allows(2, 443) && allows(3, 443));
    assert!(fixture.state.reload().changed.is_empty(), "nothing changed");
    profile(&fixture, "\"example.org:443\", \"a.test:80\"");
    fixture.state.reload();
    assert_eq!(log(&fixture), ["install 2"]);
    wait_for("it is told again", || answer(to(port)).2.first().is_some_and(|host| host == "example.org"));
    // A table that is full leaves what is in force, on both sides.
    fixture.kernel.with(|inner| inner.full = true);
    profile(&fixture, "\"203.0.113.7:443\"");
    assert_eq!(fixture.state.reload().errors.len(), 1);
    assert_eq!((log(&fixture), redirect(&fixture, raw)), (vec![], Some((block, port))));
    assert_eq!(answer(to(port)).2.len(), 2);
    fixture.kernel.with(|inner| inner.full = false);
    // None any more: the kernel lets nothing go there first.
    assert_eq!(fixture.state.reload().changed, [id.as_str()]);
    assert_eq!(log(&fixture), ["install 0", "redirect nowhere"]);
    assert!(fixture.only().record.egress.is_none() && matches!(fixture.only().egress, Egress::None));
    // New ones that the kernel does not take change nothing.
    profile(&fixture, EXAMPLE);
    fixture.kernel.with(|inner| inner.full = true);
    assert_eq!(fixture.state.reload().errors.len(), 1);
    assert_eq!(log(&fixture), ["redirect", "redirect nowhere"]);
    assert!(fixture.only().record.egress.is_none() && matches!(fixture.only().egress, Egress::None));
}

#[test]
fn a_restarted_core_serves_again_where_the_container_is_and_at_the_same_addresses() {
    let mut fixture = Fixture::new();
    profile(&fixture, EXAMPLE);
    let child = Sleeper::start();
    let (_, raw) = admit(&mut fixture, &child).unwrap();
    set_tasks(&fixture, raw, 1, 0);
    let (block, port) = redirect(&fixture, raw).unwrap();
    // Whatever becomes of the profile meanwhile.
    fs::write(fixture.dir.path().join("profiles/n.toml"), "[grant]\nfs_raed = 1\n").unwrap();
    log(&fixture);
    fixture.restart();
    fixture.state.adopt_names();
    assert_eq!(
        log(&fixture),
        ["redirect nowhere", "redirect"],
        "first nobody gets what was meant for the one before"
    );
    let (again, new_port) = redirect(&fixture, raw).unwrap();
    assert_eq!(again, block);
    assert_ne!(new_port, 0);
    let said = answer(to(new_port));
    assert_eq!((said.1.network(), said.2), (block, vec!["example.org".to_owned()]));
    assert_eq!(fixture.state.reload().errors.len(), 1, "the profile is broken");
    assert_eq!(redirect(&fixture, raw), Some((block, new_port)));
    let taken: Vec<_> = std::iter::from_fn(|| fixture.state.opener.take_block(0).ok()).collect();
    assert!(taken.iter().all(|one| one.net().network() != block), "nobody else gets it");
    drop((taken, port));
    // Nobody whose namespace could be entered: closed, and told.
    fixture.kernel.with(|inner| inner.tags.clear());
    fixture.restart();
    fixture.state.adopt_names();
    assert!(redirect(&fixture, raw).is_none());
    let told = status(fixture.only());
    assert!(told.state == AgentState::Failed && told.error.unwrap().contains("no live task"));
    assert_eq!(told.block, format!("{block}/24"));
    // When profiles are read again, it is tried again.
    profile(&fixture, EXAMPLE);
    let member = ringfence_bpf::Membership { container: Some(ContainerId::from_raw(raw)), next: None };
    fixture.kernel.with(|inner| inner.tags.insert(child.0.id(), member));
    fixture.state.reload();
    let (again, port) = redirect(&fixture, raw).unwrap();
    assert_eq!((again, answer(to(port)).2), (block, vec!["example.org".to_owned()]));
    // An orderly end leaves no way to ports that may be anybody's next.
    log(&fixture);
    fixture.state.stop_names(|| false);
    assert_eq!((log(&fixture), redirect(&fixture, raw)), (vec!["redirect nowhere".to_owned()], None));
}
