// Real servers and real clients: whole sessions with and without the interceptor between them.
//
// Within one run, what one side wrote is what the other received, byte for byte, in both directions. And a session with
// the interceptor is the session without it. Each call is on record.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { run as runTypeScript } from "./client-ts.mjs";

const here = fileURLToPath(new URL(".", import.meta.url));
const binary = process.env.RINGFENCE ?? join(here, "../../target/debug/ringfence");
const python = (version) => join(process.env[`PYTHON_MCP_${version}`] ?? join(here, `python-${version}`), "bin/python");
const npm = (name) => join(here, `node_modules/@modelcontextprotocol/server-${name}/dist/index.js`);

const SLOW = { call: "count_slowly", args: { steps: 2 } };
const HIGH = [
  { list: "tools" },
  { list: "resources" },
  { list: "prompts" },
  { call: "add", args: { a: 2, b: 40 } },
  { call: "add", args: { a: -9007199254740991, b: 0 } },
  { call: "read_broken", args: { path: "/nö/such\u2028file" }, fails: true },
  { call: "add", args: { a: "two" }, fails: true },
  { read: "note://one" },
  { read: "note://none", fails: true },
  { prompt: "ask", args: { topic: "bytes \ud83d\ude00" } },
  { ...SLOW, progress: true },
  // The server hears of it in time on a busy machine, too.
  { call: "count_slowly", args: { steps: 2, pause: 60 }, cancel: true, fails: true },
  { wait: 900 },
  { call: "add", args: { a: 1, b: 1 } },
];
const LOW = [
  { list: "tools" },
  { call: "greet", args: {} },
  { call: "greet", args: { name: "x".repeat(100_000) } },
  { call: "nobody", args: {}, fails: true },
];

/** Each with a plan; `at` is a folder of the session's own. */
const SERVERS = {
  "server-everything": {
    command: () => [process.execPath, npm("everything")],
    plan: () => [
      { list: "tools" },
      { list: "prompts" },
      { list: "resources" },
      { list: "templates" },
      { call: "echo", args: { message: "ü \u2028 \u0000 \"quoted\" \ud83d\ude00" } },
      { call: "get-sum", args: { a: 0.1, b: 1e21 } },
      { call: "get-tiny-image", args: {} },
      { call: "get-structured-content", args: { location: "Chicago" } },
      { call: "echo", args: { message: 7 }, fails: true },
      { call: "no-such-tool", args: {}, fails: true },
      { read: "demo://resource/static/document/features.md" },
      { prompt: "args-prompt", args: { city: "Paris" } },
      { call: "trigger-long-running-operation", args: { duration: 1, steps: 2 }, progress: true },
      { call: "trigger-long-running-operation", args: { duration: 4, steps: 2 }, cancel: true, fails: true },
      // It says to the end how far it is, though nobody listens: that has come when the session ends.
      { wait: 5000 },
      { ping: true },
    ],
  },
  "server-filesystem": {
    command: (at) => [process.execPath, npm("filesystem"), at],
    plan: (at) => [
      { list: "tools" },
      { call: "list_allowed_directories", args: {} },
      { call: "write_file", args: { path: join(at, "a.txt"), content: "one\r\ntwo\u2028three" } },
      { call: "read_text_file", args: { path: join(at, "a.txt") } },
      { call: "edit_file", args: { path: join(at, "a.txt"), edits: [{ oldText: "two", newText: "2" }] } },
      { call: "list_directory", args: { path: at } },
      { call: "read_text_file", args: { path: "/etc/passwd" }, fails: true },
      { call: "write_file", args: { path: join(at, "big.txt"), content: "y".repeat(1 << 20) } },
      { call: "read_text_file", args: { path: join(at, "big.txt") } },
    ],
  },
  "server-memory": {
    command: () => [process.execPath, npm("memory")],
    env: (at) => ({ MEMORY_FILE_PATH: join(at, "memory.jsonl") }),
    plan: () => [
      { list: "tools" },
      { list: "resources" },
      { call: "create_entities", args: { entities: [{ name: "Ada", entityType: "person", observations: ["counts"] }] } },
      { call: "add_observations", args: { observations: [{ entityName: "Ada", contents: ["writes"] }] } },
      { call: "read_graph", args: {} },
      { call: "add_observations", args: { observations: [{ entityName: "nobody", contents: ["x"] }] }, fails: true },
      { call: "delete_entities", args: { entityNames: ["Ada"] } },
      { call: "read_graph", args: {} },
    ],
  },
};
for (const version of [1, 2]) {
  const name = version === 1 ? "FastMCP" : "MCPServer";
  SERVERS[`${name} of mcp ${version}`] = { command: () => [python(version), join(here, "server-high.py")], plan: () => HIGH };
  SERVERS[`low-level server of mcp ${version}`] = {
    command: () => [python(version), join(here, "server-low.py")],
    plan: () => LOW,
    // Without a handshake, a call that asks back comes again under a new id.
    asksAgain: version === 2,
  };
}

