// The client that the conformance suite tests: the TypeScript SDK, which does what each scenario asks for. Directly over HTTP,
// or, with RINGFENCE, over stdio to `ringfence mcp --url`.
//
// conformance-client.mjs URL
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";

const url = process.argv.at(-1);
const scenario = process.env.MCP_CONFORMANCE_SCENARIO;
const context = JSON.parse(process.env.MCP_CONFORMANCE_CONTEXT ?? "{}");
const modern = process.env.MCP_CONFORMANCE_PROTOCOL_VERSION >= "2026-07-28";

/** Something that a schema takes. */
function example(schema = {}) {
  if (schema.default !== undefined) return schema.default;
  if (schema.enum) return schema.enum[0];
  if (schema.type === "object") {
    return Object.fromEntries((schema.required ?? []).map((name) => [name, example(schema.properties?.[name])]));
  }
  return { integer: 3, number: 5, boolean: true, array: [], string: "text" }[schema.type] ?? "text";
}

/** All defaults of a form, also of what may be left out. */
const filled = (schema) =>
  Object.fromEntries(Object.entries(schema?.properties ?? {}).map(([name, property]) => [name, example(property)]));

const bridge = process.env.RINGFENCE;
/** What a scenario's login has beside the server's address. */
const more = [];
if (scenario.startsWith("auth/")) {
  if (context.client_secret) {
    const file = join(mkdtempSync(join(tmpdir(), "secret-")), "secret");
    writeFileSync(file, context.client_secret, { mode: 0o600 });
    more.push("--client-secret-file", file);
  }
  if (context.client_id) more.push("--client-id", context.client_id);
  // The suite's own: only a user who has such a document names it.
  if (scenario === "auth/basic-cimd") more.push("--client-id", "https://conformance-test.local/client-metadata.json");
  if (more.includes("--client-id")) more.push("--issuer", await issuer());
}

/** Where a user has registered the client: what the server names. */
async function issuer() {
  const asked = await fetch(url, { method: "POST", headers: { "Content-Type": "application/json" }, body: "{}" });
  const [, place] = /resource_metadata="([^"]*)"/.exec(asked.headers.get("www-authenticate") ?? "") ?? [];
  const { origin, pathname } = new URL(url);
  const described = await fetch(place ?? `${origin}/.well-known/oauth-protected-resource${pathname}`);
  return (await described.json()).authorization_servers[0];
}

/** Logs in as a user does: opens the printed address, and the browser follows where it leads. */
async function login(words) {
  const child = spawn(bridge, ["mcp", ...words, ...more, "--no-browser"], { env: process.env, stdio: ["ignore", "pipe", "inherit"] });
  const ended = once(child, "exit");
  for await (const line of createInterface({ input: child.stdout })) {
    // The answer of a server that sends the browser nowhere is nobody's to look at.
    if (line.startsWith("  http")) fetch(line.trim()).then((response) => response.text()).catch(() => {});
  }
  const [code] = await ended;
  if (code !== 0) throw new Error(`the login ended with ${code}`);
}

/** One session, from its beginning to its end. */
async function session() {
  const client = new Client(
    { name: "conformance-client", version: "1" },
    {
      capabilities: { elicitation: { form: {} }, sampling: {}, roots: {} },
      versionNegotiation: { mode: modern ? "auto" : "legacy", probe: { timeoutMs: 60_000 } },
    },
  );
  client.setRequestHandler("elicitation/create", async (request) => ({
    action: "accept",
    content: filled(request.params.requestedSchema),
  }));
  client.setRequestHandler("sampling/createMessage", async () => ({
    role: "assistant",
    content: { type: "text", text: "fine" },
    model: "none",
  }));
  client.setRequestHandler("roots/list", async () => ({ roots: [] }));
  const transport = bridge
    ? new StdioClientTransport({
        command: bridge,
        args: ["mcp", "--port", "0", "--db", process.env.RINGFENCE_DB, "--rules", process.env.RINGFENCE_RULES, "--server-name", scenario, "--url", url],
        env: process.env,
        stderr: "inherit",
      })
    : new StreamableHTTPClientTransport(new URL(url));
  try {
    await client.connect(transport);
    if (scenario !== "initialize") {
      const { tools } = await client.listTools();
      const calls = context.toolCalls ?? tools.map((tool) => ({ name: tool.name, arguments: example(tool.inputSchema) }));
      // One scenario wants the schema back that it sent.
      for (const { arguments: args } of calls) if (args?.schema) args.schema = tools[0].inputSchema;
      for (const call of calls) {
        await client.callTool(call).catch((error) => {
          if (scenario.startsWith("auth/")) throw error;
          // Some are there to fail.
          console.error(`${call.name}: ${error.message}`);
        });
      }
    }
  } finally {
    await client.close();
  }
}

// What a session that is refused says to do is done, and begun again: a few times, as the specification has it.
for (let left = 3; ; left--) {
  try {
    await session();
    break;
  } catch (error) {
    let [, words] = /`ringfence mcp (login [^`]*)`/.exec(error.message) ?? [];
    // A client that takes the refusal for the other era's asks again in a process of its own, and has that one's answer.
    if (modern && scenario.startsWith("auth/") && left === 3) words ??= `login ${url}`;
    console.error(error.message);
    if (!words || left === 0) throw error;
    await login(words.split(" "));
  }
}
