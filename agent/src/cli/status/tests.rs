//! What `status` prints of what the daemon reports.

use super::*;
use ringfence_wire::{
    egress::EgressCounts,
    message::Reloaded,
    status::{AuditorProcess, AxisStatus, Counts, EgressProcess, Mode, ReloadStatus},
};

fn status() -> Status {
    let axis = |axis: &str| AxisStatus {
        axis: axis.into(),
        enforcement: Enforcement::Kernel,
        enforcers: vec!["ebpf".into()],
    };
    Status {
        version: "0.1.0".into(),
        pid: 77,
        since_ms: 0,
        kernel: "6.12.1".into(),
        adopted: false,
        hooks: vec!["file_open".into()],
        missing: Vec::new(),
        unknown: Vec::new(),
        axes: ["fs_read", "fs_write", "exec", "net"].map(axis).into(),
        auditor: AuditorProcess { running: true, pid: Some(78), ..AuditorProcess::default() },
        reload: None,
        containers: vec![ContainerStatus {
            id: "0123456789ab".into(),
            profile: "coder".into(),
            file: "/etc/ringfence/profiles/coder.toml".into(),
            mode: Mode::Enforce,
            enforcement: Enforcement::Kernel,
            generation: 2,
            created_ms: 3_600_000,
            uid: 1000,
            tasks: 3,
            capabilities: vec!["all".into()],
            counts: Counts { denied: 5, lost_denied: 1, ..Counts::default() },
            reload_error: None,
            egress: None,
        }],
        unrecorded: Vec::new(),
        agents: Vec::new(),
        ended: Counts::default(),
    }
}

fn shown(core: &Status, store: &Result<AuditorStatus, String>) -> String {
    let mut out = Vec::new();
    let now = Timestamp::from_second(7325).unwrap();
    show(&mut out, core, store.as_ref().ok(), &problems(core, store), now).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn a_container_is_one_line_under_its_columns() {
    let text = shown(&status(), &Ok(AuditorStatus::default()));
    let mut lines = text.lines().rev();
    let (row, header) = (lines.next().unwrap(), lines.next().unwrap());
    assert_eq!(header.find("PROFILE"), row.find("coder"));
    assert_eq!(header.find("LOST"), row.find("1+0"));
    assert_eq!(header.find("AGE"), row.find("1h 2m"));
    assert!(!text.contains('!'), "{text}");
    assert!(text.contains("net         enforcement: kernel (ebpf)"));
}

#[test]
fn problems_come_first() {
    let store = Ok(AuditorStatus { failing: Some("disk full".into()), ..AuditorStatus::default() });
    let mut core = status();
    core.axes[3].enforcement = Enforcement::Partial;
    core.auditor.running = false;
    core.unrecorded.push("0000000000001001".into());
    let outcome = Reloaded { errors: vec!["p.toml:3: no".into()], ..Reloaded::default() };
    core.reload = Some(ReloadStatus { at_ms: 0, outcome });
    let text = shown(&core, &store);
    let problems: Vec<&str> = text.lines().take_while(|line| line.starts_with('!')).collect();
    assert_eq!(problems.len(), 5, "{text}");
    assert!(super::problems(&status(), &Err("gone".into()))[0].contains("does not answer"));
}

#[test]
fn records_and_reports_that_are_missing_are_said() {
    let store = AuditorStatus { undecodable: vec![("report".into(), 3)], ..AuditorStatus::default() };
    let problems = super::problems(&status(), &Ok(store));
    assert_eq!(problems, ["3 records are not in the store, reason: report"]);
}

#[test]
fn what_serves_a_container_s_names_is_shown_and_what_does_not_is_a_problem() {
    let mut core = status();
    assert!(!shown(&core, &Ok(AuditorStatus::default())).contains("NAMES OF"), "of one without names");
    let mut egress = EgressProcess {
        state: AgentState::Running,
        block: "198.18.7.0/24".into(),
        pid: Some(90),
        uid: 74_103,
        restarts: 2,
        last_exit: Some("killed".into()),
        error: Some("no room for \u{1b}[2J".into()),
        retry_s: None,
        counts: EgressCounts { refused: 3, refused_names: 4, ..EgressCounts::default() },
    };
    core.containers[0].egress = Some(egress.clone());
    let text = shown(&core, &Ok(AuditorStatus::default()));
    assert!(!text.contains('!') && !text.contains('\u{1b}'), "{text}");
    let row = text.lines().find(|line| line.contains("198.18.7.0/24")).unwrap();
    assert!(row.contains("running") && row.contains("3+4") && row.contains("74103"), "{text}");
    assert!(text.contains("0123456789ab: no room for"), "{text}");
    // Those that were there from the beginning are not yet, and no problem.
    (egress.state, egress.restarts) = (AgentState::Starting, 0);
    core.containers[0].egress = Some(egress.clone());
    assert!(problems(&core, &Ok(AuditorStatus::default())).is_empty());
    let mut problem = |state, retry_s| {
        (egress.state, egress.error, egress.retry_s, egress.restarts) = (state, None, retry_s, 7);
        core.containers[0].egress = Some(egress.clone());
        let problems = problems(&core, &Ok(AuditorStatus::default()));
        assert_eq!(problems.len(), 1, "{problems:?}");
        problems[0].replace("container 0123456789ab: it reaches no name, because its egress worker is ", "")
    };
    assert_eq!(
        problem(AgentState::Quarantined, Some(290)),
        "quarantined: killed; it is tried again in 290 s, or at once with `systemctl reload ringfence`"
    );
    assert_eq!(problem(AgentState::Starting, None), "starting: killed; it is being started again");
    assert_eq!(problem(AgentState::Failed, None), "failed: killed", "that would be in vain");
}

#[test]
fn ages_have_at_most_two_units() {
    let at = |seconds| age(0, Timestamp::from_second(seconds).unwrap());
    assert_eq!(
        [0, 59, 60, 61, 3600, 3661, 90_000].map(at),
        ["0s", "59s", "1m", "1m 1s", "1h", "1h 1m", "1d 1h"]
    );
    assert_eq!(age(u64::MAX, Timestamp::from_second(5).unwrap()), "0s");
    assert_eq!(age(9000, Timestamp::from_second(5).unwrap()), "0s", "a clock that was set back");
}
