//! `bench egress`: what an egress worker adds to connections by name, beside direct ones and beside mitmproxy.

use super::{compared, figures::Table};
use crate::report::say;
use crate::{build, paths::target, setup};
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

/// From PyPI.
const MITMPROXY: &str = "mitmproxy==11.0.2";
/// A link of 1 Gbit/s in namespaces of its own, whose other end is a process's: what follows is measured over it. `$1` is a folder; the name of
/// what is beyond is in the namespace's own list of hosts.
const LINK: &str = r#"
folder=$1; shift
ip link set lo up
unshare --net sleep 600 & beyond=$!
until [ "$(readlink /proc/$beyond/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done
ip link add rf-near type veth peer name rf-far netns $beyond
ip addr add 10.77.0.1/30 dev rf-near; ip link set rf-near up
nsenter --target $beyond --net sh -ec 'ip link set lo up; ip addr add 10.77.0.2/30 dev rf-far; ip link set rf-far up
    tc qdisc add dev rf-far root tbf rate 1gbit burst 256k latency 50ms'
printf '127.0.0.1 localhost\n10.77.0.2 server.rf.test\n' >"$folder/hosts"
mount --bind "$folder/hosts" /etc/hosts
"$@" $beyond 10.77.0.2 && status=0 || status=$?
kill $beyond
exit $status
"#;
/// An open connection is two descriptors, and a worker keeps so many for pipes and for what is being dialled.
const OTHER_DESCRIPTORS: u64 = 2800;

/// Measures what an egress worker adds to a connection by name, and to what goes over it.
///
/// Direct, by way of a worker and by way of mitmproxy take turns in one run, over loopback. The worker is started as the core starts
/// it, and is told what it asks the core for; what the kernel's programs add is in `bench kernel`. Prints a Markdown table.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cargo xtask bench egress > table.md\n  \
                        cargo xtask bench egress --alone --open 1000")]
pub(crate) struct Args {
    /// How many connections are made and measured each way
    #[arg(long, value_name = "N", default_value_t = 500)]
    connects: usize,
    /// How many connections are open at last; fewer where the limit of open files asks for it
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    open: u64,
    /// Without mitmproxy, which is installed from PyPI
    #[arg(long)]
    alone: bool,
    /// Measure this binary instead of one that is built now
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// JSON instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    setup::for_benchmarks()?;
    let ringfence = match &args.binary {
        Some(binary) => std::path::absolute(binary).context("no working directory")?,
        None => build::shipped()?,
    };
    build::example("ringfence-egress", "measure", &[], "release")?;
    let proxy = if args.alone { None } else { Some(compared::from_pypi(MITMPROXY, "mitmproxy")?) };
    let dir = tempfile::tempdir().context("cannot make a folder for certificates")?;
    let open = args.open.min(descriptors()?.saturating_sub(OTHER_DESCRIPTORS) / 2);
    say(&format!("{} connections each way, bulk, names, and {open} connections at once", args.connects));
    let mut measure = Command::new(target().join("release/examples/measure"));
    measure.arg(&ringfence).arg(dir.path()).args([args.connects.to_string(), open.to_string()]);
    measure.args(proxy.map(|place| place.join("bin/mitmdump")));
    let mut table = Table::default();
    figures(measure, &mut table)?;
    if rustix::process::geteuid().is_root() {
        let mut over_link = Command::new("unshare");
        over_link.args(["--mount", "--net", "sh", "-ec", LINK, "link"]).arg(dir.path());
        over_link.arg(target().join("release/examples/measure")).arg("link").arg(&ringfence).arg(dir.path());
        figures(over_link, &mut table)?;
    } else {
        say("a link is made by root alone: bulk over one is left out");
    }
    ratios(&mut table);
    print!("{}", if args.json { table.json() } else { table.markdown() });
    Ok(ExitCode::SUCCESS)
}

/// How many descriptors a process may have.
fn descriptors() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/limits").context("cannot read this process's limits")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files")).context("no such limit")?;
    let hard = line.split_whitespace().nth(1).context("no such limit")?;
    Ok(hard.parse().unwrap_or(u64::MAX))
}

/// Adds what a measurement prints.
fn figures(mut measure: Command, table: &mut Table) -> Result<()> {
    measure.stdout(Stdio::piped());
    let mut child = measure.spawn().context("cannot start the example of ringfence-egress")?;
    for line in BufReader::new(child.stdout.take().context("no output")?).lines() {
        let line = line?;
        let mut fields = line.split('\t');
        let (Some(row), Some(way), Some(figure)) = (fields.next(), fields.next(), fields.next()) else {
            bail!("the measurement says {line:?}");
        };
        table.add(row, way, figure.parse().with_context(|| format!("no figure in {line:?}"))?);
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("the measurement ended with {status}; why is above");
    }
    Ok(())
}

fn ratios(table: &mut Table) {
    let first = "TLS connect and first byte, p50, ms";
    for way in ["ringfence", "mitmproxy"] {
        if let (Some(with), Some(direct)) = (table.find(first, way), table.find(first, "direct")) {
            table.add("added to direct", way, with - direct);
        }
    }
    table.aim("added to direct", "ringfence", "at most 1");
    table.ratio("bulk over TLS, to direct", "bulk over TLS, MB/s", "ringfence", "direct", "at least 0.9");
    let plain = "bulk over plain HTTP, MB/s";
    table.ratio("bulk over plain HTTP, to direct", plain, "ringfence", "direct", "at least 0.9");
    for row in ["bulk over TLS, 1 Gbit/s link", "bulk over plain HTTP, 1 Gbit/s link"] {
        if table.find(&format!("{row}, MB/s"), "direct").is_some() {
            table.ratio(
                &format!("{row}, to direct"),
                &format!("{row}, MB/s"),
                "ringfence",
                "direct",
                "at least 0.9",
            );
        }
    }
    table.aim("a resolved name, p50, ms", "ringfence", "at most 0.2");
}
