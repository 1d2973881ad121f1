// Ringfence's own runtime under the daemon, with the scripted model: asked as its owner asks it.
import { spawn, spawnSync } from "node:child_process";
import fs from "node:fs";
import path from "node:path";
import { KEY, ended, pause, succeeded } from "./project.mjs";
import { Provider } from "./provider.mjs";

const NAME = "own";
const PROFILE = `/etc/ringfence/profiles/${NAME}.toml`;
const SOCKET = `/run/ringfence/sockets/${NAME}/agent.sock`;
const RUNTIME = "/usr/local/bin/ringfence-runtime";

/** Has what a test's `Project` has, as far as that is asked. */
export class OwnAgent {
  profile = NAME;
  end = "SIGINT";

  static async start() {
    const agent = new OwnAgent();
    agent.provider = await Provider.start();
    agent.dir = fs.mkdtempSync("/var/tmp/own-");
    const key = path.join(agent.dir, "..", `${NAME}.key`);
    fs.writeFileSync(key, KEY, { mode: 0o600 });
    const places = JSON.stringify([agent.dir, "/usr", "/bin", "/lib", "/lib64", "/etc", "/proc"]);
    fs.writeFileSync(PROFILE, `
description = "Ringfence's own runtime"
[llm.scripted]
provider = "anthropic"
model = "scripted"
api_key_file = "${path.resolve(key)}"
base_url = "${agent.provider.url}"
[grant]
fs_read = { only = ${places} }
fs_write = { only = ["${agent.dir}", "/dev/null"] }
exec = { only = ["/usr", "/bin"] }
net = { only = ["unix:${SOCKET}"] }
max_calls = "unlimited"
valid_for_generation = "all"
`);
    ringfence("profile", "check", NAME);
    spawnSync("pkill", ["-HUP", "-f", "^[^ ]*ringfence daemon"]);
    agent.write("prompt.md", "You do what a test says.");
    await agent.until((state) => state === "running");
    const words = ["run", "--profile", NAME, "--", RUNTIME, "--system-prompt", "prompt.md", "--tools", "bash", "--socket", SOCKET];
    agent.runtime = spawn("ringfence", words, { cwd: agent.dir, stdio: "ignore" });
    await agent.until((_, counts) => counts.runtime);
    return agent;
  }

  /** Waits for what the daemon says of it. */
  async until(holds) {
    for (;;) {
      const known = JSON.parse(ringfence("status", "--json")).agents.find(({ name }) => name === NAME) ?? {};
      if (holds(known.state, known.counts ?? {})) return;
      if (this.runtime?.exitCode != null) throw new Error(`the runtime ended with status ${this.runtime.exitCode}`);
      await pause();
    }
  }

  words(text) {
    return [text];
  }

  spawn(words) {
    return spawn("ringfence", ["agent", "send", NAME, ...words], { stdio: ["ignore", "pipe", "pipe"] });
  }

  async run(words) {
    return ended(this.spawn(words));
  }

  trace() {
    return JSON.parse(ringfence("events", "trace", "--json", "--limit", "200", NAME));
  }

  write(name, text) {
    fs.writeFileSync(path.join(this.dir, name), text);
  }

  read(name) {
    return fs.readFileSync(path.join(this.dir, name), "utf8");
  }

  stop() {
    this.runtime.kill();
    this.provider.stop();
  }
}

function ringfence(...words) {
  const { status, stdout, stderr } = spawnSync("ringfence", words, { encoding: "utf8", maxBuffer: 1 << 28 });
  return succeeded({ status, stdout, stderr });
}
