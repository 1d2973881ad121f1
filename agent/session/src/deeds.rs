//! What the arguments of a call do, as far as they were read: the gravest operation, and what else makes it worse. Pure.

use ringfence_wire::tool_call::Operation;

/// What makes a call worse than its operation alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Mark {
    /// Many at once.
    Bulk,
    /// It is about credentials.
    Credentials,
    /// SQL that changes every row.
    Unbounded,
    /// It is about settings.
    Settings,
    /// It goes to somebody outside.
    Message,
    /// It removes or overwrites all there is: a root, a home, a system's directory, a device.
    Wide,
    /// It runs what nobody has seen: from the network, decoded, computed.
    Unseen,
    /// It stops the machine, or all of its processes.
    Stops,
    /// It lets others in: files for everybody, a firewall off.
    Opens,
    /// It runs as root.
    Root,
    /// It could not be read.
    Unreadable,
}

/// An operation with its marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Deeds {
    /// The gravest.
    pub(crate) operation: Operation,
    marks: u16,
}

impl Deeds {
    /// Nothing is known.
    pub(crate) const NONE: Self = Self { operation: Operation::Unknown, marks: 0 };

    /// Takes an operation, if it is graver.
    pub(crate) fn does(&mut self, operation: Operation) {
        self.operation = self.operation.max(operation);
    }

    /// Sets a mark.
    pub(crate) fn mark(&mut self, mark: Mark) {
        self.marks |= 1 << mark as u8;
    }

    /// Sets a mark where it applies.
    pub(crate) fn mark_if(&mut self, applies: bool, mark: Mark) {
        if applies {
            self.mark(mark);
        }
    }

    /// Whether a mark is set.
    pub(crate) fn is(&self, mark: Mark) -> bool {
        self.marks & 1 << mark as u8 != 0
    }

    /// A deletion; of all there is, if it is `wide`.
    pub(crate) fn deletes(&mut self, wide: bool) {
        self.does(Operation::Delete);
        if wide {
            self.mark(Mark::Wide);
            self.mark(Mark::Bulk);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Deeds, Mark};
    use ringfence_wire::tool_call::Operation;

    #[test]
    fn the_gravest_counts_and_marks_stay() {
        let mut deeds = Deeds::NONE;
        deeds.deletes(false);
        assert!(!deeds.is(Mark::Wide) && !deeds.is(Mark::Bulk));
        deeds.does(Operation::Read);
        deeds.mark(Mark::Unreadable);
        deeds.mark_if(false, Mark::Root);
        deeds.deletes(true);
        assert_eq!(deeds.operation, Operation::Delete);
        assert!(deeds.is(Mark::Wide) && deeds.is(Mark::Bulk) && deeds.is(Mark::Unreadable));
        assert!(!deeds.is(Mark::Root) && !deeds.is(Mark::Credentials));
    }
}
