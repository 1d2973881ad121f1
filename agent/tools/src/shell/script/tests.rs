//! What is read as what, and everything that is refused.

use super::*;
use proptest::prelude::*;

/// A script in a short form: words in brackets, quoted pieces in quotes, variables with their sign.
fn read(text: &str) -> String {
    let script = parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
    let mut out = String::new();
    for pipeline in &script.pipelines {
        out.push_str(match pipeline.when {
            When::Always if out.is_empty() => "",
            When::Always => " ; ",
            When::Success => " && ",
            When::Failure => " || ",
        });
        let commands: Vec<String> = pipeline.commands.iter().map(command).collect();
        out.push_str(&commands.join(" | "));
    }
    out
}

fn command(command: &Command) -> String {
    let mut out: Vec<String> = command.words.iter().map(word).collect();
    out.extend(command.redirects.iter().map(|Redirect { fd, to }| match to {
        Target::Read(file) => format!("{fd}<{}", word(file)),
        Target::Write(file) => format!("{fd}>{}", word(file)),
        Target::Append(file) => format!("{fd}>>{}", word(file)),
        Target::Same(of) => format!("{fd}>&{of}"),
    }));
    out.join(" ")
}

fn word(word: &Word) -> String {
    let piece = |piece: &Piece| match piece {
        Piece::Plain(text) => text.clone(),
        Piece::Quoted(text) => format!("'{text}'"),
        Piece::Variable { name, quoted: true } => format!("\"${name}\""),
        Piece::Variable { name, quoted: false } => format!("${name}"),
    };
    format!("[{}]", word.0.iter().map(piece).collect::<String>())
}

#[test]
fn commands_and_what_connects_them() {
    assert_eq!(read("a b  c"), "[a] [b] [c]");
    assert_eq!(read("a | b|c"), "[a] | [b] | [c]");
    assert_eq!(read("a && b || c; d"), "[a] && [b] || [c] ; [d]");
    assert_eq!(read("a\nb\n\n\nc;\n"), "[a] ; [b] ; [c]");
    assert_eq!(read("a |\n b &&\n\n c"), "[a] | [b] && [c]");
    assert_eq!(read(" # nothing\na # b\n#c \\\nd"), "[a] ; [d]");
    assert_eq!(read("a b#c '#' # d"), "[a] [b#c] ['#']");
    assert_eq!(read("ec\\\nho a\\\n  b &\\\n& c"), "[echo] [a] [b] && [c]");
}