const CLIENTS = {
  "TypeScript SDK 1": { run: (...session) => runTypeScript(1, ...session) },
  "TypeScript SDK 2": { run: (...session) => runTypeScript(2, ...session), modern: true },
  "Python SDK 1": { run: (...session) => runPython(1, ...session) },
  "Python SDK 2": { run: (...session) => runPython(2, ...session), modern: true },
};

/** Runs something to its end; its output. */
function output(command, args, env) {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, { env, stdio: ["ignore", "pipe", "pipe"] });
    const said = ["", ""];
    child.stdout.on("data", (text) => (said[0] += text));
    child.stderr.on("data", (text) => (said[1] += text));
    child.on("error", reject);
    child.on("close", (code) => (code === 0 ? resolve(said[0]) : reject(new Error(`${command} ${args[0]}: ${code}\n${said[1]}`))));
  });
}

let plans = 0;
function runPython(version, command, env, plan) {
  const file = join(home, `plan-${plans++}.json`);
  writeFileSync(file, JSON.stringify(plan));
  return output(python(version), [join(here, "client.py"), file, ...command], env);
}

let home;
let env;
let auditor;
before(() => {
  home = mkdtempSync(join(tmpdir(), "ringfence-parties-"));
  env = { HOME: home, XDG_RUNTIME_DIR: home, PATH: process.env.PATH, PYTHONDONTWRITEBYTECODE: "1" };
  // Bytes are what these tests are about: nothing is held for a person.
  writeFileSync(join(home, "rules.yaml"), "rules: []\n");
  auditor = spawn(binary, ["auditor", "--user", "--db", join(home, "audit.db"), "--port", "0"], { env, stdio: "ignore" });
});
after(async () => {
  const gone = new Promise((resolve) => auditor.once("exit", resolve));
  auditor.kill("SIGKILL");
  await gone;
  rmSync(home, { recursive: true, force: true });
});

/** One session; what each side received, by the pair of processes it was between. */
async function session(client, server, name, between) {
  const folder = join(home, `${name} ${between.length ? "behind" : "alone"}`);
  // The same folder both times: its path is in the answers.
  const at = join(home, `${name} files`);
  rmSync(at, { recursive: true, force: true });
  mkdirSync(at);
  const tee = (who) => [process.execPath, join(here, "tee.mjs"), folder, who];
  const command = [...tee("client"), ...between, ...tee("server"), ...server.command(at)];
  await client.run(command, { ...env, ...server.env?.(at) }, server.plan(at));
  return readdirSync(folder)
    .map((pair) => {
      const read = (file) => readFileSync(join(folder, pair, file));
      return {
        sent: read("client.to-server"), arrived: read("server.to-server"),
        answered: read("server.to-client"), received: read("client.to-client"),
      };
    })
    // A client that tries a server before it uses it starts it twice.
    .sort((a, b) => b.sent.length - a.sent.length);
}

const lines = (bytes) => bytes.toString().split("\n").filter(Boolean).map((line) => JSON.parse(line));
const rows = async (...args) => (await output(binary, [...args, "--json", "--db", join(home, "audit.db")], env)).split("\n").filter(Boolean).map(JSON.parse);

/** Every pair of a server and a client. */
const PAIRS = Object.entries(CLIENTS).flatMap(([clientName, client]) =>
  Object.entries(SERVERS).map(([serverName, server]) => ({ name: `${serverName} and ${clientName}`, client, server, serverName })),
);

/** The sessions of a pair: without the interceptor, and with it. */
async function play({ name, client, server }) {
  const between = [binary, "mcp", "--port", "0", "--db", join(home, "audit.db"), "--rules", join(home, "rules.yaml"), "--server-name", name, "--"];
  return { alone: await session(client, server, name, []), behind: await session(client, server, name, between) };
}

