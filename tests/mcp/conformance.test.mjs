// The MCP project's own conformance suite, both of its sides, with Ringfence between: its scenarios for clients against the SDK's
// client behind `ringfence mcp --url`, those for servers against a stdio server behind `ringfence mcp --listen`. And real clients and
// servers over HTTP.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { run as runTypeScript } from "./client-ts.mjs";

const here = fileURLToPath(new URL(".", import.meta.url));
const binary = process.env.RINGFENCE ?? join(here, "../../target/debug/ringfence");
const suite = join(here, "node_modules/@modelcontextprotocol/conformance/dist/index.js");
const everything = join(here, "node_modules/@modelcontextprotocol/server-everything/dist/index.js");

/** Scenarios for clients, by the version of the protocol; each passes without Ringfence, too, which a test of its own shows. */
const CLIENT = {
  "2025-11-25": ["initialize", "tools_call", "elicitation-sep1034-client-defaults", "sse-retry", "json-schema-2020-12-preservation"],
  "2026-07-28": [
    "tools_call", "request-metadata", "sep-2322-client-request-state", "http-standard-headers", "http-custom-headers",
    "http-invalid-tool-headers", "json-schema-ref-no-deref", "json-schema-2020-12-preservation",
  ],
};

/** Scenarios of logins (OAuth). Not among them: those of 2025-03-26, which has no description of the resource; those of extensions
 * (client_credentials, jwt-bearer, enterprise-managed, DPoP), which are logins of no user's. */
const OAUTH = {
  "2025-11-25": [
    "metadata-default", "metadata-var1", "metadata-var2", "metadata-var3", "basic-cimd", "scope-from-www-authenticate",
    "scope-from-scopes-supported", "scope-omitted-when-undefined", "scope-step-up", "scope-retry-limit", "token-endpoint-auth-basic",
    "token-endpoint-auth-post", "token-endpoint-auth-none", "pre-registration",
  ],
  "2026-07-28": [
    "metadata-default", "basic-cimd", "scope-step-up", "pre-registration", "resource-mismatch", "offline-access-scope",
    "offline-access-not-supported", "authorization-server-migration", "iss-supported", "iss-not-advertised", "iss-supported-missing",
    "iss-wrong-issuer", "iss-unexpected", "iss-normalized", "metadata-issuer-mismatch",
  ],
};

/** Scenarios for servers. */
const BOTH = [
  "completion-complete", "tools-list", "tools-call-simple-text", "tools-call-image", "tools-call-audio", "tools-call-embedded-resource",
  "tools-call-mixed-content", "tools-call-error", "tools-call-with-progress", "server-sse-multiple-streams", "resources-list",
  "resources-read-text", "resources-read-binary", "resources-templates-read", "prompts-list", "prompts-get-simple",
  "prompts-get-with-args", "prompts-get-embedded-resource", "prompts-get-with-image", "dns-rebinding-protection",
];
const SERVER = {
  "2025-11-25": [
    ...BOTH, "server-initialize", "server-session-lifecycle", "logging-set-level", "ping", "tools-call-with-logging", "tools-call-sampling",
    "tools-call-elicitation", "elicitation-sep1034-defaults", "elicitation-sep1330-enums", "resources-subscribe", "resources-unsubscribe",
  ],
  "2026-07-28": [
    ...BOTH, "server-stateless", "sep-2164-resource-not-found", "caching", "http-header-validation", "http-custom-header-server-validation",
  ],
};

let home;
let env;
let auditor;
before(() => {
  home = mkdtempSync(join(tmpdir(), "ringfence-conformance-"));
  env = {
    HOME: home, XDG_RUNTIME_DIR: home, RINGFENCE_RUNTIME_DIR: home, PATH: process.env.PATH,
    RINGFENCE_DB: join(home, "audit.db"), RINGFENCE_RULES: join(home, "rules.yaml"),
  };
  writeFileSync(env.RINGFENCE_RULES, "rules: []\n");
  auditor = spawn(binary, ["auditor", "--user", "--db", env.RINGFENCE_DB, "--port", "0"], { env, stdio: "ignore" });
});
after(async () => {
  const gone = once(auditor, "exit");
  auditor.kill("SIGKILL");
  await gone;
  // An auditor that ends may still write there.
  rmSync(home, { recursive: true, force: true, maxRetries: 20, retryDelay: 500 });
});

