// A home of its own with an auditor, MCP clients that talk through the interceptor, and a browser.
import { spawn, spawnSync } from "node:child_process";
import { createHash, randomUUID } from "node:crypto";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

const here = fileURLToPath(new URL(".", import.meta.url));
export const binary = process.env.RINGFENCE ?? join(here, "../../target/debug/ringfence");
const browserPath =
  process.env.CHROMIUM ??
  process.env.PATH.split(":").flatMap((dir) => ["chromium", "chromium-browser", "google-chrome"].map((name) => join(dir, name)))
    .find((path) => existsSync(path)) ??
  "/usr/bin/chromium";

const FLAGS = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
];

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Milliseconds that something may take on a machine that has much else to do. */
const PATIENCE = 120_000;

/** Tries until it gives something. */
export async function eventually(what, attempt, patience = PATIENCE) {
  const until = Date.now() + patience;
  for (;;) {
    const found = await attempt();
    if (found) return found;
    if (Date.now() > until) throw new Error(`not in ${patience} ms: ${what}`);
    await sleep(30);
  }
}

export class Home {
  static async open() {
    const home = new Home();
    home.dir = mkdtempSync(join(tmpdir(), "ringfence-dashboard-"));
    const env = { HOME: home.dir, XDG_RUNTIME_DIR: home.dir, RINGFENCE_RUNTIME_DIR: home.dir, PATH: process.env.PATH };
    home.env = env;
    home.db = join(home.dir, "audit.db");
    await home.startAuditor(0);
    return home;
  }

  async startAuditor(port) {
    this.auditor = spawn(binary, ["auditor", "--user", "--db", this.db, "--port", String(port)], { env: this.env, stdio: "ignore" });
    // Asked sooner, `ringfence dashboard` would start another one.
    const sockets = join(this.dir, "ringfence");
    await eventually("the auditor listens", () => existsSync(sockets) && readdirSync(sockets).length > 0);
    this.link = await eventually("the auditor has a dashboard", () => {
      const said = spawnSync(binary, ["dashboard", "--db", this.db], { env: this.env, encoding: "utf8" });
      return said.stdout.trim();
    });
    const url = new URL(this.link);
    this.port = Number(url.port);
    this.token = url.hash.slice("#token=".length);
  }

  /** The line of an agent's worker to the auditor, as its supervisor makes it. */
  async worker(agent) {
    const sockets = join(this.dir, "ringfence");
    const socket = connect(join(sockets, readdirSync(sockets).find((name) => name.endsWith(".sock"))));
    let received = Buffer.alloc(0);
    socket.on("data", (bytes) => (received = Buffer.concat([received, bytes])));
    const send = (message) => {
      const body = Buffer.from(JSON.stringify(message));
      const header = Buffer.alloc(4);
      header.writeUInt32BE(body.length);
      socket.write(Buffer.concat([header, body]));
    };
    const hear = async () => {
      const length = await eventually("the auditor says something", () =>
        received.length >= 4 && received.length >= 4 + received.readUInt32BE() && received.readUInt32BE());
      const message = JSON.parse(received.subarray(4, 4 + length));
      received = received.subarray(4 + length);
      return message;
    };
    send({ request: "agent_tools", agent });
    const { reply } = await hear();
    if (reply !== "linked") throw new Error(`the auditor answers a worker with ${reply}`);
    return { hear, say: async (message) => (send(message), hear()), end: () => socket.destroy() };
  }

  async stopAuditor() {
    if (this.auditor.exitCode !== null || this.auditor.signalCode !== null) return;
    const gone = new Promise((resolve) => this.auditor.once("exit", resolve));
    this.auditor.kill("SIGKILL");
    await gone;
    rmSync(join(this.dir, "ringfence"), { recursive: true, force: true });
  }