/** A session waits much and computes little: two at a time, in the order of the tests. */
function playAll() {
  const todo = PAIRS.map((pair) => {
    const played = {};
    played.promise = new Promise((resolve, reject) => Object.assign(played, { resolve, reject }));
    // The test that awaits it reports it.
    played.promise.catch(() => {});
    pair.played = played.promise;
    return () => play(pair).then(played.resolve, played.reject);
  });
  const worker = async () => {
    for (let next = todo.shift(); next; next = todo.shift()) await next();
  };
  for (let n = 0; n < 2; n++) worker();
}
before(playAll);

/** Requests that a client called off, of what it sent: their ids. */
const cancelledOf = (sent) =>
  lines(sent).filter((message) => message.method === "notifications/cancelled").map((message) => message.params.requestId);

/**
 * What a client was told. Messages that answer or ask, in order; notifications, whose place among them is chance, sorted.
 * What a server says of a call before it hears that it was called off, and whether it answers that, is chance too.
 */
function told({ sent, received }) {
  const cancelled = cancelledOf(sent);
  const tokens = lines(sent)
    .filter((message) => cancelled.includes(message.id))
    .map((message) => message.params?._meta?.progressToken);
  const texts = received.toString().split("\n").filter((text) => {
    const message = text === "" ? {} : JSON.parse(text);
    const isAnswer = message.method === undefined && cancelled.includes(message.id);
    return !isAnswer && !(message.method === "notifications/progress" && tokens.includes(message.params.progressToken));
  });
  const isNotification = (text) => text !== "" && JSON.parse(text).id === undefined;
  return [...texts.filter((text) => !isNotification(text)), ...texts.filter(isNotification).sort()];
}

/** A session's row and its calls', once what its interceptor left is on record: the auditor may read a little behind. */
async function onRecord(name, calls) {
  for (const until = Date.now() + 120_000; ; ) {
    const [row] = (await rows("sessions", "--limit", "100")).filter((one) => one.server_name === name && one.calls > 0);
    if (row && row.calls >= calls && row.ended_at !== null) return row;
    assert.ok(Date.now() < until, `not on record in two minutes: ${calls} calls and the end of ${name}: ${JSON.stringify(row)}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

for (const pair of PAIRS) {
  test(pair.name, { timeout: 900_000 }, async () => {
    const { name, client, server, serverName } = pair;
    const { alone, behind } = await pair.played;
    for (const { sent, arrived, answered, received } of behind) {
      assert.ok(sent.length > 0 && arrived.equals(sent), "the server received what the client wrote");
      assert.ok(answered.length > 0 && received.equals(answered), "the client received what the server wrote");
    }
    assert.equal(behind.length, alone.length);
    behind.forEach((session, at) => {
      assert.equal(session.sent.toString(), alone[at].sent.toString(), "the client does what it does without us");
      assert.deepEqual(told(session), told(alone[at]), "the server does what it does without us");
    });

    const said = lines(behind[0].sent);
    const era = said[0].params._meta?.["io.modelcontextprotocol/protocolVersion"] ?? said[0].params.protocolVersion;
    const modern = Boolean(client.modern) && serverName.endsWith("of mcp 2");
    assert.equal(era >= "2026-07-28" && said.every((message) => message.method !== "initialize"), modern, era);
    const calls = said.filter((message) => message.method === "tools/call");
    const planned = server.plan("").filter((step) => step.call).length;
    assert.equal(calls.length, planned + (modern && server.asksAgain ? 2 : 0));

    const recorded = await onRecord(name, calls.length);
    assert.equal(recorded.client_info.name, "example-client");
    const record = (await rows("calls", "--limit", "100", "--session", recorded.id)).reverse();
    assert.deepEqual(record.map((row) => row.tool_name), calls.map((message) => message.params.name));
    const cancelled = cancelledOf(behind[0].sent);
    const answers = new Set(lines(behind[0].received).filter((message) => !message.method).map((message) => message.id));
    record.forEach((row, at) => {
      assert.equal(row.responded_at !== null, answers.has(calls[at].id), `${row.tool_name}: answered where the server answered`);
      assert.ok(row.responded_at !== null || cancelled.includes(calls[at].id), `${row.tool_name}: only a cancelled call has no answer`);
    });
  });
}
