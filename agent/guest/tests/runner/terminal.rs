//! A run whose output is a terminal: the tool goes on seeing one.

use crate::support::{PATIENCE, Runner, as_outermost, command, text};
use rustix::{
    fs::{Mode, OFlags},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use std::{fs::File, io::Read, process::Command, sync::mpsc, thread};

/// All that a command prints to a terminal of 60 columns.
fn on_terminal(mut command: Command) -> String {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap();
    let theirs =
        rustix::fs::open(name.as_c_str(), OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty());
    let theirs = theirs.unwrap();
    tcsetwinsize(&theirs, Winsize { ws_row: 24, ws_col: 60, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    command.stdout(theirs.try_clone().unwrap()).stderr(theirs);
    let mut child = command.spawn().unwrap();
    // The command has the terminal's descriptors too.
    drop(command);
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let (mut file, mut all, mut chunk) = (File::from(ours), Vec::new(), [0; 4096]);
        // It ends with an error when nobody has the terminal open any more.
        while let Ok(count) = file.read(&mut chunk) {
            all.extend_from_slice(&chunk[..count]);
        }
        send.send(all).unwrap();
    });
    let all = receive.recv_timeout(PATIENCE).expect("the terminal is closed at the end");
    child.wait().unwrap();
    text(&all)
}

#[test]
fn columns_and_colours_stay_and_long_output_is_cut() {
    let runner = Runner::start(&["--max-lines", "20"]);
    for number in 0..12 {
        runner.file(&format!("file{number:02}"), "x");
    }
    let script =
        "ls --color=auto; ls -d file00 >/dev/null; grep --color=auto x file00; test -t 1 && echo terminal";
    let with = on_terminal(as_outermost(runner.command("bash"), script));
    let mut bare = command("bash");
    bare.current_dir(runner.work());
    let without = on_terminal(as_outermost(bare, script));
    assert_eq!(with, without);
    assert!(
        with.lines().next().unwrap().contains("file00") && with.lines().next().unwrap().contains("file02"),
        "{with}"
    );
    let log = runner.log("ls", 2);
    assert!(log.iter().any(|run| run["bytes"].as_u64() > Some(0)), "the first ran as a child: {log:?}");

    runner.file("big", (1..=100).map(|number| format!("{number}\n")).collect::<String>());
    let long = on_terminal(as_outermost(runner.command("bash"), "cat big"));
    assert!(long.contains("19\r\n20\r\n...[truncated] 292 bytes, 100 lines in all"), "{long}");
    assert_eq!(on_terminal(as_outermost(runner.command("bash"), "cat big | wc -l")), "100\r\n");
}