  /**
   * A client with one server behind the interceptor. A call that is held waits for its test: how long nobody decides it is
   * for those to say that are about it.
   */
  async client(server, options = ["--approval-timeout", "3600"]) {
    const child = spawn(
      binary,
      ["mcp", "--db", this.db, "--server-name", server, ...options, "--", process.execPath, join(here, "server.mjs")],
      { env: this.env, stdio: ["pipe", "pipe", "ignore"] },
    );
    const answers = new Map();
    createInterface({ input: child.stdout }).on("line", (line) => {
      const message = JSON.parse(line);
      answers.get(message.id)?.(message);
    });
    let next = 0;
    const raw = (method, params) => {
      const id = next++;
      const answered = new Promise((resolve) => answers.set(id, resolve));
      child.stdin.write(`{"jsonrpc":"2.0","id":${id},"method":"${method}","params":${params}}\n`);
      return answered;
    };
    const request = (method, params) => raw(method, JSON.stringify(params));
    await request("initialize", {
      protocolVersion: "2025-06-18",
      capabilities: {},
      clientInfo: { name: "Example Client", version: "2.1" },
    });
    return {
      call: (name, args = {}, meta = undefined) => request("tools/call", { name, arguments: args, _meta: meta }),
      /** Has the server list these tools; those that the client gets. */
      list: async (tools) => (await request("tools/list", { tools })).result.tools,
      /** With arguments as JSON text. */
      raw: (name, args) => raw("tools/call", `{"name":${JSON.stringify(name)},"arguments":${args}}`),
      close: () => {
        if (child.exitCode !== null || child.signalCode !== null) return Promise.resolve();
        const gone = new Promise((resolve) => child.once("exit", resolve));
        child.stdin.end();
        return gone;
      },
    };
  }

  /**
   * The journal of a session that is over, whose server was in a container, as its interceptor left it; and its calls in the
   * database. Only the daemon puts servers into containers.
   */
  contained(server, container, tools) {
    const session = randomUUID();
    const now = Date.now() * 1000;
    const lines = [
      { kind: "start", session, at: now, server_name: server, server_command: [server], pid: 1, version: "0" },
      { kind: "governed", at: now, profile: "coder", enforcement: "kernel", container },
      ...tools.flatMap((tool, id) => {
        const message = (direction, raw, calls) => ({
          kind: "message", id: randomUUID(), at: now + id, boot: id + 1, direction, raw: JSON.stringify(raw), bytes: 1, sha256: "", calls,
        });
        const judged = { call: randomUUID(), index: 0, tool, operation: "read", score: 0, reasons: [], action: "pass", rules: [] };
        return [
          message("client_to_server", { jsonrpc: "2.0", id, method: "tools/call", params: { name: tool, arguments: {} } }, [judged]),
          message("server_to_client", { jsonrpc: "2.0", id, result: { content: [] } }, []),
        ];
      }),
      { kind: "end", at: now + 9, status: 0 },
    ];
    let head = "0".repeat(64);
    const text = lines.map((line) => {
      const json = JSON.stringify(line);
      head = createHash("sha256").update(head + json).digest("hex");
      return `${head} ${json}\n`;
    });
    const journals = `${this.db}.journals`;
    mkdirSync(journals, { recursive: true });
    writeFileSync(join(journals, `${session}.journal`), text.join(""), { mode: 0o600 });
    const listed = spawnSync(binary, ["calls", "--db", this.db, "--container", container, "--json"], { env: this.env, encoding: "utf8" });
    return listed.stdout.trim().split("\n").filter(Boolean).map((line) => JSON.parse(line));
  }

  /** An answer of the API. */
  async api(path, options = {}) {
    const response = await fetch(`http://127.0.0.1:${this.port}${path}`, {
      ...options,
      headers: { Authorization: `Bearer ${this.token}`, ...options.headers },
    });
    return response.json();
  }

  async close() {
    await this.stopAuditor();
    rmSync(this.dir, { recursive: true, force: true });
  }
}

/** A browser with a profile of its own; `flags` are added to those that every test needs. */
export async function browse(flags = []) {
  const profile = mkdtempSync(join(tmpdir(), "ringfence-chromium-"));
  mkdirSync(join(profile, "home"));
  const browser = await chromium.launch({
    executablePath: browserPath,
    timeout: PATIENCE,
    headless: true,
    args: [...FLAGS, ...flags],
    env: { ...process.env, HOME: join(profile, "home"), XDG_CONFIG_HOME: profile, XDG_CACHE_HOME: profile },
  });
  return {
    browser,
    /** A page that fails the test on any error in it, or any request that leaves this machine. */
    async page(options = {}) {
      const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
      context.setDefaultTimeout(PATIENCE);
      const page = await context.newPage();
      const wrong = [];
      page.on("pageerror", (error) => wrong.push(`error: ${error.message}`));
      page.on("console", (message) => {
        // Chromium reports every answer that is an error; those are the page's to show.
        if (message.type() === "error" && !/Failed to load resource|WebSocket connection/.test(message.text())) wrong.push(`console: ${message.text()}`);
      });
      page.on("request", (request) => {
        if (new URL(request.url()).hostname !== "127.0.0.1") wrong.push(`request: ${request.url()}`);
        if (/token=/.test(request.url())) wrong.push(`the token is in an address: ${request.url()}`);
      });
      return { page, wrong, close: () => context.close() };
    },
    async close() {
      await browser.close();
      rmSync(profile, { recursive: true, force: true });
    },
  };
}
