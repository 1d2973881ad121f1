//! A generated corpus of accepted scripts, run by the tool and by bash: the same output, status and files.

use crate::support::{PATH, Session, fill};
use std::{
    fs,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Command, Stdio},
};

const SCRIPTS: u64 = 400;

/// Numbers that are the same on every run: xorshift64*.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end
    }

    fn one_of<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }

    fn chance(&mut self, in_ten: usize) -> bool {
        self.below(10) < in_ten
    }
}

/// Words that a shell reads in every way it has. The globs match files that no script makes or removes: ours are
/// expanded before anything runs.
const WORDS: &[&str] = &[
    "plain",
    "with-dash",
    "a=b",
    "1",
    "22",
    "''",
    "\"\"",
    "'single $HOME `x` \\n'",
    "\"double ' $HOME ${LANG} \\$ \\` \\\" \\\\ \\n\"",
    "$HOME",
    "x$HOME",
    "$HOME/y",
    "\"$HOME\"",
    "$TZ",
    "\"$TZ\"",
    "a$TZ'b'\"c\"",
    "${LANG}x",
    "\\*",
    "\\ ",
    "a\\\nb",
    "'multi\nline'",
    "\"multi\nline\"",
    "*.txt",
    "sub/*",
    "s*/c.*",
    "*/",
    "./*.txt",
    "[ab].txt",
    "[!a].txt",
    "[[:lower:]].txt",
    "?.txt",
    "'*.txt'",
    "\"*\".txt",
    "no*match",
    "[",
    "]",
    "{}",
    "{a}",
    "a{b",
    "}",
    "a#b",
    "'#'",
    "$",
    "\"$\"",
    "a$",
    "$/x",
    "é",
    "'é'*",
    "'a b'.txt",
    "'~'x",
    "-",
    "x~",
    "%",
    "@",
    "!",
    "!x",
    "a:b",
    "b,c",
    "=",
    "sub//*.txt",
    ".*x",
    "s?b/?.txt",
    "\"\"x''",
];

const FILES: &[&str] =
    &["a.txt", "b.txt", "sub/c.txt", "./a.txt", "'b.txt'", "a.tx\"t\"", "missing", "sub", "$PWD/b.txt"];

/// Writes scripts. A pipeline that writes a file reads none that was written, and only its last stage writes: otherwise
/// what a shell prints depends on which stage is faster.
struct Writer {
    dice: Dice,
}

impl Writer {
    fn script(&mut self) -> String {
        let mut script = String::new();
        for at in 0..=self.dice.below(4) {
            if at > 0 {
                script += self.dice.one_of(&[
                    "; ",
                    " && ",
                    " || ",
                    "\n",
                    "&&",
                    "||",
                    ";",
                    " &&\n ",
                    "\n\n",
                    " # it's $(so)\n",
                ]);
            }
            script += &self.pipeline();
        }
        if self.dice.chance(2) {
            script += self.dice.one_of(&[";", "\n", " ", " # end", ";\n", "\\\n"]);
        }
        script
    }

    fn pipeline(&mut self) -> String {
        let writes = self.dice.chance(4);
        let mut stages = vec![self.source(writes)];
        for _ in 0..self.dice.below(4) {
            stages.push(self.filter());
        }
        let mut pipeline = stages.join(self.dice.one_of(&[" | ", "|", " |\n"]));
        if writes {
            let file = self.dice.one_of(&[
                "out1",
                "out2",
                "\"out 3\"",
                "over/out4",
                "/dev/null",
                "none/out",
                "$PWD/out1",
            ]);
            let to = self.dice.one_of(&[">", "> ", ">>", ">> ", "1>"]);
            pipeline += &match self.dice.below(4) {
                0 => format!(" {to}{file} 2>&1"),
                1 => format!(" 2>&1 {to}{file}"),
                2 => format!(" 2>{file}"),
                _ => format!(" {to}{file}"),
            };
        }
        pipeline
    }

    fn words(&mut self) -> String {
        let words: Vec<&str> = (0..self.dice.below(5)).map(|_| self.dice.one_of(WORDS)).collect();
        words.join(self.dice.one_of(&[" ", "  ", "\t", " \\\n"]))
    }

