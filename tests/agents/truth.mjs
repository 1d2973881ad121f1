// Which call the record says an event is of, against what is known: `cargo xtask bench truth`, in a guest of the VM tests.
//
// Whatever the corpus starts says which process it is, in the name of a file that it tries to make where that is denied, and
// then in a list of what was tried. A call's result has the number of its shell, and its command the name of what it tries:
// so it is known of each such event which call it is of, in a way that has nothing to do with tags and times.
import { spawn, spawnSync } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import { OwnAgent } from "./own.mjs";
import { AGENTS, Project, ended, home, pause, succeeded } from "./project.mjs";

const OWN = "runtime";
const denied = path.join(home, ".ssh");
/** Scripts, since agents judge for themselves what a command names that is outside of the repository. */
const TRY = `(echo x > ${denied}/truth-$1-$2) 2> /dev/null\necho "$1 $2" >> "\${0%/*}/tried"\n`;
const FILES = {
  "touch.sh": `echo "truth=$2;"\n${TRY}:\n`,
  "late.sh": `sleep "$3"\n${TRY}`,
  "server.mjs": fs.readFileSync("truth-server.mjs", "utf8").replace("DENIED", denied),
};
/** Says which process its shell is, and tries what is denied. */
const touch = (what, from = ".") => `sh ${from}/touch.sh ${what} $$`;
/** The same, so many seconds later, when its call may be over. */
const late = (what, seconds) => `sh ./late.sh ${what} $$ ${seconds} > /dev/null 2>&1 &`;

/** A command of so many KiB and more. */
const long = (kilobytes) => `${touch("long")}; : '${"x".repeat(kilobytes * 1024)}'`;

/** The corpus: what a model asks for, one answer a line, `runs` at once; `by`: the agents that have such a thing. */
const SCRIPT = [
  { run: touch("alone") },
  { runs: [touch("first"), touch("second"), touch("third")] },
  { runs: [touch("same"), touch("same")] },
  { run: `cd /; cat <<END | tr a-z A-Z\nhere\nEND\n${touch("after", '"$OLDPWD"')}` },
  { run: long(100), by: ["claude", "gemini", "opencode", OWN] },
  // Codex fails to start one of 100 KB, tied or not: its argument list is too long then.
  { run: long(60), by: ["codex"] },
  // What a call leaves behind is still its own, however much later and beside whichever other.
  { run: `${touch("leaves")}; ${late("behind", 3)}` },
  { run: `${touch("daemon")}; setsid ${late("unmoored", 4)}` },
  { runs: [`${touch("slow")}; sleep 5`, touch("quick")] },
  { run: `bash -c 'exit 7'; bash -c "bash -c 'sh ./touch.sh inner $$'"; ${touch("outer")}` },
  { run: `${touch("timely")}; sleep 20; ${touch("overdue")}`, seconds: 2, by: ["claude", "codex", "opencode", OWN] },
  // Two servers, which work for a call each, and now and then for nobody, beside a shell.
  { calls: [{ call: "one_look_up", given: { word: "served" } }, { call: "two_look_up", given: { word: "other" } }], by: Object.keys(AGENTS) },
  { run: `${touch("beside")}; sleep 2`, by: Object.keys(AGENTS) },
  // Whoever asks next is the other agent, and then the first one again.
  { call: "Agent", given: { description: "a part", prompt: "do a part", subagent_type: "general-purpose" }, by: ["claude"] },
  { call: "task", given: { description: "a part", prompt: "do a part", subagent_type: "general" }, by: ["opencode"] },
  { runs: [touch("part"), touch("share")], by: ["claude", "opencode"] },
  { say: "That is the part.", by: ["claude", "opencode"] },
  { run: touch("last") },
  { say: "Done." },
];
/** What an agent is asked a second time, and is ended in the middle of. */
const CANCELLED = { run: `${touch("cancelled")}; ${late("orphan", 2)} sleep 30` };
/** What the servers do: no shell runs that. */
const SERVERS = ["served", "other", "idle"];
const WORDS = ["exact", "matched", "sole", "ambiguous", "none", "wrong", "missing"];

/** What the kernel recorded of what is denied, under a profile. */
function recorded(name) {
  const shown = spawnSync("ringfence", ["events", "--denied", "--json", "--limit", "10000"], { encoding: "utf8", maxBuffer: 1 << 28 });
  if (shown.status !== 0) throw new Error(shown.stderr);
  const events = shown.stdout.trim().split("\n").filter(Boolean).map((line) => JSON.parse(line));
  return events.filter(({ profile }) => profile === name).flatMap((event) => {
    const match = /\/truth-([a-z]+)-(\d+)$/.exec(event.path ?? "");
    return match === null ? [] : [{ event, what: match[1], process: match[2] }];
  });
}

/** What was tried, each with how often. */
function tried(project) {
  const counts = new Map();
  for (const line of project.read("tried").trim().split("\n")) counts.set(line, (counts.get(line) ?? 0) + 1);
  return counts;
}

