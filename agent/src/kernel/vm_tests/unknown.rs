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

#[test]
#[ignore = "loads eBPF: for the guest"]
fn a_system_call_that_no_line_names_is_refused_to_governed_tasks() {
    // sysinfo(2), by its number: what libc makes of an error does not matter then.
    const CALL: &str = "c(L.syscall(99, ctypes.create_string_buffer(512)))";
    let mut table = surface::table();
    for group in &mut table.calls {
        group.names.retain(|name| name.name != "sysinfo");
    }
    let (_one, mut kernel, _rings) = fresh_with(&table);
    let coverage = kernel.coverage();
    assert_eq!(coverage.unknown.calls, ["sysinfo"]);
    assert_eq!(coverage.refused, ["call_sysinfo"]);
    let id = kernel.create_container(0).unwrap();
    kernel.install(id, &secret_denied()).unwrap();
    check_all(
        &kernel,
        id,
        &[(CALL.into(), "ENOSYS"), (READ_OTHER.into(), "ok"), (READ_SECRET.into(), "EACCES")],
    );
    let counted = kernel.counters(id).unwrap();
    assert!(
        counted.lost_denied >= 1 && counted.denied == counted.lost_denied + 1,
        "counted, and no event: {counted:?}"
    );
    let plain =
        Command::new("/usr/bin/python3").args(["-IS", "-c", &attempts(&[CALL.into()])]).output().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&plain.stdout).trim(),
        "ok",
        "an ungoverned task notices nothing: {plain:?}"
    );
    kernel.install(id, &CompiledPolicy { audit_mode: true, ..secret_denied() }).unwrap();
    check(&kernel, id, CALL, "ok");
    drop(kernel);
    // It outlives the daemon, and is adopted.
    let (kernel, _rings) = Kernel::load_with(Path::new(PIN_DIR), &table).unwrap();
    assert_eq!(kernel.coverage().refused, ["call_sysinfo"]);
    drop(kernel);
    unpin_all(Path::new(PIN_DIR)).unwrap();
}
