//! Telling the auditor, which may hang.

use super::*;
use ringfence_supervise::worker::send_order;
use ringfence_wire::{
    agent::{Answer, ToCore, ToWorker},
    agent_tools::{LONGEST_SEEN, MAX_SEEN, SeenDefinition},
    conn::Conn,
};
use std::{os::fd::OwnedFd, thread};

const LONG: Duration = Duration::from_secs(600);

fn tools() -> Vec<SeenTool> {
    let now = SeenDefinition { sha256: "0".repeat(64), text: None };
    vec![SeenTool { name: "t".into(), now, trusted: None }]
}

/// A line whose supervisor hands over `lines`, one for each time that it is asked; without any it hangs.
fn line(dir: &tempfile::TempDir, lines: Vec<StdStream>) -> ToolsLine {
    let (ours, supervisor) = StdStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let (stop, gone) = (CancellationToken::new(), CancellationToken::new());
    let core = CoreClient::new(UnixStream::from_std(ours).unwrap(), stop, gone);
    thread::spawn(move || {
        let mut conn = Conn::new(supervisor.try_clone().unwrap(), LONG, MAX_SEEN);
        for line in lines {
            let Ok(ToCore::ToolsLine { number }) = conn.receive() else { return };
            let answer = ToWorker::Answer { number, answer: Answer::ToolsLine };
            send_order(&supervisor, &answer, &[OwnedFd::from(line)], &[]).unwrap();
        }
        while conn.receive::<ToCore>().is_ok() {}
    });
    let host = Host::default();
    assert!(host.set(core).is_ok());
    ToolsLine::new(host, Pins::new(dir.path().join("pins.json")))
}

/// The auditor's end of a line, and the worker's.
fn auditor() -> (Conn, StdStream) {
    let (auditor, worker) = StdStream::pair().unwrap();
    let mut auditor = Conn::new(auditor, LONG, MAX_SEEN);
    auditor.send(&McpReply::Linked).unwrap();
    (auditor, worker)
}

fn answer(to: &ToolsSeen) -> ToolsPinned {
    let tool = PinnedTool {
        name: "n".into(),
        sha256: "1".repeat(64),
        parts: Default::default(),
        flagged: false,
        changed: false,
        rejected: false,
    };
    ToolsPinned { number: to.number, server: to.server.clone(), tools: vec![tool] }
}

/// What comes of a list, if that is so at once.
async fn told_at_once(line: &ToolsLine) -> Option<Option<Told>> {
    tokio::select! {
        biased;
        told = line.tell("s", "a", tools()) => Some(told),
        () = async {} => None,
    }
}

#[tokio::test]
async fn a_turn_waits_for_one_that_hangs_once_and_hears_what_it_said_at_last() {
    let dir = tempfile::tempdir().unwrap();
    let (mut auditor, worker) = auditor();
    let line = line(&dir, vec![worker]);
    assert_eq!(line.tell("s", "a", tools()).await, None, "it says nothing");
    assert_eq!(told_at_once(&line).await, Some(None), "nobody waits for it again");
    let news = line.news();
    let (seen, mut auditor) = tokio::task::spawn_blocking(move || {
        let seen: ToolsSeen = auditor.receive().unwrap();
        auditor.send(&answer(&seen)).unwrap();
        (seen, auditor)
    })
    .await
    .unwrap();
    assert_eq!(seen.number, 1);
    while line.news() == news {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // On the same line, which was left whole.
    let answers = tokio::task::spawn_blocking(move || {
        let seen = auditor.receive().unwrap();
        auditor.send(&answer(&seen)).unwrap();
        auditor
    });
    let told = loop {
        if let Some(told) = line.tell("s", "a", tools()).await {
            break told;
        }
    };
    assert_eq!(told["n"].sha256, "1".repeat(64), "the control");
    drop(answers.await.unwrap());
}

#[tokio::test]
async fn a_turn_that_is_cancelled_leaves_the_line_whole_and_the_next_does_not_begin_again() {
    let dir = tempfile::tempdir().unwrap();
    let line = line(&dir, Vec::new());
    assert_eq!(told_at_once(&line).await, None, "it waits, and is cancelled");
    assert_eq!(told_at_once(&line).await, Some(None), "the next goes on without");
    assert_eq!(line.0.telling().len(), 1, "one asks");
}

#[tokio::test]
async fn the_pause_is_the_longer_the_longer_it_took_to_find_out() {
    let dir = tempfile::tempdir().unwrap();
    let line = line(&dir, Vec::new());
    line.0.is_away("x".into(), Duration::from_secs(20));
    let pause = |line: &ToolsLine| line.0.away().as_ref().unwrap().again.1;
    assert_eq!(pause(&line), Duration::from_secs(200));
    line.0.is_away("x".into(), Duration::ZERO);
    assert_eq!(pause(&line), LONGEST_PAUSE);
    *line.0.away() = None;
    line.0.is_away("x".into(), Duration::ZERO);
    assert_eq!(pause(&line), FIRST_PAUSE, "the control");
}

#[test]
fn a_long_list_goes_in_parts_of_which_the_last_says_so() {
    // Of the longest definitions, of which every byte is escaped.
    let text = "\"".repeat(LONGEST_SEEN);
    let definition = || SeenDefinition { sha256: "0".repeat(64), text: Some(text.clone()) };
    let tool = |n: u32| SeenTool { name: n.to_string(), now: definition(), trusted: Some(definition()) };
    let seen = |tools| ToolsSeen { number: 1, server: "s".into(), address: "a".into(), tools, more: false };
    let all = parts(seen((0..5).map(tool).collect()));
    assert!(all.len() > 1 && all.iter().rev().skip(1).all(|part| part.more) && !all.last().unwrap().more);
    for part in &all {
        let frame = serde_json::to_vec(part).unwrap().len();
        assert!(frame < MAX_SEEN, "{frame}");
    }
    let names: Vec<String> = all.into_iter().flat_map(|part| part.tools).map(|tool| tool.name).collect();
    assert_eq!(names, ["0", "1", "2", "3", "4"]);
    assert_eq!(parts(seen(Vec::new())).len(), 1, "an empty list is one, too");
}