/** Runs a scenario; all of its checks that are not information. */
async function run(side, scenario, version, more, extra = {}) {
  const results = mkdtempSync(join(home, "results-"));
  const args = ["--import", join(here, "conformance-node.mjs"), suite, side, "--scenario", scenario, "--spec-version", version, "-o", results, ...more];
  const child = spawn(process.execPath, args, { env: { ...env, ...extra }, stdio: ["ignore", "pipe", "pipe"] });
  let said = "";
  child.stdout.on("data", (text) => (said += text));
  child.stderr.on("data", (text) => (said += text));
  await once(child, "close");
  const below = readdirSync(results, { recursive: true }).map(String);
  const folder = below.find((name) => name.includes(scenario) && below.includes(join(name, "checks.json")));
  assert.ok(folder, `${scenario} left no results:\n${said}`);
  const checks = JSON.parse(readFileSync(join(results, folder, "checks.json")));
  return { checks: checks.filter((check) => check.status !== "INFO"), said };
}

function assertPassed({ checks, said }) {
  const failed = checks.filter((check) => check.status === "FAILURE").map((check) => `${check.id}: ${check.errorMessage}`);
  assert.deepEqual(failed, [], said);
  assert.ok(checks.some((check) => check.status === "SUCCESS"), `nothing was checked:\n${said}`);
}

const client = `${process.execPath} ${join(here, "conformance-client.mjs")}`;
for (const [version, scenarios] of Object.entries(CLIENT)) {
  for (const scenario of scenarios) {
    for (const bridge of ["", binary]) {
      test(`client: ${scenario} of ${version} ${bridge ? "behind mcp --url" : "alone"}`, { timeout: 300_000 }, async () => {
        const more = ["--command", client, "--timeout", "120000"];
        // The retry's delay is measured with a tolerance that a busy machine exceeds: without it, what else is checked counts.
        const done = await run("client", scenario, version, more, { RINGFENCE: bridge });
        assertPassed({ ...done, checks: done.checks.filter((check) => check.id !== "client-sse-retry-timing") });
      });
    }
  }
}

for (const [version, scenarios] of Object.entries(OAUTH)) {
  for (const scenario of scenarios) {
    test(`login: ${scenario} of ${version}`, { timeout: 300_000 }, async () => {
      const data = mkdtempSync(join(home, "data-"));
      const more = ["--command", client, "--timeout", "120000"];
      assertPassed(await run("client", `auth/${scenario}`, version, more, { RINGFENCE: binary, XDG_DATA_HOME: data }));
    });
  }
}

/** `ringfence mcp --listen`; its address, and how to end it. */
async function listen(name, ...server) {
  const options = ["--port", "0", "--db", env.RINGFENCE_DB, "--rules", env.RINGFENCE_RULES, "--server-name", name];
  const child = spawn(binary, ["mcp", "--listen", "127.0.0.1:0", ...options, ...server], { env, stdio: ["ignore", "pipe", "inherit"] });
  const [line] = await once(createInterface({ input: child.stdout }), "line");
  return { url: line.replace("listening on ", ""), end: () => Promise.all([once(child, "exit"), child.kill("SIGTERM")]) };
}

for (const [version, scenarios] of Object.entries(SERVER)) {
  let endpoint;
  before(async () => {
    endpoint = await listen(`listen-${version}`, "--", process.execPath, join(here, "conformance-server.mjs"));
  });
  after(() => endpoint.end());
  for (const scenario of scenarios) {
    test(`server: ${scenario} of ${version} behind mcp --listen`, { timeout: 300_000 }, async () => {
      assertPassed(await run("server", scenario, version, ["--url", endpoint.url, "--timeout", "120000"]));
    });
  }
}

