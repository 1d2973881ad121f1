//! Following the paths of rules: each once in a container's life, and through no link that the container could have made.

use super::{
    Rule,
    compile::{Builder, noted},
    resolve::Resolved,
};

/// Where an allow leads.
pub(crate) enum Followed {
    /// There.
    To(Resolved),
    /// This link on the way is not to be trusted.
    NotBy(Vec<u8>),
}

impl Builder<'_> {
    /// Where an allow's path leads: where it did when the container was entered. One that comes later is followed now, and
    /// not through a link that the container may change or could have changed since.
    pub(crate) fn follow(&mut self, path: &[u8], rule: Option<&Rule>) -> Followed {
        let Some(now) = self.resolve(path) else { return Followed::NotBy(path.to_vec()) };
        if self.fixed.is_closed(path) {
            return Followed::NotBy(now.links.into_iter().next().unwrap_or_else(|| path.to_vec()));
        }
        if let Some(then) = self.fixed.path(path) {
            let same = then.path == now.path;
            if !same && self.outset.history.fixed.path(path).is_some() {
                self.moved(rule, path, &now.path, &then.path, "when the container was entered");
            }
            return Followed::To(Resolved { exists: if same { now.exists } else { then.exists }, ..then });
        }
        let Some(judge) = self.judge else {
            self.fixed.fix(path, &now);
            return Followed::To(now);
        };
        if let Some(link) = now.links.iter().find(|link| (judge.changeable)(link)) {
            self.fixed.close(path);
            return Followed::NotBy(link.clone());
        }
        // The container before this one could have put the link there, for the rule lets it. So it has to be the same.
        if let Some(link) = now.links.iter().find(|link| (judge.was_own)(link)) {
            match self.outset.past.path(path) {
                Some(then) if then.path != now.path => {
                    self.moved(rule, path, &now.path, &then.path, "for an earlier container");
                    self.fixed.fix(path, &then);
                    return Followed::To(then);
                }
                // Where it led may have been forgotten.
                None if self.outset.past.has_more() => {
                    self.fixed.close(path);
                    return Followed::NotBy(link.clone());
                }
                Some(_) | None => {}
            }
        }
        self.fixed.fix(path, &now);
        Followed::To(now)
    }

    /// Where a path leads now. `None`: all rules together lead through more than may be kept, and the profile is refused.
    fn resolve(&mut self, path: &[u8]) -> Option<Resolved> {
        if self.room == 0 {
            return None;
        }
        let now = self.resolver.resolve(path);
        // Where there is no link, it is as long as the rule is.
        let bytes = if now.links.is_empty() { 0 } else { now.bytes() };
        self.take_room(bytes).then_some(now)
    }

    /// Whether there is room for so many bytes more of what is followed.
    fn take_room(&mut self, bytes: usize) -> bool {
        let left = self.room.checked_sub(bytes);
        self.room = left.unwrap_or(0);
        left.is_some()
    }

    /// The file of a bare name that is granted; or why it is not.
    pub(crate) fn program(&mut self, name: &str, rule: &Rule) -> Result<Vec<u8>, &'static str> {
        let found = self.resolver.program(name);
        if let Some(then) = self.outset.history.fixed.program(name).map(<[u8]>::to_vec) {
            if let Some(now) = found.filter(|now| now.path != then) {
                self.moved(Some(rule), name.as_bytes(), &now.path, &then, "when the container was entered");
            }
            return Ok(then);
        }
        let found = found.ok_or("PATH finds no such program: nothing is granted")?;
        if !self.take_room(found.bytes()) {
            return Err("there is no room for it");
        }
        if let Some(judge) = self.judge {
            if found.links.iter().any(|link| (judge.changeable)(link)) {
                return Err("PATH finds it through a link that the container may change: it is not granted");
            }
            if (judge.could)(&found.path) {
                return Err("PATH finds a file that the container could have put there: it is not granted");
            }
        }
        self.fixed.fix_program(name, &found.path);
        self.followed.extend(found.links);
        Ok(found.path)
    }

    /// Every form of a path that is denied: as it is written, at each link on the way, and where it leads, now and when
    /// the container was entered.
    pub(crate) fn every_form(&mut self, path: &[u8]) -> Vec<Vec<u8>> {
        let Some((now, then)) = self.follow_denied(path) else { return Vec::new() };
        let forms = [Some(now), then].into_iter().flatten();
        forms.flat_map(|resolved| resolved.before.into_iter().chain([resolved.path])).collect()
    }

    /// The ends of a path alone: where it leads now, and where it did when the container was entered.
    pub(crate) fn ends(&mut self, path: &[u8]) -> Vec<Vec<u8>> {
        let Some((now, then)) = self.follow_denied(path) else { return Vec::new() };
        let then = then.map(|then| then.path).filter(|then| *then != now.path);
        [Some(now.path), then].into_iter().flatten().collect()
    }

    /// Where a denied path leads now, and where it did when the container was entered.
    fn follow_denied(&mut self, path: &[u8]) -> Option<(Resolved, Option<Resolved>)> {
        let now = self.resolve(path)?;
        let then = self.outset.history.fixed.denied(path);
        if then.is_none() {
            self.fixed.fix_denied(path, &now);
        }
        Some((now, then))
    }

    /// Notes that something leads elsewhere than it did.
    fn moved(&mut self, rule: Option<&Rule>, path: &[u8], now: &[u8], then: &[u8], when: &str) {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let what = format!(
            "it leads to {} now and led to {} {when}; the rule still applies to the latter. To change that, name the path \
             itself in the profile, or start the container again",
            text(now),
            text(then),
        );
        self.moved.push(match rule {
            Some(rule) => noted(rule, &what),
            None => format!("base: {:?}: {what}", text(path)),
        });
    }
}
