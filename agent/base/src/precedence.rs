//! Which threads go first where processors are short: those by which records come out of the kernel and into the store, and
//! those that whoever connects waits for.
//!
//! The daemon has a thread for each connection, so whoever opens many has many that can run, and the few that everybody
//! waits for would get one share of a processor in hundreds. A thread that holds the store's lock is one of those few for as
//! long. All of the core is between these and the rest: what it does for one who asks is little and limited, and who starts a
//! container waits for it. The service's unit allows the priority (`LimitNICE=`); where nobody does, all threads are alike.

use rustix::process::{getpriority_process, setpriority_process};
use std::{
    cell::Cell,
    marker::PhantomData,
    sync::atomic::{AtomicI32, Ordering},
};

/// The nice value of those that go first; the unit's `LimitNICE=` is the same. About nine times the share of others.
const FIRST: i32 = -10;
/// The core's. About three times the share of others.
const CORE: i32 = -5;
/// Of threads that do not go first, in this process.
static USUAL: AtomicI32 = AtomicI32::new(0);

thread_local! {
    /// How many reasons this thread has to go first.
    static REASONS: Cell<u32> = const { Cell::new(0) };
}

/// This is the core's process: its threads go before those of others. To be called by its only thread.
pub fn core() {
    USUAL.store(CORE, Ordering::Relaxed);
    usual();
}

/// This process may be a child of the core, whose priority is not its: to be called by its only thread.
pub fn not_core() {
    if getpriority_process(None).is_ok_and(|nice| nice < 0) {
        usual();
    }
}

/// This thread goes first until it ends. Those that it starts from now on do, too, until they say otherwise.
pub fn first() {
    std::mem::forget(First::begin());
}

/// This thread goes like any other of its process, whatever started it.
pub fn usual() {
    REASONS.set(0);
    nice(USUAL.load(Ordering::Relaxed));
}

/// For as long as it lives, its thread goes first.
#[derive(Debug)]
pub struct First {
    /// It is given back by the thread that has it.
    _thread: PhantomData<*const ()>,
}

impl First {
    /// For this thread.
    pub fn begin() -> Self {
        if REASONS.replace(REASONS.get() + 1) == 0 {
            nice(FIRST);
        }
        Self { _thread: PhantomData }
    }
}

impl Drop for First {
    fn drop(&mut self) {
        if REASONS.replace(REASONS.get().saturating_sub(1)) == 1 {
            nice(USUAL.load(Ordering::Relaxed));
        }
    }
}

/// Of the calling thread alone: Linux has a nice value for each. Who may not raise it goes on as before.
fn nice(value: i32) {
    let _ = setpriority_process(None, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_goes_first_for_as_long_as_it_has_a_reason() {
        let own = || getpriority_process(None).expect("the thread is there");
        std::thread::spawn(move || {
            usual();
            let level = own();
            nice(FIRST);
            // Tests may run as somebody who may not: then it changes nothing.
            let raised = own();
            usual();
            {
                let _outer = First::begin();
                assert_eq!(own(), raised);
                drop(First::begin());
                assert_eq!(own(), raised, "there is a reason left");
            }
            assert_eq!(own(), level);
            first();
            drop(First::begin());
            assert_eq!(own(), raised);
        })
        .join()
        .expect("no panic");
    }

    #[test]
    fn a_child_of_the_core_does_not_keep_its_priority() {
        let own = || getpriority_process(None).expect("the thread is there");
        std::thread::spawn(move || {
            // Tests may run as somebody who may not, and with a level of their own: then it has none to begin with.
            nice(CORE);
            let before = own();
            not_core();
            assert_eq!(own(), before.max(0));
            let lower = (own() + 3).min(19);
            nice(lower);
            not_core();
            assert_eq!(own(), lower, "what its starter wanted stays");
        })
        .join()
        .expect("no panic");
    }
}