#[test]
fn quotes() {
    assert_eq!(read(r#"a 'b $c `d` "e" \' f"#), r#"[a] ['b $c `d` "e" \'] [f]"#);
    assert_eq!(read(r#"a "b 'c' \$d \` \" \\ \e""#), r#"[a] ['b 'c' $d ` " \ \e']"#);
    assert_eq!(read(r"a \$b \* \\ c\ d \'"), r"[a] ['$'b] ['*'] ['\'] [c' 'd] [''']");
    assert_eq!(read(r#"a '' "" b''c"#), "[a] [''] [''] [b''c]");
    assert_eq!(read("a 'b\nc' \"d\ne\"; f"), "[a] ['b\nc'] ['d\ne'] ; [f]");
    assert_eq!(read("a \"b\\\nc\" b\\"), "[a] ['bc'] [b'\\']");
    assert_eq!(read("a é'ü'"), "[a] [é'ü']");
}

#[test]
fn variables() {
    assert_eq!(read(r#"a $HOME/x "$HOME y" '$HOME'"#), r#"[a] [$HOME/x] [''"$HOME"' y'] ['$HOME']"#);
    assert_eq!(read(r#"a ${LANG}x "${LANG}""#), r#"[a] [$LANGx] [''"$LANG"]"#);
    assert_eq!(read(r#"a $ "$" $/ "$ 5" $% a$"#), "[a] [$] ['$'] [$/] ['$ 5'] [$%] [a$]");
}

#[test]
fn redirects_in_their_order() {
    assert_eq!(read("a >f 2>&1"), "[a] 1>[f] 2>&1");
    assert_eq!(read("a 2>&1 >f"), "[a] 2>&1 1>[f]");
    assert_eq!(read("<i a>>o b 2>>e c"), "[a] [b] [c] 0<[i] 1>>[o] 2>>[e]");
    assert_eq!(read("a 1>o 2>e 0<i >&2"), "[a] 1>[o] 2>[e] 0<[i] 1>&2");
    assert_eq!(read("a b2>o 2 >o '2'>o \\2>o"), "[a] [b2] [2] ['2'] ['2'] 1>[o] 1>[o] 1>[o] 1>[o]");
    assert_eq!(read("a > 'b c' >$HOME/d"), "[a] 1>['b c'] 1>[$HOME/d]");
}

#[test]
fn what_a_shell_would_not_take_for_its_own() {
    for text in [
        "echo {} } { a{b} {a",
        "echo if then done ! [[ time eval cd",
        "echo a=b x~ a=b~ PATH=/x",
        "'if' x",
        "\\time x",
        "[ -f x ]",
        "echo '$(a)' '`b`' '<(c)' '&' '(d)' '*'",
        "echo \"a & (b) ; <c> {d,e} * ~\"",
        "echo '{a,b}' {a'b,c'} {'a,b'}",
        "find . -exec echo {} +",
        "test a = b",
        "echo ] a] [",
        "env A=b c",
    ] {
        parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
    }
}

#[test]
fn everything_else_is_refused_by_its_name() {
    for (text, says) in [
        ("echo $(id)", "command substitution"),
        ("echo \"$(id)\"", "command substitution"),
        ("echo `id`", "command substitution"),
        ("echo \"`id`\"", "command substitution"),
        ("echo $\\\n(id)", "command substitution"),
        ("cat <(id)", "process substitution"),
        ("tee >(id)", "process substitution"),
        ("echo $((1+1))", "arithmetic"),
        ("echo $[1+1]", "arithmetic"),
        ("((1+1))", "arithmetic"),
        ("(id)", "subshell"),
        ("a && (id)", "subshell"),
        ("a b (c)", "subshell"),
        ("{ id; }", "group"),
        ("id &", "background"),
        ("a & b", "background"),
        ("cat <<E\nx\nE", "here-document"),
        ("cat <<-E", "here-document"),
        ("cat <<<x", "here-string"),
        ("f() { id; }", "function"),
        ("function f { id; }", "function"),
        ("if true; then id; fi", "control flow (`if`)"),
        ("a; for x in y; do id; done", "control flow (`for`)"),
        ("while true; do id; done", "control flow"),
        ("case a in a) id;; esac", "control flow"),
        ("[[ a ]]", "control flow"),
        ("time id", "control flow"),
        ("a ;; b", "control flow"),
        ("! id", "negation"),
        ("eval id", "`eval` is a shell's own"),
        ("'eval' id", "`eval` is a shell's own"),
        ("e\\val id", "`eval` is a shell's own"),
        (". x", "`.` is a shell's own"),
        ("a | source x", "`source` is a shell's own"),
        ("exec id", "`exec` is a shell's own"),
        ("cd /", "use the argument `cwd`"),
        ("command id", "name the program itself"),
        ("export A=b", "`export` is a shell's own"),
        ("A=b id", "assignment"),
        ("LD_PRELOAD=/x id", "assignment"),
        ("A+=b", "assignment"),
        ("a[1]=b", "assignment"),
        (">f A=b id", "assignment"),
        ("echo {a,b}", "brace expansion"),
        ("echo {1..3}", "brace expansion"),
        ("echo x{a,'b c'}", "brace expansion"),
        ("echo {a$HOME,b}", "brace expansion"),
        ("cat <{a,b}", "brace expansion"),
        ("echo $'a'", "quote $'"),
        ("echo $\"a\"", "quote $\""),
        ("echo ~", "tilde"),
        ("echo ~root/x", "tilde"),
        ("echo a=~/x", "tilde"),
        ("echo a=b:~/x", "tilde"),
        ("cat <~/x", "tilde"),
        ("echo $?", "parameter expansion `$?`"),
        ("echo $1", "parameter expansion `$1`"),
        ("echo \"$@\"", "parameter expansion `$@`"),
        ("echo $$", "parameter expansion `$$`"),
        ("echo ${A:-b}", "parameter expansion `${`"),
        ("echo ${#A}", "parameter expansion `${`"),
        ("echo ${}", "parameter expansion `${`"),
        ("echo ${A", "parameter expansion `${`"),
        ("a |& b", "redirect `|&`"),
        ("a &> f", "redirect `&>`"),
        ("a >| f", "redirect `>|`"),
        ("a <> f", "redirect `<>`"),
        ("a <&3", "redirect `<&`"),
        ("a >&f", "redirect `>&`"),
        ("a >&-", "redirect `>&`"),
        ("a 2>&3", "redirect `>&`"),
        ("a 3>f", "descriptor `3`"),
        ("a 1<f", "descriptor `1`"),
        ("a 12>f", "descriptor `12`"),
        ("a {x}>f", "descriptor `{x}`"),
        (">f", "redirect without a program"),
        ("a; <f", "redirect without a program"),
        ("*", "glob as the program"),
        ("/bin/l?", "glob as the program"),
        ("a | [ab]c", "glob as the program"),
        ("$HOME/x", "variable as the program"),
        ("\"$SHELL\" -c id", "variable as the program"),
        ("a\n$X", "variable as the program"),
        ("cat <*.c", "glob as the file"),
        ("a > x?", "glob as the file"),
        ("a \0", "NUL"),
    ] {
        match parse(text) {
            Err(ScriptError::Refused { construct, .. }) => {
                assert!(construct.to_string().contains(says), "{text:?}: {construct}");
            }
            other => panic!("{text:?}: {other:?}"),
        }
    }
}

#[test]
fn what_is_no_script_at_all() {
    for (text, says) in [
        ("", "no command"),
        (" \n # a\n", "no command"),
        ("a 'b", "line 1: the quote '"),
        ("a\nb \"c", "line 2: the quote \""),
        ("| a", "line 1: `|`"),
        ("a |", "the end is not expected"),
        ("a &&", "the end is not expected"),
        ("a && && b", "`&&` is not expected"),
        ("a || ; b", "`;` is not expected"),
        ("a\n; b", "line 2: `;`"),
        ("a )", "`)` is not expected"),
        ("a >", "without a file"),
        ("a > ; b", "without a file"),
        ("a > > b", "without a file"),
        ("a >\nb", "without a file"),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(says), "{text:?}: {error}");
    }
}

#[test]
fn too_much_is_an_error_and_not_a_crash() {
    assert!(matches!(parse(&"a".repeat(1 << 20)), Err(ScriptError::TooLong { bytes: 1_048_576 })));
    assert_eq!(parse(&"a\n".repeat(10_000)), Err(ScriptError::TooMany));
    assert_eq!(parse(&"a|".repeat(10_000)), Err(ScriptError::LongPipeline { line: 1 }));
    assert_eq!(parse(&"a;".repeat(MAX_COMMANDS)).unwrap().pipelines.len(), MAX_COMMANDS);
    let open =
        ["$(", "`", "${", "$((", "(", "{ ", "\"$(", "<(", "if ", "'", "\"", "<<a ", "\\\n", "[", "{,", "$'"];
    for open in open {
        let _ = parse(&format!("a {}", open.repeat(MAX_SCRIPT / open.len() - 2)));
    }
}

#[test]
fn the_builtins_are_in_order() {
    for name in ["eval", ".", ":", "wait", "alias", "source"] {
        assert!(is_builtin(name), "{name}");
    }
    for name in ["echo", "test", "[", "kill", "pwd", "printf", "true", "", "evil"] {
        assert!(!is_builtin(name), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever is read, it ends, and what it read has a program in every command and no more than is there.
    #[test]
    fn any_text_is_read_or_refused(text in "([a-c =~/.,0-9]|[|&;<>(){}\\[\\]$`'\"\\\\#!*?\n]|if|eval|HOME|\\PC){0,60}") {
        let Ok(script) = parse(&text) else { return Ok(()) };
        prop_assert!(!script.pipelines.is_empty());
        for command in script.pipelines.iter().flat_map(|pipeline| &pipeline.commands) {
            let program = command.words.first().and_then(Word::text);
            let program = program.expect("a program that can be told without looking");
            prop_assert!(!is_builtin(&program));
            for piece in command.words.iter().flat_map(|word| &word.0) {
                if let Piece::Plain(plain) = piece {
                    prop_assert!(!plain.contains(['`', '\'', '"', '\\', '|', '&', ';', '<', '>', '(', ')', ' ', '\n']));
                }
            }
        }
    }

    /// Any text in single quotes is that text.
    #[test]
    fn single_quotes_keep_everything(text in "[^'\0]{0,40}") {
        let script = parse(&format!("echo '{text}'")).unwrap();
        let words = &script.pipelines[0].commands[0].words;
        prop_assert_eq!(words[1].clone(), Word(vec![Piece::Quoted(text)]));
    }
}
