//! Where the paths of a container's rules lead, fixed when it is entered, and what a container could have written since.
//!
//! A container that may write a directory can replace what is in it by a link. If a rule over that place were resolved
//! again, the grant would follow: to wherever the container likes. So each path is followed once; a rule that comes later
//! goes through no link that the container could have made.

use super::{
    compiled::{CompiledPolicy, Kind, Place, PlaceRule},
    decide::Decider,
    resolve::Resolved,
};
use ringfence_common::policy::axis::WRITE;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use std::collections::{BTreeMap, BTreeSet};

/// Most places in all of a container's earlier policies together. A container whose profile was edited more often than that
/// has no new link followed.
const MAX_WRITTEN: usize = 1 << 16;
/// Most bytes of their paths.
const MAX_WRITTEN_BYTES: usize = 8 << 20;

/// A path's bytes. In JSON it is text: `%` and what is not printable ASCII as `%XX`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut text = String::with_capacity(self.0.len());
        for byte in &self.0 {
            match byte {
                b'%' => text.push_str("%25"),
                0x20..0x7f => text.push(char::from(*byte)),
                _ => text.push_str(&format!("%{byte:02X}")),
            }
        }
        to.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let mut parts = text.as_bytes().split(|b| *b == b'%');
        let mut bytes = parts.next().unwrap_or_default().to_vec();
        for part in parts {
            let code = part.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
            let code = code.and_then(|hex| u8::from_str_radix(hex, 16).ok());
            bytes.push(code.ok_or_else(|| D::Error::custom("a % that is no %XX"))?);
            bytes.extend_from_slice(&part[2..]);
        }
        Ok(Self(bytes))
    }
}

/// Where one path leads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Led {
    /// To there; nothing: to itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    to: Option<Bytes>,
    /// [`Resolved::links`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    links: Vec<Bytes>,
    /// [`Resolved::before`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    before: Vec<Bytes>,
    /// It was not there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    missing: bool,
}

impl Led {
    fn new(path: &[u8], resolved: &Resolved) -> Self {
        let bytes = |all: &[Vec<u8>]| all.iter().cloned().map(Bytes).collect();
        Self {
            to: (resolved.path != path).then(|| Bytes(resolved.path.clone())),
            links: bytes(&resolved.links),
            before: bytes(&resolved.before),
            missing: !resolved.exists,
        }
    }

    fn bytes(&self) -> usize {
        let all = |paths: &[Bytes]| paths.iter().map(|path| path.0.len()).sum::<usize>();
        self.to.as_ref().map_or(0, |to| to.0.len()) + all(&self.links) + all(&self.before)
    }

    fn from(&self, path: &[u8]) -> Resolved {
        let plain = |all: &[Bytes]| all.iter().map(|one| one.0.clone()).collect();
        Resolved {
            path: self.to.as_ref().map_or_else(|| path.to_vec(), |to| to.0.clone()),
            exists: !self.missing,
            links: plain(&self.links),
            before: plain(&self.before),
        }
    }
}

/// Where paths and bare names of programs led.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fixed {
    /// Of allows.
    paths: BTreeMap<Bytes, Led>,
    /// Of denies and protected places: there a path also stands for where it leads now.
    #[serde(default)]
    denied: BTreeMap<Bytes, Led>,
    programs: BTreeMap<String, Bytes>,
    /// Allows' paths that are not followed: they led through a link that the container could change.
    #[serde(default)]
    closed: BTreeSet<Bytes>,
    /// There were more allows' paths than are kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    more: bool,
}

impl Fixed {
    /// Bytes of what the paths lead through and to, beside those of the paths themselves.
    pub fn followed(&self) -> usize {
        let led = self.paths.values().chain(self.denied.values()).map(Led::bytes);
        led.chain(self.programs.values().map(|path| path.0.len())).sum()
    }

    /// Where an allow's path led, if it was followed.
    pub fn path(&self, path: &[u8]) -> Option<Resolved> {
        self.paths.get(&Bytes(path.to_vec())).map(|led| led.from(path))
    }

    /// Fixes where an allow's path leads.
    pub(crate) fn fix(&mut self, path: &[u8], resolved: &Resolved) {
        self.paths.insert(Bytes(path.to_vec()), Led::new(path, resolved));
    }

    /// Fixes it for a test.
    #[cfg(any(test, feature = "test-support"))]
    pub fn fix_to(&mut self, path: &[u8], to: &[u8]) {
        let led = Resolved { path: to.to_vec(), exists: true, links: Vec::new(), before: Vec::new() };
        self.fix(path, &led);
    }

    /// Where it led, for a test.
    #[cfg(any(test, feature = "test-support"))]
    pub fn led_to(&self, path: &[u8]) -> Option<Vec<u8>> {
        self.path(path).map(|led| led.path)
    }

    /// Whether an allow's path is one that is not followed.
    pub fn is_closed(&self, path: &[u8]) -> bool {
        self.closed.contains(&Bytes(path.to_vec()))
    }

    /// Fixes that an allow's path is not followed.
    pub fn close(&mut self, path: &[u8]) {
        self.closed.insert(Bytes(path.to_vec()));
    }

    /// The allows' paths for which `wanted` says yes, and nothing else.
    pub fn only(&self, wanted: impl Fn(&[u8]) -> bool) -> Self {
        self.only_led(|path, _| wanted(&path.0))
    }

    /// Of another's paths of allows those that are not among its own, or led elsewhere.
    pub fn unknown_of(&self, other: &Self) -> Self {
        other.only_led(|path, led| self.paths.get(path) != Some(led))
    }

    fn only_led(&self, wanted: impl Fn(&Bytes, &Led) -> bool) -> Self {
        let paths = self.paths.iter().filter(|(path, led)| wanted(path, led));
        Self { paths: paths.map(|(path, led)| (path.clone(), led.clone())).collect(), ..Self::default() }
    }

