// A scripted model, as Anthropic's Messages, OpenAI's Responses and Gemini: each request takes the next step of its script,
// which is about the newest message. What it was asked is kept.
import { once } from "node:events";
import http from "node:http";

/**
 * What a request asks of a shell tool of its own, and how many seconds that may take: the agents' have different names and inputs.
 * Codex goes on without the command then; gemini-cli has no limit of a call's.
 */
const SHELLS = {
  Bash: (command, seconds) => ({ command, description: "a step of a test", ...(seconds && { timeout: seconds * 1000 }) }),
  // Of opencode, in milliseconds, and of Ringfence's own runtime.
  bash: (command, seconds, { properties }) => ({ command, ...(seconds && { timeout: seconds * (properties.workdir ? 1000 : 1) }) }),
  shell: (command, seconds) => ({ command: ["bash", "-lc", command], ...(seconds && { timeout_ms: seconds * 1000 }) }),
  shell_command: (command, seconds) => ({ command, ...(seconds && { timeout_ms: seconds * 1000 }) }),
  exec_command: (command, seconds) => ({ cmd: command, ...(seconds && { yield_time_ms: seconds * 1000 }) }),
  run_shell_command: (command) => ({ command, description: "a step of a test" }),
};

/** What gemini-cli asks first, when it wants to know which of its models a question is for. */
const ROUTE = JSON.stringify({ complexity_reasoning: "as the test wants it", complexity_score: 1 });

export class Provider {
  constructor() {
    this.asked = [];
    this.script = [];
    this.calls = 0;
  }

  static async start() {
    const provider = new Provider();
    provider.server = http.createServer((request, response) => provider.answer(request, response));
    provider.server.listen(0, "127.0.0.1");
    await once(provider.server, "listening");
    provider.url = `http://127.0.0.1:${provider.server.address().port}`;
    return provider;
  }

  stop() {
    this.server.closeAllConnections();
    this.server.close();
  }

  /** Those that a person's words led to, without the side questions that agents ask for themselves. */
  turns() {
    return this.asked.filter((asked) => asked.shell !== undefined);
  }

  async answer(request, response) {
    let text = "";
    for await (const piece of request) text += piece;
    const body = JSON.parse(text || "{}");
    const tools = (body.tools ?? []).flatMap((tool) => tool.functionDeclarations ?? tool.tools?.map(({ name }) => ({ name, namespace: tool.name })) ?? tool);
    const shell = tools.find((tool) => tool.name in SHELLS)?.name;
    const asked = { path: request.url, headers: request.headers, body, shell, text };
    this.asked.push(asked);
    if (request.url.includes("count_tokens")) return json(response, 200, { input_tokens: 10 });
    if (request.url.includes(":countTokens")) return json(response, 200, { totalTokens: 10 });
    if (request.url.includes(":generateContent")) return json(response, 200, candidate([{ text: ROUTE }], "STOP"));
    // A title for the session and the like: whatever is said will do.
    const step = (shell === undefined ? undefined : this.script.shift()) ?? { say: "Nothing more." };
    if (step.status !== undefined) {
      const error = { type: step.kind ?? "api_error", message: "as the test wants it" };
      return json(response, step.status, { type: "error", error }, step.headers);
    }
    const wire = request.url.includes(":streamGenerateContent") ? gemini : request.url.includes("/responses") ? responses : messages;
    wire(response, call(step, tools, shell), { id: `call_${++this.calls}`, model: body.model });
  }
}

/**
 * A step with the tools that it calls: the shell, once or for each of several commands at once, or those whose names end as the
 * step says. Agents put a server's before it.
 */
function call(step, tools, shell) {
  const commands = step.run !== undefined ? [step.run] : step.runs;
  if (commands !== undefined) {
    const { input_schema: schema = {} } = tools.find((tool) => tool.name === shell);
    return { ...step, tools: commands.map((command) => ({ name: shell, given: SHELLS[shell](command, step.seconds, schema) })) };
  }
  if (step.calls !== undefined) return { ...step, tools: step.calls.map((one) => wanted(one, tools)) };
  return step.call === undefined ? step : { ...step, tools: [wanted(step, tools)] };
}

/** One call of the tool of this name, or else of one whose name ends so, with its server's before it. */
function wanted({ call: end, given, text }, tools) {
  const whole = ({ name, namespace }) => [namespace, name].filter(Boolean).join("_").replaceAll("__", "_");
  const found = tools.find((tool) => tool.name === end) ?? tools.find((tool) => whole(tool).endsWith(end));
  const { name, namespace } = found ?? { name: end };
  return { name, namespace, given, text };
}

function json(response, status, body, headers = {}) {
  response.writeHead(status, { "content-type": "application/json", ...headers });
  response.end(JSON.stringify(body));
}

/** Writes events; a step that is `cut` breaks off before the last. */
function stream(response, events, cut) {
  response.writeHead(200, { "content-type": "text/event-stream" });
  for (const event of cut ? events.slice(0, -1) : events) {
    // Gemini's events have no names.
    const name = event.type === undefined ? "" : `event: ${event.type}\n`;
    response.write(`${name}data: ${JSON.stringify(event)}\n\n`);
  }
  if (!cut) return response.end();
  // What was written goes out first.
  setTimeout(() => response.destroy(), 50);
}

