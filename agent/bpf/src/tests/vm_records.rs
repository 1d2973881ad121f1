//! Tests in the guest, as in `vm`: each denial is in an event or counted as lost, whoever floods and whoever reads.

use super::vm::{self, fresh, python, secret_denied, waiting};
use crate::*;
use ringfence_common::{
    event::{FOLDED_EACH, Header, verdict},
    policy::{TASKS_EACH, TASKS_OF_USER, TASKS_OF_USERS},
};
use std::{collections::HashMap, io::Write, mem::offset_of, os::fd::AsFd};

/// What came out of the kernel: how often each container was denied what, by the path's last component.
#[derive(Default)]
struct Told {
    written: u64,
    folded: u64,
    names: HashMap<(u64, String), u64>,
}

impl Told {
    fn take(&mut self, record: &[u8]) {
        let number = |at: usize| u32::from_ne_bytes(record[at..at + 4].try_into().unwrap());
        if record[offset_of!(Header, verdict)] != verdict::DENIED {
            return;
        }
        let repeats = u64::from(number(offset_of!(Header, repeats)));
        let container = u64::from_ne_bytes(record[offset_of!(Header, container)..][..8].try_into().unwrap());
        let path = &record[size_of::<Header>()..];
        let name = String::from_utf8_lossy(&path[1..1 + usize::from(path[0])]).into_owned();
        *self.names.entry((container, name)).or_default() += repeats;
    }

    /// Everything that there is.
    fn drain(&mut self, rings: &mut Rings) {
        while let Some(record) = rings.next_record() {
            self.written += 1;
            self.take(&record);
        }
        self.flush(rings);
    }

    fn flush(&mut self, rings: &mut Rings) {
        let mut out = Vec::new();
        while rings.flush_repeats(&mut out).unwrap() {}
        for record in out {
            self.folded += 1;
            self.take(&record);
        }
    }

    fn of(&self, id: ContainerId) -> u64 {
        self.names.iter().filter(|((container, _), _)| *container == id.raw()).map(|(_, n)| n).sum()
    }

    fn named(&self, id: ContainerId, name: &str) -> u64 {
        self.names.get(&(id.raw(), name.to_owned())).copied().unwrap_or(0)
    }
}

/// Python code that opens each of `names` files below the secret directory `rounds` times.
fn flood(names: usize, rounds: usize) -> String {
    format!(
        "def flood(prefix):\n\
         \x20   for name in range({names}):\n\
         \x20       for _ in range({rounds}):\n\
         \x20           try: open(f'/tmp/secret/{{prefix}}{{name}}', 'w')\n\
         \x20           except PermissionError: pass\n"
    )
}

#[track_caller]
fn adds_up(kernel: &Kernel, told: &Told, id: ContainerId, tried: u64) -> u64 {
    let counters = kernel.counters(id).unwrap();
    let (told_of, lost) = (told.of(id), counters.lost_denied);
    eprintln!("# {tried} tried, {} denied, {told_of} told, {lost} lost", counters.denied);
    assert_eq!((counters.denied, told_of + lost), (tried, tried));
    lost
}

fn writes_denied() -> ringfence_policy::compiled::CompiledPolicy {
    let mut policy = secret_denied();
    policy.places[0].deny = ringfence_common::policy::axis::WRITE;
    policy.record = 0;
    policy
}

#[test]
#[ignore = "loads eBPF: for the guest"]
fn what_is_done_between_floods_is_told_or_lost() {
    let (_one, mut kernel, mut rings) = fresh();
    let id = kernel.create_container(0).unwrap();
    kernel.install(id, &writes_denied()).unwrap();
    // Nobody reads meanwhile: the core is stopped.
    let code = flood(200, 5)
        + "for act in range(20):\n\
           \x20   flood('a')\n\
           \x20   try: open(f'/tmp/secret/act{act}', 'w')\n\
           \x20   except PermissionError: pass\n\
           flood('a')\nprint('done')";
    assert_eq!(python(&kernel, id, &code), "done");
    let mut told = Told::default();
    told.drain(&mut rings);
    let lost = adds_up(&kernel, &told, id, 21 * 1000 + 20);
    let acts = (0..20).map(|act| told.named(id, &format!("act{act}"))).sum::<u64>();
    assert!(acts + lost >= 20, "{acts} of 20 are told, {lost} lost");
    assert!(told.folded <= FOLDED_EACH && lost > 0, "{} folded, {lost} lost", told.folded);

    // Once they were taken out there is room again, and what is done then is told.
    let code = flood(1, 3000) + "flood('b')\nopen('/tmp/secret/act', 'w')";
    python(&kernel, id, &code);
    told.drain(&mut rings);
    assert_eq!(adds_up(&kernel, &told, id, 21 * 1000 + 20 + 3001), lost, "no more is lost");
    assert_eq!((told.named(id, "b0"), told.named(id, "act")), (3000, 1));
}

