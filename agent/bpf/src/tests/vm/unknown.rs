//! What the coverage table does not name is refused: tried by taking a line out of it.

use super::*;

#[test]
#[ignore = "loads eBPF: for the guest"]
fn a_hook_that_no_line_names_is_refused_to_governed_tasks() {
    const HOOK: &str = "task_getsid";
    const CALL: &str = "os.getsid(os.getpid())";
    let mut table = surface::table();
    {
        let (_one, mut kernel, _rings) = fresh_with(&table);
        assert!(kernel.coverage().unknown.is_empty(), "{:?}", kernel.coverage().unknown);
        let id = kernel.create_container(0).unwrap();
        kernel.install(id, &secret_denied()).unwrap();
        check(&kernel, id, CALL, "ok");
    }
    for group in &mut table.hooks {
        group.names.retain(|name| name.name != HOOK);
    }
    let (_one, mut kernel, _rings) = fresh_with(&table);
    let coverage = kernel.coverage();
    assert_eq!(
        (&coverage.unknown.hooks, &coverage.refused),
        (&vec![HOOK.to_owned()], &vec![HOOK.to_owned()])
    );
    let id = kernel.create_container(0).unwrap();
    kernel.install(id, &secret_denied()).unwrap();
    check_all(
        &kernel,
        id,
        &[(CALL.into(), "EPERM"), (READ_OTHER.into(), "ok"), (READ_SECRET.into(), "EACCES")],
    );
    let counted = kernel.counters(id).unwrap();
    assert!(counted.lost_denied == 1 && counted.denied == 2, "counted, and no event: {counted:?}");
    assert!(
        rustix::process::getsid(Some(rustix::process::getpid())).is_ok(),
        "an ungoverned task notices nothing"
    );
    // In audit mode it is counted and let pass.
    kernel.install(id, &CompiledPolicy { audit_mode: true, ..secret_denied() }).unwrap();
    check(&kernel, id, CALL, "ok");
}
