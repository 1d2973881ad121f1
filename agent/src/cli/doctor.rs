//! `ringfence doctor`: what this host can enforce, and how to get what is missing.

use super::{exit::Exit, output::print, status::names_amiss};
use ringfence_base::{client, escape::line as printable, paths::Paths, platform};
use ringfence_bpf::{permitted::BpfLsm, surface};
use ringfence_coverage::Unknown;
use ringfence_policy::{Axis, Capabilities};
use ringfence_sandbox::{
    host::{self, LsmList},
    landlock,
};
use ringfence_wire::{message::AdminRequest, status::Status};
use serde::Serialize;
use std::{io, os::unix::net::UnixStream, path::Path, process::ExitCode};

/// Reports what this host can enforce, and how to get what is missing.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit status:
  0  the eBPF programs can enforce every axis
  1  Landlock and seccomp can enforce a part
  2  nothing can enforce a profile here
  3  unknown, because only root can look

Examples:
  sudo ringfence doctor   # root can also test whether the kernel accepts the programs
  ringfence doctor --json")]
pub(crate) struct Args {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// What is known about the host.
#[derive(Debug, Clone)]
struct Facts {
    release: String,
    unsupported: Option<String>,
    lsm: LsmList,
    btf: Result<(), String>,
    bpf_lsm: BpfLsm,
    landlock_abi: u32,
    seccomp: bool,
    cgroup2: Option<String>,
    lockdown: Option<String>,
    /// What the kernel has that the coverage table does not name; `None`: its symbols cannot be read.
    beyond: Option<Unknown>,
    daemon: Daemon,
    /// How the names of containers are served; `None`: nobody says, or there are none.
    names: Option<Names>,
}

/// Containers that may reach hosts by name.
#[derive(Debug, Clone)]
struct Names {
    /// How many there are.
    containers: usize,
    /// Why some reach none.
    amiss: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Daemon {
    Running,
    NotRunning,
    /// It runs, but this user may not connect to it.
    NotPermitted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Full,
    Partial,
    None,
    /// Nothing that could be checked is missing, but not everything could be checked.
    Unknown,
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Check {
    what: &'static str,
    found: String,
    /// It was checked, and nothing is missing.
    ok: bool,
    /// It could not be checked.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    unknown: bool,
    /// What to do, where something is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

/// What can enforce one axis.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct AxisReport {
    axis: Axis,
    by: Vec<&'static str>,
    full: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    open: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Report {
    verdict: Verdict,
    kernel: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    unsupported: Option<String>,
    daemon: Daemon,
    checks: Vec<Check>,
    axes: Vec<AxisReport>,
}

/// Prints the report.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let report = report(&facts());
    if args.json {
        print(&format!("{}\n", serde_json::to_string_pretty(&report)?))?;
    } else {
        print(&text(&report))?;
    }
    let exit = match report.verdict {
        Verdict::Full => Exit::Success,
        Verdict::Partial => Exit::Failure,
        Verdict::None => Exit::Attention,
        Verdict::Unknown => Exit::Unknown,
    };
    Ok(exit.into())
}

fn facts() -> Facts {
    let release = host::release();
    Facts {
        unsupported: platform::refusal(std::env::consts::OS, std::env::consts::ARCH, &release),
        release,
        lsm: host::lsm_list(),
        btf: host::btf().map_err(|error| host::errno_text(&error)),
        bpf_lsm: ringfence_bpf::permitted::bpf_lsm(),
        landlock_abi: host::landlock_abi(),
        seccomp: host::seccomp(),
        cgroup2: host::cgroup2().map(|path| path.display().to_string()),
        lockdown: host::lockdown(),
        beyond: surface::unknown().ok(),
        daemon: daemon(&Paths::from_env().enroll_socket()),
        names: names(&Paths::from_env().admin_socket()),
    }
}

/// What the daemon says of the names of containers, which it tells root.
fn names(socket: &Path) -> Option<Names> {
    let status: Status = client::admin_or_say(socket, &AdminRequest::Status, || {}).ok()?;
    let containers = status.containers.iter().filter(|container| container.egress.is_some()).count();
    let amiss = status.containers.iter().filter_map(names_amiss).collect();
    (containers > 0).then_some(Names { containers, amiss })
}

fn daemon(socket: &Path) -> Daemon {
    match UnixStream::connect(socket) {
        Ok(_) => Daemon::Running,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Daemon::NotPermitted,
        Err(_) => Daemon::NotRunning,
    }
}

fn report(facts: &Facts) -> Report {
    let mut checks = vec![
        kernel(facts),
        lsm(facts),
        btf(facts),
        bpf(facts),
        lockdown(facts),
        cgroup(facts),
        landlock_check(facts),
        seccomp(facts),
        coverage(facts),
        capabilities(),
    ];
    checks.extend(facts.names.as_ref().map(names_check));
    // The first six are those that eBPF needs; the rest is about other enforcers.
    let needed = || checks.iter().take(6);
    let possible = facts.unsupported.is_none() && needed().all(|check| check.ok || check.unknown);
    let ebpf = possible && needed().all(|check| check.ok);
    let axes: Vec<AxisReport> = Axis::ALL.into_iter().map(|axis| axis_report(axis, ebpf, facts)).collect();
    let verdict = match (ebpf, axes.iter().any(|axis| !axis.by.is_empty())) {
        (true, _) => Verdict::Full,
        (false, _) if possible => Verdict::Unknown,
        (false, true) => Verdict::Partial,
        (false, false) => Verdict::None,
    };
    Report {
        verdict,
        kernel: facts.release.clone(),
        unsupported: facts.unsupported.clone(),
        daemon: facts.daemon,
        checks,
        axes,
    }
}

fn check(what: &'static str, found: impl Into<String>, advice: Option<String>) -> Check {
    Check { what, found: found.into(), ok: advice.is_none(), unknown: false, advice }
}

/// What could not be checked, and how to check it.
fn unknown(what: &'static str, why: &str, how: &str) -> Check {
    Check { what, found: format!("unknown: {why}"), ok: false, unknown: true, advice: Some(how.to_owned()) }
}

fn kernel(facts: &Facts) -> Check {
    check("kernel", &facts.release, facts.unsupported.clone())
}

fn lsm(facts: &Facts) -> Check {
    match &facts.lsm {
        LsmList::Known(names) => {
            let advice = (facts.lsm.has("bpf") != Some(true)).then(|| lsm_advice(names));
            check("lsm list", names.join(","), advice)
        }
        LsmList::Unknown => {
            let how = "mount it and try again: mount -t securityfs securityfs /sys/kernel/security";
            unknown("lsm list", "/sys/kernel/security/lsm cannot be read", how)
        }
    }
}

/// The complete `lsm=` parameter: what is active now, and `bpf`.
fn lsm_advice(active: &[String]) -> String {
    // `capability` is always first and not named there.
    let mut names: Vec<&str> =
        active.iter().map(String::as_str).filter(|name| *name != "capability").collect();
    if !names.contains(&"landlock") {
        names.insert(0, "landlock");
    }
    names.push("bpf");
    format!(
        "without `bpf` in this list the kernel loads the programs but never runs them; add `lsm={}` to GRUB_CMDLINE_LINUX \
         in /etc/default/grub, run update-grub and reboot",
        names.join(",")
    )
}

fn btf(facts: &Facts) -> Check {
    match &facts.btf {
        Ok(()) => check("btf", "/sys/kernel/btf/vmlinux", None),
        Err(error) => check(
            "btf",
            format!("/sys/kernel/btf/vmlinux: {error}"),
            Some("use a kernel built with CONFIG_DEBUG_INFO_BTF, such as those of Debian 12, Ubuntu 24.04 and Fedora".into()),
        ),
    }
}

fn bpf(facts: &Facts) -> Check {
    let what = "bpf lsm";
    match &facts.bpf_lsm {
        BpfLsm::Permitted => check(what, "the kernel accepts LSM programs", None),
        // A daemon whose programs the kernel refused does not run.
        BpfLsm::NotChecked if facts.daemon == Daemon::Running => {
            check(what, "the kernel accepted the running daemon's programs", None)
        }
        BpfLsm::NotChecked => unknown(what, "only root can test this", "run it as root: sudo ringfence doctor"),
        BpfLsm::Unsupported => check(
            what,
            "the kernel does not support LSM programs",
            Some("use a kernel built with CONFIG_BPF_LSM, such as those of Debian 12, Ubuntu 24.04 and Fedora".into()),
        ),
        BpfLsm::Refused(error) => check(
            what,
            format!("refused: {error}"),
            Some(
                "this kernel, or the container or VM it runs in, does not let root load LSM programs; run Ringfence \
                 on the host itself, or in a VM of your own (`cargo xtask vm`)"
                    .into(),
            ),
        ),
    }
}

fn lockdown(facts: &Facts) -> Check {
    let mode = facts.lockdown.as_deref().unwrap_or("none");
    let advice = (mode == "confidentiality").then(|| {
        "in this mode programs may not read kernel memory; boot with lockdown=integrity, or without the parameter".into()
    });
    check("lockdown", mode, advice)
}

fn landlock_check(facts: &Facts) -> Check {
    match facts.landlock_abi {
        0 => check(
            "landlock",
            "not active",
            Some(
                "add `landlock` to the `lsm=` list; it restricts files and TCP ports where eBPF is not available".into(),
            ),
        ),
        abi => check("landlock", format!("ABI {abi}"), None),
    }
}

fn seccomp(facts: &Facts) -> Check {
    let advice = (!facts.seccomp).then(|| "use a kernel built with CONFIG_SECCOMP_FILTER".to_owned());
    check("seccomp", if facts.seccomp { "filters" } else { "no filters" }, advice)
}

fn cgroup(facts: &Facts) -> Check {
    match &facts.cgroup2 {
        Some(path) => check("cgroup v2", path, None),
        None => check(
            "cgroup v2",
            "not mounted",
            Some(
                "mount it: mount -t cgroup2 none /sys/fs/cgroup; the programs that check outgoing packets are attached there, \
                 and without it no eBPF program is loaded"
                    .into(),
            ),
        ),
    }
}

/// Whether this version knows every hook and system call of this kernel. It refuses what it does not know, so that
/// enforcement is complete all the same.
fn coverage(facts: &Facts) -> Check {
    let what = "coverage";
    match &facts.beyond {
        None => check(what, "not known: /proc/kallsyms cannot be read", None),
        Some(beyond) if beyond.is_empty() => {
            check(what, "every hook and system call of this kernel is in the table", None)
        }
        Some(beyond) => {
            let names: Vec<String> = (beyond.hooks.iter().map(|hook| format!("hook {hook}")))
                .chain(beyond.calls.iter().map(|call| format!("system call {call}")))
                .collect();
            check(
                what,
                format!("{} are not in the table: {}", names.len(), names.join(", ")),
                Some(
                    "confined processes are refused what such hooks guard, and seccomp refuses such system calls; report it, \
                     or add a line to ebpf/coverage/coverage.toml"
                        .into(),
                ),
            )
        }
    }
}

fn capabilities() -> Check {
    let names = Capabilities::default().names().join(" ");
    check("root keeps", format!("{names}, unless `capabilities` of the profile names others"), None)
}

/// Whether every container reaches the names that it may.
fn names_check(names: &Names) -> Check {
    let Names { containers, amiss } = names;
    let which = format!("{containers} containers may reach hosts by name");
    let Some(first) = amiss.first() else {
        return check("names", format!("{which}, and each has an egress worker that serves it"), None);
    };
    let more = match amiss.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more: `ringfence status`)"),
    };
    check("names", format!("{which}, and {} reach none now", amiss.len()), Some(printable(first) + &more))
}

fn axis_report(axis: Axis, ebpf: bool, facts: &Facts) -> AxisReport {
    if ebpf {
        return AxisReport { axis, by: vec!["ebpf"], full: true, open: String::new() };
    }
    let abi = facts.landlock_abi;
    let mut by = Vec::new();
    let mut open = Vec::new();
    if facts.unsupported.is_some() {
        return AxisReport { axis, by, full: false, open: "everything".into() };
    }
    match axis {
        Axis::FsRead | Axis::FsWrite | Axis::Exec if abi == 0 => open.push("everything"),
        Axis::FsRead => {
            by.push("landlock");
            open.push("denies and globs inside a granted tree");
        }
        Axis::FsWrite => {
            by.push("landlock");
            open.push("denies and globs inside a granted tree; mode, owner and times of files");
            if abi < landlock::ABI_TRUNCATE {
                open.push("truncation (Landlock ABI 3, Linux 6.2)");
            }
        }
        Axis::Exec => {
            by.push("landlock");
            open.push("denies inside a granted tree; `ld.so PROGRAM`; code in memory");
        }
        Axis::Net => {
            if facts.seccomp {
                by.push("seccomp");
            }
            if abi >= landlock::ABI_TCP {
                by.push("landlock");
                open.push("addresses and UDP, where any address is granted");
            } else {
                open.push("addresses and ports, where any is granted (TCP ports: Landlock ABI 4, Linux 6.7)");
            }
            if abi < landlock::ABI_UNIX_PATH && !facts.seccomp {
                open.push("unix sockets (by path: Landlock ABI 9, Linux 7.1)");
            }
        }
    }
    AxisReport { axis, by, full: false, open: open.join("; ") }
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    if let Some(sentence) = &report.unsupported {
        return format!("{sentence}\n");
    }
    for check in &report.checks {
        let mark = match check {
            Check { ok: true, .. } => "ok",
            Check { unknown: true, .. } => "??",
            _ => "--",
        };
        text.push_str(&format!("{mark}  {:<10} {}\n", check.what, check.found));
        if let Some(advice) = &check.advice {
            text.push_str(&format!("               {advice}\n"));
        }
    }
    let daemon = match report.daemon {
        Daemon::Running => "running",
        Daemon::NotRunning => "not running: `systemctl start ringfence`, or `ringfence daemon`",
        Daemon::NotPermitted => "running, but this user may not use it: join the group `ringfence`",
    };
    let mark = if report.daemon == Daemon::Running { "ok" } else { "--" };
    text.push_str(&format!("{mark}  {:<10} {daemon}\n", "daemon"));
    text.push_str(match report.verdict {
        Verdict::Unknown => "\nWhat can enforce each axis of a profile here, if the eBPF programs cannot:\n",
        _ => "\nWhat can enforce each axis of a profile here:\n",
    });
    for axis in &report.axes {
        let by = if axis.by.is_empty() { "nothing".into() } else { axis.by.join(" + ") };
        let open = if axis.open.is_empty() { String::new() } else { format!("; open: {}", axis.open) };
        text.push_str(&format!("    {:<9} {by}{open}\n", axis.axis.name()));
    }
    text.push_str(match report.verdict {
        Verdict::Full if report.daemon == Daemon::Running => "\nFull: the eBPF programs enforce every axis.\n",
        Verdict::Full => "\nFull: once the daemon runs, the eBPF programs enforce every axis.\n",
        Verdict::Partial => {
            "\nPartial: nothing is recorded, and `ringfence run` asks for --accept-partial where its profile needs more.\n"
        }
        Verdict::None => "\nNone: nothing here can enforce a profile.\n",
        Verdict::Unknown => {
            "\nUnknown: nothing that could be checked is missing, but only root can check the rest: sudo ringfence doctor.\n"
        }
    });
    text
}

#[cfg(test)]
mod tests;
