// The calls: newest first, filtered, growing as they happen.

import { ask } from "./api.js";
import { notice, trying } from "./app.js";
import { badge, byId, command, duration, el, empty, ending, risk, shown, summary, timeOf, visible } from "./dom.js";
import { go, href, place } from "./place.js";

const LIMIT = 100;
const MOST = 1000;
/** A pointer that moved over the list this lately is about to click: rows wait. */
const STILL = 2_500;
const FILTERS = ["session", "server", "container", "risk", "verdict", "outcome", "tool"];
const VERDICTS = ["flag", "pause", "block", "approved", "denied", "timeout", "cancelled", "blocked"];
const OUTCOMES = ["answered", "tool_error", "error", "task", "task_answered", "cancelled_in_flight", "killed",
  "blocked", "denied", "timeout", "cancelled", "ended"];

let rows = new Map();
let held = new Map();
let body = null;
let asked = "";
let pointed = -Infinity;
let choices = { sessions: [] };

const wanted = () => Object.fromEntries(FILTERS.map((name) => [name, place()[name] ?? ""]));

function option(value, text, chosen) {
  return el("option", { value, selected: value === chosen }, visible(text));
}

function select(name, label, options) {
  const chosen = wanted()[name];
  if (chosen && !options.some(([value]) => value === chosen)) options.push([chosen, chosen.slice(0, 40)]);
  return el(
    "label",
    {},
    el("span", {}, label),
    el(
      "select",
      { name, id: `filter-${name}`, onchange: (event) => go({ [name]: event.target.value }) },
      option("", "any", chosen),
      options.map(([value, text]) => option(value, text, chosen)),
    ),
  );
}

function bar() {
  const servers = [...new Set(choices.sessions.map((session) => session.server_name))].sort();
  const containers = new Map(choices.sessions.filter((s) => s.container).map((s) => [s.container, `${s.container.slice(0, 6)} ${s.profile ?? ""}`]));
  let typed;
  const tool = el("input", {
    id: "filter-tool",
    type: "search",
    name: "tool",
    value: wanted().tool,
    placeholder: "part of a name  ( / )",
    autocomplete: "off",
    spellcheck: "false",
    oninput: () => {
      clearTimeout(typed);
      typed = setTimeout(() => go({ tool: tool.value }, true), 200);
    },
  });
  const filtered = FILTERS.some((name) => wanted()[name]);
  return el(
    "form",
    { class: "filters", role: "search", "aria-label": "Filter calls", onsubmit: (event) => event.preventDefault() },
    el("label", { class: "grow" }, el("span", {}, "Tool"), tool),
    select("server", "Server", servers.map((name) => [name, name])),
    // Where no server has a profile there is nothing to choose.
    containers.size || wanted().container ? select("container", "Container", [...containers].slice(0, 100)) : null,
    select("risk", "Risk", [["31", "31 and more"], ["61", "61 and more"], ["81", "81 and more"]]),
    select("verdict", "Policy", VERDICTS.map((name) => [name, name])),
    select("outcome", "Outcome", OUTCOMES.map((name) => [name, name.replaceAll("_", " ")])),
    select("session", "Session", choices.sessions.slice(0, 100).map((s) =>
      [s.id, `${s.server_name} ${s.started_at.slice(5, 16).replace("T", " ")}`])),
    el("a", { class: "clear", href: "?view=calls", hidden: !filtered }, "clear"),
  );
}

/** Shows the view. */
export function open(main) {
  rows = new Map();
  held = new Map();
  asked = "";
  body = el("tbody", { id: "calls" });
  const head = ["Time", "Risk", "Policy", "Outcome", "Server", "Tool", "Arguments", "Took"].map((name) => el("th", { scope: "col" }, name));
  const table = el("table", { class: "calls" }, el("caption", { class: "hidden" }, "Tool calls, newest first"),
    el("thead", {}, el("tr", {}, head)), body);
  table.addEventListener("pointermove", () => (pointed = performance.now()));
  table.addEventListener("pointerleave", () => {
    pointed = -Infinity;
    flush();
  });
  main.append(
    el("div", { id: "bar" }, bar()),
    el("button", { type: "button", id: "fresh", hidden: true, onclick: () => flush(true) }),
    el("div", { class: "list" }, table, el("div", { id: "nothing" })),
    el("button", { type: "button", id: "older", hidden: true, onclick: older }, "Older calls"),
  );
  trying(async () => {
    choices.sessions = await ask("/api/sessions", { limit: 1000 });
    byId("bar")?.replaceChildren(bar());
  });
  load();
}

/** The address changed. */
export function moved() {
  const now = JSON.stringify(wanted());
  if (now !== asked) {
    const typing = document.activeElement?.id;
    const at = document.activeElement?.selectionStart;
    byId("bar").replaceChildren(bar());
    // The bar was made anew under the hand that types into it.
    if (typing?.startsWith("filter-")) {
      byId(typing)?.focus();
      if (typing === "filter-tool") byId(typing).setSelectionRange(at, at);
    }
    load();
  }
  mark();
}

async function load() {
  const filter = wanted();
  asked = JSON.stringify(filter);
  const mine = asked;
  const list = await trying(() => ask("/api/tool-calls", { ...filter, limit: LIMIT }));
  // Another filter was chosen meanwhile, or another view.
  if (!list || mine !== asked || !body?.isConnected) return;
  rows = new Map();
  held = new Map();
  body.replaceChildren();
  list.forEach((call) => append(call));
  byId("older").hidden = list.length < LIMIT;
  settle();
}

async function older() {
  const last = body.lastElementChild?.dataset.id;
  const filter = { ...wanted(), before: last, limit: LIMIT };
  const list = last ? await trying(() => ask("/api/tool-calls", filter)) : [];
  if (!list) return;
  list.filter((call) => !rows.has(call.id)).forEach((call) => append(call));
  byId("older").hidden = list.length < LIMIT;
}

