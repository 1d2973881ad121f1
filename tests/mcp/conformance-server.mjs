// What the conformance suite wants of a server, over stdio and in both eras of the protocol: what is between is what it tests.
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

const PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==";
const WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA=";
const STATELESS = "2026-07-28";
const VERSIONS = ["2025-03-26", "2025-06-18", "2025-11-25"];
const KEY = (name) => `io.modelcontextprotocol/${name}`;
const INFO = { name: "conformance-server", version: "1" };
const CAPABILITIES = { tools: { listChanged: true }, resources: { subscribe: true }, prompts: {}, completions: {}, logging: {} };

const text = (text) => ({ type: "text", text });
const image = { type: "image", data: PNG, mimeType: "image/png" };
const write = (message) => process.stdout.write(`${JSON.stringify({ jsonrpc: "2.0", ...message })}\n`);
const notify = (method, params) => write({ method, params });

const waiting = new Map();
let asked = 0;
/** Asks the client for something. */
const ask = (method, params) =>
  new Promise((resolve) => {
    const id = `server-${asked++}`;
    waiting.set(id, resolve);
    write({ id, method, params });
  });

const empty = { type: "object", properties: {} };
const one = (name) => ({ type: "object", properties: { [name]: { type: "string" } }, required: [name] });
const elicit = async (message, properties, required = []) => {
  const { result } = await ask("elicitation/create", { message, requestedSchema: { type: "object", properties, required } });
  return [text(`Elicitation completed: action=${result.action}, content=${JSON.stringify(result.content)}`)];
};
const titled = (key, titles) => titles.map((title, at) => ({ const: `value${at + 1}`, title }));

/** Each with its schema, and what a call of it gives. */
const TOOLS = {
  test_simple_text: [empty, () => [text("This is a simple text response for testing.")]],
  test_image_content: [empty, () => [image]],
  test_audio_content: [empty, () => [{ type: "audio", data: WAV, mimeType: "audio/wav" }]],
  test_embedded_resource: [empty, () => [
    { type: "resource", resource: { uri: "test://embedded-resource", mimeType: "text/plain", text: "This is an embedded resource content." } },
  ]],
  test_multiple_content_types: [empty, () => [
    text("Multiple content types test:"),
    image,
    { type: "resource", resource: { uri: "test://mixed-content-resource", mimeType: "application/json", text: '{"test":"data","value":123}' } },
  ]],
  test_tool_with_logging: [empty, async () => {
    for (const data of ["Tool execution started", "Tool processing data", "Tool execution completed"]) {
      notify("notifications/message", { level: "info", data });
      await sleep(50);
    }
    return [text("logged")];
  }],
  test_error_handling: [empty, () => { throw new Error("This tool intentionally returns an error for testing"); }],
  test_tool_with_progress: [empty, async (_, meta) => {
    for (const progress of [0, 50, 100]) {
      if (meta?.progressToken !== undefined) notify("notifications/progress", { progressToken: meta.progressToken, progress, total: 100 });
      await sleep(50);
    }
    return [text("done")];
  }],
  test_sampling: [one("prompt"), async ({ prompt }) => {
    const { result } = await ask("sampling/createMessage", { messages: [{ role: "user", content: text(prompt) }], maxTokens: 100 });
    return [text(`LLM response: ${result.content.text}`)];
  }],
  test_elicitation: [one("message"), async ({ message }) => {
    const properties = { username: { type: "string", description: "User's response" }, email: { type: "string", description: "User's email address" } };
    const { result } = await ask("elicitation/create", { message, requestedSchema: { type: "object", properties, required: ["username", "email"] } });
    return [text(`User response: action: ${result.action}, content: ${JSON.stringify(result.content)}`)];
  }],
  test_elicitation_sep1034_defaults: [empty, () => elicit("defaults", {
    name: { type: "string", default: "John Doe" },
    age: { type: "integer", default: 30 },
    score: { type: "number", default: 95.5 },
    status: { type: "string", enum: ["active", "inactive", "pending"], default: "active" },
    verified: { type: "boolean", default: true },
  })],
  test_elicitation_sep1330_enums: [empty, () => elicit("enums", {
    untitledSingle: { type: "string", enum: ["option1", "option2", "option3"] },
    titledSingle: { type: "string", oneOf: titled("value", ["First Option", "Second Option", "Third Option"]) },
    legacyEnum: { type: "string", enum: ["opt1", "opt2", "opt3"], enumNames: ["Option One", "Option Two", "Option Three"] },
    untitledMulti: { type: "array", items: { type: "string", enum: ["option1", "option2", "option3"] } },
    titledMulti: { type: "array", items: { anyOf: titled("value", ["First Choice", "Second Choice", "Third Choice"]) } },
  })],
  test_missing_capability: [empty, (_, meta) => {
    if (meta?.[KEY("clientCapabilities")]?.sampling) return [text("there")];
    throw new Refused(-32021, "This needs sampling", { requiredCapabilities: { sampling: {} } });
  }],
  test_streaming_elicitation: [empty, () => {
    const params = { message: "who?", requestedSchema: { type: "object", properties: {} } };
    return { resultType: "input_required", inputRequests: { who: { method: "elicitation/create", params } } };
  }],
  test_logging_tool: [empty, (_, meta) => {
    if (meta?.[KEY("logLevel")]) notify("notifications/message", { level: "info", data: "logged" });
    return [text("logged")];
  }],
  test_x_mcp_header: [
    { type: "object", properties: { region: { type: "string", "x-mcp-header": "Region" } } },
    ({ region }) => [text(`region ${region}`)],
  ],
};

