// What an agent's kit adds where a run ties calls. Without the daemon no run does: nobody hears what the hooks' programs say,
// and the agents' tests show that a command is as it was, but for the line before it.
import fs from "node:fs";
import path from "node:path";
import { AGENTS, kept } from "./project.mjs";

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
  const result = await project.run([...words, ...AGENTS[name].ask(text), ...more.words], {}, [...given, ...(more.options ?? [])]);
  fs.rmSync(config);
  return result;
}
