//! What one simple command does, by its program.

mod disks;
mod find;

use super::{
    DEEPEST, Queue, Text, git,
    reader::{self, Command, has_output, is_unknown},
    targets::{Here, is_device, is_wide},
    wrappers::{self, has_any, has_short, inner, is_option, operands, value},
};
use crate::{
    classify,
    deeds::{Deeds, Mark},
    mentions, sensitive,
};
use ringfence_wire::tool_call::Operation;

/// Programs that remove what they are given.
const REMOVERS: &[&str] = &[
    "del",
    "erase",
    "rd",
    "remove-item",
    "ri",
    "rimraf",
    "rm",
    "rmdir",
    "shred",
    "srm",
    "trash",
    "trash-put",
    "truncate",
    "unlink",
    "wipe",
];
/// Programs that make a disk new: what was on it is gone.
const FORMATTERS: &[&str] =
    &["blkdiscard", "diskpart", "fdisk", "format", "lvremove", "parted", "sgdisk", "wipefs"];
/// Programs that remove a user, a group, a database.
const DROPPERS: &[&str] = &["deluser", "delgroup", "dropdb", "dropuser", "groupdel", "userdel"];
/// Programs that stop the machine.
const STOPPERS: &[&str] = &["halt", "killall5", "poweroff", "reboot", "shutdown"];
/// Programs that change who may log in, what runs when, how the system is set.
const SETTERS: &[&str] =
    &["chpasswd", "chsh", "groupadd", "passwd", "sysctl", "useradd", "usermod", "visudo", "at"];
const SHELLS: &[&str] =
    &["sh", "bash", "zsh", "dash", "ksh", "ash", "fish", "csh", "tcsh", "pwsh", "powershell", "cmd"];
/// Interpreters, and the options behind which code stands.
const INTERPRETERS: &[(&str, &[&str])] = &[
    ("python", &["-c"]),
    ("node", &["-e", "--eval", "-p", "--print"]),
    ("bun", &["-e", "--eval"]),
    ("deno", &["eval"]),
    ("ruby", &["-e"]),
    ("perl", &["-e", "-E", "-ne", "-pe"]),
    ("php", &["-r"]),
    ("lua", &["-e"]),
    ("rscript", &["-e"]),
    ("osascript", &["-e"]),
    ("mongosh", &["--eval"]),
    ("mongo", &["--eval"]),
];
/// Clients of databases that take SQL on their command line and as input.
const DATABASES: &[&str] = &[
    "bq",
    "clickhouse",
    "clickhouse-client",
    "cockroach",
    "duckdb",
    "isql",
    "mariadb",
    "mycli",
    "mysql",
    "pgcli",
    "psql",
    "snowsql",
    "sqlcmd",
    "sqlite3",
    "usql",
];
/// Programs that only say or look for their arguments.
const TALKERS: &[&str] = &[
    "echo", "printf", "grep", "egrep", "fgrep", "rg", "ag", "man", "which", "type", "help", "apropos",
    "test", "[", "[[", "for", "select", "case",
];
/// Programs that send to another machine.
const SENDERS: &[&str] = &["scp", "sftp", "ftp", "nc", "ncat", "socat", "telnet", "mail", "sendmail", "mutt"];
/// First words of what command lines of clouds, containers and packages do.
const DESTROYING: &[&str] = &[
    "del",
    "delete",
    "deregister",
    "destroy",
    "drop",
    "erase",
    "flushall",
    "flushdb",
    "prune",
    "purge",
    "rb",
    "remove",
    "rm",
    "rmi",
    "terminate",
    "uninstall",
    "unpublish",
    "unlink",
    "wipe",
];
/// First words of what changes nothing that was there: what stands behind one of them is a name (`cargo test delete`).
const HARMLESS: &[&str] =
    &["add", "bench", "build", "check", "describe", "get", "i", "install", "list", "show", "test", "view"];
/// Programs that read or test, whatever what they are given is called.
const READERS: &[&str] = &[
    "cat", "cmp", "ctest", "diff", "file", "head", "jest", "less", "ls", "mocha", "more", "phpunit",
    "pytest", "rspec", "sed", "sort", "stat", "tail", "tox", "vitest", "wc",
];
/// Programs that run others in containers.
const CONTAINERS: &[&str] =
    &["docker", "docker-compose", "kubectl", "nerdctl", "oc", "podman", "podman-compose"];
