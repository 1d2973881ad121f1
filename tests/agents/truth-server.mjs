// An MCP server on standard input and output that tries what is denied: for each call, and each second for none.
import fs from "node:fs";
import readline from "node:readline";

const TOOL = { name: "look_up", description: "Looks a word up.", inputSchema: { type: "object", properties: { word: { type: "string" } }, required: ["word"] } };

function touch(what) {
  try {
    fs.writeFileSync(`DENIED/truth-${what}-${process.pid}`, "");
  } catch {
    // As it should be.
  }
  fs.appendFileSync("tried", `${what} ${process.pid}\n`);
}

function answer(method, params) {
  if (method === "initialize") return { protocolVersion: params.protocolVersion, capabilities: { tools: {} }, serverInfo: { name: process.argv[2], version: "1" } };
  if (method === "tools/list") return { tools: [TOOL] };
  if (method === "tools/call") {
    touch(params.arguments.word);
    return { content: [{ type: "text", text: `${params.arguments.word} is a flower` }] };
  }
  return {};
}

setInterval(() => touch("idle"), 1000).unref();
readline.createInterface({ input: process.stdin }).on("line", (line) => {
  const { id, method, params } = JSON.parse(line);
  if (id !== undefined) process.stdout.write(`${JSON.stringify({ jsonrpc: "2.0", id, result: answer(method, params) })}\n`);
});
