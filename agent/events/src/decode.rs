//! Raw records to [`Decoded`]: pure, over slices, refusing what it does not know.
//!
//! The bytes come from our own programs, but names inside them are an agent's choice, and a program of another
//! version may have written them. Nothing here panics, whatever the bytes (see the property tests).

use super::egress::Egress;
use ringfence_base::escape;
use ringfence_common::{
    ABI_VERSION,
    event::{self, Header, LARGE_SECTION, Op, SLACK, SMALL_SECTION, rule, verdict},
    task::LINEAGE,
};
use std::mem::{offset_of, size_of};

/// A record's content: the header's numbers as they came, the names as text (see [`escape`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decoded {
    /// `ringfence_common::event::op`.
    pub op: u8,
    /// `ringfence_common::event::verdict`.
    pub verdict: u8,
    /// `ringfence_common::event::FLAG_*`.
    pub flags: u32,
    /// ns since boot.
    pub time: u64,
    /// The container's kernel id.
    pub container: u64,
    /// Call tag; 0: none.
    pub call: u64,
    /// Start of the thread group leader, ns since boot.
    pub start: u64,
    /// Births of the process's eldest ancestors below the container's first process, ns since boot, itself included, eldest
    /// first; 0: there are no more. See `ringfence_common::task::Task::lineage`.
    pub lineage: [u64; LINEAGE],
    /// The policy's generation.
    pub generation: u32,
    /// Thread id.
    pub pid: u32,
    /// Process id.
    pub tgid: u32,
    /// Parent's process id.
    pub ppid: u32,
    /// User id.
    pub uid: u32,
    /// Operation-specific.
    pub detail: u32,
    /// How many times; at least 1.
    pub repeats: u32,
    /// `ringfence_common::event::rule`.
    pub rule_kind: u32,
    /// Slot, index or `ringfence_common::event::fixed`.
    pub rule: u32,
    /// Axes asked for.
    pub axes: u32,
    /// `AF_*` or 0.
    pub family: u16,
    /// Host byte order.
    pub port: u16,
    /// Network byte order, v4 as v4-mapped.
    pub addr: [u8; 16],
    /// Operation-specific: another process, a socket option, a system call, the id of an IPC object or key.
    pub target: u32,
    /// The path, `@name` for an abstract socket, or nothing to name. See [`path_text`] for its forms.
    pub path: Option<String>,
    /// The second path of rename and link.
    pub path2: Option<String>,
    /// The executable; empty for a kernel thread.
    pub exe: String,
    /// What an egress worker tells. `None`: the record is the kernel's.
    pub egress: Option<Box<Egress>>,
}

/// Why a record was refused. Counted by [`DecodeError::reason`], never fatal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Shorter than a header.
    #[error("record of {0} bytes is shorter than a header")]
    Short(usize),
    /// Written by programs of another version.
    #[error("record has version {0}, this auditor reads version {ABI_VERSION}")]
    Version(u16),
    /// No such operation.
    #[error("unknown operation {0}")]
    Op(u8),
    /// No such verdict.
    #[error("unknown verdict {0}")]
    Verdict(u8),
    /// No such kind of rule.
    #[error("unknown kind of rule {0}")]
    RuleKind(u32),
    /// The record's length is not that of its sections.
    #[error("record's length does not fit its sections")]
    Length,
    /// A component runs over its section, or is empty.
    #[error("a path in the record is malformed")]
    Section,
}

impl DecodeError {
    /// A short name to count by.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Short(_) => "short",
            Self::Version(_) => "version",
            Self::Op(_) => "op",
            Self::Verdict(_) => "verdict",
            Self::RuleKind(_) => "rule_kind",
            Self::Length => "length",
            Self::Section => "section",
        }
    }
}

