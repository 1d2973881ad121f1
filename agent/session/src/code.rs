//! What code in other languages destroys, as far as the calls in it tell. No language is parsed: names before brackets are
//! looked for, and texts that they are given.

use super::deeds::Deeds;
use ringfence_wire::tool_call::Operation;

/// Longest code that is looked at, bytes; of what is longer, its beginning.
const LONGEST: usize = 256 * 1024;
/// Most commands that are taken out of it.
const MOST_SHELLS: usize = 64;
/// Most texts of one command.
const MOST_WORDS: usize = 64;

/// Functions and methods that remove what they are given, or what they belong to.
const DESTROYING: &[&str] = &[
    "clear",
    "deleteMany",
    "deleteOne",
    "delete",
    "delete_file",
    "destroy",
    "drop",
    "dropDatabase",
    "emptyDir",
    "remove",
    "removeItem",
    "removeSync",
    "remove_dir_all",
    "removedirs",
    "rimraf",
    "rm",
    "rmSync",
    "rm_r",
    "rm_rf",
    "rmdir",
    "rmdirSync",
    "rmtree",
    "truncate",
    "truncateSync",
    "unlink",
    "unlinkSync",
];
/// The same, where only this stands before the dot: on lists and sets they destroy nothing that lasts.
const OF: &[(&str, &[&str])] = &[
    ("clear", &["localStorage", "sessionStorage"]),
    ("remove", &["os", "fs", "Dir", "FileUtils"]),
    (
        "delete",
        &["File", "Dir", "request", "axios", "requests", "http", "client", "session", "api", "fs", "got"],
    ),
    ("drop", &["db", "collection"]),
];
/// The same of those that these end, and nothing that lasts. Not of names that code gives to what lasts, too: a `server` of a
/// cloud, a `client` of a shop, `this` of a model.
const ENDED: &[(&str, &[&str])] =
    &[("destroy", &["chart", "editor", "pool", "proxy", "req", "res", "socket", "stream", "widget"])];
/// Functions that give a text to a shell, or its words to a program.
const SHELLS: &[&str] = &[
    "Popen",
    "call",
    "check_call",
    "check_output",
    "exec",
    "execFile",
    "execFileSync",
    "execSync",
    "getoutput",
    "popen",
    "run",
    "shell_exec",
    "spawn",
    "spawnSync",
    "system",
];

/// What code gives to a shell, or to a program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Shell {
    /// One text.
    Script(String),
    /// Words.
    Words(Vec<String>),
}

/// Judges code; gives the commands that it runs.
pub(crate) fn judge(text: &str, deeds: &mut Deeds) -> Vec<Shell> {
    deeds.does(Operation::Execute);
    let mut end = text.len().min(LONGEST);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut reader = Reader { rest: text.get(..end).unwrap_or_default(), ..Reader::default() };
    while reader.step(deeds) {}
    reader.found
}

#[derive(Default)]
struct Reader<'a> {
    rest: &'a str,
    /// The last name, and what stood before its dot.
    name: &'a str,
    owner: &'a str,
    dot: bool,
    /// The texts that a function gets which starts programs; none: nobody gets any.
    texts: Option<Vec<String>>,
    /// The text before this one was a key of an object: `method`.
    method: bool,
    found: Vec<Shell>,
}