const RESOURCES = {
  "test://static-text": { mimeType: "text/plain", text: "This is the content of the static text resource." },
  "test://static-binary": { mimeType: "image/png", blob: PNG },
  "test://watched-resource": { mimeType: "text/plain", text: "watched" },
};

const user = (content) => ({ role: "user", content });
const PROMPTS = {
  test_simple_prompt: [[], () => [user(text("This is a simple prompt for testing."))]],
  test_prompt_with_arguments: [["arg1", "arg2"], ({ arg1, arg2 }) => [user(text(`Prompt with arguments: arg1='${arg1}', arg2='${arg2}'`))]],
  test_prompt_with_embedded_resource: [["resourceUri"], ({ resourceUri }) => [
    user({ type: "resource", resource: { uri: resourceUri, mimeType: "text/plain", text: "Embedded resource content for testing." } }),
    user(text("Please process the embedded resource above.")),
  ]],
  test_prompt_with_image: [[], () => [user(image), user(text("Please analyze the image above."))]],
};

class Refused extends Error {
  constructor(code, message, data) {
    super(message);
    Object.assign(this, { code, data });
  }
}

function read(uri) {
  const of = uri.match(/^test:\/\/template\/(.+)\/data$/);
  if (of) {
    const body = { id: of[1], templateTest: true, data: `Data for ID: ${of[1]}` };
    return { contents: [{ uri, mimeType: "application/json", text: JSON.stringify(body) }] };
  }
  if (!RESOURCES[uri]) throw new Refused(-32602, "Resource not found", { uri });
  return { contents: [{ uri, ...RESOURCES[uri] }] };
}

async function call({ name, arguments: args = {}, _meta }) {
  if (!TOOLS[name]) throw new Refused(-32602, `Unknown tool: ${name}`);
  try {
    const result = await TOOLS[name][1](args, _meta);
    return Array.isArray(result) ? { content: result } : result;
  } catch (error) {
    if (error instanceof Refused) throw error;
    return { content: [text(error.message)], isError: true };
  }
}

const METHODS = {
  ping: () => ({}),
  "logging/setLevel": () => ({}),
  "resources/subscribe": () => ({}),
  "resources/unsubscribe": () => ({}),
  "tools/list": () => ({ tools: Object.entries(TOOLS).map(([name, [inputSchema]]) => ({ name, description: name, inputSchema })) }),
  "tools/call": call,
  "resources/list": () => ({ resources: Object.entries(RESOURCES).map(([uri, { mimeType }]) => ({ uri, name: uri, mimeType })) }),
  "resources/templates/list": () => ({
    resourceTemplates: [{ uriTemplate: "test://template/{id}/data", name: "template", mimeType: "application/json" }],
  }),
  "resources/read": ({ uri }) => read(uri),
  "prompts/list": () => ({
    prompts: Object.entries(PROMPTS).map(([name, [args]]) => ({
      name, description: name, arguments: args.map((name) => ({ name, description: name, required: true })),
    })),
  }),
  "prompts/get": ({ name, arguments: args = {} }) => {
    if (!PROMPTS[name]) throw new Refused(-32602, `Unknown prompt: ${name}`);
    return { messages: PROMPTS[name][1](args) };
  },
  "completion/complete": () => ({ completion: { values: ["paris"], total: 1, hasMore: false } }),
};
/** What only one era has. */
const SESSION_ONLY = ["ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"];
const CACHED = ["tools/list", "resources/list", "resources/templates/list", "prompts/list", "resources/read", "server/discover"];

async function answer({ id, method, params = {} }) {
  const meta = params._meta ?? {};
  const version = meta[KEY("protocolVersion")];
  if (version === undefined) {
    if (method === "initialize") {
      const agreed = VERSIONS.includes(params.protocolVersion) ? params.protocolVersion : VERSIONS.at(-1);
      return { protocolVersion: agreed, capabilities: CAPABILITIES, serverInfo: INFO };
    }
  } else if (version !== STATELESS) {
    throw new Refused(-32022, "Unsupported protocol version", { supported: [STATELESS], requested: version });
  } else if (meta[KEY("clientCapabilities")] === undefined) {
    throw new Refused(-32602, "Invalid params: _meta lacks the client's capabilities");
  } else if (method === "subscriptions/listen") {
    const _meta = { [KEY("subscriptionId")]: id };
    const wanted = params.notifications ?? {};
    const notifications = wanted.toolsListChanged ? { toolsListChanged: true } : {};
    notify("notifications/subscriptions/acknowledged", { _meta, notifications });
    if (wanted.toolsListChanged) notify("notifications/tools/list_changed", { _meta });
    return undefined;
  }
  const modern = version !== undefined;
  const discovers = modern && method === "server/discover";
  if (!discovers && (!METHODS[method] || (modern && SESSION_ONLY.includes(method)))) {
    throw new Refused(-32601, `Method not found: ${method}`);
  }
  const result = discovers ? { supportedVersions: [STATELESS], capabilities: CAPABILITIES } : await METHODS[method](params);
  if (!modern) return result;
  const cached = CACHED.includes(method) ? { ttlMs: 0, cacheScope: "private" } : {};
  return { resultType: "complete", ...result, ...cached, _meta: { [KEY("serverInfo")]: INFO } };
}

for await (const line of createInterface({ input: process.stdin })) {
  const message = JSON.parse(line);
  if (message.method === undefined) {
    waiting.get(message.id)?.(message);
    waiting.delete(message.id);
  } else if (message.id !== undefined) {
    answer(message).then(
      (result) => result && write({ id: message.id, result }),
      ({ code = -32603, message: why, data }) => write({ id: message.id, error: { code, message: why, data } }),
    );
  }
}