/**
 * Which call an attempt is of: by its shell, which a result has; or by what it is called, where one call alone has that in its
 * command. Nothing: it is no call's.
 */
function known(calls, what, process) {
  const named = calls.filter(({ input }) => new RegExp(`(touch|late)\\.sh ${what} |"word": ?"${what}"`).test(input));
  const shells = named.filter(({ output }) => (output ?? "").includes(`truth=${process};`));
  const [call] = shells.length > 0 ? shells : named;
  if (named.length > 1 && shells.length !== 1) throw new Error(`it is not known which call ${what} of process ${process} is`);
  return call?.call;
}

/**
 * How an event counts. It is wrong where a call is named that is not its own: what is ambiguous is one of several, if any, and says
 * nothing of others.
 */
function word({ attribution, tool_call: said }, call) {
  return said !== null && said !== undefined && said !== call ? "wrong" : attribution;
}

/** Lets an agent do all of it. */
async function work(project, name) {
  for (const [file, text] of Object.entries(FILES)) project.write(file, text);
  project.write("tried", "");
  fs.chmodSync(path.join(project.dir, "tried"), 0o666);
  const steps = SCRIPT.filter(({ by }) => by === undefined || by.includes(name));
  const { files = {}, words = [] } = name === OWN ? {} : AGENTS[name].mcp(servers());
  for (const [file, content] of Object.entries(files)) project.write(file, JSON.stringify(content));
  project.provider.script = [...steps];
  succeeded(await project.run([...project.words("do all of it"), ...words]));
  const done = tried(project);
  for (const [, what] of JSON.stringify(steps).matchAll(/(?:touch\.sh |"word":")([a-z]+)[ "]/g)) {
    if (what !== "overdue" && ![...done.keys()].some((line) => line.startsWith(`${what} `))) throw new Error(`${name} did not run ${what}`);
  }
  project.provider.script = [CANCELLED];
  const child = project.spawn([...project.words("and this"), ...words]);
  const over = ended(child);
  for (let is_over = false; !is_over && !project.read("tried").includes("cancelled "); await pause()) {
    over.then(() => (is_over = true));
  }
  child.kill(project.end);
  await over;
}

function servers() {
  const server = (name) => ({ command: "node", args: ["server.mjs", name] });
  return { one: server("one"), two: server("two") };
}

async function judge(name) {
  const project = name === OWN ? await OwnAgent.start() : await Project.start({ after: () => {} }, name);
  // The same outside of every container: nothing of it may be on record.
  const noise = spawn("bash", ["-c", `while sleep 1; do echo x > ${denied}/truth-noise-$$; done`], { cwd: project.dir, stdio: "ignore" });
  try {
    await work(project, name);
    // What was left behind has its time, and so has the record.
    const all = () => [...tried(project)].every(([line, count]) => count <= seen().filter(({ what, process }) => line === `${what} ${process}`)
      .reduce((sum, { event }) => sum + event.repeats, 0));
    const seen = () => recorded(project.profile);
    for (let tries = 0; tries < 25 || (tries < 100 && !all()); tries++) await pause();
  } finally {
    noise.kill();
    project.stop();
  }
  const calls = project.trace().intents.flatMap((intent) => intent.calls);
  const none = () => Object.fromEntries(WORDS.map((word) => [word, 0]));
  const [counts, left] = [{ shells: none(), servers: none() }, tried(project)];
  const lot = (what) => counts[SERVERS.includes(what) ? "servers" : "shells"];
  for (const { event, what, process } of recorded(project.profile)) {
    const call = known(calls, what, process);
    const is = what === "noise" ? "wrong" : word(event, call);
    lot(what)[is] += event.repeats;
    left.set(`${what} ${process}`, (left.get(`${what} ${process}`) ?? 0) - event.repeats);
    if (is === (what === "idle" ? "none" : "exact")) continue;
    const { attribution, tool_call, candidates } = event;
    console.log(`# ${name}: ${what}, of ${call ?? "no call"}: ${is} ${JSON.stringify({ attribution, tool_call, candidates, repeats: event.repeats })}`);
  }
  for (const [line, count] of left) {
    if (count <= 0) continue;
    console.log(`# ${name}: ${line}: ${count} not on record`);
    lot(line.split(" ")[0]).missing += count;
  }
  return counts;
}

fs.mkdirSync(denied, { recursive: true });
console.log(`| agent, what of it | ${WORDS.join(" | ")} |\n|---|${"---:|".repeat(WORDS.length)}`);
let wrong = 0;
for (const name of process.env.RINGFENCE_AGENTS.split(",")) {
  for (const [lot, counts] of Object.entries(await judge(name))) {
    if (lot === "servers" && name === OWN) continue;
    console.log(`| ${name}, ${lot} | ${WORDS.map((word) => counts[word]).join(" | ")} |`);
    wrong += counts.wrong;
  }
}
process.exit(wrong > 0 ? 1 : 0);
