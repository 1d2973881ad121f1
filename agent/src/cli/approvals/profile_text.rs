//! A host that is added to the text of a profile: comments, order and layout stay. Pure.

use anyhow::{Context, bail};
use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, Value};

/// Indentation of an entry where none has any.
const INDENT: &str = "    ";

/// The text with one more entry of `grant.net`. `None`: the entry is there.
///
/// # Errors
/// The text has no list there that could be added to: what to write by hand.
pub(super) fn with_host(text: &str, entry: &str) -> anyhow::Result<Option<String>> {
    let mut profile: DocumentMut = text.parse().context("it is no TOML")?;
    let grant = profile.entry("grant").or_insert_with(|| Item::Table(Table::new()));
    let grant = grant.as_table_like_mut().context("its `grant` is no table")?;
    let Some(net) = grant.get_mut("net") else {
        let mut added = InlineTable::new();
        added.insert("add", Value::Array(Array::from_iter([entry])));
        grant.insert("net", Item::Value(Value::InlineTable(added)));
        return Ok(Some(profile.to_string()));
    };
    let Some(net) = net.as_table_like_mut() else {
        bail!("its `grant.net` is {}, and not a list: add {entry:?} by hand", net.to_string().trim());
    };
    let key = if net.contains_key("only") { "only" } else { "add" };
    let Some(list) = net.get_mut(key).and_then(Item::as_array_mut) else {
        bail!("its `grant.net` has no list: add {entry:?} by hand");
    };
    if list.iter().any(|there| there.as_str() == Some(entry)) {
        return Ok(None);
    }
    push(list, entry);
    Ok(Some(profile.to_string()))
}

/// Puts an entry behind the last, on a line of its own where the others are on lines. A comment stays behind what it is about.
fn push(list: &mut Array, entry: &str) {
    let mut trailing = list.trailing().as_str().unwrap_or_default().to_owned();
    let (mut before, is_first) = (String::new(), list.is_empty());
    let ends_in_comma = list.trailing_comma();
    if let Some(last) = list.len().checked_sub(1).and_then(|last| list.get_mut(last)) {
        let decor = last.decor_mut();
        before = decor.prefix().and_then(|prefix| prefix.as_str()).unwrap_or_default().to_owned();
        if !ends_in_comma {
            let suffix = decor.suffix().and_then(|suffix| suffix.as_str()).unwrap_or_default();
            trailing.insert_str(0, suffix);
            decor.set_suffix("");
        }
    }
    let mut value = Value::from(entry);
    if let Some((head, tail)) = trailing.rsplit_once('\n') {
        let indent = before.rsplit_once('\n').map_or(INDENT, |(_, indent)| indent);
        value.decor_mut().set_prefix(format!("{head}\n{indent}"));
        list.set_trailing(format!("\n{tail}"));
        list.set_trailing_comma(true);
    } else {
        value.decor_mut().set_prefix(if is_first { "" } else { " " });
        list.set_trailing(trailing);
    }
    list.push_formatted(value);
}

#[cfg(test)]
mod tests {
    use super::with_host;

    fn added(text: &str) -> String {
        let added = with_host(text, "new.org:443").expect("it can be added").expect("it is not there");
        assert!(with_host(&added, "new.org:443").expect("read again").is_none(), "{added}");
        added
    }

    #[test]
    fn an_entry_is_put_behind_the_others_and_all_else_stays() {
        for (before, after) in [
            ("[grant]\nnet = { only = [] } # none\n", "[grant]\nnet = { only = [\"new.org:443\"] } # none\n"),
            (
                "# top\n[grant]\nexec   = \"all\"\nnet={only=[\"a.org\", 'b.org:80']}\n\n# end\n",
                "# top\n[grant]\nexec   = \"all\"\nnet={only=[\"a.org\", 'b.org:80', \"new.org:443\"]}\n\n# end\n",
            ),
            (
                "[grant]\nnet = { add = [\"a.org\", ] }\n",
                "[grant]\nnet = { add = [\"a.org\", \"new.org:443\", ] }\n",
            ),
            ("grant.net.only = [\"a.org\"]\n", "grant.net.only = [\"a.org\", \"new.org:443\"]\n"),
            ("[grant.net]\nonly = [\"a.org\"]\n", "[grant.net]\nonly = [\"a.org\", \"new.org:443\"]\n"),
            (
                "[grant]\nnet = { only = [\n  # why a\n  \"a.org\", # a\n  \"b.org\", # b\n  # last words\n] }\n",
                "[grant]\nnet = { only = [\n  # why a\n  \"a.org\", # a\n  \"b.org\", # b\n  # last words\n  \"new.org:443\",\n] }\n",
            ),
            (
                "[grant]\nnet = { only = [\n\t\"a.org\",\n\t\"b.org\" # b\n\t] }\n",
                "[grant]\nnet = { only = [\n\t\"a.org\",\n\t\"b.org\", # b\n\t\"new.org:443\",\n\t] }\n",
            ),
            (
                "[grant]\nnet = { only = [\n    # nothing yet\n] }\n",
                "[grant]\nnet = { only = [\n    # nothing yet\n    \"new.org:443\",\n] }\n",
            ),
            (
                "extends = \"coder\" # ours\n\n[net]\nask = true\n",
                "extends = \"coder\" # ours\n\n[net]\nask = true\n\n[grant]\nnet = { add = [\"new.org:443\"] }\n",
            ),
            (
                "[grant]\nexec = { add = [\"git\"] }\n[deny]\nnet = []\n",
                "[grant]\nexec = { add = [\"git\"] }\nnet = { add = [\"new.org:443\"] }\n[deny]\nnet = []\n",
            ),
        ] {
            assert_eq!(added(before), after);
        }
    }

    #[test]
    fn what_has_no_list_is_left_alone_and_said() {
        assert!(
            with_host("[grant]\nnet = { only = [\"new.org:443\"] }\n", "new.org:443")
                .expect("read")
                .is_none()
        );
        for (text, why) in [
            ("[grant]\nnet = \"all\"\n", "\"all\""),
            ("[grant]\nnet = { only = \"all\" }\n", "no list"),
            ("grant = 1\n", "no table"),
            ("grant = [\n", "TOML"),
        ] {
            let error = with_host(text, "new.org:443").expect_err(text);
            assert!(error.to_string().contains(why), "{error}");
        }
    }
}
