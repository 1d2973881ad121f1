//! The same command lines with and without shims: the same bytes, the same status.
//!
//! Each runs below a process with the runtime's name, so that the last tool of a line runs as its shim's child and the
//! others are become; limits are so wide that nothing is cut.

use crate::support::{Runner, as_outermost, command, text};
use std::{
    fs,
    path::Path,
    process::Output,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// Tools at the end of a pipe or alone, reading standard input or files.
const FILTERS: [&str; 34] = [
    "cat",
    "cat -A",
    "cat -n",
    "cat -s",
    "tac",
    "nl",
    "nl -ba",
    "od -c",
    "od -An -tx1 -v",
    "wc",
    "wc -l",
    "wc -c",
    "wc -m",
    "sort",
    "sort -r",
    "sort -n",
    "sort -u",
    "sort -k2",
    "uniq",
    "uniq -c",
    "uniq -d",
    "cut -c1-3",
    "cut -d' ' -f2",
    "tr a-z A-Z",
    "tr -d '\\n'",
    "tr -s ' '",
    "head -n 3",
    "head -c 7",
    "tail -n 2",
    "tail -c 5",
    "tail -n +3",
    "sed s/e/E/g",
    "sed -n 2,4p",
    "awk '{print NF, $1}'",
];

/// Files of every sort.
const FILES: [&str; 6] = ["text", "binary", "unicode", "empty", "noend", "numbers"];

/// Searches, each with its own statuses.
const SEARCHES: [&str; 12] = [
    "grep e",
    "grep -v e",
    "grep -c e",
    "grep -n o",
    "grep -q e",
    "grep -E '^[0-9]+$'",
    "grep -F '*'",
    "grep -i ALPHA",
    "grep -o .e",
    "grep nothing-like-it",
    "grep '['",
    "grep -a e",
];

/// Lines of their own kind.
const OTHERS: [&str; 148] = [
    // Statuses and errors.
    "cat nofile",
    "cat text nofile empty",
    "cat text nofile 2>&1",
    "ls nofile",
    "ls nofile text 2>&1 | sort",
    "grep x nofile",
    "head -n x text",
    "sort --no-such-option",
    "cut text",
    "tr",
    "sed",
    "awk",
    "awk 'BEGIN{exit 3}'",
    "wc nofile text",
    "diff text text",
    "diff text noend",
    "diff text nofile",
    "diff <(sort text) <(sort -r text)",
    "find nofile",
    "cat .",
    "false | cat; echo $?",
    "cat nofile | wc -l; echo ${PIPESTATUS[*]}",
    "set -o pipefail; cat nofile | wc -l; echo $?",
    "set -e; grep -q nothing-like-it text; echo not reached",
    "! grep -q e text; echo $?",
    "grep -q e text && echo yes || echo no",
    // Redirects.
    "cat text > out; cat out",
    "cat < text",
    "cat 0< text - < noend",
    "cat text >> out; cat text >> out; wc -l out",
    "cat nofile 2> err; cat err",
    "cat nofile text > out 2>&1; cat out",
    "cat nofile text 2>&1 > out; cat out",
    "cat 3< text <&3",
    "exec 3< text; head -n 1 <&3 >/dev/null; cat /dev/fd/3 | wc -c",
    "cat <&-",
    "ls >&-",
    "cat text >&-",
    "cat text >/dev/full",
    "cat nofile 2>&-",
    "cat <<< 'here string'",
    "cat <<'EOF'\na $x `y`\nEOF",
    "cat /dev/null",
    "{ read -r l; cat; } < text",
    "{ head -n 1; cat; } < text",
    "tee copy < text; cat copy",
    "tee a b < text > c; cat a b c | wc",
    "cat text | tee copy | wc -l; wc -l copy",
    "tee -a copy < text; tee -a copy < text | wc -l; wc -l < copy",
    "sort -o text text; cat text",
    "sed -i s/a/b/ text; cat text",
    "sed -n 'w out' text; cat out",
    "cat text text > out; uniq -c out",
    // Pipes.
    "cat text | cat | cat | cat | cat | cat",
    "yes | head -n 1000 | tail -n 1",
    "yes abc | head -c 100001 | wc -c",
    "seq 1 20000 | sort -r | head -n 3",
    "seq 1 20000 | awk '{s+=$1} END{print s}'",
    "seq 1 100 | tac | sed -n 50p",
    "cat huge | wc -c",
    "cat huge | tail -c 20",
    "cat huge | head -n 1",
    "cat huge",
    "head -c 3000000 huge",
    "tail -n 40000 huge",
    "sort -n huge | tail -n 2",
    "grep -c 7 huge",
    "tac huge | head -n 2; echo ${PIPESTATUS[*]}",
    "cat huge | true; echo ${PIPESTATUS[*]}",
    "(trap '' PIPE; cat huge | true; echo ${PIPESTATUS[*]})",
    "trap '' PIPE; cat huge 2>&1 >/dev/full | head -n 1",
    "cat huge >/dev/null & wait $!; echo $?",
    "head -c 1000000 /dev/zero | od -An -tx1 | uniq -c | head",
    // Binary and odd names.
    "cat binary",
    "cat binary binary | od -c | tail -n 1",
    "head -c 100 binary",
    "tr '\\0' '\\n' < binary",
    "sort binary | wc -c",
    "grep -c '' binary",
    "cat 'a b' 'tab\there' $'line\\nend' '%s%d' -- -dash",
    "ls",
    "ls -1",
    "ls -a",
    "ls -d *",
    "ls -m",
    "ls -Q",
    "ls -b",
    "find . -type f | sort",
    "find . -name '*e*' -type f | sort",
    "find . -print0 | sort -z | tr '\\0' '|'",
    "cat 'ünïcödé'",
    "wc -c -- * 2>&1",
    "head -n 1 -- *",
    "cat ''",
    "cat '' text",
    "echo -n | cat",
    "printf 'a\\0b' | cat",
    "printf '%s\\n' ä ö | sort",
    // Arguments.
    "awk -v x='a\tb\nc%d' 'BEGIN{printf \"%s\", x}'",
    "awk 'BEGIN{print ARGC; for(i in ARGV) print ARGV[i]}' a 'b c' '' | sort",
    "awk 'BEGIN{print ENVIRON[\"X\"]}'",
    "X='y z' awk 'BEGIN{print ENVIRON[\"X\"]}'",
    "sed -e 's/a/\\\n/' text",
    "tr '\\t' ' ' <<< $'a\\tb'",
    "xargs -n 1 <<< 'a b c'",
    "xargs < text",
    "xargs -0 -n 2 < <(printf 'a\\0b c\\0')",
    "xargs -I{} cat {} <<< text",
    "xargs cat <<< nofile",
    "xargs false <<< x; echo $?",
    "xargs sh -c 'exit 255' <<< x; echo $?",
    "xargs no-such-command <<< x; echo $?",
    "xargs -P 2 -n 1 wc -l <<< 'text text'",
    "find . -name text -exec cat {} +",
    "find . -name text -exec grep -c e {} ';'",
    "find . -name '*' -type f -exec wc -c {} + | tail -n 1",
    "LC_ALL=C sort unicode | od -c | tail -n 2",
    "LC_ALL=C wc -m unicode",
    "du --apparent-size -b text",
    "od -An -c <<< ä",
    // Signals and jobs.
    "cat text & wait $!; echo $?",
    "(sed -n '1e kill -TERM $PPID' text); echo $?",
    "(awk 'BEGIN{system(\"kill -9 $PPID\")}'); echo $?",
    "(sed -n '1e kill -HUP $PPID' text | cat); echo ${PIPESTATUS[*]}",
    "trap 'echo trapped' USR1; sed -n \"1e kill -USR1 $$\" text; echo $?",
    "(trap '' TERM; sed -n '1e kill -TERM $PPID' text; echo $?)",
    "timeout 20 cat text",
    "timeout -s KILL 0.3 tail -f /dev/null; echo $?",
    "timeout 0.3 tail -f /dev/null | cat; echo ${PIPESTATUS[*]}",
    "timeout 0.3 tail -f /dev/null; echo $?",
    "nohup cat text 2>/dev/null",
    "nice cat text",
    "env cat text",
    "setsid -w cat text",
    "{ time -p cat text; } 2>/dev/null",
    "(ulimit -f 1; cat huge > out; echo $?)",
    "(ulimit -n 10; cat text)",
    "umask 077; tee new < text >/dev/null; ls -l new | cut -c1-10",
    "(cd sub && cat ../text)",
    "sh -c 'cat text'",
    "sh -c 'exec cat text'",
    "(exec -a another cat nofile)",
    "(exec -a another cat --no-such-option)",
    "eval 'cat text'",
    "x=$(cat text); echo \"$x\"",
    "for f in text noend; do cat $f; done",
    "while read -r l; do grep -c \"$l\" text; done < noend",
    "cat $(echo text)",
];

fn lines() -> Vec<String> {
    let mut lines: Vec<String> = OTHERS.iter().map(|line| (*line).to_owned()).collect();
    for (index, filter) in FILTERS.iter().enumerate() {
        for (number, file) in FILES.iter().enumerate() {
            lines.push(match (index + number) % 3 {
                0 if !filter.starts_with("tr") => format!("{filter} {file}"),
                1 => format!("cat {file} | {filter}"),
                _ => format!("{filter} < {file} | {}", FILTERS[(index * 7 + number) % FILTERS.len()]),
            });
        }
    }
    for search in SEARCHES {
        for file in FILES {
            lines.push(format!("{search} {file}; echo $?"));
        }
        lines.push(format!("cat text unicode | {search} | wc -l"));
        lines.push(format!("{search} text nofile 2>&1 | sort"));
    }
    lines.extend((1..=60).map(|number| {
        format!("seq 1 {number} | head -n {} | tail -n {} | tac", number * 2 / 3 + 1, number % 7)
    }));
    lines
}

/// The same files, with the same names, in another folder.
fn fill(dir: &Path) {
    let file = |name: &str, content: &[u8]| fs::write(dir.join(name), content).unwrap();
    file("text", b"alpha one\nbeta two two\n  gamma three\nalpha one\ndelta*four\nepsilon  five\n");
    file("binary", &(0..=255).cycle().take(2500).collect::<Vec<u8>>());
    file("unicode", "grüße\nпривет мир\n日本語 テキスト\n😀 emoji\ne\u{301}\n".as_bytes());
    file("empty", b"");
    file("noend", b"one\ntwo");
    file("numbers", b"10\n9\n8\n8\n100\n-1\n007\n");
    file(
        "huge",
        (0..60_000).map(|number| format!("{} line\n", number * 7919 % 60_000)).collect::<String>().as_bytes(),
    );
    for name in ["a b", "tab\there", "line\nend", "%s%d", "-dash", "ünïcödé"] {
        file(name, format!("in {name}\n").as_bytes());
    }
    fs::create_dir(dir.join("sub")).unwrap();
}

/// bash says of a job that a signal ended which process it was, padded to five places: `bash: line 1:  1234 Killed`.
fn without_numbers(said: &str) -> String {
    let is_about_a_job = |line: &str| line.starts_with("bash: line 1: ");
    let line = |line: &str| match line.split_once(": ").filter(|_| is_about_a_job(line)) {
        Some((_, rest)) => rest
            .trim_start_matches("line 1: ")
            .trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == ' ')
            .to_owned(),
        None => line.to_owned(),
    };
    said.split_inclusive('\n').map(line).collect()
}

