//! What may be changed in a rule, by whom, and what the ledger has of it.

use super::{Changed, Viewer};
use crate::{SessionReader, SessionWriter};
use ringfence_session::ledger::{ChangedRule, Entry, Ledger, Moved, Row};
use ringfence_wire::mcp::{Conditions, RuleChange, StoredRule};

const BY: (&str, bool) = ("somebody", false);

fn rule(name: &str, action: &str) -> StoredRule {
    let conditions = Conditions { tool_pattern: Some("x_*".into()), ..Conditions::default() };
    StoredRule {
        name: name.into(),
        description: String::new(),
        conditions,
        action: action.into(),
        exception: None,
    }
}

struct Scene {
    folder: tempfile::TempDir,
    writer: SessionWriter,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let writer = SessionWriter::new(folder.path().join("audit.db"), None);
        Self { folder, writer }
    }

    fn add(&mut self, uid: u32, name: &str) -> String {
        self.writer.add_rule(uid, &rule(name, "pause"), 1).expect("stored").expect("new")
    }

    fn change(&mut self, viewer: u32, change: &RuleChange, agreed: bool) -> Changed {
        self.writer.change_rule(Viewer(viewer), change, ("somebody", agreed), 2).expect("asked")
    }

    fn reader(&self) -> SessionReader {
        SessionReader::open(&self.folder.path().join("audit.db")).expect("opens")
    }

    fn names(&self, viewer: u32) -> Vec<String> {
        let rows = self.reader().rules(Viewer(viewer)).expect("reads");
        rows.iter().map(|row| row["name"].as_str().expect("a name").to_owned()).collect()
    }

    /// What a user's ledger says of rules, and that it is whole.
    fn ledger(&mut self, uid: u32) -> Vec<ChangedRule> {
        let rows = self.writer.unpublished(1000).expect("reads");
        let rows: Vec<Row> = rows.into_iter().filter(|row| row.uid == uid).collect();
        Ledger::read(&rows).expect("whole");
        let entries = rows.iter().map(|row| serde_json::from_str(&row.entry).expect("an entry"));
        entries
            .filter_map(|entry| match entry {
                Entry::Rule(rule) => Some(*rule),
                _ => None,
            })
            .collect()
    }
}

#[test]
fn every_change_is_made_once_and_is_in_the_ledger_with_what_was_before() {
    let mut scene = Scene::new();
    let id = scene.add(5, "a");
    let done = Changed::Done { id: id.clone(), uid: 5 };
    let edit = RuleChange::Edit { id: id.clone(), version: 1, rule: rule("a", "block") };
    assert_eq!(scene.change(5, &edit, false), done);
    // Whoever looked at the first version is told, and nothing is lost.
    let late = RuleChange::Edit { id: id.clone(), version: 1, rule: rule("a", "flag") };
    assert_eq!(scene.change(5, &late, true), Changed::Stale { by: "somebody".into() });
    assert_eq!(scene.reader().stored_rules(5).expect("reads"), [rule("a", "block")]);
    let off = |version| RuleChange::Switch { id: id.clone(), version, enabled: false };
    assert_eq!(scene.change(5, &off(2), true), done);
    assert_eq!(scene.change(5, &off(3), true), Changed::Same { id: id.clone(), uid: 5 });
    assert!(scene.reader().stored_rules(5).expect("reads").is_empty());
    let on = RuleChange::Switch { id: id.clone(), version: 3, enabled: true };
    assert_eq!(scene.change(5, &on, false), done, "what tightens needs nobody's word");
    let delete = RuleChange::Delete { id: id.clone(), version: 4 };
    assert_eq!(scene.change(5, &delete, true), done);
    assert_eq!(scene.change(5, &delete, true), Changed::Unknown);
    let told = scene.ledger(5);
    let words: Vec<&str> = told.iter().map(|entry| entry.change.as_str()).collect();
    assert_eq!(words, ["add", "edit", "disable", "enable", "delete"]);
    assert!(told.iter().all(|entry| entry.id == id));
    assert!(told[0].before.is_none() && told[4].after.is_none());
    assert!(
        told.windows(2).all(|pair| pair[0].after == pair[1].before),
        "each begins where the last one ended"
    );
    let before = told[1].before.as_ref().expect("a rule");
    assert_eq!((before.version, before.place, &before.rule), (1, 1, &rule("a", "pause")));
    assert_eq!((told[1].by.as_str(), told[1].at), (BY.0, 2));
}