function append(call) {
  const row = line(call);
  rows.set(call.id, { call, row });
  body.append(row);
}

function line(call) {
  return el(
    "tr",
    { "data-id": call.id, onclick: (event) => event.target.closest("a") || go({ call: call.id }) },
    el("td", { class: "time" }, timeOf(call.requested_at)),
    el("td", { class: "score" }, risk(call.risk_score)),
    el("td", { class: "what" }, badge(call)),
    el("td", { class: "became" }, ending(call)),
    shown("td", { class: "server" }, call.server_name),
    el("td", { class: "tool" }, el("a", { href: href({ call: call.id }), dir: "ltr" }, visible(call.tool_name)),
      call.risk_reasons?.includes("sensitive_data") ? el("span", { class: "sensitive", title: "It is about credentials" }, "credentials") : null),
    shown("td", { class: "arguments" }, summary(call.arguments)),
    el("td", { class: "took" }, duration(call.duration_ms)),
  );
}

function matches(call) {
  const filter = wanted();
  return (
    (!filter.session || call.session_id === filter.session) &&
    (!filter.server || call.server_name === filter.server) &&
    (!filter.container || (call.container ?? "").startsWith(filter.container)) &&
    (!filter.risk || call.risk_score >= Number(filter.risk)) &&
    (!filter.verdict || [call.policy_action, call.decision, call.outcome].includes(filter.verdict)) &&
    (!filter.outcome || call.outcome === filter.outcome) &&
    (!filter.tool || call.tool_name.toLowerCase().includes(filter.tool.toLowerCase()))
  );
}

/** News. */
export function receive(message) {
  if (message.type === "behind") {
    catchUp();
    return;
  }
  if (message.type === "session") {
    const known = choices.sessions.findIndex((session) => session.id === message.session.id);
    if (known >= 0) choices.sessions[known] = message.session;
    else {
      choices.sessions.unshift(message.session);
      if (!document.activeElement?.id.startsWith("filter-")) byId("bar")?.replaceChildren(bar());
    }
  }
  if (message.type !== "call") return;
  const { call } = message;
  const known = rows.get(call.id);
  if (known) {
    const row = line(call);
    const focused = known.row.contains(document.activeElement);
    known.row.replaceWith(row);
    rows.set(call.id, { call, row });
    if (focused) row.querySelector("a").focus();
    mark();
  } else if (matches(call)) {
    held.set(call.id, call);
    flush();
  }
}

/** After a gap: what is newest, without touching what is there. */
async function catchUp() {
  const mine = asked;
  const list = await trying(() => ask("/api/tool-calls", { ...wanted(), limit: LIMIT }));
  if (!list || mine !== asked || !body?.isConnected) return;
  if (list.length === LIMIT && !list.some((call) => rows.has(call.id))) {
    load();
    return;
  }
  list.reverse().forEach((call) => receive({ type: "call", call }));
}

/** Puts new rows on top, unless they would move what the pointer is about to click or what is being read. */
function flush(now = false) {
  const fresh = byId("fresh");
  if (!fresh || !held.size) return;
  const busy = performance.now() - pointed < STILL || window.scrollY > 80;
  if (busy && !now) {
    fresh.hidden = false;
    fresh.textContent = `${held.size} new`;
    setTimeout(flush, STILL);
    return;
  }
  fresh.hidden = true;
  for (const call of [...held.values()].sort((a, b) => (a.requested_at < b.requested_at ? -1 : 1))) {
    const row = line(call);
    row.classList.add("new");
    rows.set(call.id, { call, row });
    let before = body.firstElementChild;
    while (before && rows.get(before.dataset.id).call.requested_at > call.requested_at) before = before.nextElementSibling;
    body.insertBefore(row, before);
  }
  held.clear();
  while (rows.size > MOST && body.lastElementChild) {
    rows.delete(body.lastElementChild.dataset.id);
    body.lastElementChild.remove();
    byId("older").hidden = false;
  }
  if (now) window.scrollTo(0, 0);
  settle();
}

function settle() {
  const nothing = byId("nothing");
  if (rows.size) nothing.replaceChildren();
  else if (FILTERS.some((name) => wanted()[name])) {
    nothing.replaceChildren(empty("No call matches", el("a", { href: "?view=calls" }, "Clear the filters")));
  } else {
    nothing.replaceChildren(
      empty(
        "No tool call yet",
        el("span", {}, "Put ", command("ringfence mcp --"), " before an MCP server's command in your client's configuration:"),
        command("ringfence mcp --server-name github -- npx -y @modelcontextprotocol/server-github"),
        el("span", {}, "or let ", command("ringfence mcp wrap FILE"), " do it. Calls show up here as they happen."),
      ),
    );
  }
  mark();
}

function mark() {
  const { call } = place();
  for (const [id, { row }] of rows) {
    if (id === call) row.setAttribute("aria-selected", "true");
    else row.removeAttribute("aria-selected");
  }
}

/** Id of the call that the keyboard is on. */
export const selected = () => document.activeElement?.closest("tr[data-id]")?.dataset.id;

/** The next or previous call. */
export function step(by) {
  if (!body?.isConnected) {
    notice("Press 1 for the calls.");
    return;
  }
  const all = [...body.children];
  const at = all.findIndex((row) => row.dataset.id === (selected() ?? place().call));
  const next = all[at < 0 ? 0 : Math.min(Math.max(at + by, 0), all.length - 1)];
  next?.querySelector("a").focus();
  next?.scrollIntoView({ block: "nearest" });
  // With a call open, the keys leaf through them.
  if (place().call && next) go({ call: next.dataset.id }, true);
}