/// Words of such a command line that are tried as the program.
const MOST_STARTS: usize = 4;
/// Options of ssh that have a value behind them.
const SSH_VALUED: &str = "BbcDEeFIiJLlmOoPpQRSWw";
/// Words of a command line among which an action is looked for.
const ACTION: usize = 5;

/// What is carried from one command of a script to the next.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    here: Here,
    /// How many command lines that `env -S` made stand in one another.
    made: usize,
}

/// Judges a command. `before`: the one before it in the script.
pub(super) fn judge(
    command: &Command,
    before: Option<&Command>,
    cursor: &mut Cursor,
    queue: &mut Queue,
    deeds: &mut Deeds,
) {
    redirects(command, deeds);
    let (words, around) = inner(&command.words);
    deeds.mark_if(around.root, Mark::Root);
    let [program, arguments @ ..] = words else { return };
    if is_unknown(program) {
        deeds.does(Operation::Execute);
        return deeds.mark(Mark::Unseen);
    }
    if around.shell && program.contains(char::is_whitespace) {
        return queue.put(Text::Script(words.join(" ")));
    }
    let name = wrappers::name(program);
    if name == "env"
        && let Some(line) = wrappers::split_string(arguments)
    {
        return made_by_env(line, around.more, (command, before), cursor, queue, deeds);
    }
    cursor.here = wrappers::moved(&name, arguments, cursor.here);
    if TALKERS.contains(&name.as_str()) {
        return;
    }
    mentioned(&name, arguments, deeds);
    let one = One { name: &name, arguments, more: around.more, command, before, here: cursor.here };
    if !(one.removes(deeds) || one.runs(queue, deeds) || one.sets(deeds) || one.sends(deeds)) {
        one.acts(deeds);
    }
}

/// The command line that `env -S` makes, with all that is around the command: its input, what is piped to it, where it is.
fn made_by_env(
    (value, further): (String, &[String]),
    more: bool,
    (command, before): (&Command, Option<&Command>),
    cursor: &mut Cursor,
    queue: &mut Queue,
    deeds: &mut Deeds,
) {
    let script = reader::read(&value);
    if cursor.made >= DEEPEST || !script.whole {
        queue.full = true;
        return deeds.does(Operation::Execute);
    }
    // What separates commands for a shell separates none here.
    let split = script.commands.into_iter().flat_map(|command| command.words);
    let around = ["xargs", "env"].into_iter().skip(usize::from(!more)).map(str::to_owned);
    let words = around.chain(split).chain(further.iter().cloned()).collect();
    script.texts.into_iter().for_each(|text| queue.put(Text::Script(text)));
    cursor.made += 1;
    judge(&Command { words, ..command.clone() }, before, cursor, queue, deeds);
    cursor.made -= 1;
}

/// What is written, read, emptied by redirects.
fn redirects(command: &Command, deeds: &mut Deeds) {
    let Command { words, written, appended, read, .. } = command;
    for file in written.iter().chain(appended) {
        deeds.does(Operation::Write);
        deeds.mark_if(sensitive::is_started(file), Mark::Settings);
        if is_device(file) {
            deeds.deletes(true);
        }
    }
    // `> file`, and nothing that writes to it.
    let nothing =
        matches!(words.as_slice(), [] | [_]) && words.iter().all(|word| word == ":" || word == "true");
    if nothing && written.iter().any(|file| !file.starts_with("/dev/")) {
        deeds.deletes(false);
    }
    let secret = written.iter().chain(appended).chain(read).any(|file| sensitive::is_secret(file));
    deeds.mark_if(secret, Mark::Credentials);
}

/// Credentials that the arguments name.
fn mentioned(name: &str, arguments: &[String], deeds: &mut Deeds) {
    for word in arguments {
        let path = word.split_once('=').filter(|_| is_option(word)).map_or(word.as_str(), |(_, value)| value);
        // A message, a pattern, a script: no name of a thing.
        let prose = name == "git" || word.contains(char::is_whitespace);
        let named = !prose && mentions::of_text(word).credentials && !is_template(path);
        deeds.mark_if(named || sensitive::is_secret(path), Mark::Credentials);
    }
}

