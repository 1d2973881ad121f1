// The LLM worker among others' software: a mock of the providers' wire formats with its faults on, the providers' own SDKs
// through the HTTP endpoint, real MCP servers of all eras.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { connect } from "node:net";
import { after, before, test } from "node:test";
import { join } from "node:path";
import { LLMock } from "@copilotkit/aimock";
import { Home, eventually, freePort, here, runtimeBinary } from "./worker.mjs";

const KEY = "sk-secret-of-the-host";
/** MCP servers by the part of their agents' names. */
const MCP = {
  streamable: "server-everything over streamable HTTP",
  sse: "server-everything over HTTP+SSE",
  modern: "a server of Python's SDK 2, without a handshake",
};
const PROVIDERS = ["anthropic", "openai"];
/** Milliseconds after which a test hangs. */
const TIME = 600_000;
const python = join(process.env.PYTHON_LLM ?? join(here, "python"), "bin/python");
const everything = join(here, "node_modules/@modelcontextprotocol/server-everything/dist/index.js");

let mock;
let home;
const servers = [];
const ports = {};

const profile = (provider, before, behind = "") => `${before}
[llm.m]
provider = "${provider}"
model = "fixed-by-the-profile"
api_key = "${KEY}"
base_url = "${mock.url}${provider === "openai" ? "/v1" : ""}"
${behind}`;

/** An MCP server, on a port of loopback. */
async function serve(command, path) {
  const port = await freePort();
  const [program, ...args] = command(port);
  const child = spawn(program, args, {
    env: { PATH: process.env.PATH, PORT: String(port), PYTHONDONTWRITEBYTECODE: "1" }, stdio: "ignore",
  });
  servers.push(child);
  await eventually(`${args.join(" ")} listens`, () => new Promise((resolve) => {
    const socket = connect(port, "127.0.0.1", () => resolve(socket.destroy() && true));
    socket.on("error", () => resolve(false));
  }));
  return `http://127.0.0.1:${port}${path}`;
}

before(async () => {
  mock = new LLMock({ port: 0, host: "127.0.0.1", chunkSize: 4 });
  const call = (...calls) => ({ toolCalls: calls.map(([id, name, args]) => ({ id, name, arguments: JSON.stringify(args) })) });
  const rounds = (text, first, then) => {
    mock.on({ userMessage: text, hasToolResult: false }, first);
    mock.on({ userMessage: text, hasToolResult: true }, { content: then });
  };
  const usage = { input_tokens: 11, output_tokens: 7, prompt_tokens: 11, completion_tokens: 7 };
  mock.onMessage("greet me", { content: "Grüße aus dem \ud83e\udd80-Land, in several pieces.", usage });
  mock.onMessage("be limited", { error: { message: "slow down", type: "rate_limit_error" }, status: 429 });
  mock.onMessage("break off", { content: "this is not all that was to be said, by far" }, { truncateAfterChunks: 5, latency: 20 });
  rounds("weather please", call(["w1", "weather", { city: "Köln" }]), "It rains.");
  rounds("two calls", call(["c1", "bash", { command: "ls" }], ["c2", "bash", {}]), "Both done.");
  rounds("only the server", call(["e1", "echo", { message: "ü \u2028 \ud83d\ude00" }], ["e2", "get-sum", { a: 2, b: 40 }], ["e3", "get-tiny-image", {}]), "Seen.");
  // OpenAI's tool messages hold no images: they follow as from the user.
  mock.on({ userMessage: "Images of the result" }, { content: "Seen." });
  rounds("both of them", call(["l1", "bash", {}], ["m1", "echo", { message: "from the server" }], ["l2", "bash", {}]), "Mixed.");
  rounds("make it fail", call(["f1", "get-sum", { a: "two" }]), "It failed.");
  await mock.start();

  const node = (transport) => () => [process.execPath, "--import", join(here, "loopback.mjs"), everything, transport];
  const modern = (port) => [python, join(here, "server-modern.py"), String(port)];
  const [streamable, sse, discover] = await Promise.all([
    serve(node("streamableHttp"), "/mcp"), serve(node("sse"), "/sse"), serve(modern, "/mcp"),
  ]);
  const sections = { streamable, sse, modern: discover };
  const profiles = {};
  for (const provider of PROVIDERS) {
    ports[provider] = await freePort();
    profiles[provider] = profile(provider, `http = true\nhttp_port = ${ports[provider]}`);
    for (const [name, url] of Object.entries(sections)) {
      profiles[`${provider}-${name}`] = profile(provider, "", `[mcp.everything]\nurl = "${url}"\ntools = ["echo", "get-sum", "get-tiny-image"]\n`);
    }
  }
  home = new Home(profiles);
});

