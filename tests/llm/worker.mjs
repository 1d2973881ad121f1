// What the tests need of Ringfence: a user's home, `ringfence agent start` in it, a runtime on an agent's socket.
import { spawn, spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

export const here = fileURLToPath(new URL(".", import.meta.url));
export const binary = process.env.RINGFENCE ?? join(here, "../../target/debug/ringfence");
export const runtimeBinary = process.env.RINGFENCE_RUNTIME ?? join(here, "../../target/debug/ringfence-runtime");

/** Milliseconds that something may take on a machine that has much else to do. */
const PATIENCE = 120_000;

/** Tries until there is something. */
export async function eventually(what, look) {
  for (const until = Date.now() + PATIENCE; Date.now() < until; ) {
    const found = await look();
    if (found) return found;
    await new Promise((resolve) => setTimeout(resolve, 30));
  }
  throw new Error(`${what}: not within ${PATIENCE / 1000} s`);
}

/** A port of loopback for somebody who wants to be told one: none that the kernel gives to others meanwhile. */
export async function freePort() {
  const isFree = (port) =>
    new Promise((resolve) => {
      const server = createServer();
      server.on("error", () => resolve(false));
      server.listen(port, "127.0.0.1", () => server.close(() => resolve(true)));
    });
  for (;;) {
    const port = 10_000 + Math.floor(Math.random() * 20_000);
    if (await isFree(port)) return port;
  }
}

/** A connection to a socket; its file is there a moment before anybody listens. */
function connected(path) {
  return eventually(`${path} is listened on`, () => new Promise((resolve) => {
    const stream = connect(path, () => resolve(stream));
    stream.on("error", () => resolve(undefined));
  }));
}

/** A user's home with these profiles, served. */
export class Home {
  constructor(profiles) {
    // Short, for the sockets' paths.
    this.path = mkdtempSync(join(tmpdir(), "rf"));
    this.env = { HOME: this.path, PATH: process.env.PATH, RINGFENCE_RUNTIME_DIR: join(this.path, "run") };
    mkdirSync(join(this.path, ".config/ringfence/agents"), { recursive: true });
    for (const [name, text] of Object.entries(profiles)) {
      writeFileSync(join(this.path, `.config/ringfence/agents/${name}.toml`), text, { mode: 0o600 });
    }
    this.log = "";
    this.daemon = spawn(binary, ["start"], { env: this.env, stdio: ["ignore", "ignore", "pipe"] });
    this.daemon.stderr.on("data", (text) => (this.log += text));
  }

  run(...args) {
    return spawnSync(binary, args, { env: this.env, encoding: "utf8" });
  }

  /** An agent's part of `agent ls`. */
  status(agent) {
    return JSON.parse(this.run("agent", "ls", "--json").stdout).agents.find((one) => one.name === agent);
  }

  token(agent) {
    return readFileSync(join(this.path, `.local/share/ringfence/state/${agent}/http-token`), "utf8").trim();
  }

  async runtime(agent) {
    const socket = join(this.path, `.config/ringfence/sockets/${agent}.sock`);
    await eventually(`${agent} is served\n${this.log}`, () => existsSync(socket));
    const runtime = new Runtime(await connected(socket));
    runtime.write({ jsonrpc: "2.0", method: "register", params: { role: "runtime" } });
    return runtime;
  }

  async stop() {
    const gone = new Promise((resolve) => this.daemon.once("exit", resolve));
    if (this.daemon.exitCode === null) {
      this.daemon.kill("SIGKILL");
      await gone;
    }
    rmSync(this.path, { recursive: true, force: true });
  }
}

/** A runtime as the protocol has it: frames of a length and JSON. */
class Runtime {
  constructor(stream) {
    this.stream = stream;
    this.bytes = Buffer.alloc(0);
    this.frames = [];
    this.id = 0;
    stream.on("data", (bytes) => {
      this.bytes = Buffer.concat([this.bytes, bytes]);
      while (this.bytes.length >= 4 && this.bytes.length >= 4 + this.bytes.readUInt32BE()) {
        const end = 4 + this.bytes.readUInt32BE();
        this.frames.push(JSON.parse(this.bytes.subarray(4, end).toString()));
        this.bytes = this.bytes.subarray(end);
      }
    });
    stream.on("error", () => {});
  }

  write(message) {
    const body = Buffer.from(JSON.stringify(message));
    const length = Buffer.alloc(4);
    length.writeUInt32BE(body.length);
    this.stream.write(Buffer.concat([length, body]));
  }

  /** A turn: its answer, with the text and the tool calls that streamed before it. */
  async turn(params) {
    const id = ++this.id;
    this.write({ jsonrpc: "2.0", id, method: "turn", params });
    const answer = await eventually(`turn ${id}`, () => this.frames.find((frame) => frame.id === id));
    const streamed = this.frames.splice(0).filter((frame) => frame.method === "output").map((frame) => frame.params.data);
    return {
      ...answer,
      pieces: streamed.filter((data) => data.type === "text").map((data) => data.text),
      shown: streamed.filter((data) => data.type === "tool_use_start").map((data) => data.name),
    };
  }

  says(text, more = {}) {
    return this.turn({ messages: [{ role: "user", content: [{ type: "text", text }] }], ...more });
  }

  close() {
    this.stream.destroy();
  }
}