/// Whether words about credentials in it are about none: it is a template.
fn is_template(path: &str) -> bool {
    [".example", ".sample", ".template", ".dist"].iter().any(|end| path.ends_with(end))
}

struct One<'a> {
    name: &'a str,
    arguments: &'a [String],
    /// More arguments come from its input.
    more: bool,
    command: &'a Command,
    before: Option<&'a Command>,
    here: Here,
}

impl One<'_> {
    fn is(&self, names: &[&str]) -> bool {
        names.contains(&self.name)
    }

    /// What removes, overwrites or stops. Whether it was such a program.
    fn removes(&self, deeds: &mut Deeds) -> bool {
        let arguments = self.arguments;
        if self.is(REMOVERS) {
            let recursive = has_short(arguments, &['r', 'R'])
                || has_any(
                    arguments,
                    &["--recursive", "-Recurse", "-recurse", "/s", "/S", "--no-preserve-root"],
                )
                || self.name == "rimraf";
            let wide = has_any(arguments, &["--no-preserve-root"])
                || operands(arguments).any(|target| is_wide(target, self.here) || is_device(target));
            deeds.deletes(wide);
            deeds.mark_if(recursive || self.more, Mark::Bulk);
        } else if self.is(FORMATTERS) || self.name.starts_with("mkfs") || self.name == "mkswap" {
            if !self.shows() {
                deeds.deletes(true);
            }
        } else if self.name == "dd" {
            deeds.does(Operation::Write);
            if arguments.iter().filter_map(|word| word.strip_prefix("of=")).any(is_device) {
                deeds.deletes(true);
            }
        } else if self.is(DROPPERS) {
            deeds.deletes(false);
        } else if self.is(STOPPERS) {
            deeds.does(Operation::Execute);
            deeds.mark(Mark::Stops);
        } else if self.is(&["init", "telinit"]) {
            deeds.mark_if(arguments.iter().any(|level| level == "0" || level == "6"), Mark::Stops);
        } else if self.name == "kill" {
            // `kill -9 -1`: everything.
            let all = arguments.iter().skip(1).any(|target| target == "-1" || target == "1");
            deeds.mark_if(all, Mark::Stops);
        } else if self.is(&["find", "fd", "fdfind"]) {
            self.finds(deeds);
        } else if self.name == "git" {
            git::judge(arguments, deeds);
        } else if self.name == "crontab" {
            if has_short(arguments, &['r']) {
                deeds.deletes(false);
            }
            deeds.mark_if(!has_short(arguments, &['l']), Mark::Settings);
        } else if self.name == "history" && has_short(arguments, &['c']) {
            deeds.deletes(false);
        } else {
            return false;
        }
        true
    }

    /// Whether a program that makes disks new only shows what is on one.
    fn shows(&self) -> bool {
        !self.more && disks::shows(self.name, self.arguments)
    }

    /// What runs other code: shells, interpreters, clients of databases.
    fn runs(&self, queue: &mut Queue, deeds: &mut Deeds) -> bool {
        let arguments = self.arguments;
        if self.is(SHELLS) || self.is(&["su", "runuser"]) {
            self.shell(queue, deeds);
        } else if self.name == "trap" {
            queue.put(Text::Script(operands(arguments).next().unwrap_or_default().to_owned()));
        } else if self.is(&["awk", "gawk", "mawk", "nawk"]) {
            // `system("...")`, `print | "sh"`: everything else that it does is printing.
            let runs = |text: &&str| text.contains("system") || text.contains('|');
            operands(arguments).filter(runs).for_each(|text| queue.put(Text::Code(text.to_owned())));
            return false;
        } else if self.name == "eval" {
            if arguments.iter().any(|word| is_unknown(word)) {
                deeds.mark(Mark::Unseen);
            } else {
                queue.put(Text::Script(arguments.join(" ")));
            }
        } else if self.is(&["source", "."]) {
            deeds.mark_if(arguments.iter().any(|word| is_unknown(word)), Mark::Unseen);
        } else if self.name == "ssh" {
            let remote = behind_host(arguments);
            match self.input().filter(|_| remote.is_empty()) {
                Some(input) => queue.put(Text::Script(input)),
                None if remote.is_empty() => deeds.mark_if(self.command.piped, Mark::Unseen),
                None => queue.put(Text::Script(remote.join(" "))),
            }
        } else if self.is(CONTAINERS)
            && let Some(at) = arguments.iter().position(|word| word == "exec" || word == "run")
        {
            // Which of the words is the container's name depends on options: whatever could be the program is taken for it.
            let starts = arguments.iter().enumerate().skip(at + 1).filter(|(_, word)| could_be_program(word));
            for (at, _) in starts.take(MOST_STARTS) {
                queue.put(Text::Words(arguments.get(at..).unwrap_or_default().to_vec()));
            }
            return false;
        } else if let Some(at) = arguments.iter().position(|word| word == "--")
            && self.is(&["kubectl", "oc", "docker", "podman", "nix", "npm", "pnpm", "yarn", "cargo"])
        {
            queue.put(Text::Words(arguments.get(at + 1..).unwrap_or_default().to_vec()));
            return false;
        } else if let Some((_, options)) =
            INTERPRETERS.iter().find(|(known, _)| is_version_of(self.name, known))
        {
            self.interpreter(options, queue, deeds);
            // An option's value may be an action too: `python manage.py flush`.
            return false;
        } else if self.is(DATABASES) {
            let texts = arguments.iter().filter(|word| word.contains(char::is_whitespace));
            let texts = texts.map(|word| glued(word)).chain(self.input());
            texts.for_each(|text| queue.put(Text::Sql(text)));
        } else {
            return false;
        }
        true
    }

    /// A shell: the script behind `-c`, its input, or what nobody has seen.
    fn shell(&self, queue: &mut Queue, deeds: &mut Deeds) {
        let arguments = self.arguments;
        let flag = arguments.iter().position(|word| {
            let word = word.to_ascii_lowercase();
            matches!(word.as_str(), "/c" | "/k" | "-command" | "-encodedcommand" | "-enc")
                || word.starts_with('-') && !word.starts_with("--") && word.ends_with('c') && word.len() <= 6
        });
        if let Some(at) = flag {
            let script = arguments.get(at + 1).cloned().unwrap_or_default();
            let encoded = arguments.get(at).is_some_and(|word| word.to_ascii_lowercase().starts_with("-enc"));
            deeds.mark_if(is_unknown(&script) || encoded, Mark::Unseen);
            queue.put(Text::Script(if self.is(&["cmd", "powershell", "pwsh"]) {
                arguments.get(at + 1..).unwrap_or_default().join(" ")
            } else {
                script
            }));
            return;
        }
        let file = operands(arguments)
            .next()
            .filter(|_| !self.is(&["su", "runuser"]) && !has_short(arguments, &['s']));
        match (file, self.input()) {
            (Some(file), _) => deeds.mark_if(has_output(file), Mark::Unseen),
            (None, Some(input)) => queue.put(Text::Script(input)),
            (None, None) => deeds.mark_if(self.command.piped, Mark::Unseen),
        }
    }

    fn interpreter(&self, options: &[&str], queue: &mut Queue, deeds: &mut Deeds) {
        let at = self.arguments.iter().position(|word| options.contains(&word.as_str()));
        let behind = at.and_then(|at| self.arguments.get(at + 1)).cloned();
        // `python3 -c"import os; ..."`, `node --eval=...`.
        let code = behind.or_else(|| {
            let texts =
                self.arguments.iter().filter(|word| options.iter().any(|option| word.starts_with(option)));
            texts.map(|word| glued(word)).find(|code| !code.is_empty())
        });
        if let Some(code) = code {
            deeds.mark_if(is_unknown(&code), Mark::Unseen);
            return queue.put(Text::Code(code));
        }
        let file = operands(self.arguments).next();
        match (file, self.input()) {
            (None | Some("-"), Some(input)) => queue.put(Text::Code(input)),
            (None | Some("-"), None) => deeds.mark_if(self.command.piped, Mark::Unseen),
            (Some(file), _) => deeds.mark_if(has_output(file), Mark::Unseen),
        }
    }

    /// Its input, where the script has it: a here-document, or what `echo` says.
    fn input(&self) -> Option<String> {
        if let Some(input) = &self.command.input {
            return Some(input.clone());
        }
        let before = self.before.filter(|_| self.command.piped)?;
        let [program, said @ ..] = before.words.as_slice() else { return None };
        let literal =
            matches!(program.as_str(), "echo" | "printf") && !said.iter().any(|word| has_output(word));
        let said: Vec<&str> = operands(said).collect();
        match (program.as_str(), &before.input) {
            ("cat", Some(input)) => Some(input.clone()),
            _ => literal.then(|| said.join(" ")),
        }
    }

    /// What changes settings, or lets others in.
    fn sets(&self, deeds: &mut Deeds) -> bool {
        let arguments = self.arguments;
        let operand = |index| operands(arguments).nth(index).unwrap_or_default();
        if self.name == "chmod" {
            deeds.does(Operation::Write);
            deeds.mark_if(opens(operand(0)), Mark::Opens);
            deeds.mark_if(has_short(arguments, &['R']) || has_any(arguments, &["--recursive"]), Mark::Bulk);
        } else if self.is(&["chown", "chgrp"]) {
            deeds.does(Operation::Write);
            deeds.mark_if(has_short(arguments, &['R']) || has_any(arguments, &["--recursive"]), Mark::Bulk);
        } else if self.is(&["iptables", "ip6tables", "nft"]) {
            deeds.mark_if(has_any(arguments, &["-F", "--flush", "flush"]), Mark::Opens);
        } else if self.name == "ufw" {
            deeds.mark_if(has_any(arguments, &["disable", "reset"]), Mark::Opens);
        } else if self.name == "setenforce" {
            deeds.mark(Mark::Opens);
        } else if self.name == "systemctl" {
            let stops = ["poweroff", "reboot", "halt", "kexec", "rescue", "emergency"];
            deeds.mark_if(has_any(arguments, &stops), Mark::Stops);
            deeds.mark_if(has_any(arguments, &["enable", "disable", "mask", "edit"]), Mark::Settings);
        } else if self.is(SETTERS) {
            deeds.mark(Mark::Settings);
        } else if self.is(&["cp", "mv", "install", "ln", "tee"])
            || self.name == "sed" && has_short(arguments, &['i'])
        {
            deeds.does(Operation::Write);
            let to = operands(arguments).last().unwrap_or_default();
            let lost =
                self.name == "cp" && operand(0) == "/dev/null" || self.name == "mv" && to == "/dev/null";
            deeds.mark_if(sensitive::is_started(to), Mark::Settings);
            if lost || is_device(to) {
                deeds.deletes(is_device(to));
            }
        } else {
            return false;
        }
        true
    }

    /// What goes over the network.
    fn sends(&self, deeds: &mut Deeds) -> bool {
        let arguments = self.arguments;
        let method = if self.is(&["curl", "gh", "glab", "wget"]) {
            value(arguments, Some('X').filter(|_| self.name != "wget"), &["--request", "--method"])
        } else if self.is(&["http", "https", "xh"]) {
            operands(arguments).next().filter(|word| word.bytes().all(|byte| byte.is_ascii_uppercase()))
        } else if self.is(SENDERS) {
            deeds.mark(Mark::Message);
            return true;
        } else if self.name == "rsync" {
            if arguments.iter().any(|word| word.starts_with("--delete") || word == "--remove-source-files")
                && !has_any(arguments, &["--dry-run"])
                && !has_short(arguments, &['n'])
            {
                deeds.deletes(false);
                deeds.mark(Mark::Bulk);
            }
            deeds.mark_if(operands(arguments).last().is_some_and(|to| to.contains(':')), Mark::Message);
            return true;
        } else {
            return false;
        };
        let words = ringfence_redact::words::words(method.unwrap_or_default());
        let operation = classify::name(&words);
        deeds.does(operation);
        let body = self.is(&["curl"])
            && (has_any(
                arguments,
                &[
                    "--data",
                    "--data-raw",
                    "--data-binary",
                    "--data-urlencode",
                    "--json",
                    "--form",
                    "--upload-file",
                ],
            ) || has_short(arguments, &['d', 'F', 'T']))
            || has_any(arguments, &["--post-data", "--post-file", "--body-data", "--body-file"]);
        deeds.mark_if(body || operation == Operation::Write, Mark::Message);
        // `gh repo delete` is an action as any other.
        !self.is(&["gh", "glab"])
    }

    /// What any other program does: by an action among its first words, as clouds, containers and packages have it.
    fn acts(&self, deeds: &mut Deeds) {
        let arguments = self.arguments;
        if self.is(READERS) {
            return;
        }
        let is_harmless = |word: &&str| HARMLESS.contains(word);
        let actions = operands(arguments).take(ACTION).take_while(|word| !is_harmless(word));
        let action = actions.filter(|word| !word.contains(['.', '/'])).any(|word| {
            let first = word.split(['-', ':']).next().unwrap_or_default();
            !first.is_empty() && DESTROYING.iter().any(|known| first.eq_ignore_ascii_case(known))
        });
        let compose = self.is(&["docker", "podman", "docker-compose"])
            && operands(arguments).any(|word| word == "down")
            && (has_any(arguments, &["--volumes"]) || has_short(arguments, &['v']));
        let terraform = self.is(&["terraform", "tofu"]) && has_any(arguments, &["-destroy", "--destroy"]);
        let sync = self.is(&["aws", "gsutil", "rclone"]) && has_any(arguments, &["--delete"]);
        if action || compose || terraform || sync {
            deeds.deletes(false);
            let many = has_any(arguments, &["--recursive", "--all", "--all-namespaces", "prune", "destroy"])
                || terraform
                || sync;
            deeds.mark_if(many, Mark::Bulk);
        }
    }
}

