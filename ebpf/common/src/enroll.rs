//! What the agent and the iterator that takes in running processes tell each other.

/// One tick of the times in `/proc/PID/stat`, in nanoseconds: `USER_HZ` is 100 everywhere.
pub const NANOS_PER_TICK: u64 = 10_000_000;

/// Name of the iterator, among the pinned links.
pub const ITERATOR: &str = "enroll_tasks";

/// A process to take in, by its id in the initial pid namespace.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The container that it becomes a member of.
    pub container: u64,
    /// When it started, in ticks since boot: with the id it names one process for good.
    pub start: u64,
}

/// What one pass did, in threads.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Tagged in this pass.
    pub tagged: u64,
    /// In the container already.
    pub inside: u64,
    /// In another container, or about to enter one: left alone.
    pub elsewhere: u64,
    /// Could not be tagged in this pass.
    pub failed: u64,
}

const _: () = assert!(size_of::<Listed>() == 16);
const _: () = assert!(size_of::<Outcome>() == 32);
