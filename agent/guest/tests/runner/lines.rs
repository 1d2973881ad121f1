//! What leaves a run is cut, and only that.

use crate::support::{Runner, text};
use std::{fs, path::Path};

fn numbers(last: u32) -> String {
    (1..=last).map(|number| format!("{number}\n")).collect()
}

/// What is shown and the remark.
fn cut(output: &[u8]) -> (String, String) {
    let output = text(output);
    let (shown, remark) = output.split_once("...[truncated]").unwrap_or_else(|| panic!("not cut: {output}"));
    assert!(!remark.contains("...[truncated]"), "said once");
    (shown.to_owned(), remark.to_owned())
}

#[test]
fn the_last_tool_of_a_line_is_cut_and_its_output_is_kept() {
    let runner = Runner::start(&[]);
    runner.file("big", numbers(3000));
    let output = runner.outermost("cat big; echo status $?");
    let (shown, remark) = cut(&output.stdout);
    assert_eq!(shown, numbers(200));
    let (remark, status) = remark.split_once('\n').unwrap();
    assert_eq!((status, text(&output.stderr).as_str()), ("status 0\n", ""));
    assert!(remark.starts_with(" 13893 bytes, 3000 lines in all; all 13893 bytes are in "), "{remark}");
    let path = Path::new(remark.rsplit(' ').next().unwrap());
    assert!(path.starts_with(runner.at("spill")));
    assert_eq!(fs::read_to_string(path).unwrap(), numbers(3000));
    let log = runner.log("cat", 1);
    assert_eq!(
        (&log[0]["bytes"], &log[0]["cut"], &log[0]["status"]),
        (&13893.into(), &true.into(), &0.into())
    );
    assert_eq!(log[0]["spill"], path.to_str().unwrap());
    assert_eq!(
        (&log[0]["args"], &log[0]["cwd"]),
        (&serde_json::json!(["big"]), &runner.work().to_str().unwrap().into())
    );
}

#[test]
fn between_the_stages_of_a_pipe_nothing_is_cut() {
    let runner = Runner::start(&[]);
    runner.file("big", numbers(3000));
    runner.program("work/script.sh", "#!/bin/sh\ncat big\n");
    for (line, expected) in [
        ("cat big | grep -c .", "3000\n"),
        ("cat big | cat | tail -n 1", "3000\n"),
        ("./script.sh | wc -l", "3000\n"),
        ("x=$(cat big); echo ${#x}", "13892\n"),
        ("cat big | while read -r n; do last=$n; done; cat big > copy; wc -c < copy", "13893\n"),
        ("wc -l <(cat big) | cut -d' ' -f1", "3000\n"),
        ("echo big | xargs cat | wc -l", "3000\n"),
        ("find big -exec cat {} + | wc -l", "3000\n"),
        (
            "python3 -c 'import subprocess; print(len(subprocess.check_output([\"cat\", \"big\"])))'",
            "13893\n",
        ),
        (
            "python3 -c 'import subprocess; print(len(subprocess.check_output(\"cat big | sort -n\", shell=True)))'",
            "13893\n",
        ),
    ] {
        let output = runner.outermost(line);
        assert_eq!(text(&output.stdout), expected, "{line}: {}", text(&output.stderr));
    }
}

#[test]
fn the_end_of_the_line_is_found_through_what_stands_between() {
    let runner = Runner::start(&[]);
    runner.file("big", numbers(3000));
    for line in [
        "cat big",
        "cat big | cat",
        "(cat big)",
        "env -i PATH=\"$PATH\" RINGFENCE_TOOLRUNNER_SOCKET=\"$RINGFENCE_TOOLRUNNER_SOCKET\" cat big",
        "sh -c 'cat big; true'",
        "echo big | xargs cat",
        "find big -exec cat {} ';'",
        "python3 -c 'import subprocess; subprocess.run([\"cat\", \"big\"])'",
        "setsid -w cat big",
        "exec cat big",
    ] {
        let (shown, _) = cut(&runner.outermost(line).stdout);
        assert_eq!(shown, numbers(200), "{line}");
    }
}

#[test]
fn a_file_is_never_cut() {
    let runner = Runner::start(&[]);
    runner.file("big", numbers(3000));
    runner.outermost("exec > copy; cat big");
    assert_eq!(fs::read_to_string(runner.work().join("copy")).unwrap(), numbers(3000));
}

#[test]
fn each_and_off_and_the_variable() {
    let each = Runner::start(&["--truncate", "each"]);
    each.file("big", numbers(3000));
    assert_eq!(text(&each.shell("cat big | tail -n +201 | grep -c truncated").stdout), "1\n");
    assert_eq!(each.shell("cat big > copy; head -n 200 copy").stdout, numbers(200).into_bytes());
    let off = Runner::start(&["--truncate", "off"]);
    off.file("big", numbers(3000));
    assert_eq!(text(&off.outermost("cat big").stdout), numbers(3000));
    cut(&off.outermost("RINGFENCE_TRUNCATE=end cat big").stdout);
    let end = Runner::start(&[]);
    end.file("big", numbers(3000));
    assert_eq!(text(&end.outermost("RINGFENCE_TRUNCATE=off cat big").stdout), numbers(3000));
}