impl<'a> Reader<'a> {
    /// Takes a name, a text or a character; `false` at the end.
    fn step(&mut self, deeds: &mut Deeds) -> bool {
        let Some(c) = self.rest.chars().next() else {
            self.end();
            return false;
        };
        if c.is_alphabetic() || matches!(c, '_' | '$') {
            let end = self.rest.find(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '$')));
            let (name, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
            (self.owner, self.name, self.rest) = (if self.dot { self.name } else { "" }, name, rest);
            self.dot = false;
            self.method |= name.eq_ignore_ascii_case("method");
            // `unlink "a"`, `File.delete "a"`: languages that need no brackets.
            let bare = rest.starts_with([' ', '\t']) && rest.trim_start().starts_with(['"', '\'']);
            if bare && matches!(name, "unlink" | "rmtree" | "rm_rf" | "system") {
                self.called(deeds);
            }
            return true;
        }
        self.rest = self.rest.get(c.len_utf8()..).unwrap_or_default();
        match c {
            '"' | '\'' | '`' => self.text(c, deeds),
            '.' => self.dot = true,
            '(' => self.called(deeds),
            ')' | ';' | '\n' => {
                if c != '\n' {
                    self.end();
                }
                (self.name, self.owner, self.dot, self.method) = ("", "", false, false);
            }
            // `require('fs').rm`: the owner is what a call gave.
            ' ' | '\t' | ':' | '=' | '!' => {}
            _ => {
                self.dot = false;
                self.method = false;
            }
        }
        true
    }

    /// At the bracket behind a name.
    fn called(&mut self, deeds: &mut Deeds) {
        let (name, owner) = (self.name, self.owner);
        let of = OF.iter().find(|(known, _)| *known == name);
        let is_ended = ENDED.iter().any(|(known, owners)| *known == name && owners.contains(&owner));
        if DESTROYING.contains(&name) && of.is_none_or(|(_, owners)| owners.contains(&owner)) && !is_ended {
            deeds.does(Operation::Delete);
        } else if SHELLS.contains(&name) && self.texts.is_none() {
            self.texts = Some(Vec::new());
        }
        self.name = "";
    }

    /// A text, its first quote taken.
    fn text(&mut self, quote: char, deeds: &mut Deeds) {
        let mut text = String::new();
        let mut chars = self.rest.char_indices();
        let mut end = self.rest.len();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => match chars.next() {
                    Some((_, 'n')) => text.push('\n'),
                    Some((_, c)) => text.push(c),
                    None => {}
                },
                c if c == quote => {
                    end = at + c.len_utf8();
                    break;
                }
                c => text.push(c),
            }
        }
        self.rest = self.rest.get(end..).unwrap_or_default();
        if std::mem::take(&mut self.method) && text.eq_ignore_ascii_case("delete") {
            deeds.does(Operation::Delete);
        }
        // `{"method": "DELETE"}`: the key is a text as well.
        self.method = text.eq_ignore_ascii_case("method");
        if let Some(texts) = &mut self.texts
            && texts.len() < MOST_WORDS
        {
            texts.push(text);
        }
    }

    /// What a function got which starts programs.
    fn end(&mut self) {
        let Some(mut texts) = self.texts.take() else { return };
        if self.found.len() >= MOST_SHELLS || texts.is_empty() {
            return;
        }
        self.found.push(match texts.as_mut_slice() {
            [one] => Shell::Script(std::mem::take(one)),
            _ => Shell::Words(texts),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{Shell, judge};
    use crate::deeds::Deeds;
    use ringfence_wire::tool_call::Operation;

    fn operation(text: &str) -> Operation {
        let mut deeds = Deeds::NONE;
        judge(text, &mut deeds);
        deeds.operation
    }

    #[test]
    fn calls_that_destroy() {
        for text in [
            "import shutil\nshutil.rmtree('a')",
            "os.remove(path)",
            "Path('a').unlink()",
            "require('fs').rmSync('a', {recursive: true})",
            "await fs.promises.rm(dir)",
            "db.users.deleteMany({})",
            "db.dropDatabase()",
            "localStorage.clear()",
            "fetch(url, {method: 'DELETE'})",
            "requests.request(url, **{\"method\": \"delete\"})",
            "await page.request.delete('/a')",
            "unlink \"a.txt\"",
            "File.delete('a')",
            "await user.destroy()",
            "server.destroy()",
            "await this.destroy()",
            "client.destroy()",
            "connection.destroy()",
            "conn.destroy()",
            "agent.destroy()",
            "request.destroy()",
            "view.destroy()",
            "worker.destroy()",
            "response.destroy()",
        ] {
            assert_eq!(operation(text), Operation::Delete, "{text}");
        }
    }

    #[test]
    fn and_calls_that_do_not() {
        for text in [
            "print(1)",
            "items.remove(3)",
            "s.clear()",
            "map.delete(key)",
            "socket.destroy()",
            "res.destroy()",
            "'os.remove(x)'",
            "remove",
            "// rm",
        ] {
            assert_eq!(operation(text), Operation::Execute, "{text}");
        }
    }

    #[test]
    fn commands_that_it_runs() {
        let found = |text| {
            let mut deeds = Deeds::NONE;
            judge(text, &mut deeds)
        };
        assert_eq!(found("os.system('rm -rf a')"), [Shell::Script("rm -rf a".into())]);
        assert_eq!(
            found("subprocess.run(['rm', '-rf', 'a'])"),
            [Shell::Words(["rm", "-rf", "a"].map(Into::into).into())]
        );
        assert_eq!(found("execSync(\"a \\\"b\\\"\")"), [Shell::Script("a \"b\"".into())]);
        assert_eq!(found("print('rm')"), []);
    }

    #[test]
    fn hostile_code_takes_no_longer_than_it_is() {
        for text in
            ["run('a',".repeat(100_000), "'".repeat(500_000), "é".repeat(300_000), "(".repeat(500_000)]
        {
            let mut deeds = Deeds::NONE;
            assert!(judge(&text, &mut deeds).len() <= 64);
        }
    }
}
