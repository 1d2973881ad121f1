//! What a running call may do.

use super::{Axis, Cancel, Denied, Gate, Outcome, Question, ResolvedProgram, ToolError};
use crate::{ExecEntry, Grant, HostPattern, NetEntry, PathEntry, Scope};
use std::{
    net::IpAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// The authority of one call. Only [`Gate::authorize`] makes one, so nothing runs without having passed there.
#[derive(Debug)]
pub struct ToolContext {
    effective: Grant,
    tool: String,
    gate: Arc<Gate>,
    begun: AtomicBool,
    cancel: Cancel,
}

impl ToolContext {
    pub(super) fn new(effective: Grant, tool: String, gate: Arc<Gate>) -> Self {
        Self { effective, tool, gate, begun: AtomicBool::new(false), cancel: Cancel::default() }
    }

    pub(super) fn cancelled_by(self, cancel: Cancel) -> Self {
        Self { cancel, ..self }
    }

    pub(super) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Says when the call was cancelled.
    pub fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    /// What this call holds: the meet of what was granted and what its tool wants.
    pub fn effective(&self) -> &Grant {
        &self.effective
    }

    /// Says that from here on the call has effects: it counts against the budget even if it is denied something later.
    pub fn begin(&self) {
        self.begun.store(true, Ordering::SeqCst);
    }

    /// May the call execute `program`: a bare name, or an absolute path as it was written, its links not followed?
    /// Execute what was found, at [`ResolvedProgram::path`].
    ///
    /// A path entry of the grant admits the files that lie within it, links followed. A bare name admits what PATH finds
    /// for it now ([`resolve_granted`](super::Programs::resolve_granted)), asked for by that place or as the very file: not another link to the same file, which may be
    /// another command.
    ///
    /// # Errors
    /// [`Denied`]
    pub fn check_exec(&self, program: &Path) -> Result<ResolvedProgram, Denied> {
        let question = Question::Exec(program);
        let decided = self.exec(program).and_then(|found| {
            self.check_veto(Axis::Exec, question, Some(&found))?;
            Ok(found)
        });
        self.recorded(question, decided)
    }

    /// Is the bare name `program` denied whatever file it is? Nothing is looked for; what may be allowed is not recorded,
    /// and is to be asked for by [`check_exec`](Self::check_exec).
    ///
    /// # Errors
    /// [`Denied`]
    pub fn rule_out_exec(&self, program: &str) -> Result<(), Denied> {
        let named = bare_name(Path::new(program));
        match (&self.effective.exec, named) {
            (Scope::Only(entries), Some(name)) if !entries.iter().any(|entry| could_be(entry, name)) => {
                let denied = Denied::Scope { axis: Axis::Exec, target: program.to_owned() };
                self.recorded(Question::Exec(Path::new(program)), Err(denied))
            }
            _ => Ok(()),
        }
    }

    /// May the call read `path`: absolute, links followed?
    ///
    /// # Errors
    /// [`Denied`]
    pub fn check_read(&self, path: &Path) -> Result<(), Denied> {
        let question = Question::Read(path);
        let granted = file(Axis::FsRead, &self.effective.fs_read, path);
        self.recorded(question, granted.and_then(|()| self.check_veto(Axis::FsRead, question, None)))
    }

    /// Would reading `path` be granted, and not forbidden? Nothing is recorded: for what a tool passes over in silence.
    pub fn could_read(&self, path: &Path) -> bool {
        file(Axis::FsRead, &self.effective.fs_read, path)
            .and_then(|()| self.check_veto(Axis::FsRead, Question::Read(path), None))
            .is_ok()
    }

    /// May the call write `path`: absolute, links followed?
    ///
    /// # Errors
    /// [`Denied`]
    pub fn check_write(&self, path: &Path) -> Result<(), Denied> {
        let question = Question::Write(path);
        let granted = file(Axis::FsWrite, &self.effective.fs_write, path);
        self.recorded(question, granted.and_then(|()| self.check_veto(Axis::FsWrite, question, None)))
    }

    /// May the call connect to `host`, a name or an address, at `port`; with `addr`, by that address of it? The name or
    /// the address must be granted. Whether the address of a granted name is fit to be connected to is the tool's to
    /// judge.
    ///
    /// # Errors
    /// [`Denied`]
    pub fn check_net(&self, host: &str, addr: Option<IpAddr>, port: u16) -> Result<(), Denied> {
        let question = Question::Net { host, addr, port };
        let granted = self.net(host, addr, port);
        self.recorded(question, granted.and_then(|()| self.check_veto(Axis::Net, question, None)))
    }

    /// Refuses a connection by a rule of the tool's own, stricter than the grant, and records that.
    pub fn refuse_net(&self, host: &str, port: u16, why: String) -> Denied {
        let denied = Denied::Rule(why);
        self.gate.record_decision(
            &self.tool,
            Question::Net { host, addr: None, port },
            Outcome::Denied(&denied),
        );
        denied
    }

    /// A call that was denied or cancelled before it had any effect costs nothing.
    pub(super) fn settle<T>(&self, result: &Result<T, ToolError>) {
        if matches!(result, Err(ToolError::Denied(_) | ToolError::Cancelled))
            && !self.begun.load(Ordering::SeqCst)
        {
            self.gate.refund();
        }
    }

    fn recorded<T>(&self, question: Question<'_>, decided: Result<T, Denied>) -> Result<T, Denied> {
        let outcome = match &decided {
            Ok(_) => Outcome::Allowed,
            Err(denied) => Outcome::Denied(denied),
        };
        self.gate.record_decision(&self.tool, question, outcome);
        decided
    }

    fn check_veto(
        &self,
        axis: Axis,
        question: Question<'_>,
        found: Option<&ResolvedProgram>,
    ) -> Result<(), Denied> {
        let Some(rule) = self.gate.veto.as_ref().and_then(|veto| veto.forbids(question, found)) else {
            return Ok(());
        };
        let target = match question {
            Question::Call => String::new(),
            Question::Exec(path) | Question::Read(path) | Question::Write(path) => {
                path.to_string_lossy().into_owned()
            }
            Question::Net { host, .. } => host.to_owned(),
        };
        Err(Denied::Veto { axis, target, rule })
    }

    fn exec(&self, program: &Path) -> Result<ResolvedProgram, Denied> {
        let target = || program.to_string_lossy().into_owned();
        let outside = || Denied::Scope { axis: Axis::Exec, target: target() };
        let resolve = || self.gate.programs.resolve(program);
        let bare = bare_name(program);
        if bare.is_none() && !program.is_absolute() {
            let why = "it is neither an absolute path nor a bare program name".into();
            return Err(Denied::Unnameable { axis: Axis::Exec, target: target(), why });
        }
        let entries = match &self.effective.exec {
            Scope::All => return resolve().map_err(|_| Denied::NoProgram { target: target() }),
            Scope::Only(entries) => entries,
        };
        // PATH is searched for nothing else.
        let could_be = |e: &&ExecEntry| bare.is_none_or(|bare| could_be(e, bare));
        let entries: Vec<&ExecEntry> = entries.iter().filter(could_be).collect();
        if entries.is_empty() {
            return Err(outside());
        }
        // Only for what is granted by name does the refusal reveal that it does not exist.
        let is_named = bare.is_some() && entries.iter().any(|entry| entry.programs().len() > 0);
        // What lies first on PATH may be granted as a path, and what its name means by that name.
        let by_path = resolve();
        let by_name = bare.map(|name| self.gate.programs.resolve_granted(name));
        let mut refused = None;
        for found in [Some(by_path), by_name].into_iter().flatten().flatten() {
            let exact = match entry(Axis::Exec, &found.target) {
                Ok(exact) => exact,
                Err(unnameable) => {
                    refused.get_or_insert(unnameable);
                    continue;
                }
            };
            refused = Some(outside());
            let is_found = |name: &str| {
                let named = self.gate.programs.resolve_granted(name);
                named.is_ok_and(|named| match bare {
                    Some(_) => found.path == named.path,
                    None => found.path == named.path || found.path == named.target,
                })
            };
            let admits = |entry: &ExecEntry| entry.paths().has(&exact) && entry.programs().all(is_found);
            if entries.iter().copied().any(admits) {
                return Ok(found);
            }
        }
        let nothing = || if is_named { Denied::NoProgram { target: target() } } else { outside() };
        Err(refused.unwrap_or_else(nothing))
    }

    fn net(&self, host: &str, addr: Option<IpAddr>, port: u16) -> Result<(), Denied> {
        let entry = |host: &str| -> Result<NetEntry, Denied> {
            let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
            let text = if bare.contains(':') { format!("[{bare}]:{port}") } else { format!("{bare}:{port}") };
            text.parse().map_err(|why: crate::NetError| Denied::Unnameable {
                axis: Axis::Net,
                target: host.to_owned(),
                why: why.to_string(),
            })
        };
        // Named even where everything is granted: what has no name is no place to connect to.
        let by_name = entry(host)?;
        if matches!(by_name, NetEntry::Host { host: HostPattern::Below(_), .. }) {
            let why = "it is a pattern, and no host".to_owned();
            return Err(Denied::Unnameable { axis: Axis::Net, target: host.to_owned(), why });
        }
        let by_addr = addr.map(|addr| entry(&addr.to_canonical().to_string())).transpose()?;
        let granted = &self.effective.net;
        if granted.contains(&by_name) || by_addr.is_some_and(|addr| granted.contains(&addr)) {
            return Ok(());
        }
        Err(Denied::Scope { axis: Axis::Net, target: host.to_owned() })
    }
}

/// Whether a bare name could be within an entry: one that is not granted as such may still lie within a granted path.
fn could_be(entry: &ExecEntry, name: &str) -> bool {
    entry.programs().all(|granted| granted == name)
}

/// The program, if it is a name for PATH to find.
fn bare_name(program: &Path) -> Option<&str> {
    program.to_str().filter(|text| !text.is_empty() && !text.contains('/'))
}

fn file(axis: Axis, scope: &Scope<PathEntry>, path: &Path) -> Result<(), Denied> {
    let exact = entry(axis, path)?;
    let within = match scope {
        Scope::All => true,
        Scope::Only(entries) => entries.iter().any(|entry| entry.has(&exact)),
    };
    if within { Ok(()) } else { Err(Denied::Scope { axis, target: exact.anchor().to_owned() }) }
}

/// The path alone, if it is one that a grant could name.
fn entry(axis: Axis, path: &Path) -> Result<PathEntry, Denied> {
    let unnameable = |why: String| Denied::Unnameable { axis, target: path.to_string_lossy().into(), why };
    let text = path.to_str().ok_or_else(|| unnameable("it is not UTF-8".into()))?;
    PathEntry::exact(text).map_err(|why| unnameable(why.to_string()))
}