#[test]
fn bytes_first_then_lines_on_a_character() {
    let runner = Runner::start(&["--max-bytes", "10", "--max-lines", "3"]);
    runner.file("long", "äöüäöüäöü");
    let (shown, _) = cut(&runner.outermost("cat long").stdout);
    assert_eq!(shown, "äöüäö\n");
    runner.file("odd", "xäöüäöüäöü");
    assert_eq!(cut(&runner.outermost("cat odd").stdout).0, "xäöüä\n");
    runner.file("lines", "1\n2\n3\n4\n");
    assert_eq!(cut(&runner.outermost("cat lines").stdout).0, "1\n2\n3\n");
    runner.file("fits", "1\n2\n3\n");
    assert_eq!(text(&runner.outermost("cat fits").stdout), "1\n2\n3\n");
    runner.file("fits", "ääääää");
    assert_eq!(cut(&runner.outermost("cat fits").stdout).0, "äääää\n");
}

#[test]
fn the_end_or_both_ends_may_be_shown() {
    let tail = Runner::start(&["--keep", "tail", "--max-lines", "4"]);
    tail.file("big", numbers(3000));
    let output = text(&tail.outermost("cat big").stdout);
    assert!(
        output.starts_with("...[truncated]") && output.ends_with(".out\n2997\n2998\n2999\n3000\n"),
        "{output}"
    );
    let both = Runner::start(&["--keep", "both", "--max-lines", "4"]);
    both.file("big", numbers(3000));
    let output = text(&both.outermost("cat big").stdout);
    assert!(output.starts_with("1\n2\n...[truncated]") && output.ends_with(".out\n2999\n3000\n"), "{output}");
}

#[test]
fn binary_output_is_named() {
    let runner = Runner::start(&[]);
    let bytes: Vec<u8> = (0..=255).cycle().take(3000).collect();
    runner.file("binary", &bytes);
    let output = text(&runner.outermost("cat binary").stdout);
    let path =
        output.trim_end().strip_prefix("...[binary output] 3000 bytes, not shown; all 3000 bytes are in ");
    assert_eq!(fs::read(path.unwrap_or_else(|| panic!("{output}"))).unwrap(), bytes);
    let shown = Runner::start(&["--binary", "show"]);
    shown.file("binary", &bytes);
    assert_eq!(shown.outermost("cat binary").stdout, bytes);
}

#[test]
fn errors_are_cut_too_and_stay_in_order_with_what_they_are_about() {
    let runner = Runner::start(&["--max-lines", "5"]);
    let many = "$(seq -f none%g 1 40)";
    let output = runner.outermost(&format!("cat {many}; echo $?"));
    let (shown, remark) = cut(&output.stderr);
    assert_eq!((shown.lines().count(), text(&output.stdout).as_str()), (5, "1\n"));
    assert!(remark.contains(" 40 lines in all"), "{remark}");
    runner.file("a", "a\n");
    let together = runner.outermost("cat a none a none 2>&1");
    let expected = "a\ncat: none: No such file or directory\na\ncat: none: No such file or directory\n";
    assert_eq!(text(&together.stdout), expected);
    let (shown, _) = cut(&runner.outermost("cat a none a none a a a 2>&1").stdout);
    assert_eq!(shown, format!("{expected}a\n"));
}

#[test]
fn what_does_not_fit_the_spill_file_is_counted() {
    let runner = Runner::start(&["--spill-bytes", "5000"]);
    runner.file("big", numbers(3000));
    let (_, remark) = cut(&runner.outermost("cat big").stdout);
    assert!(remark.contains("13893 bytes, 3000 lines in all; the first 5000 bytes are in "), "{remark}");
    let none = Runner::start(&["--spill-bytes", "0"]);
    none.file("big", numbers(3000));
    assert!(cut(&none.outermost("cat big").stdout).1.ends_with("; not kept\n"));
}

#[test]
fn output_shows_as_it_comes() {
    let runner = Runner::start(&[]);
    let script = "mkfifo gate; (echo early; cat gate; echo late) | cat";
    let mut bash = crate::support::as_outermost(runner.command("bash"), script);
    let mut child = bash.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    assert_eq!(lines.next().unwrap().unwrap(), "early");
    fs::write(runner.work().join("gate"), "middle\n").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "middle");
    assert_eq!(lines.next().unwrap().unwrap(), "late");
    assert!(child.wait().unwrap().success());
}