function messages(response, step, { id, model }) {
  const usage = { input_tokens: 10, output_tokens: 5 };
  const message = { id: `msg_${id}`, type: "message", role: "assistant", model, content: [], stop_reason: null, stop_sequence: null, usage };
  const blocks = step.tools
    ? step.tools.map(({ name, given }, index) => ({
        start: { type: "tool_use", id: `toolu_${numbered(id, index)}`, name, input: {} },
        deltas: [{ type: "input_json_delta", partial_json: JSON.stringify(given) }],
      }))
    : [{ start: { type: "text", text: "" }, deltas: pieces(step).map((text) => ({ type: "text_delta", text })) }];
  stream(response, [
    { type: "message_start", message },
    ...blocks.flatMap(({ start, deltas }, index) => [
      { type: "content_block_start", index, content_block: start },
      ...deltas.map((delta) => ({ type: "content_block_delta", index, delta })),
      { type: "content_block_stop", index },
    ]),
    { type: "message_delta", delta: { stop_reason: step.tools ? "tool_use" : "end_turn", stop_sequence: null }, usage: { output_tokens: 5 } },
    { type: "message_stop" },
  ], step.cut);
}

/** The id of one of an answer's calls. */
function numbered(id, index) {
  return index === 0 ? id : `${id}_${index}`;
}

function responses(response, step, { id, model }) {
  const usage = { input_tokens: 10, input_tokens_details: { cached_tokens: 0 }, output_tokens: 5, output_tokens_details: { reasoning_tokens: 0 }, total_tokens: 15 };
  const whole = (status, output) => ({ id: `resp_${id}`, object: "response", created_at: 1, status, model, output, usage: status === "completed" ? usage : null });
  const items = step.tools?.map((tool, index) => called(tool, numbered(id, index), index)) ?? [written(pieces(step), id)];
  const events = [
    { type: "response.created", response: whole("in_progress", []) },
    ...items.flatMap(({ item, begun, deltas }, output_index) => [
      { type: "response.output_item.added", output_index, item: { ...begun, status: "in_progress" } },
      ...deltas,
      { type: "response.output_item.done", output_index, item },
    ]),
    // ChatGPT's end says nothing again.
    { type: "response.completed", response: whole("completed", step.bare ? [] : items.map(({ item }) => item)) },
  ];
  stream(response, events.map((event, number) => ({ ...event, sequence_number: number })), step.cut);
}

/** A call among the items of an answer. */
function called({ name, namespace, given, text }, id, output_index) {
  // A tool that takes any text, and no JSON.
  if (text !== undefined) {
    const item = { type: "custom_tool_call", id: `ctc_${id}`, call_id: id, name, input: text, status: "completed" };
    const of = { item_id: item.id, output_index };
    const deltas = [{ type: "response.custom_tool_call_input.delta", ...of, delta: text }, { type: "response.custom_tool_call_input.done", ...of, input: text }];
    return { item, begun: { ...item, input: "" }, deltas };
  }
  const item = { type: "function_call", id: `fc_${id}`, call_id: id, name, namespace, arguments: JSON.stringify(given), status: "completed" };
  const of = { item_id: item.id, output_index };
  const deltas = [{ type: "response.function_call_arguments.delta", ...of, delta: item.arguments },
                  { type: "response.function_call_arguments.done", ...of, arguments: item.arguments }];
  return { item, begun: { ...item, arguments: "" }, deltas };
}

/** A text as an answer's only item. */
function written(said, id) {
  const item = { type: "message", id: `msg_${id}`, role: "assistant", status: "completed", content: [{ type: "output_text", text: said.join(""), annotations: [] }] };
  const part = { item_id: item.id, output_index: 0, content_index: 0 };
  const deltas = [{ type: "response.content_part.added", ...part, part: { type: "output_text", text: "", annotations: [] } },
                  ...said.map((delta) => ({ type: "response.output_text.delta", ...part, delta })),
                  { type: "response.output_text.done", ...part, text: said.join("") },
                  { type: "response.content_part.done", ...part, part: item.content[0] }];
  return { item, begun: { ...item, content: [] }, deltas };
}

/** Gemini's answer, or a piece of it; the last has a reason. */
function candidate(parts, finishReason) {
  const usageMetadata = { promptTokenCount: 10, candidatesTokenCount: 5, totalTokenCount: 15 };
  return { candidates: [{ content: { role: "model", parts }, index: 0, finishReason }], usageMetadata };
}

function gemini(response, step) {
  const events = step.tools
    ? [candidate(step.tools.map(({ name, given }) => ({ functionCall: { name, args: given } })), "STOP")]
    : [...pieces(step).map((text) => candidate([{ text }])), candidate([{ text: "" }], "STOP")];
  stream(response, events, step.cut);
}

/** What is said, in as many pieces as the step wants. */
function pieces({ say, times = 1 }) {
  return Array.from({ length: times }, (_, number) => (times === 1 ? say : `${say} ${number}. `));
}
