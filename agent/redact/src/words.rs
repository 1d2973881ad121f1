//! A name taken to words: of tools, of members in JSON.

/// The words of a tool's name: an `mcp__server__` prefix stripped, split at anything that is not a letter or digit and
/// at camelCase humps, lower case.
pub fn words(name: &str) -> Vec<String> {
    let name = match name.strip_prefix("mcp__").and_then(|rest| rest.split_once("__")) {
        Some((_, tool)) if !tool.is_empty() => tool,
        _ => name,
    };
    let mut words = vec![String::new()];
    let mut previous = ' ';
    let mut chars = name.chars().peekable();
    while let Some(c) = chars.next() {
        let hump = c.is_uppercase() && (previous.is_lowercase() || previous.is_numeric())
            || c.is_uppercase()
                && previous.is_uppercase()
                && chars.peek().is_some_and(|next| next.is_lowercase());
        if hump || !c.is_alphanumeric() {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut() {
            if c.is_ascii_alphanumeric() {
                word.push(c.to_ascii_lowercase());
            } else if c.is_alphanumeric() {
                word.extend(c.to_lowercase());
            }
        }
        previous = c;
    }
    words.retain(|word| !word.is_empty());
    words
}
