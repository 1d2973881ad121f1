// A small MCP server for the tests: it has every tool, and answers with what it was asked.
import { createInterface } from "node:readline";

const say = (message) => process.stdout.write(`${JSON.stringify(message)}\n`);

for await (const line of createInterface({ input: process.stdin })) {
  const { id, method, params } = JSON.parse(line);
  if (id === undefined || method === undefined) continue;
  if (params?.arguments?.stderr) process.stderr.write(params.arguments.stderr);
  if (method === "initialize") {
    say({ jsonrpc: "2.0", id, result: { protocolVersion: "2025-06-18", capabilities: { tools: {} }, serverInfo: { name: "test", version: "1" } } });
  } else if (method === "tools/list") {
    // The test says what the server lists.
    say({ jsonrpc: "2.0", id, result: { tools: params.tools } });
  } else if (params?.name === "fail_always") {
    say({ jsonrpc: "2.0", id, error: { code: -32000, message: "it always fails" } });
  } else if (params?.name === "ask_model") {
    const content = { type: "text", text: params.arguments.ask };
    say({ jsonrpc: "2.0", id: "asked", method: "sampling/createMessage", params: { messages: [{ role: "user", content }], maxTokens: 9 } });
    say({ jsonrpc: "2.0", id, result: { content: [{ type: "text", text: "asked" }] } });
  } else {
    const text = params?.arguments?.answer ?? `done: ${params?.name}`;
    say({ jsonrpc: "2.0", id, result: { content: [{ type: "text", text }] } });
  }
}
