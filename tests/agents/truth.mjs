// Which call the record says an event is of, against what is known: `cargo xtask bench truth`, in a guest of the VM tests.
//
// Each command says the number of its shell's process, which its result carries to the model, and so to the record of the
// call. It also tries to make a file that is denied, whose name has the same number: so it is known of each such event which
// call it is of, in a way that has nothing to do with tags and times.
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import { AGENTS, Project, home, pause, succeeded } from "./project.mjs";

const denied = path.join(home, ".ssh");
/** Scripts, since agents judge for themselves what a command names that is outside of the repository. */
const SCRIPTS = {
  "touch.sh": `echo "truth=$2;"\n(echo x > ${denied}/truth-$1-$2) 2> /dev/null\n:\n`,
  "late.sh": `sleep "$3"\n(echo x > ${denied}/truth-$1-$2) 2> /dev/null\n`,
};
/** Says which process its shell is, and touches what is denied. */
const touch = (what, from = ".") => `sh ${from}/touch.sh ${what} $$`;
/** The same, so many seconds later, when its call may be over. */
const late = (what, seconds) => `sh late.sh ${what} $$ ${seconds} > /dev/null 2>&1 &`;

/** The corpus: what a model asks for, one answer a line, `runs` at once; and how many events are known of each name. */
const SCRIPT = [
  { run: touch("alone"), known: { alone: 1 } },
  { runs: [touch("first"), touch("second"), touch("third")], known: { first: 1, second: 1, third: 1 } },
  { runs: [touch("same"), touch("same")], known: { same: 2 } },
  { run: `cd /; cat <<END | tr a-z A-Z\nhere\nEND\n${touch("after", '"$OLDPWD"')}`, known: { after: 1 } },
  { run: `${touch("long")}; : '${"x".repeat(100 * 1024)}'`, known: { long: 1 } },
  // What a call leaves behind is still its own, however much later and beside whichever other.
  { run: `${touch("leaves")}; ${late("behind", 3)}`, known: { leaves: 1, behind: 1 } },
  { run: `${touch("daemon")}; setsid ${late("daemon", 4)}`, known: { daemon: 2 } },
  { runs: [`${touch("slow")}; sleep 5`, touch("quick")], known: { slow: 1, quick: 1 } },
  { run: `bash -c 'exit 7'; bash -c "bash -c 'sh touch.sh deep $$'"; ${touch("deep")}`, known: { deep: 2 } },
];
const known = Object.assign({}, ...SCRIPT.map((step) => step.known));
const WORDS = ["exact", "matched", "sole", "ambiguous", "none", "wrong", "missing"];

/** What the kernel recorded of what is denied, in these containers. */
function recorded(containers) {
  const shown = spawnSync("ringfence", ["events", "--denied", "--json", "--limit", "10000"], { encoding: "utf8", maxBuffer: 1 << 28 });
  assert.equal(shown.status, 0, shown.stderr);
  const events = shown.stdout.trim().split("\n").filter(Boolean).map((line) => JSON.parse(line));
  return events.filter(({ container }) => containers.has(container)).flatMap((event) => {
    const match = /\/truth-([a-z]+)-(\d+)$/.exec(event.path ?? "");
    return match === null ? [] : [{ event, what: match[1], process: match[2] }];
  });
}

/** Which call each shell is of, by the results that the model was given; and the containers of these calls. */
function calls(project) {
  const [found, containers] = [new Map(), new Set()];
  for (const intent of project.trace().intents) {
    containers.add(intent.container);
    for (const call of intent.calls) {
      for (const [, process] of (call.output ?? "").matchAll(/truth=(\d+);/g)) found.set(process, call.call);
    }
  }
  return { found, containers };
}

/** Whether the record names another call than the one that it is, or leaves that one out. */
function isWrong({ attribution, tool_call: said, candidates = [] }, call) {
  if (said !== null) return said !== call;
  return attribution === "ambiguous" && candidates.length > 0 && !candidates.includes(call);
}

async function judge(name) {
  const project = await Project.start({ after: () => {} }, name);
  for (const [file, text] of Object.entries(SCRIPTS)) project.write(file, text);
  project.provider.script = [...SCRIPT, { say: "Done." }];
  // The same outside of every container: nothing of it may be on record.
  const noise = spawn("bash", ["-c", "while sleep 1; do sh touch.sh noise $$; done"], { cwd: project.dir, stdio: "ignore" });
  succeeded(await project.run(AGENTS[name].ask("do all of it")));
  const wanted = Object.values(known).reduce((sum, count) => sum + count);
  // What was left behind has its time, and so has the record.
  for (let tries = 0; tries < 100 && recorded(calls(project).containers).length < wanted; tries++) await pause();
  noise.kill();
  project.provider.stop();
  const { found, containers } = calls(project);
  const [counts, seen] = [Object.fromEntries(WORDS.map((word) => [word, 0])), recorded(containers)];
  for (const { event, what, process } of seen) {
    const call = found.get(process);
    const word = what === "noise" || isWrong(event, call) ? "wrong" : event.attribution;
    counts[word] += event.repeats;
    if (word === "exact") continue;
    const { attribution, tool_call, candidates } = event;
    console.log(`# ${name}: ${what}, of ${call}: ${word} ${JSON.stringify({ attribution, tool_call, candidates })}`);
  }
  counts.missing = Math.max(0, wanted - seen.reduce((sum, { event }) => sum + event.repeats, 0));
  return counts;
}

fs.mkdirSync(denied, { recursive: true });
console.log(`| agent | ${WORDS.join(" | ")} |\n|---|${"---:|".repeat(WORDS.length)}`);
let wrong = 0;
for (const name of process.env.RINGFENCE_AGENTS.split(",")) {
  const counts = await judge(name);
  console.log(`| ${name} | ${WORDS.map((word) => counts[word]).join(" | ")} |`);
  wrong += counts.wrong;
}
process.exit(wrong > 0 ? 1 : 0);