/// Reads one field of the header. The offset is the compiler's, so that a change of the layout cannot pass unseen.
macro_rules! field {
    ($head:expr, $field:ident: $type:ty) => {{
        const AT: usize = offset_of!(Header, $field);
        const { assert!(AT + size_of::<$type>() <= size_of::<Header>()) };
        let mut raw = [0; size_of::<$type>()];
        raw.copy_from_slice(&$head[AT..AT + size_of::<$type>()]);
        <$type>::from_ne_bytes(raw)
    }};
}

/// Every field of the header, so that a new one is an error here: [`record`] is to read it.
const _: fn(Header) = |header| {
    let Header {
        version: _,
        op: _,
        verdict: _,
        flags: _,
        time: _,
        container: _,
        call: _,
        start: _,
        lineage: _,
        generation: _,
        pid: _,
        tgid: _,
        ppid: _,
        uid: _,
        detail: _,
        repeats: _,
        rule_kind: _,
        rule: _,
        axes: _,
        family: _,
        port: _,
        addr: _,
        path_len: _,
        path2_len: _,
        exe_len: _,
        section: _,
        target: _,
    } = header;
};

/// Decodes one record, which must be exactly one record.
///
/// # Errors
/// [`DecodeError`] for anything our programs of this version would not have written.
pub fn record(raw: &[u8]) -> Result<Decoded, DecodeError> {
    let (head, body) =
        raw.split_first_chunk::<{ size_of::<Header>() }>().ok_or(DecodeError::Short(raw.len()))?;
    let version = field!(head, version: u16);
    if u32::from(version) != ABI_VERSION {
        return Err(DecodeError::Version(version));
    }
    let op = field!(head, op: u8);
    let operation = Op::of(op).filter(|op| object(*op) != Object::Host).ok_or(DecodeError::Op(op))?;
    let verdict = field!(head, verdict: u8);
    if !matches!(verdict, verdict::ALLOWED | verdict::DENIED | verdict::WOULD_DENY) {
        return Err(DecodeError::Verdict(verdict));
    }
    let rule_kind = field!(head, rule_kind: u32);
    if !matches!(rule_kind, rule::DEFAULT | rule::SLOT | rule::INDEX | rule::FIXED | rule::ALL) {
        return Err(DecodeError::RuleKind(rule_kind));
    }
    let section = usize::from(field!(head, section: u16));
    if !matches!(section, SMALL_SECTION | LARGE_SECTION) || body.len() != 3 * section + SLACK {
        return Err(DecodeError::Length);
    }
    let (path, rest) = body.split_at(section);
    let (path2, rest) = rest.split_at(section);
    let (exe, _slack) = rest.split_at(section);
    let used = |all: &'_ [u8], length: u16| -> Result<Vec<u8>, DecodeError> {
        all.get(..usize::from(length)).map(<[u8]>::to_vec).ok_or(DecodeError::Section)
    };
    let flags = field!(head, flags: u32);
    let path = used(path, field!(head, path_len: u16))?;
    let path2 = used(path2, field!(head, path2_len: u16))?;
    let exe = used(exe, field!(head, exe_len: u16))?;
    Ok(Decoded {
        op,
        verdict,
        flags,
        time: field!(head, time: u64),
        container: field!(head, container: u64),
        call: field!(head, call: u64),
        start: field!(head, start: u64),
        lineage: {
            const AT: usize = offset_of!(Header, lineage);
            let (words, _) = head[AT..AT + 8 * LINEAGE].as_chunks();
            std::array::from_fn(|at| u64::from_ne_bytes(words[at]))
        },
        generation: field!(head, generation: u32),
        pid: field!(head, pid: u32),
        tgid: field!(head, tgid: u32),
        ppid: field!(head, ppid: u32),
        uid: field!(head, uid: u32),
        detail: field!(head, detail: u32),
        repeats: field!(head, repeats: u32).max(1),
        rule_kind,
        rule: field!(head, rule: u32),
        axes: field!(head, axes: u32),
        family: field!(head, family: u16),
        port: field!(head, port: u16),
        addr: {
            const AT: usize = offset_of!(Header, addr);
            let mut addr = [0; 16];
            addr.copy_from_slice(&head[AT..AT + 16]);
            addr
        },
        target: field!(head, target: u32),
        path: path_text(&path, flags, object(operation) == Object::FileOrRoot)?,
        path2: path_text(&path2, flags & !event::FLAG_ABSTRACT, false)?,
        exe: path_text(&exe, if flags & event::FLAG_EXE_CUT != 0 { event::FLAG_CUT } else { 0 }, false)?
            .unwrap_or_default(),
        egress: None,
    })
}

