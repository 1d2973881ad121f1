//! One user's approvals, rules and rows, beside forty users who are hostile: silent, greedy, deaf, stopped, or with journals without
//! end.
//!
//! It says what the one user waited, without and with them. What it asserts is generous, for machines that are busy; each of
//! the stalls that the forty cause is five seconds or more, many times over, if anybody waits for them.

use crate::support::{Home, Session, eventually};
use serde_json::json;
use std::{
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// The one user, and the first of the forty.
const USER: u32 = 60_001;
const FIRST: u32 = 61_000;

/// What one of the forty does until its input ends. Whatever is closed is opened again.
const HOSTILE: &str = r#"import array,hashlib,json,os,select,socket,struct,sys,tempfile,uuid
kind,runtime,port=sys.argv[1],sys.argv[2],int(sys.argv[3])
def unix(name):
 s=socket.socket(socket.AF_UNIX);s.settimeout(0.2);s.connect(f"{runtime}/{name}");s.setblocking(False);return s
def say(s,message,*fds):
 q=json.dumps(message).encode();rights=[(socket.SOL_SOCKET,socket.SCM_RIGHTS,array.array("i",fds))] if fds else []
 s.sendmsg([struct.pack(">I",len(q))+q],rights);return s
journal=tempfile.TemporaryFile()
def flood(session):
 # One line with two thousand calls, and no two journals have the same.
 f=tempfile.TemporaryFile();head="0"*64
 raw=json.dumps([{"jsonrpc":"2.0","id":n,"method":"tools/call","params":{"name":"t"}} for n in range(2000)])
 judged={"tool":"t","operation":"read","score":0,"reasons":[],"action":"pass","rules":[]}
 calls=[judged|{"call":str(uuid.uuid4()),"index":n} for n in range(2000)]
 for entry in ({"kind":"start","session":session,"at":1,"server_name":"f","server_command":["f"],"pid":1,"version":"1"},
  {"kind":"message","id":str(uuid.uuid4()),"at":1,"boot":1,"direction":"client_to_server","raw":raw,"bytes":1,"sha256":"","calls":calls}):
  text=json.dumps(entry);head=hashlib.sha256((head+text).encode()).hexdigest();f.write(f"{head} {text}\n".encode())
 f.flush();f.seek(0);return f
def open_one():
 if kind=="silent": return unix("mcp.sock")
 if kind=="deaf": return say(unix("query.sock"),{"request":"events","follow":True})
 if kind=="linked": return say(unix("mcp.sock"),{"request":"session","session":str(uuid.uuid4()),"journal":"/j"},journal.fileno())
 if kind=="flooding":
  session=str(uuid.uuid4())
  return say(unix("mcp.sock"),{"request":"session","session":session,"journal":"/j"},flood(session).fileno())
 if kind=="asking": return say(unix("mcp.sock"),{"request":"decide","call":"nothing-of-this-name","approve":True})
 s=socket.create_connection(("127.0.0.1",port),timeout=0.2);s.setblocking(False)
 s.send(f"GET /app.js HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()*500);return s
most={"silent":90,"deaf":8,"linked":60,"asking":40,"mute":40,"flooding":3}[kind]
held=[]
def fill():
 for n in range(most-len(held)):
  try: held.append(open_one())
  except OSError: return
if kind=="asking":
 # Each from the end of a long line of ancestors.
 for n in range(200):
  pid=os.fork()
  if pid: os.waitpid(pid,0);os._exit(0)
fill();print("on",flush=True)
while True:
 ready=select.select([sys.stdin]+(held if kind in("silent","asking") else []),[],[],0.05)[0]
 if sys.stdin in ready: os._exit(0)
 for s in ready: held.remove(s);s.close()
 if kind in("deaf","linked","mute","flooding"):
  for s in held[:]:
   try: gone=s.recv(1,socket.MSG_PEEK)==b""
   except BlockingIOError: gone=False
   except OSError: gone=True
   if gone: held.remove(s);s.close()
 fill()
"#;

struct Hostile(Child);

impl Hostile {
    fn start(kind: &str, home: &Home, runtime: &Path, uid: u32) -> Self {
        let mut python = Command::new("python3");
        python.args(["-c", HOSTILE, kind]).arg(runtime).arg(home.port.to_string()).uid(uid).gid(uid);
        let pipes = (Stdio::piped(), Stdio::piped());
        let python = python.current_dir("/").env("TMPDIR", "/tmp").stdin(pipes.0).stdout(pipes.1).spawn();
        Self(python.expect("python3"))
    }

    fn is_on(&mut self) {
        let mut line = String::new();
        let out = self.0.stdout.take().expect("a pipe");
        BufReader::new(out).read_line(&mut line).expect("a word");
        assert_eq!(line, "on\n");
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// The longest that the user waited, for each of: a rule to be in force, an approval to be carried out, a row to be seen.
fn waited(home: &Home, session: &mut Session, rounds: usize, name: &str) -> [Duration; 3] {
    let mut longest = [Duration::ZERO; 3];
    for round in 0..rounds {
        let begin = Instant::now();
        let pattern = format!("tool-{name}-{round}");
        let rule = json!({ "name": pattern, "action": "block", "tool_pattern": pattern });
        let answer = home.ask("POST", "/api/rules", Some(&rule.to_string()));
        assert_eq!(answer.status, 201, "{answer:?}");
        eventually("the rule is in force", || {
            session.call(&pattern, "{}");
            session.line().contains(&pattern).then_some(())
        });
        let told = begin.elapsed();
        let begin = Instant::now();
        let call = crate::crowd::approved(home, session);
        let carried_out = begin.elapsed();
        let begin = Instant::now();
        eventually("the row", || {
            let row = home.json(&format!("/api/tool-calls/{call}"));
            (!row["responded_at"].is_null()).then_some(())
        });
        for (longest, took) in longest.iter_mut().zip([told, carried_out, begin.elapsed()]) {
            *longest = took.max(*longest);
        }
    }
    longest
}

#[test]
fn forty_hostile_users_hold_nobody_up() {
    if crate::auditor_support::uid() != 0 {
        eprintln!("left out: other users' processes need root");
        return;
    }
    let home = Home::of(USER);
    let mut session = home.session("files", &[]);
    let alone = waited(&home, &mut session, 5, "alone");
    let kinds = ["silent", "deaf", "linked", "asking", "mute", "flooding"];
    let mut forty: Vec<_> = (0..40)
        .map(|n| Hostile::start(kinds[n % kinds.len()], &home, home.runtime(), FIRST + n as u32))
        .collect();
    forty.iter_mut().for_each(Hostile::is_on);
    let among = waited(&home, &mut session, 5, "among");
    // And new sessions, and questions by the command line.
    let begin = Instant::now();
    let second = home.session("second", &[]);
    let listed = home.ringfence(&["mcp", "calls", "--json"]).output().expect("ringfence mcp calls");
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let asked = begin.elapsed();
    eprintln!(
        "the longest wait for [rule, approval, row]: alone {alone:?}, among forty {among:?}; a new session and `calls` {asked:?}"
    );
    assert!(among.iter().all(|took| *took < Duration::from_secs(20)), "{among:?}");
    drop(forty);
    second.end();
    session.end();
}