after(async () => {
  await home?.stop();
  for (const child of servers) {
    const gone = new Promise((resolve) => child.once("exit", resolve));
    child.kill("SIGKILL");
    await gone;
  }
  await mock?.stop();
});

/** The SDK's steps; what came of them. */
async function sdk(provider, base, key) {
  const child = spawn(python, [join(here, "sdk.py"), provider, base, key], {
    env: { PATH: process.env.PATH, HOME: home.path, PYTHONDONTWRITEBYTECODE: "1" }, stdio: ["ignore", "pipe", "pipe"],
  });
  const said = ["", ""];
  child.stdout.on("data", (bytes) => (said[0] += bytes));
  child.stderr.on("data", (bytes) => (said[1] += bytes));
  const code = await new Promise((resolve) => child.once("close", resolve));
  assert.equal(code, 0, said[1]);
  return JSON.parse(said[0]);
}

const bash = [{ name: "bash", description: "Runs a command", parameters: { type: "object" } }];
const result = (id, text) => ({ role: "tool", tool_call_id: id, content: [{ type: "text", text }] });
const text = (answer) => answer.result?.content?.map((block) => block.text).join("");
/** The body of the last request that the mock got. */
const asked = () => mock.getLastRequest().body;

for (const provider of PROVIDERS) {
  test(`turns over ${provider}'s wire format`, { timeout: TIME }, async () => {
    const runtime = await home.runtime(provider);
    const greeting = await runtime.says("greet me", { system: "Be brief.", tools: bash });
    assert.equal(text(greeting), "Grüße aus dem \ud83e\udd80-Land, in several pieces.", JSON.stringify(greeting));
    assert.equal(greeting.pieces.join(""), text(greeting));
    assert.ok(greeting.pieces.length > 3, "it streams");
    assert.equal(asked().model, "fixed-by-the-profile");
    const calls = await runtime.says("two calls");
    assert.deepEqual(calls.result.tool_calls.map(({ id, name, input }) => [id, name, input]), [["c1", "bash", { command: "ls" }], ["c2", "bash", {}]]);
    const done = await runtime.turn({ messages: [result("c2", "two"), result("c1", "one")] });
    assert.equal(text(done), "Both done.");
    runtime.close();
  });

  test(`faults in ${provider}'s wire format`, { timeout: TIME }, async () => {
    const runtime = await home.runtime(provider);
    const limited = await runtime.says("be limited");
    assert.deepEqual([limited.error.code, limited.error.message], [429, "slow down"], JSON.stringify(limited));
    const broken = await runtime.says("break off");
    assert.ok(broken.error && !broken.result, JSON.stringify(broken));
    assert.ok(broken.pieces.join("").startsWith("this is"), "what came was shown");
    for (const [fault, code] of [["malformedRate", undefined], ["rateLimitRate", 429], ["disconnectRate", -32603], ["dropRate", 500]]) {
      mock.setChaos({ [fault]: 1 });
      const failed = await runtime.says("greet me");
      mock.clearChaos();
      assert.ok(failed.error && !failed.result, `${fault}: ${JSON.stringify(failed)}`);
      if (code) assert.equal(failed.error.code, code, `${fault}: ${JSON.stringify(failed)}`);
    }
    assert.ok(text(await runtime.says("greet me")).startsWith("Grüße"), "the agent is usable again");
    runtime.close();
  });

  for (const [transport, name] of Object.entries(MCP)) {
    test(`${name}, asked by a model of ${provider}`, { timeout: TIME }, async () => {
      const runtime = await home.runtime(`${provider}-${transport}`);
      const seen = await runtime.says("only the server", { tools: bash });
      assert.equal(text(seen), "Seen.", `${JSON.stringify(seen)}\n${home.log}`);
      assert.deepEqual(seen.shown, [], "the runtime hears nothing of it");
      const log = home.run("logs", `${provider}-${transport}`).stdout.trim().split("\n").map((line) => JSON.parse(line));
      const results = log.filter((message) => message.role === "tool");
      assert.deepEqual(results.map((message) => message.tool_call_id), ["e1", "e2", "e3"]);
      assert.equal(results[0].content[0].text, "Echo: ü \u2028 \ud83d\ude00");
      assert.match(results[1].content[0].text, /42/);
      assert.deepEqual(results[2].content.map((block) => block.type), ["text", "image", "text"]);

      const mixed = await runtime.says("both of them");
      assert.deepEqual(mixed.result.tool_calls.map((call) => call.id), ["l1", "l2"]);
      assert.deepEqual(mixed.shown, ["bash", "bash"]);
      const done = await runtime.turn({ messages: [result("l2", "second"), result("l1", "first")] });
      assert.equal(text(done), "Mixed.");
      const sent = asked().messages;
      const order = sent.filter((message) => message.role === "tool").slice(-3).map((message) => message.tool_call_id);
      assert.deepEqual(order, ["l1", "m1", "l2"], JSON.stringify(sent.slice(-4)));

      const failed = await runtime.says("make it fail");
      assert.equal(text(failed), "It failed.");
      const last = home.run("logs", `${provider}-${transport}`).stdout.trim().split("\n").map((line) => JSON.parse(line));
      assert.equal(last.findLast((message) => message.role === "tool").is_error, true);
      const pins = JSON.parse(home.run("agent", "pin", `${provider}-${transport}`, "--json").stdout);
      assert.deepEqual(Object.keys(pins.everything), ["echo", "get-sum", "get-tiny-image"]);
      runtime.close();
    });
  }

  test(`${provider}'s own SDK through the HTTP endpoint`, { timeout: TIME }, async () => {
    const base = `http://127.0.0.1:${ports[provider]}`;
    await eventually("the endpoint is served", () => home.status(provider)?.state === "running");
    const before = home.status(provider).worker.http_calls;
    const done = await sdk(provider, base, home.token(provider));
    const whole = "Grüße aus dem \ud83e\udd80-Land, in several pieces.";
    assert.equal(done.whole, whole);
    assert.equal(done.pieces.join(""), whole);
    assert.ok(done.pieces.length > 3, "it streams");
    assert.equal(done.model, "fixed-by-the-profile");
    assert.equal(done.stop, provider === "openai" ? "stop" : "end_turn");
    assert.deepEqual(done.call, ["weather", { city: "Köln" }]);
    assert.equal(done.answered, "It rains.");
    assert.deepEqual(done.models, ["fixed-by-the-profile"]);
    assert.equal(done.errors.limited, 429);
    assert.ok(["error", "0 ends"].includes(done.errors.broken), done.errors.broken);
    assert.equal(done.refused, 401);
    const worker = home.status(provider).worker;
    assert.equal(worker.http_calls - before, 6);
    assert.ok(worker.input_tokens > 0 && worker.output_tokens > 0);
  });
}

