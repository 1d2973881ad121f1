// What an agent's kit adds where a run ties calls. Without the daemon no run does: nobody hears what the hooks' programs say,
// and the agents' tests show that a command is as it was, but for the line before it.
import { spawn } from "node:child_process";
import { once } from "node:events";
import fs from "node:fs";
import path from "node:path";
import readline from "node:readline";
import { AGENTS, kept, profiles, programs } from "./project.mjs";

/** The program that ties, and the profiles of the binary. */
const { RUNTIME, PROFILES } = process.env;

/** What each agent refuses by itself, with a hook and without. */
export const REFUSES = {
  claude: { words: ["--disallowedTools", "Bash(touch:*)"], command: "touch refused.txt", says: /has been denied/ },
  codex: { words: [], command: "touch refused.txt; rm -rf nothing", says: /rejected/ },
  opencode: {
    options: ["--env", 'OPENCODE_PERMISSION={"bash":{"*":"allow","touch *":"deny"}}'],
    words: [], command: "touch refused.txt", says: /prevents you from using/,
  },
};

/** The `[kit.tie]` of an agent's profile. */
function tie(name) {
  const text = fs.readFileSync(path.join(PROFILES, `${name}.toml`), "utf8").split("\n[kit.tie")
    .slice(1).join("\n[kit.tie").replace(/^ *#.*$/gm, "");
  const filled = (text) => text.replaceAll("${RUNTIME}", RUNTIME).replaceAll("${STATE}", path.join(kept, name));
  const list = /^arguments = \[([^]*?)\]$/m.exec(text)?.[1] ?? "";
  const words = [...list.matchAll(/'''([^]*?)'''|"([^"]*)"/g)].map(([, long, short]) => filled(long ?? short));
  const variables = [...text.matchAll(/^(\w+) = (['"])(.*)\2$/gm)].map(([, name, , value]) => [name, filled(value)]);
  const files = [...text.matchAll(/^"(.+)" = '''\n([^]*?)'''$/gm)].map(([, name, value]) => [name, filled(value)]);
  return { words, variables, files };
}

/**
 * What each agent's tools for files are asked to do by its model: one call that works, and one that fails; what its hooks say then, and
 * after a command; and its arguments, where others are needed for that.
 */
export const FILES = {
  claude: {
    words: ["--allowedTools", "Bash,Read,Write"],
    works: (dir) => ({ call: "Write", given: { file_path: path.join(dir, "made.txt"), content: "made\n" } }),
    breaks: (dir) => ({ call: "Read", given: { file_path: path.join(dir, "missing.txt") } }),
    says: [["Write", false], ["Read", true], ["Bash", false]],
  },
  codex: {
    // A model that it knows and gives a tool for patches; without what makes it offer its model a search for tools.
    ask: (text) => ["exec", "-m", "gpt-5.5", "-c", "features.multi_agent=false", "--skip-git-repo-check", text],
    words: [],
    works: () => ({ call: "apply_patch", text: "*** Begin Patch\n*** Add File: made.txt\n+made\n*** End Patch\n" }),
    breaks: () => ({ call: "apply_patch", text: "*** Begin Patch\n*** Delete File: missing.txt\n*** End Patch\n" }),
    // It says nothing of a patch that fails, and not how a command ended.
    says: [["apply_patch", undefined], ["Bash", undefined]],
  },
  opencode: {
    words: [],
    works: (dir) => ({ call: "write", given: { filePath: path.join(dir, "made.txt"), content: "made\n" } }),
    breaks: (dir) => ({ call: "read", given: { filePath: path.join(dir, "missing.txt") } }),
    // It says nothing of a call that fails, and not how a command ended.
    says: [["write", false], ["bash", undefined]],
  },
};

/**
 * Listens where a run's worker would, for what an agent's hooks say: in `said`, each an object. Ends with a test. The daemon would
 * grant a run its socket; here a profile does.
 */
export async function listen(t, agent) {
  const name = `ringfence-test-${process.pid}-${agent}`;
  const grant = `extends = "${agent}"\n[grant]\nnet = { add = ["unix:@${name}"] }\n`;
  fs.writeFileSync(path.join(profiles, `told-${agent}.toml`), grant, { mode: 0o644 });
  const listener = spawn(path.join(programs, "node"), ["listener.mjs", name], { stdio: ["ignore", "pipe", "inherit"] });
  t.after(() => listener.kill());
  const [said, lines] = [[], readline.createInterface({ input: listener.stdout })];
  lines.on("line", (line) => said.push(...Object.values(JSON.parse(line))));
  await once(lines, "line");
  return { said, options: ["--env", `RINGFENCE_TIE=@${name}`, "--profile", `told-${agent}`] };
}

/** As a project's `ask`, with the agent's hooks as a run that ties has them. `more`: its own arguments and options. */
export async function askTied(project, more, text, ...script) {
  const { name } = project;
  project.provider.script = script;
  const { words, variables, files } = tie(name);
  const state = path.join(kept, name);
  fs.mkdirSync(state, { recursive: true });
  for (const [file, value] of files) fs.writeFileSync(path.join(state, file), value);
  // The kit's own configuration has the endpoint's address in it: here opencode finds the plugin beside that.
  const config = path.join(state, "config/opencode/opencode.json");
  const plugins = files.map(([file]) => `file://${path.join(state, file)}`);
  fs.mkdirSync(path.dirname(config), { recursive: true });
  fs.writeFileSync(config, JSON.stringify({ plugin: plugins }));
  const given = variables.filter(([, value]) => !value.includes("${")).flatMap(([name, value]) => ["--env", `${name}=${value}`]);
  const result = await project.run([...words, ...(more.ask ?? AGENTS[name].ask)(text), ...more.words], {}, [...given, ...(more.options ?? [])]);
  fs.rmSync(config);
  return result;
}
