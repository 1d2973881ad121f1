// The client that the conformance suite tests: the TypeScript SDK, which does what each scenario asks for. Directly over HTTP,
// or, with RINGFENCE, over stdio to `ringfence mcp --url`.
//
// conformance-client.mjs URL
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

const bridge = process.env.RINGFENCE;
const transport = bridge
  ? new StdioClientTransport({
      command: bridge,
      args: ["mcp", "--port", "0", "--db", process.env.RINGFENCE_DB, "--rules", process.env.RINGFENCE_RULES, "--server-name", scenario, "--url", url],
      env: process.env,
      stderr: "inherit",
    })
  : new StreamableHTTPClientTransport(new URL(url));

await client.connect(transport);
try {
  if (scenario !== "initialize") {
    const { tools } = await client.listTools();
    const calls = context.toolCalls ?? tools.map((tool) => ({ name: tool.name, arguments: example(tool.inputSchema) }));
    // One scenario wants the schema back that it sent.
    for (const { arguments: args } of calls) if (args?.schema) args.schema = tools[0].inputSchema;
    for (const call of calls) {
      // Some are there to fail.
      await client.callTool(call).catch((error) => console.error(`${call.name}: ${error.message}`));
    }
  }
} finally {
  await client.close();
}
