//! The new protocol, spoken by hand.

use crate::support::{Runner, wait_until};
use serde_json::{Value, json};
use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    process::{Command, Stdio},
};

fn frame(message: &Value) -> Vec<u8> {
    let body = message.to_string().into_bytes();
    [&u32::try_from(body.len()).unwrap().to_be_bytes()[..], &body].concat()
}

fn receive(stream: &mut UnixStream) -> Value {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut body = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut body).unwrap();
    serde_json::from_slice(&body).unwrap()
}

#[test]
fn leave_is_given_with_a_number_and_a_shape() {
    let runner = Runner::start(&["--max-lines", "50", "--keep", "both"]);
    let mut stream = runner.connect();
    let ask = json!({"ask": {"cmd": "x-tool", "args": ["a\tb", "\n%"], "cwd": "/", "end": true}});
    stream.write_all(&frame(&ask)).unwrap();
    let go = receive(&mut stream)["go"].clone();
    assert!(go["run"].as_u64().unwrap() > 0);
    let shape = &go["shape"];
    assert_eq!(
        (&shape["max_bytes"], &shape["max_lines"], &shape["keep"]),
        (&4000.into(), &50.into(), &"both".into())
    );
    assert_eq!((&shape["truncate"], &shape["name_binary"]), (&"end".into(), &true.into()));
}

#[test]
fn a_run_is_written_down_when_its_process_ends() {
    let runner = Runner::start(&[]);
    let script = format!(
        "import json,socket,struct,sys\ns=socket.socket(socket.AF_UNIX)\ns.connect('{}')\n\
         def say(m):\n b=json.dumps(m).encode()\n s.sendall(struct.pack('>I',len(b))+b)\n\
         say({{'ask':{{'cmd':'x-tool','args':['ä','\\n'],'cwd':'/x'}}}})\ns.recv(4096)\n\
         say({{'done':{{'status':None,'signal':9,'bytes':12,'error_bytes':3,'cut':True,'spill':'/s'}}}})\n\
         sys.stdin.read()",
        runner.socket().display()
    );
    let mut python = Command::new("python3");
    let mut child = python.args(["-c", &script]).stdin(Stdio::piped()).spawn().unwrap();
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    let run = &runner.log("x-tool", 1)[0];
    assert_eq!((&run["protocol"], &run["pid"], &run["cwd"]), (&2.into(), &child.id().into(), &"/x".into()));
    assert_eq!((&run["signal"], &run["status"], &run["bytes"]), (&9.into(), &Value::Null, &12.into()));
    assert_eq!((&run["args"], &run["spill"]), (&json!(["ä", "\n"]), &"/s".into()));
    assert!(run["ms"].as_f64().unwrap() > 0.0 && run["boot_ns"].as_u64().unwrap() > 0);
}

#[test]
fn a_tool_that_a_shim_became_is_in_the_log_with_its_arguments() {
    let runner = Runner::start(&[]);
    runner.file("a", "x\n");
    runner.shell("cat -- a 'a b\tc' 2>/dev/null | grep -q x");
    let run = &runner.log("cat", 1)[0];
    assert_eq!((&run["args"], &run["end"]), (&json!(["--", "a", "a b\tc"]), &false.into()));
    assert_eq!(run["uid"], rustix::process::geteuid().as_raw());
    // Nobody but its parent knows how it ended.
    assert!(run["ms"].as_f64().unwrap() > 0.0 && run.get("status").is_none());
    assert_eq!(runner.log("grep", 1)[0]["args"], json!(["-q", "x"]));
}

#[test]
fn megabytes_of_arguments_reach_the_tool_and_a_part_of_them_the_log() {
    let runner = Runner::start(&[]);
    let output = runner
        .shell("wc -c /dev/null $(seq -f ./none%06g 1 60000) 2>/dev/null | tail -n 1; echo ${PIPESTATUS[0]}");
    assert_eq!(crate::support::text(&output.stdout).trim_start(), "0 total\n1\n");
    let run = &runner.log("wc", 1)[0];
    let (args, left_out) = (run["args"].as_array().unwrap().len() as u64, run["left_out"].as_u64().unwrap());
    assert!(args > 100 && args + left_out == 60002, "{args} + {left_out}");
}

#[test]
fn connections_that_say_nothing_are_closed() {
    let runner = Runner::start(&[]);
    let mut silent = runner.connect();
    let mut answer = Vec::new();
    silent.read_to_end(&mut answer).unwrap();
    let (out, err, code) = crate::support::decode(&answer);
    assert_eq!((out.as_str(), code), ("", 1));
    assert!(err.contains("did not come within 5 s; nothing was run"), "{err}");
    wait_until("others are served", || {
        runner.exchange(b"echo\n") == [131, 104, 3, 109, 0, 0, 0, 1, 10, 109, 0, 0, 0, 0, 97, 0]
    });
}