#[test]
#[ignore = "loads eBPF: for the guest"]
fn no_flood_takes_another_container_s_events() {
    let (_one, mut kernel, mut rings) = fresh();
    let ids: Vec<_> = (0..12).map(|_| kernel.create_container(0).unwrap()).collect();
    for id in &ids {
        kernel.install(*id, &writes_denied()).unwrap();
    }
    let (quiet, loud) = ids.split_first().unwrap();
    let quietly = "try: open('/tmp/secret/only', 'w')\nexcept PermissionError: print('denied')";
    let code = flood(700, 1) + "flood('x')\nprint('done')";
    // One floods: the other's denial is in the ring, before and after it.
    assert_eq!(python(&kernel, loud[0], &code), "done");
    assert_eq!(python(&kernel, *quiet, quietly), "denied");
    let mut told = Told::default();
    told.drain(&mut rings);
    assert_eq!(told.named(*quiet, "only"), 1);
    assert!(told.written < 700, "{} of one container's fit a ring that nobody reads", told.written);
    adds_up(&kernel, &told, loud[0], 700);
    // So many flood that the ring is full: it is told all the same.
    for id in &loud[1..] {
        assert_eq!(python(&kernel, *id, &code), "done");
    }
    assert_eq!(python(&kernel, *quiet, quietly), "denied");
    let mut told = Told::default();
    told.drain(&mut rings);
    eprintln!("# {} written, {} folded", told.written, told.folded);
    assert_eq!(told.named(*quiet, "only"), 1);
    for id in &loud[1..] {
        adds_up(&kernel, &told, *id, 700);
    }
    assert_eq!(kernel.counters(*quiet).unwrap().lost_denied, 0);
}

#[test]
#[ignore = "loads eBPF: for the guest"]
fn nothing_is_lost_between_counting_and_taking_out() {
    const TRIED: u64 = 2 * 20_000;
    let (_one, mut kernel, mut rings) = fresh();
    let id = kernel.create_container(0).unwrap();
    kernel.install(id, &writes_denied()).unwrap();
    // Two processes, on two CPUs, count in the same entries while they are taken out all the time.
    let code = flood(10, 2000) + "import os\nchild = os.fork()\nflood('x')\nif child: os.wait()";
    let child = waiting(&code);
    kernel.enroll(vm::pidfd(&child).as_fd(), id).unwrap();
    let mut child = child;
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let (mut told, mut rounds) = (Told::default(), 0);
    while child.try_wait().unwrap().is_none() {
        told.drain(&mut rings);
        rounds += 1;
    }
    told.drain(&mut rings);
    eprintln!("# {rounds} rounds, {} written, {} folded", told.written, told.folded);
    assert!(told.folded > 0);
    assert_eq!(adds_up(&kernel, &told, id, TRIED), 0, "ten kinds always have room");

    // A core that is killed at any moment leaves what another takes out.
    let code = flood(10, 300) + "flood('y')";
    python(&kernel, id, &code);
    drop((kernel, rings));
    let (kernel, mut rings) = Kernel::load_or_adopt(std::path::Path::new(vm::PIN_DIR)).unwrap();
    told.drain(&mut rings);
    assert_eq!(adds_up(&kernel, &told, id, TRIED + 3000), 0);
}

#[test]
#[ignore = "loads eBPF: for the guest"]
fn tasks_have_a_share_for_each_container_and_owner() {
    const FORKS: &str = "import os\n\
        done = 0\n\
        for _ in range(4):\n\
        \x20   try: child = os.fork()\n\
        \x20   except BlockingIOError: break\n\
        \x20   if child == 0: os.read(0, 1); os._exit(0)\n\
        \x20   done += 1\n\
        print(done)";
    let (_one, mut kernel, _rings) = fresh();
    let mut new = |owner| {
        let id = kernel.create_container(owner).unwrap();
        kernel.install(id, &writes_denied()).unwrap();
        id
    };
    let (alone, first, second, other, roots) = (new(0), new(1000), new(1000), new(1001), new(0));
    assert_eq!(python(&kernel, first, FORKS), "4");
    // The container is full but for the command itself and two more.
    kernel.pretend_tasks(alone, TASKS_EACH - 3);
    assert_eq!(python(&kernel, alone, FORKS), "2");
    assert_eq!(kernel.counters(alone).unwrap().fork_failed, 1);
    assert_eq!(python(&kernel, roots, FORKS), "4", "another container's");
    // The user is, in all containers.
    kernel.pretend_tasks(first, TASKS_OF_USER - 3);
    assert_eq!(python(&kernel, second, FORKS), "2");
    assert_eq!(python(&kernel, other, FORKS), "4", "another user's");
    // All users are.
    kernel.pretend_tasks(other, TASKS_OF_USERS - TASKS_OF_USER);
    assert!(!python(&kernel, other, FORKS).starts_with('4'));
    assert_eq!(python(&kernel, roots, FORKS), "4", "root's");
}
