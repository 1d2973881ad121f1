//! What `ringfence audit verify` tells of intents and rules that somebody else than the auditor wrote.

use super::text;
use ringfence_base::counted::counted;
use ringfence_wire::mcp::COPYING;
use serde_json::Value;

/// Most rows that are told one by one.
const MOST: usize = 100;

/// Rows that somebody else than the auditor wrote, as problems. That they could not be compared is one, too: what else was
/// found is told all the same.
///
/// `rows` asks for them, and gives each to what it is given.
pub(super) fn problems(
    rows: impl FnOnce(&mut dyn FnMut(&Value) -> anyhow::Result<()>) -> anyhow::Result<()>,
) -> Vec<String> {
    let (mut problems, mut more, mut is_whole) = (Vec::new(), 0u64, false);
    let asked = rows(&mut |row| {
        is_whole |= row["end"] == true;
        if row["kind"].is_null() {
            return Ok(());
        }
        if problems.len() < MOST {
            let [kind, id, how] = ["kind", "id", "how"].map(|key| text(row, key));
            problems.push(if how == COPYING {
                "intents and rules cannot be compared yet: the auditor still makes copies of those from before it made any; verify again in a few minutes".to_owned()
            } else {
                format!("{kind} {id}: its row in the database was {how}, and not by the auditor")
            });
        } else {
            more += 1;
        }
        Ok(())
    });
    if more > 0 {
        problems.push(format!("{} of intents and rules more, not by the auditor", counted(more, "row")));
    }
    match asked {
        Err(error) => problems.push(format!("intents and rules could not all be compared: {error:#}")),
        // An auditor of before knows no such table, and has no rows of it.
        Ok(()) if !is_whole => {
            problems.push("intents and rules were not compared: the auditor is an older one".to_owned())
        }
        Ok(()) => {}
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What is told of these rows, if asking then ends so.
    fn told(rows: &[Value], end: anyhow::Result<()>) -> Vec<String> {
        problems(|each| {
            rows.iter().try_for_each(each)?;
            end
        })
    }

    #[test]
    fn nothing_looks_clean_that_was_not_compared() {
        let end = json!({ "_rowid": 9, "end": true });
        assert_eq!(told(&[json!({ "_rowid": 3 }), end.clone()], Ok(())), Vec::<String>::new());
        let row = json!({ "_rowid": 1, "kind": "rule", "id": "x", "how": "changed" });
        let changed = "rule x: its row in the database was changed, and not by the auditor";
        assert_eq!(told(&[row.clone(), end.clone()], Ok(())), [changed]);
        // An older auditor has no rows of a table that it does not know.
        assert!(told(&[], Ok(())).concat().contains("were not compared"));
        // What was found before asking failed is told all the same.
        let failed = told(std::slice::from_ref(&row), Err(anyhow::anyhow!("no answer")));
        assert_eq!(failed[0], changed);
        assert!(
            failed.len() == 2 && failed[1].ends_with("could not all be compared: no answer"),
            "{failed:?}"
        );
        let many: Vec<Value> = std::iter::repeat_n(row, MOST + 7).chain([end]).collect();
        let many = told(&many, Ok(()));
        assert_eq!(many.len(), MOST + 1);
        assert!(
            many.last().is_some_and(|last| last.starts_with("7 rows of intents and rules more")),
            "{many:?}"
        );
    }
}
