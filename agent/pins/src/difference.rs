//! What changed between two definitions, for people.

use ringfence_base::difference::unified;
use serde_json::{Map, Value};

/// Most bytes of a difference.
const LONGEST: usize = 64 << 10;

/// The keys that differ, such as `description` and `inputSchema`, sorted. Both texts are definitions' or parts of them.
pub fn parts(old: &str, new: &str) -> Vec<String> {
    let read = |text: &str| serde_json::from_str::<Map<String, Value>>(text).unwrap_or_default();
    let (old, new) = (read(old), read(new));
    let mut keys: Vec<&String> = old.keys().chain(new.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter().filter(|key| old.get(*key) != new.get(*key)).cloned().collect()
}

/// The difference line by line, as `diff -u` shows it. Of two that read the same there is none: a title with the line of a
/// description in it, and both.
pub fn lines(old: &str, new: &str) -> String {
    let (old, new) = (as_text(old), as_text(new));
    let mut text = unified(&old, &new, ("pinned", "now"), 3);
    if text.len() > LONGEST {
        text.truncate(text.floor_char_boundary(LONGEST));
        text.push_str("\n… the rest is too long to be shown\n");
    }
    text
}

/// A definition as text to read and to compare: what is said to the model first, with its own line ends; the rest as JSON.
pub fn as_text(definition: &str) -> String {
    let Ok(Value::Object(mut tool)) = serde_json::from_str(definition) else {
        return format!("{definition}\n");
    };
    tool.remove("name");
    let mut text = String::new();
    for key in ["title", "description"] {
        if let Some(Value::String(said)) = tool.get(key) {
            text += &format!("{key}: {said}\n");
            tool.remove(key);
        }
    }
    if !tool.is_empty() {
        text += &format!("{}\n", serde_json::to_string_pretty(&tool).unwrap_or_default());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_shows_what_changed_and_nothing_else() {
        let old = r#"{"description":"Adds\ntwo numbers","inputSchema":{"type":"object"},"name":"add"}"#;
        let new =
            r#"{"description":"Adds\nnumbers","inputSchema":{"type":"object"},"name":"add","title":"A"}"#;
        assert_eq!(parts(old, new), ["description", "title"]);
        assert_eq!(parts(old, old), Vec::<String>::new());
        let shown = lines(old, new);
        assert!(shown.contains("-two numbers\n") && shown.contains("+numbers\n"), "{shown}");
        assert!(shown.contains("+title: A\n") && !shown.contains("-description"), "{shown}");
        assert_eq!(lines(old, old), "");
        assert!(lines("[", "{").contains('['), "what is no definition is shown as it is");
    }

    #[test]
    fn a_long_difference_is_cut() {
        let definition =
            |word: &str| format!(r#"{{"description":"{}"}}"#, format!("{word}\\n").repeat(40_000));
        let shown = lines(&definition("é1"), &definition("é2"));
        assert!(shown.len() <= LONGEST + 100 && shown.ends_with("too long to be shown\n"));
    }
}