    fn file(&mut self, writes: bool) -> &'static str {
        if !writes && self.dice.chance(4) {
            return self.dice.one_of(&["out1", "out2", "'out 3'", "over/out4"]);
        }
        self.dice.one_of(FILES)
    }

    /// Not a directory: a shell would open it, for a program that then cannot read it.
    fn input(&mut self, writes: bool) -> &'static str {
        match self.file(writes) {
            "sub" => "a.txt",
            file => file,
        }
    }

    fn source(&mut self, writes: bool) -> String {
        let quiet = if self.dice.chance(3) { " 2>/dev/null" } else { "" };
        match self.dice.below(16) {
            0..=3 => format!("echo {}", self.words()),
            4..=5 => format!("printf '<%s>\\n' {}", self.words()),
            6 => format!("cat {} {}{quiet}", self.file(writes), self.file(writes)),
            7 => format!("cat <{}", self.input(writes)),
            8 => format!("<{} sort", self.input(writes)),
            9 => format!("seq {}", self.dice.below(2000)),
            10 => format!("ls {}{quiet}", self.file(writes)),
            11 => self
                .dice
                .one_of(&["true", "false", "sh -c 'exit 3'", "sh -c 'echo o; echo e >&2; exit 4'"])
                .into(),
            12 => format!("test -f {}", self.file(writes)),
            13 => format!("[ {} = plain ]", self.dice.one_of(&["plain", "other", "''", "\"$HOME\""])),
            14 => format!(
                "sh -c 'echo o; echo e >&2' {}",
                self.dice.one_of(&["2>&1", ">&2", "2>/dev/null", ">/dev/null 2>&1", "2>&1 >/dev/null"])
            ),
            _ => format!("sh -c 'kill -{} $$'", self.dice.one_of(&["TERM", "KILL", "HUP"])),
        }
    }

    fn filter(&mut self) -> String {
        let filter = self.dice.one_of(&[
            "sort",
            "sort -r",
            "uniq",
            "uniq -c",
            "wc -l",
            "wc -c",
            "head -n 2",
            "head -c 5",
            "tail -n 2",
            "tr a-z A-Z",
            "cut -c1-4",
            "grep a",
            "grep -v a",
            "grep -c 1",
            "cat",
            "cat -",
            "nl",
            "tac",
            "sed 's/a/<&>/g'",
            "true",
            "false",
            "sh -c 'exit 5'",
            "paste - -",
            "fold -w 7",
            "rev",
            "od -c",
            "echo not read",
            "cat <a.txt",
            "cat < missing",
        ]);
        filter.to_owned()
    }
}

/// What a script came to: its output, its status, and every file with its content.
type Result = (String, i32, Vec<(String, Vec<u8>)>);

fn by_bash(dir: &Path, script: &str) -> Result {
    // The programs of these names, not the builtins: they are what the tool runs.
    let script = format!("enable -n echo printf test [ true false pwd kill\n{script}");
    let output = Command::new("bash")
        .args(["--noprofile", "--norc", "-c", &script])
        .env_clear()
        .envs([("PATH", PATH), ("LC_ALL", "C"), ("LANG", "la ng"), ("HOME", "/home/x y*"), ("TZ", "")])
        .current_dir(dir)
        .stdin(Stdio::null())
        .output()
        .expect("bash");
    // The last command of all may have taken bash's place, and its signal.
    let status = output.status.code().or(output.status.signal().map(|signal| 128 + signal)).expect("an end");
    (in_one_voice(&String::from_utf8_lossy(&output.stdout)), status, files(dir))
}

/// A redirect's failure is told by the shell itself: `bash: line 2: x: No such file or directory`.
fn in_one_voice(text: &str) -> String {
    let line = |line: &str| {
        let ours = line.strip_prefix("ringfence: ").and_then(|told| told.rsplit_once(" (os error "));
        let theirs = line.strip_prefix("bash: line ").and_then(|told| told.split_once(": "));
        match (ours, theirs) {
            (Some((told, _)), _) | (_, Some((_, told))) => format!("shell: {told}"),
            _ => line.to_owned(),
        }
    };
    text.split_inclusive('\n')
        .map(|l| l.strip_suffix('\n').map_or_else(|| line(l), |l| line(l) + "\n"))
        .collect()
}

fn by_us(session: &Session, script: &str) -> Result {
    let result = session.script(script);
    let status = result["exit_code"].as_i64().expect("a status") as i32;
    (in_one_voice(result["stdout"].as_str().expect("text")), status, files(&session.dir))
}

fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(dir).expect("below").to_string_lossy().into_owned();
                found.push((name, fs::read(&path).expect("a file")));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn bash_comes_to_the_same() {
    let session = Session::with(|shell| {
        shell.with_variable("HOME", "/home/x y*").with_variable("LANG", "la ng").with_variable("TZ", "")
    });
    let (mut printed, mut failed, mut made) = (0, 0, 0);
    for seed in 1..=SCRIPTS {
        let mut writer = Writer { dice: Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)) };
        let script = writer.script();
        let run = |by: &dyn Fn() -> Result| {
            // The same place for both: some scripts print where they are.
            fs::remove_dir_all(&session.dir).expect("the folder");
            fill(&session.dir);
            by()
        };
        let expected = run(&|| by_bash(&session.dir, &script));
        let ours = run(&|| by_us(&session, &script));
        assert_eq!(ours, expected, "script {seed}:\n{script}");
        printed += usize::from(!expected.0.is_empty());
        failed += usize::from(expected.1 != 0);
        made += usize::from(expected.2.len() > 3);
    }
    // The corpus must not have become one of scripts that do nothing.
    let third = SCRIPTS as usize / 3;
    assert!(printed > third && failed > third / 2 && made > third / 2, "{printed} {failed} {made}");
}
