//! Which threads go first where processors are short: those by which records come out of the kernel and into the store, and
//! those that whoever connects waits for.
//!
//! The daemon has a thread for each connection, so whoever opens many has many that can run, and the few that everybody
//! waits for would get one share of a processor in hundreds. A thread that holds the store's lock is one of those few for as
//! long. The auditor's own, one for each connection, go last: the core and the agents' workers share its processors, and what
//! they do for a container or a turn is little beside what all who ask the auditor could have it do. The service's unit allows the priority (`LimitNICE=`); where nobody does, all threads are alike.

use rustix::process::setpriority_process;
use std::{cell::Cell, marker::PhantomData};

/// The nice value of those that go first; the unit's `LimitNICE=` is the same. About nine times the share of others.
const FIRST: i32 = -10;
/// Everybody else's.
const USUAL: i32 = 0;
/// The nice value of those that go last: about a ninth of the usual share.
const LAST: i32 = 10;

thread_local! {
    /// How many reasons this thread has to go first.
    static REASONS: Cell<u32> = const { Cell::new(0) };
    /// What it is without one.
    static LEVEL: Cell<i32> = const { Cell::new(USUAL) };
}

/// This thread goes first until it ends. Those that it starts from now on do, too, until they say otherwise.
pub fn first() {
    std::mem::forget(First::begin());
}

/// This thread goes like any other, whatever started it.
pub fn usual() {
    settle(USUAL);
}

/// This thread goes last, but for when it has a reason to go first. Where it could not go first again it goes as usual: it would
/// hold locks for longer than others can wait.
pub fn last() {
    let may = setpriority_process(None, FIRST).is_ok();
    settle(if may { LAST } else { USUAL });
}

fn settle(level: i32) {
    REASONS.set(0);
    LEVEL.set(level);
    nice(level);
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
            nice(LEVEL.get());
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
    use rustix::process::getpriority_process;

    #[test]
    fn a_thread_goes_first_for_as_long_as_it_has_a_reason() {
        let own = || getpriority_process(None).expect("the thread is there");
        std::thread::spawn(move || {
            usual();
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
            assert_eq!(own(), USUAL);
            first();
            drop(First::begin());
            assert_eq!(own(), raised);
        })
        .join()
        .expect("no panic");
    }

    #[test]
    fn a_thread_goes_last_where_it_can_go_first_again() {
        let own = || getpriority_process(None).expect("the thread is there");
        std::thread::spawn(move || {
            usual();
            last();
            let level = own();
            let first = {
                let _reason = First::begin();
                own()
            };
            assert!(first == FIRST && level == LAST || first == USUAL && level == USUAL, "{first} {level}");
            assert_eq!(own(), level, "without a reason it goes as before");
        })
        .join()
        .expect("no panic");
    }
}