test("OpenAI's own SDK through the HTTP endpoint, in its newer form", { timeout: TIME }, async () => {
  const base = `http://127.0.0.1:${ports.openai}`;
  await eventually("the endpoint is served", () => home.status("openai")?.state === "running");
  const before = home.status("openai").worker.http_calls;
  const done = await sdk("responses", base, home.token("openai"));
  const whole = "Grüße aus dem \ud83e\udd80-Land, in several pieces.";
  assert.deepEqual([done.whole, done.pieces.join(""), done.final], [whole, whole, whole]);
  assert.ok(done.pieces.length > 3, "it streams");
  assert.equal(done.model, "fixed-by-the-profile");
  assert.equal(done.stop, "response.completed");
  assert.deepEqual([done.call, done.streamed], [["weather", { city: "Köln" }], ["weather", { city: "Köln" }]]);
  assert.equal(done.answered, "It rains.");
  assert.equal(done.errors.limited, 429);
  assert.ok(["error", "0 ends"].includes(done.errors.broken), done.errors.broken);
  assert.match(done.errors.kept, /refers to what the provider keeps/);
  assert.equal(done.refused, 401);
  assert.equal(home.status("openai").worker.http_calls - before, 8);
});

test("an SDK in a container, over the bridge and the unix socket", { timeout: TIME }, async () => {
  const socket = join(home.path, ".config/ringfence/sockets/anthropic/http.sock");
  const bridge = spawn(runtimeBinary, ["bridge", "--socket", socket, "--port", "0"], { stdio: ["ignore", "pipe", "ignore"] });
  servers.push(bridge);
  let said = "";
  bridge.stdout.on("data", (text) => (said += text));
  const [, port] = await eventually("the bridge's port", () => said.match(/:(\d+)/));
  const done = await sdk("anthropic", `http://127.0.0.1:${port}`, "no-key-at-all");
  assert.equal(done.pieces.join(""), done.whole);
  assert.equal(done.answered, "It rains.");
  assert.equal(done.errors.limited, 429);
  assert.equal(done.refused, 404, "whoever has the socket is let in: the mock has no answer to that");
});

test("the key goes to the provider and nowhere else", () => {
  const requests = mock.getRequests();
  assert.ok(requests.length > 20);
  const heads = JSON.stringify(requests.map((request) => request.headers));
  for (const provider of PROVIDERS) assert.ok(!heads.includes(home.token(provider)));
  const logs = [...PROVIDERS, ...PROVIDERS.map((provider) => `${provider}-sse`)].map((name) => home.run("logs", name).stdout).join("");
  assert.ok(!logs.includes(KEY) && !home.log.includes(KEY));
});
