//! A grant from JSON or TOML: every mistake named by the field that it is in. Pure.

use ringfence_grant::{CountBound, Entry, Grant, Scope};
use ringfence_session::strict::{self, Ambiguity};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Most bytes of a grant's text.
pub const MAX_BYTES: usize = 4 << 20;

/// The six fields.
const FIELDS: [&str; 6] = ["fs_read", "fs_write", "exec", "net", "max_calls", "valid_for_generation"];

/// Why a text is not a grant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Over [`MAX_BYTES`].
    #[error("it has {0} bytes; a grant has at most {MAX_BYTES}")]
    Large(usize),
    /// Nothing at all, as a variable that was set from what failed.
    #[error("it is empty; a grant names all six of {}, and a variable that means none is unset", FIELDS.join(", "))]
    Empty,
    /// Not JSON, or with a key that stands twice.
    #[error(transparent)]
    Json(#[from] Ambiguity),
    /// Not TOML.
    #[error("not TOML: {0}")]
    Toml(String),
    /// Not an object.
    #[error("a grant is an object with the fields {}", FIELDS.join(", "))]
    Shape,
    /// A field is not there.
    #[error("the field `{0}` is missing; a grant names all six of {fields}", fields = FIELDS.join(", "))]
    Missing(&'static str),
    /// A field that no grant has.
    #[error("the field `{0}` is none of a grant's: {fields}", fields = FIELDS.join(", "))]
    Unknown(String),
    /// A field's value.
    #[error("`{field}`: {why}")]
    Field {
        /// The field, with the place in its list.
        field: String,
        /// What is wrong.
        why: String,
    },
}

/// Reads a grant from JSON.
///
/// # Errors
/// [`Error`]
pub fn json(text: &str) -> Result<Grant, Error> {
    if text.len() > MAX_BYTES {
        return Err(Error::Large(text.len()));
    }
    if text.trim().is_empty() {
        return Err(Error::Empty);
    }
    let text = strict::whole(text.as_bytes())?;
    grant(strict::value(text)?)
}

/// Reads the table `name` of a TOML file. `None`: it has no such table.
///
/// # Errors
/// [`Error`]
pub fn toml(text: &str, name: &str) -> Result<Option<Grant>, Error> {
    if text.len() > MAX_BYTES {
        return Err(Error::Large(text.len()));
    }
    let mut file: Map<String, Value> = toml::from_str(text).map_err(|e| Error::Toml(e.to_string()))?;
    file.remove(name).map(grant).transpose()
}

fn grant(value: Value) -> Result<Grant, Error> {
    let Value::Object(mut fields) = value else { return Err(Error::Shape) };
    if let Some(unknown) = fields.keys().find(|key| !FIELDS.contains(&key.as_str())) {
        return Err(Error::Unknown(unknown.clone()));
    }
    Ok(Grant {
        fs_read: scope(&mut fields, "fs_read")?,
        fs_write: scope(&mut fields, "fs_write")?,
        exec: scope(&mut fields, "exec")?,
        net: scope(&mut fields, "net")?,
        max_calls: field::<CountBound>(&mut fields, "max_calls", "\"unlimited\" or {\"at_most\": N}")?,
        valid_for_generation: scope(&mut fields, "valid_for_generation")?,
    })
}

fn take(fields: &mut Map<String, Value>, name: &'static str) -> Result<Value, Error> {
    fields.remove(name).ok_or(Error::Missing(name))
}

fn field<T: DeserializeOwned>(
    fields: &mut Map<String, Value>,
    name: &'static str,
    wanted: &str,
) -> Result<T, Error> {
    let wrong = |error: serde_json::Error| Error::Field {
        field: name.into(),
        why: format!("{}; it is {wanted}", found(&error)),
    };
    serde_json::from_value(take(fields, name)?).map_err(wrong)
}

/// What serde found, without what it expected: the caller adds that.
fn found(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split_once(", expected ").map_or(text.clone(), |(found, _)| found.to_owned())
}

fn scope<E: Entry + DeserializeOwned>(
    fields: &mut Map<String, Value>,
    name: &'static str,
) -> Result<Scope<E>, Error> {
    let value = take(fields, name)?;
    // Entry by entry, so that the one that is wrong is named.
    for (at, entry) in value["only"].as_array().into_iter().flatten().enumerate() {
        if let Err(error) = E::deserialize(entry) {
            return Err(Error::Field {
                field: format!("{name}.only[{at}]"),
                why: format!("{entry}: {error}"),
            });
        }
    }
    serde_json::from_value(value).map_err(|error| Error::Field {
        field: name.into(),
        why: format!("{}; it is \"all\" or {{\"only\": [...]}}", found(&error)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"fs_read":"all","fs_write":{"only":["/work"]},"exec":{"only":["git"]},"net":"all",
        "max_calls":{"at_most":20},"valid_for_generation":"all"}"#;

    #[test]
    fn json_and_toml_say_the_same() {
        let text = "[caveats]\nfs_read = \"all\"\nfs_write = { only = [\"/work\"] }\nexec = { only = [\"git\"] }\n\
                    net = \"all\"\nmax_calls = { at_most = 20 }\nvalid_for_generation = \"all\"\n";
        assert_eq!(toml(text, "caveats").unwrap(), Some(json(GOOD).unwrap()));
        assert_eq!(toml(text, "grant").unwrap(), None);
    }

    #[test]
    fn what_it_should_be_is_said_once() {
        for (old, new, said) in [
            (
                r#""net":"all""#,
                r#""net":"All""#,
                r#"`net`: invalid value: string "All"; it is "all" or {"only": [...]}"#,
            ),
            (
                r#""net":"all""#,
                r#""net":7"#,
                r#"`net`: invalid type: integer `7`; it is "all" or {"only": [...]}"#,
            ),
            (
                r#"{"at_most":20}"#,
                r#"{"at_most":"x"}"#,
                r#"`max_calls`: invalid type: string "x"; it is "unlimited" or {"at_most": N}"#,
            ),
        ] {
            assert_eq!(json(&GOOD.replacen(old, new, 1)).unwrap_err().to_string(), said);
        }
    }

    #[test]
    fn every_mistake_is_named_by_its_field() {
        for (old, new, said) in [
            (r#""net":"all","#, "", "the field `net` is missing"),
            (r#""net":"#, r#""network":"all","net":"#, "the field `network` is none of a grant's"),
            (r#""net":"all""#, r#""net":"All""#, "`net`: invalid value"),
            (r#""net":"all""#, r#""net":["a"]"#, "`net`: invalid type"),
            (r#""net":"all""#, r#""net":{"only":"a"}"#, "`net`: invalid type"),
            (r#""net":"all""#, r#""net":{"only":["http://x"]}"#, "`net.only[0]`: \"http://x\": it is a URL"),
            (r#""net":"all""#, r#""net":{"only":[],"but":[]}"#, "`net`: unknown field `but`"),
            (r#"["git"]"#, r#"["git",""]"#, "`exec.only[1]`: \"\": it is empty"),
            (r#"["git"]"#, r#"["bin/git"]"#, "`exec.only[0]`"),
            (r#"["git"]"#, r#"[7]"#, "`exec.only[0]`: 7: invalid type"),
            (r#"["/work"]"#, r#"["work"]"#, "`fs_write.only[0]`: \"work\": it is not an absolute path"),
            (r#"["/work"]"#, r#"["/work/../etc"]"#, "`fs_write.only[0]`"),
            (r#"{"at_most":20}"#, r#"{"at_most":-1}"#, "`max_calls`"),
            (r#"{"at_most":20}"#, "20", "`max_calls`"),
            (r#""net":"all""#, r#""net":"all","net":"all""#, "stands twice"),
            ("}", "", "not one JSON value"),
        ] {
            let text = GOOD.replacen(old, new, 1);
            assert_ne!(text, GOOD, "{old}");
            let error = json(&text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
        assert_eq!(json("[]"), Err(Error::Shape));
        assert_eq!(json(" \n"), Err(Error::Empty));
        assert!(matches!(json(&" ".repeat(MAX_BYTES + 1)), Err(Error::Large(_))));
    }
}