/// Whether a mode lets everybody write, or whoever runs the file be its owner.
fn opens(mode: &str) -> bool {
    if mode.bytes().all(|byte| byte.is_ascii_digit()) {
        let digit = |back: usize| mode.len().checked_sub(back).and_then(|at| mode.as_bytes().get(at));
        let bits = |back| digit(back).map_or(0, |byte| byte.wrapping_sub(b'0'));
        return bits(1) & 2 != 0 || bits(4) & 6 != 0;
    }
    mode.split(',').any(|clause| {
        let Some(at) = clause.find(['+', '=']) else { return false };
        let (who, what) = clause.split_at(at);
        what.contains('w') && who.contains(['a', 'o']) || what.contains('s')
    })
}

/// `python3.12` is a `python`.
fn is_version_of(name: &str, known: &str) -> bool {
    name.strip_prefix(known)
        .is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'))
}

/// Whether a word names a program that could remove something, or run what does.
fn could_be_program(word: &str) -> bool {
    let name = wrappers::name(word);
    let name = name.as_str();
    [SHELLS, REMOVERS, FORMATTERS, DATABASES].iter().any(|all| all.contains(&name))
        || INTERPRETERS.iter().any(|(known, _)| is_version_of(name, known))
        || matches!(name, "dd" | "find" | "xargs" | "env" | "timeout")
}

/// What ssh runs at its host.
fn behind_host(arguments: &[String]) -> &[String] {
    let mut at = 0;
    while let Some(word) = arguments.get(at).filter(|word| word.starts_with('-')) {
        let valued = word.len() == 2 && word.ends_with(|option| SSH_VALUED.contains(option));
        at += if valued { 2 } else { 1 };
    }
    arguments.get(at + 1..).unwrap_or_default()
}

/// What an option is given in its own word: `-c"SELECT 1"`, `--command=SELECT 1`; another word as it is.
fn glued(word: &str) -> String {
    let value = match word.strip_prefix("--") {
        Some(long) => long.split_once('=').map_or("", |(_, value)| value),
        None if word.starts_with('-') => word.get(2..).unwrap_or_default(),
        None => word,
    };
    value.to_owned()
}