/** What of the suite passes at an address, in one text. */
async function passes(url, version, scenarios) {
  const all = [];
  for (const scenario of scenarios) {
    const { checks } = await run("server", scenario, version, ["--url", url, "--timeout", "120000"]);
    all.push(...checks.filter((check) => check.status === "SUCCESS").map((check) => `${scenario}: ${check.id}`));
  }
  return all;
}

test("server-everything passes behind --listen and --url what it passes alone", { timeout: 600_000 }, async () => {
  const port = 20_000 + (process.pid % 20_000);
  const server = spawn(process.execPath, [everything, "streamableHttp"], { env: { ...env, PORT: String(port) }, stdio: ["ignore", "ignore", "pipe"] });
  try {
    for await (const line of createInterface({ input: server.stderr })) if (line.includes("listening")) break;
    const alone = `http://127.0.0.1:${port}/mcp`;
    const endpoint = await listen("both", "--url", alone);
    try {
      const scenarios = SERVER["2025-11-25"];
      const [expected, behind] = [await passes(alone, "2025-11-25", scenarios), await passes(endpoint.url, "2025-11-25", scenarios)];
      assert.ok(expected.length > 20, "the control");
      assert.deepEqual(expected.filter((check) => !behind.includes(check)), []);
    } finally {
      await endpoint.end();
    }
  } finally {
    server.kill("SIGKILL");
  }
});

const PLAN = {
  high: [
    { list: "tools" },
    { list: "resources" },
    { call: "add", args: { a: 2, b: 40 } },
    { call: "add", args: { a: "two" }, fails: true },
    { read: "note://one" },
    { prompt: "ask", args: { topic: "bytes \ud83d\ude00" } },
    { call: "count_slowly", args: { steps: 2 }, progress: true },
    { call: "count_slowly", args: { steps: 2, pause: 60 }, cancel: true, fails: true },
    { call: "add", args: { a: 1, b: 1 } },
  ],
  // It asks the client back.
  low: [{ list: "tools" }, { call: "greet", args: {} }, { call: "greet", args: { name: "x".repeat(100_000) } }, { call: "nobody", args: {}, fails: true }],
};
const python = (version) => join(process.env[`PYTHON_MCP_${version}`] ?? join(here, `python-${version}`), "bin/python");

async function runPython(version, url, plan) {
  const file = join(mkdtempSync(join(home, "plan-")), "plan.json");
  writeFileSync(file, JSON.stringify(plan));
  const child = spawn(python(version), [join(here, "client.py"), file, url], { env, stdio: ["ignore", "ignore", "pipe"] });
  let said = "";
  child.stderr.on("data", (text) => (said += text));
  const [code] = await once(child, "close");
  assert.equal(code, 0, said);
}

for (const version of [1, 2]) {
  for (const kind of ["high", "low"]) {
    for (const [language, play] of Object.entries({
      TypeScript: (url, plan) => runTypeScript(version, [url], env, plan),
      Python: (url, plan) => runPython(version, url, plan),
    })) {
      test(`${language} SDK ${version} at --listen of a ${kind}-level server`, { timeout: 600_000 }, async () => {
        const name = `${language} ${version} ${kind}`;
        const endpoint = await listen(name, "--", python(version), join(here, `server-${kind}.py`));
        try {
          await play(endpoint.url, PLAN[kind]);
        } finally {
          await endpoint.end();
        }
        const rows = spawn(binary, ["mcp", "calls", "--json", "--limit", "1000", "--db", env.RINGFENCE_DB], { env, stdio: ["ignore", "pipe", "inherit"] });
        const names = [];
        for await (const row of createInterface({ input: rows.stdout })) {
          const call = JSON.parse(row);
          if (call.server_name === name) names.unshift(call.tool_name);
        }
        const planned = PLAN[kind].filter((step) => step.call).map((step) => step.call);
        // Without sessions, a call that is asked back comes again.
        assert.deepEqual([...new Set(names)].sort(), [...new Set(planned)].sort());
        assert.ok(names.length >= planned.length, `${names}`);
      });
    }
  }
}