#[test]
fn what_loosens_a_rule_needs_a_word() {
    let mut scene = Scene::new();
    let id = scene.add(5, "a");
    let delete = RuleChange::Delete { id: id.clone(), version: 1 };
    let off = RuleChange::Switch { id: id.clone(), version: 1, enabled: false };
    let milder = RuleChange::Edit { id: id.clone(), version: 1, rule: rule("a", "flag") };
    let mut narrow = rule("a", "pause");
    narrow.conditions.min_risk_score = 50;
    let narrower = RuleChange::Edit { id: id.clone(), version: 1, rule: narrow };
    for change in [&delete, &off, &milder, &narrower] {
        assert_eq!(scene.change(5, change, false), Changed::Loosens("a".into()), "{change:?}");
    }
    assert_eq!(scene.ledger(5).len(), 1, "nothing was done");
    // One that is in force nowhere, as no rule can be like that: it makes up for nothing.
    let broken = scene.add(5, "broken");
    let connection = scene.writer.connection().expect("open");
    connection
        .execute(
            "UPDATE policy_rules SET tool_pattern = NULL, operation_types = 'read,fly' WHERE id = ?1",
            [broken],
        )
        .and_then(|_| {
            connection.execute("UPDATE policy_rules SET operation_types = 'read' WHERE id = ?1", [&id])
        })
        .expect("changed");
    assert_eq!(scene.change(5, &delete, false), Changed::Loosens("a".into()));
    // Another rule that asks for as much of the same calls: nothing is looser without this one.
    scene.add(5, "b");
    assert_eq!(scene.change(5, &delete, false), Changed::Done { id, uid: 5 });
}

#[test]
fn rules_are_moved_among_their_owners() {
    let mut scene = Scene::new();
    let ids: Vec<String> = ["a", "b", "c"].iter().map(|name| scene.add(5, name)).collect();
    let of_root = scene.add(0, "root");
    scene.add(6, "others");
    assert_eq!(scene.names(5), ["root", "a", "b", "c"]);
    let to = |id: &str, version, place| RuleChange::Move { id: id.into(), version, place };
    let moved = |id: &str| Changed::Done { id: id.into(), uid: 5 };
    assert_eq!(scene.change(5, &to(&ids[2], 1, 1), false), moved(&ids[2]));
    assert_eq!(scene.names(5), ["root", "c", "a", "b"]);
    assert_eq!(scene.change(5, &to(&ids[2], 2, 99), false), moved(&ids[2]));
    assert_eq!(scene.names(5), ["root", "a", "b", "c"]);
    let stored = scene.reader().stored_rules(5).expect("reads");
    assert_eq!(stored.iter().map(|rule| rule.name.as_str()).collect::<Vec<_>>(), ["root", "a", "b", "c"]);
    let told = scene.ledger(5);
    let places: Vec<_> = told.iter().filter_map(|entry| Some(entry.after.as_ref()?.place)).collect();
    assert_eq!(places, [1, 2, 3]);
    let moves: Vec<_> = told.iter().filter_map(|entry| entry.moved.clone()).collect();
    let to = |version, from, to| Moved { name: "c".into(), version, from, to };
    assert_eq!(moves, [to(2, 3, 1), to(3, 1, 3)]);
    assert!(
        told[3..].iter().all(|entry| entry.before.is_none() && entry.after.is_none()),
        "the rule's texts are in the ledger already"
    );
    let to = |id: &str, version, place| RuleChange::Move { id: id.into(), version, place };
    // Whose is whose.
    assert_eq!(scene.change(5, &to(&of_root, 1, 1), false), Changed::NotYours);
    assert_eq!(scene.change(6, &to(&ids[0], 1, 2), false), Changed::Unknown);
    assert_eq!(scene.change(0, &to(&ids[0], 1, 2), false), moved(&ids[0]), "root may");
    assert_eq!(scene.ledger(5).len(), 6, "in the ledger of whose rule it is");
    let renamed = RuleChange::Edit { id: ids[1].clone(), version: 1, rule: rule("z", "block") };
    assert_eq!(scene.change(5, &renamed, true), Changed::Renamed);
}
