// An MCP server on standard input and output, as small as agents take one: a tool, and what it is called with in a file.
import fs from "node:fs";
import readline from "node:readline";

const TOOL = { name: "look_up", description: "Looks a word up.", inputSchema: { type: "object", properties: { word: { type: "string" } }, required: ["word"] } };

function answer(method, params) {
  if (method === "initialize") return { protocolVersion: params.protocolVersion, capabilities: { tools: {} }, serverInfo: { name: "words", version: "1" } };
  if (method === "tools/list") return { tools: [TOOL] };
  if (method === "tools/call") {
    fs.appendFileSync("called.txt", `${params.arguments.word}\n`);
    return { content: [{ type: "text", text: `${params.arguments.word} is a flower` }] };
  }
  return {};
}

readline.createInterface({ input: process.stdin }).on("line", (line) => {
  const { id, method, params } = JSON.parse(line);
  if (id !== undefined) process.stdout.write(`${JSON.stringify({ jsonrpc: "2.0", id, result: answer(method, params) })}\n`);
});