#[test]
fn five_hundred_lines_are_the_same_with_shims() {
    let lines = lines();
    assert!(lines.len() >= 500, "{} lines", lines.len());
    let runner = Runner::start(&[
        "--max-bytes",
        "16777216",
        "--max-lines",
        "1000000000",
        "--binary",
        "show",
        "--spill-bytes",
        "0",
    ]);
    let next = AtomicUsize::new(0);
    let differences = Mutex::new(Vec::new());
    let compare = || {
        while let Some(line) = lines.get(next.fetch_add(1, Ordering::Relaxed)) {
            let run = |with: bool| -> Output {
                let dir = tempfile::tempdir_in(runner.dir.path()).unwrap();
                fill(dir.path());
                let mut bash = if with { runner.command("bash") } else { command("bash") };
                bash.current_dir(dir.path());
                let mut output = as_outermost(bash, line).output().unwrap();
                output.stderr = without_numbers(&text(&output.stderr)).into_bytes();
                output
            };
            let (with, without) = (run(true), run(false));
            if with != without {
                let show = |output: &Output| {
                    let part = |bytes: &[u8]| text(bytes).chars().take(300).collect::<String>();
                    format!("{} | {} | {}", output.status, part(&output.stdout), part(&output.stderr))
                };
                differences.lock().unwrap().push(format!(
                    "{line}\n  with    {}\n  without {}",
                    show(&with),
                    show(&without)
                ));
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(compare);
        }
    });
    let differences = differences.into_inner().unwrap();
    assert!(differences.is_empty(), "{} of {}:\n{}", differences.len(), lines.len(), differences.join("\n"));
    // A comparison of bare tools with bare tools would hold as well.
    let log = fs::read_to_string(runner.at("log")).unwrap();
    assert!(log.lines().filter(|line| line.contains("\"protocol\":2")).count() > lines.len());
    assert!(!log.contains("\"refused\"") && !log.contains("\"cut\":true"));
}
