//! Tags: asked for where they are offered, and never in the way of a tool.

use crate::daemon::{Peer, Scene, results};
use serde_json::{Value, json};
use std::{
    fs,
    os::fd::{AsRawFd, OwnedFd},
    time::{Duration, Instant},
};

/// Offers tags with some calls.
fn offer(peer: &mut Peer, turn: &Value, ids: &[&str]) {
    let calls: Vec<Value> = ids
        .iter()
        .map(|id| json!({"id": id, "name": "bash", "input": {"command": format!("echo {id}; touch {id}")}}))
        .collect();
    peer.answer(turn, &json!({"stop_reason": "tool_use", "content": [], "tool_calls": calls, "tags": true}));
}

fn grant(peer: &mut Peer, tag: &Value) {
    peer.answer(tag, &json!({"tagged": true}));
}

fn pid_of(pidfd: &OwnedFd) -> i32 {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).unwrap();
    info.lines().find_map(|line| line.strip_prefix("Pid:")).unwrap().trim().parse().unwrap()
}

#[test]
fn each_call_s_process_is_offered_before_it_does_anything() {
    let (scene, mut peer) = Scene::with_daemon(&[]);
    peer.human("Go");
    let turn = peer.receive();
    offer(&mut peer, &turn, &["a", "b", "c"]);
    let mut pids = Vec::new();
    for id in ["a", "b", "c"] {
        let (tag, descriptors) = peer.receive_with_descriptors();
        assert_eq!((&tag["method"], &tag["params"]), (&json!("tag"), &json!({"call": id})));
        let [pidfd] = descriptors.as_slice() else { panic!("{descriptors:?}") };
        let pid = pid_of(pidfd);
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        assert!(status.contains(&format!("PPid:\t{}\n", scene.pid())) && status.contains("Threads:\t1\n"));
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let flags: u64 = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(6).unwrap().parse().unwrap();
        assert_ne!(flags & 0x40, 0, "it has exec'd");
        assert!(!scene.work().join(id).exists(), "it has begun");
        pids.push(pid);
        // Somebody says something meanwhile: it waits.
        if id == "b" {
            peer.human("Next");
        }
        grant(&mut peer, &tag);
    }
    pids.dedup();
    assert_eq!(pids.len(), 3);
    let turn = peer.receive();
    let texts: Vec<String> = results(&turn).into_iter().map(|(_, text, _)| text).collect();
    assert_eq!(texts, ["a\n", "b\n", "c\n"]);
    peer.end(&turn);
    assert_eq!(peer.receive()["params"]["messages"][0]["content"][0]["text"], "Next");
}

#[test]
fn a_refusal_stops_no_tool() {
    let (scene, mut peer) = Scene::with_daemon(&[]);
    peer.human("Go");
    let turn = peer.receive();
    offer(&mut peer, &turn, &["a", "b"]);
    for _ in 0..2 {
        let (tag, _) = peer.receive_with_descriptors();
        peer.say(&json!({"jsonrpc": "2.0", "id": tag["id"], "error": {"code": -32003, "message": "no"}}));
    }
    let turn = peer.receive();
    assert_eq!(results(&turn).len(), 2);
    assert!(results(&turn).iter().all(|(_, _, is_error)| !is_error));
    assert!(scene.stderr().contains("refused 2 tags"), "{}", scene.stderr());
}

#[test]
fn a_daemon_that_does_not_answer_is_asked_once() {
    let (_scene, mut peer) = Scene::with_daemon(&[]);
    peer.human("Go");
    let turn = peer.receive();
    let start = Instant::now();
    offer(&mut peer, &turn, &["a", "b", "c"]);
    let (tag, _) = peer.receive_with_descriptors();
    assert_eq!(tag["method"], "tag");
    let turn = peer.receive();
    assert_eq!(turn["method"], "turn", "the others are not asked for");
    assert_eq!(results(&turn).len(), 3);
    assert!(start.elapsed() >= Duration::from_secs(40));
    offer(&mut peer, &turn, &["d"]);
    assert_eq!(peer.receive()["method"], "turn", "nor those of the next answer");
}

#[test]
fn a_daemon_that_offers_no_tags_is_not_asked() {
    let (_scene, mut peer) = Scene::with_daemon(&[]);
    let turn = peer.round(&[("a", "bash", json!({"command": "echo x"}))]);
    assert_eq!(turn["method"], "turn");
}
