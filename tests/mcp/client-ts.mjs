// Clients on the TypeScript SDK: version 1 with a handshake, version 2 with or without one.
import { Client as Client1 } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport as Stdio1 } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport as Http1 } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";
import { Client as Client2, StreamableHTTPClientTransport as Http2 } from "@modelcontextprotocol/client";
import { StdioClientTransport as Stdio2 } from "@modelcontextprotocol/client/stdio";
import { setTimeout as sleep } from "node:timers/promises";

const INFO = { name: "example-client", version: "7" };
const accept = async () => ({ action: "accept", content: { name: "Ada" } });

function open1() {
  const client = new Client1(INFO, { capabilities: { elicitation: {} } });
  client.setRequestHandler(ElicitRequestSchema, accept);
  // Version 1 takes a result's schema before the options.
  return { client, Stdio: Stdio1, Http: Http1, call: (params, options) => client.callTool(params, undefined, options) };
}

function open2() {
  const client = new Client2(INFO, { capabilities: { elicitation: {} }, versionNegotiation: { mode: "auto", probe: { timeoutMs: 600_000 } } });
  client.setRequestHandler("elicitation/create", accept);
  return { client, Stdio: Stdio2, Http: Http2, call: (params, options) => client.callTool(params, options) };
}

/** A whole session, with a command or at an address: every step of the plan, then a clean end. Throws where a step does not end as planned. */
export async function run(version, [command, ...args], env, plan) {
  const { client, Stdio, Http, call } = version === 1 ? open1() : open2();
  const isRemote = command.startsWith("http://");
  const transport = isRemote ? new Http(new URL(command)) : new Stdio({ command, args, env, stderr: "ignore" });
  await client.connect(transport);
  try {
    for (const step of plan) await one(client, call, step);
  } finally {
    await transport.terminateSession?.();
    await client.close();
  }
}

async function one(client, call, step) {
  const expected = step.fails ? "an error" : "a result";
  let outcome;
  let cause;
  try {
    outcome = (await act(client, call, step))?.isError ? "an error" : "a result";
  } catch (error) {
    outcome = "an error";
    cause = error;
  }
  if (outcome !== expected) throw new Error(`${JSON.stringify(step)}: ${outcome}: ${cause}`, { cause });
}

async function act(client, call, step) {
  if (step.ping) return client.ping();
  if (step.wait) return sleep(step.wait);
  if (step.list === "tools") return client.listTools();
  if (step.list === "resources") return client.listResources();
  if (step.list === "templates") return client.listResourceTemplates();
  if (step.list === "prompts") return client.listPrompts();
  if (step.read) return client.readResource({ uri: step.read });
  if (step.prompt) return client.getPrompt({ name: step.prompt, arguments: step.args });
  const params = { name: step.call, arguments: step.args };
  if (!step.progress && !step.cancel) return call(params);
  const abort = new AbortController();
  let heard = 0;
  const onprogress = () => {
    heard += 1;
    if (step.cancel) abort.abort("changed my mind");
  };
  try {
    return await call(params, { onprogress, signal: abort.signal });
  } finally {
    if (!heard) throw new Error(`${step.call}: no progress came`);
  }
}