    /// Takes in another's paths of allows, in place of its own.
    pub fn take_in(&mut self, other: &Self) {
        self.paths.extend(other.paths.iter().map(|(path, led)| (path.clone(), led.clone())));
        self.more |= other.more;
    }

    /// The same paths of allows, beside others that were forgotten.
    pub fn with_more(&self) -> Self {
        Self { paths: self.paths.clone(), more: true, ..Self::default() }
    }

    /// Whether there were others.
    pub fn has_more(&self) -> bool {
        self.more
    }

    /// No allow's path is in it.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// How many paths of allows are in it, and how many bytes they take with where they lead.
    pub fn paths(&self) -> usize {
        self.paths.len()
    }

    /// See [`Self::paths`].
    pub fn bytes(&self) -> usize {
        self.paths.iter().map(|(path, led)| path.0.len() + led.bytes()).sum()
    }

    /// Where a deny's path led.
    pub fn denied(&self, path: &[u8]) -> Option<Resolved> {
        self.denied.get(&Bytes(path.to_vec())).map(|led| led.from(path))
    }

    /// Fixes where a deny's path leads.
    pub(crate) fn fix_denied(&mut self, path: &[u8], resolved: &Resolved) {
        self.denied.insert(Bytes(path.to_vec()), Led::new(path, resolved));
    }

    /// What a bare name was.
    pub fn program(&self, name: &str) -> Option<&[u8]> {
        self.programs.get(name).map(|path| path.0.as_slice())
    }

    /// Fixes what a bare name is.
    pub(crate) fn fix_program(&mut self, name: &str, path: &[u8]) {
        self.programs.insert(name.to_owned(), Bytes(path.to_vec()));
    }
}

/// What one policy lets its container write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Writable {
    /// Everything that no place takes away.
    all: bool,
    places: Vec<WritablePlace>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct WritablePlace {
    /// A path (which begins with a slash), or a name at any depth.
    at: Bytes,
    /// The name is a pattern's, and this end of it. Records of versions without patterns have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    end: Option<NameEnd>,
    kind: Kind,
    allow: bool,
    deny: bool,
    reset: bool,
}

/// What a pattern compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum NameEnd {
    Begins,
    Ends,
}

/// What a container could have written, by any policy that it ever had.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    policies: Vec<Writable>,
    /// There were more than are kept.
    more: bool,
}

impl Written {
    /// Adds what a policy allows.
    pub fn add(&mut self, policy: &CompiledPolicy) {
        let place = |rule: &PlaceRule| {
            let (at, end) = match &rule.place {
                Place::Path(bytes) | Place::Name(bytes) => (bytes, None),
                Place::Prefix(bytes) => (bytes, Some(NameEnd::Begins)),
                Place::Suffix(bytes) => (bytes, Some(NameEnd::Ends)),
                Place::Abstract(_) | Place::Named { .. } => return None,
            };
            let has = |axes: u16| axes & WRITE != 0;
            let (allow, deny, reset) = (has(rule.allow), has(rule.deny), has(rule.reset));
            let at = Bytes(at.clone());
            (allow || deny || reset).then_some(WritablePlace { at, end, kind: rule.kind, allow, deny, reset })
        };
        let new = Writable {
            all: policy.initial & WRITE != 0,
            places: policy.places.iter().filter_map(place).collect(),
        };
        if self.policies.contains(&new) {
            return;
        }
        let held: usize = self.policies.iter().map(|one| one.places.len() + 1).sum();
        let bytes: usize = self.policies.iter().chain([&new]).map(Writable::bytes).sum();
        if held + new.places.len() < MAX_WRITTEN && bytes <= MAX_WRITTEN_BYTES {
            self.policies.push(new);
        } else {
            self.more = true;
        }
    }

    /// Nothing: the container is about to be entered for the first time.
    pub fn is_empty(&self) -> bool {
        self.policies.is_empty() && !self.more
    }

    /// For questions: whether a place could have been written.
    pub fn policies(&self) -> Could {
        Could { policies: self.policies.iter().map(Writable::policy).collect(), more: self.more }
    }
}

impl Writable {
    fn bytes(&self) -> usize {
        self.places.iter().map(|place| place.at.0.len()).sum()
    }

    fn policy(&self) -> CompiledPolicy {
        let bit = |has: bool| if has { WRITE } else { 0 };
        let rule = |place: &WritablePlace| {
            let at = match (place.end, place.at.0.first()) {
                (Some(NameEnd::Begins), _) => Place::Prefix,
                (Some(NameEnd::Ends), _) => Place::Suffix,
                (None, Some(b'/')) => Place::Path,
                (None, _) => Place::Name,
            };
            PlaceRule {
                allow: bit(place.allow),
                deny: bit(place.deny),
                reset: bit(place.reset),
                ..PlaceRule::nothing(at(place.at.0.clone()), place.kind)
            }
        };
        CompiledPolicy::of_places(bit(self.all), self.places.iter().map(rule).collect())
    }
}

/// [`Written`], as policies.
#[derive(Debug)]
pub struct Could {
    policies: Vec<CompiledPolicy>,
    more: bool,
}

impl Could {
    /// An answer to whether a path could have been written.
    pub fn judge(&self) -> impl Fn(&[u8]) -> bool {
        let deciders: Vec<Decider<'_>> = self.policies.iter().map(Decider::new).collect();
        move |path| self.more || deciders.iter().any(|decider| decider.path(WRITE, path).allowed())
    }
}

/// What is known of a container when its profile is compiled.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// Where its paths led when it was entered.
    pub fixed: Fixed,
    /// What it could have written since.
    pub written: Written,
}

#[cfg(test)]
mod tests;
