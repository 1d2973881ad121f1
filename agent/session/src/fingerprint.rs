//! What tells that two calls ask for the same: a hash of the call as it came, secrets included, made where the call itself is.
//! Pure.
//!
//! It is strict rather than clever. Members of `params` and of `arguments` may come in any order, white space between tokens is
//! nothing; everything deeper, numbers and escapes count as they are written. Who writes the same in another way is asked again.

use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Keys of params that say nothing of what is asked for.
const NO_PART: &str = "_meta";

/// Hex SHA-256 of a call's params but for `_meta`. Nothing where they are no object.
pub fn of_params(params: &str) -> Option<String> {
    let mut members: BTreeMap<String, &RawValue> = serde_json::from_str(params).ok()?;
    members.remove(NO_PART);
    let mut hash = Sha256::new();
    for (key, value) in &members {
        begin(&mut hash, key);
        let value = value.get();
        match serde_json::from_str::<BTreeMap<String, &RawValue>>(value) {
            Ok(inner) if key == "arguments" => {
                // How many there are: no member of params can be taken for one of the arguments.
                hash.update((inner.len() as u64).to_le_bytes());
                for (key, value) in &inner {
                    begin(&mut hash, key);
                    text(&mut hash, value.get());
                }
            }
            _ => text(&mut hash, value),
        }
    }
    Some(hex(hash))
}

/// Hex SHA-256 of some texts, each with its length: of two lists that differ the hashes differ.
pub fn of_texts<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let mut hash = Sha256::new();
    texts.into_iter().for_each(|text| begin(&mut hash, text));
    hex(hash)
}

/// A text with its length before it.
fn begin(hash: &mut Sha256, text: &str) {
    hash.update((text.len() as u64).to_le_bytes());
    hash.update(text);
}

/// JSON without the white space between its tokens, with its length behind it.
fn text(hash: &mut Sha256, json: &str) {
    let (mut in_string, mut escaped) = (false, false);
    let (mut from, mut length) = (0, 0u64);
    for (at, byte) in json.bytes().enumerate() {
        if in_string {
            in_string = escaped || byte != b'"';
            escaped = !escaped && byte == b'\\';
        } else if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
            hash.update(&json.as_bytes()[from..at]);
            length += (at - from) as u64;
            from = at + 1;
        } else {
            in_string = byte == b'"';
        }
    }
    hash.update(&json.as_bytes()[from..]);
    length += (json.len() - from) as u64;
    hash.update(length.to_le_bytes());
}

fn hex(hash: Sha256) -> String {
    ringfence_base::hex::of(&hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::{of_params, of_texts};

    fn of(params: &str) -> String {
        of_params(params).expect("an object")
    }

    #[test]
    fn what_asks_for_the_same_has_one_hash() {
        let one = of(r#"{"name":"t","arguments":{"a":1,"b":"x y"}}"#);
        for same in [
            r#" { "arguments" : { "b" : "x y" , "a":1 } , "name" : "t" } "#,
            r#"{"name":"t","arguments":{"a":1,"b":"x y"},"_meta":{"progressToken":7}}"#,
            "{\"name\":\"t\",\"arguments\":\n{\"a\":\t1,\"b\":\"x y\"}}",
        ] {
            assert_eq!(of(same), one, "{same}");
        }
    }

    #[test]
    fn what_differs_in_anything_has_another() {
        let params = [
            r#"{"name":"t","arguments":{"a":1,"b":"x y"}}"#,
            r#"{"name":"t","arguments":{"a":1,"b":"xy"}}"#,
            r#"{"name":"t","arguments":{"a":1.0,"b":"x y"}}"#,
            r#"{"name":"t","arguments":{"a":10000000000000000001,"b":"x y"}}"#,
            r#"{"name":"t","arguments":{"a":10000000000000000002,"b":"x y"}}"#,
            r#"{"name":"t","arguments":{"a":-0,"b":"x y"}}"#,
            r#"{"name":"t","arguments":{"a":0,"b":"x y"}}"#,
            r#"{"name":"u","arguments":{"a":1,"b":"x y"}}"#,
            r#"{"name":"t","arguments":{"a":1,"b":"x y"},"task":{}}"#,
            r#"{"name":"t","arguments":{"a":1}}"#,
            r#"{"name":"t","arguments":{"a":1},"b":"x y"}"#,
            r#"{"name":"t","arguments":{"a":1,"b":"x\" y"}}"#,
            r#"{"name":"t","arguments":{"a":1,"b":"x\\ y"}}"#,
            r#"{"name":"t","arguments":{"a":1,"_meta":1}}"#,
            r#"{"name":"t","arguments":{"a":[1,23]}}"#,
            r#"{"name":"t","arguments":{"a":[12,3]}}"#,
            r#"{"name":"t","arguments":{}}"#,
            r#"{"name":"t"}"#,
            "{}",
        ];
        let mut hashes: Vec<String> = params.iter().map(|params| of(params)).collect();
        assert!(hashes.iter().all(|hash| hash.len() == 64));
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), params.len());
        assert_eq!((of_params("[]"), of_params("1"), of_params("{")), (None, None, None));
    }

    #[test]
    fn texts_have_their_lengths() {
        assert_eq!(of_texts(["a", "b"]), of_texts(["a", "b"]));
        assert_ne!(of_texts(["ab", "c"]), of_texts(["a", "bc"]));
        assert_ne!(of_texts(["a"]), of_texts(["a", ""]));
    }
}
