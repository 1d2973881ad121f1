//! What members of one object, or elements of one array, say of each other: `{"name": "API_KEY", "value": "x"}` in either
//! order, `["X-Api-Key", "x"]`, `["--token", "x"]`, the data of a manifest whose kind is a secret.

use super::{DESCRIBES, Place, With};
use crate::{
    names::{self, Surety},
    values,
};

/// Objects and arrays within one another whose members are known; those further in are none of these.
const DEEPEST: usize = 64;

/// Shortest part of a key, bytes of base64.
const SHORTEST_PART: usize = 16;

/// Which member a value is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Member {
    #[default]
    Other,
    Name,
    Value,
    Kind,
    Data,
    Pass,
    Auth,
    Signature,
    /// That it is a key, and of what type.
    KeyType,
    /// The private part of a key.
    Part,
    /// It says what belongs there.
    Describes,
}

/// An object or an array.
#[derive(Debug, Default)]
struct Frame {
    is_object: bool,
    /// The member whose value comes.
    member: Member,
    /// Its `name` is that of a secret.
    names_secret: bool,
    value: Option<Place>,
    /// Its `kind` is a secret.
    is_secret: bool,
    /// It is the data of what is around it.
    is_data: bool,
    /// Strings of its data.
    data: Vec<(usize, usize)>,
    /// The element before is the name of a secret: how sure the next is one.
    before: Before,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Before {
    #[default]
    Other,
    /// A flag, or a header.
    Certain,
    /// A word that names a secret.
    Word,
}

/// Those that are open.
#[derive(Debug, Default)]
pub(super) struct Frames {
    open: Vec<Frame>,
    /// How many more are.
    deeper: usize,
}

impl Frames {
    pub(super) fn open(&mut self, is_object: bool) {
        if self.open.len() >= DEEPEST {
            self.deeper += 1;
            return;
        }
        let is_data =
            self.open.last().is_some_and(|around| around.is_object && around.member == Member::Data);
        if let Some(around) = self.open.last_mut() {
            around.before = Before::Other;
        }
        self.open.push(Frame { is_object, is_data, ..Frame::default() });
    }

    pub(super) fn close(&mut self, places: &mut Vec<Place>) {
        if self.deeper > 0 {
            self.deeper -= 1;
        } else if let Some(frame) = self.open.pop() {
            frame.close(places);
        }
    }

    /// The text ends, whatever is open.
    pub(super) fn finish(&mut self, places: &mut Vec<Place>) {
        self.open.drain(..).for_each(|frame| frame.close(places));
    }

    fn innermost(&mut self) -> Option<&mut Frame> {
        if self.deeper > 0 { None } else { self.open.last_mut() }
    }

    /// The member whose value comes.
    pub(super) fn member(&self) -> Member {
        if self.deeper > 0 {
            Member::Other
        } else {
            self.open.last().map_or(Member::Other, |frame| frame.member)
        }
    }

    /// Whether it says what belongs there, and holds nothing.
    pub(super) fn describes(&self) -> bool {
        self.member() == Member::Describes
    }

    pub(super) fn key(&mut self, key: &str) {
        let Some(frame) = self.innermost() else { return };
        let is = |known: &[&str]| known.iter().any(|known| known.eq_ignore_ascii_case(key));
        frame.member = if is(&["name", "key", "header", "headerName", "variable"]) {
            Member::Name
        } else if is(&["value", "val"]) {
            Member::Value
        } else if key == "kind" {
            Member::Kind
        } else if is(&["data", "stringData"]) {
            Member::Data
        } else if key == "kty" {
            Member::KeyType
        } else if ["d", "p", "q", "dp", "dq", "qi", "k"].contains(&key) {
            Member::Part
        } else if names::is_signature(key) {
            Member::Signature
        } else if is(&["auth"]) {
            Member::Auth
        } else if key.get(key.len().saturating_sub(4)..).is_some_and(|end| end.eq_ignore_ascii_case("pass")) {
            Member::Pass
        } else if DESCRIBES.contains(&key) {
            Member::Describes
        } else {
            Member::Other
        };
    }

    /// Whether an array's next element is a secret by the one before.
    pub(super) fn element(&mut self, decoded: &str) -> bool {
        let Some(frame) = self.innermost().filter(|frame| !frame.is_object) else { return false };
        let before = std::mem::take(&mut frame.before);
        let has_digit = decoded.bytes().any(|byte| byte.is_ascii_digit());
        let is_one = !decoded.starts_with('-')
            && !values::is_template(decoded)
            && !values::is_name(decoded)
            && match before {
                Before::Other => false,
                Before::Certain => true,
                Before::Word => {
                    decoded.len() >= 8
                        && has_digit
                        && !values::is_prose(decoded)
                        && !values::is_path_in_code(decoded)
                }
            };
        if is_one {
            return true;
        }
        if decoded.len() <= names::LONGEST
            && !decoded.contains(['=', ':', ' '])
            && names::judge(decoded) >= Surety::Secret
        {
            let is_header = decoded.contains('-') || names::judge(decoded) == Surety::Header;
            frame.before = if is_header { Before::Certain } else { Before::Word };
        }
        false
    }

    /// A string that is no secret by itself.
    pub(super) fn string(&mut self, decoded: &str, place: (usize, usize)) {
        let Some(frame) = self.innermost() else { return };
        match frame.member {
            Member::Name if frame.is_object => {
                frame.names_secret |= names::judge(decoded) >= Surety::Secret || is_key(decoded)
            }
            Member::KeyType => frame.is_secret = true,
            Member::Part if place.1 - place.0 >= SHORTEST_PART => frame.data.push(place),
            Member::Kind => frame.is_secret |= decoded == "Secret",
            Member::Value if frame.is_object && !values::is_template(decoded) => {
                frame.value = Some((place.0, place.1, With::Redacted))
            }
            _ => {}
        }
        if frame.is_data
            && let Some(around) = self.open.len().checked_sub(2).and_then(|at| self.open.get_mut(at))
        {
            around.data.push(place);
        }
    }

    /// A number.
    pub(super) fn value(&mut self, (start, end): (usize, usize), with: With) {
        if let Some(frame) = self.innermost().filter(|frame| frame.is_object && frame.member == Member::Value)
        {
            frame.value = Some((start, end, with));
        }
    }
}

/// Variables of the environment: `STRIPE_KEY`.
fn is_key(name: &str) -> bool {
    names::is_shouted(name) && names::judge(name) != Surety::None
}

impl Frame {
    fn close(self, places: &mut Vec<Place>) {
        if self.names_secret {
            places.extend(self.value);
        }
        if self.is_secret {
            places.extend(self.data.into_iter().map(|(start, end)| (start, end, With::Redacted)));
        }
    }
}