/// What an operation is done to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Object {
    /// A socket: the target is an address, or the path of a unix socket.
    Socket,
    /// A file that may be the root: an empty path section means `/`.
    FileOrRoot,
    /// A file, or nothing that has a name: an empty path section means nothing.
    File,
    /// A host by its name: an egress worker's word, and in no record of the programs.
    Host,
}

fn object(op: Op) -> Object {
    match op {
        Op::Socket | Op::Connect | Op::Bind | Op::Listen | Op::Send | Op::Setsockopt | Op::Receive => {
            Object::Socket
        }
        Op::NetConnection | Op::NetName => Object::Host,
        Op::Open
        | Op::Mkdir
        | Op::Rmdir
        | Op::Rename
        | Op::Chmod
        | Op::Chown
        | Op::Utimes
        | Op::Setxattr
        | Op::Chroot => Object::FileOrRoot,
        Op::Exec
        | Op::MapExec
        | Op::ProtectExec
        | Op::Create
        | Op::Truncate
        | Op::Unlink
        | Op::Link
        | Op::Mknod
        | Op::Symlink
        | Op::Mount
        | Op::MoveMount
        | Op::PivotRoot
        | Op::Ptrace
        | Op::Bpf
        | Op::Perf
        | Op::Userns
        | Op::Signal
        | Op::Umount
        | Op::Control
        | Op::Ioctl
        | Op::Capability
        | Op::Ipc
        | Op::Key
        | Op::Syscall => Object::File,
    }
}

/// Whether the operation is one on a socket, or about a host: its target is an address.
pub fn is_socket(op: u8) -> bool {
    Op::of(op).is_some_and(|op| matches!(object(op), Object::Socket | Object::Host))
}

/// A section as text: `/a/b` from the container's root; `a/b` if the path does not end there ([`event::FLAG_OUTSIDE`]);
/// `.../a/b` if its beginning is missing ([`event::FLAG_CUT`]); `@name` for an abstract socket.
fn path_text(section: &[u8], flags: u32, root: bool) -> Result<Option<String>, DecodeError> {
    if flags & event::FLAG_ABSTRACT != 0 {
        let Some((&length, name)) = section.split_first() else { return Ok(None) };
        return match name.len() == usize::from(length) {
            true => Ok(Some(format!("@{}", escape::name(name)))),
            false => Err(DecodeError::Section),
        };
    }
    let mut components = Vec::new();
    let mut rest = section;
    while let Some((&length, tail)) = rest.split_first() {
        let (name, tail) = tail.split_at_checked(usize::from(length)).ok_or(DecodeError::Section)?;
        if name.is_empty() {
            return Err(DecodeError::Section);
        }
        components.push(escape::name(name));
        rest = tail;
    }
    components.reverse();
    let joined = components.join("/");
    Ok(match () {
        () if flags & event::FLAG_CUT != 0 => Some(format!(".../{joined}")),
        () if components.is_empty() && !root => None,
        () if flags & (event::FLAG_OUTSIDE | event::FLAG_UNLINKED) != 0 && components.is_empty() => None,
        () if flags & event::FLAG_OUTSIDE != 0 => Some(joined),
        () => Some(format!("/{joined}")),
    })
}

#[cfg(test)]
mod tests;
