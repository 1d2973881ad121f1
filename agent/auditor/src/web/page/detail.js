// One call, whole: what was asked, what came back, why it was judged so, how long it took.

import { ask } from "./api.js";
import { trying } from "./app.js";
import { badge, became, block, byId, duration, el, ending, risk, shown, timeOf, verdict, visible } from "./dom.js";
import { go, href } from "./place.js";
import * as waiting from "./waiting.js";

let shownId = null;

const row = (name, ...value) => el("div", {}, el("dt", {}, name), el("dd", {}, ...value));
const list = (values) => (Array.isArray(values) && values.length ? values.map((v) => shown("span", { class: "tag" }, v)) : ["none"]);

/** Shows the call of that id; with none, closes. */
export async function show(id) {
  if (!id) {
    close();
    return;
  }
  if (id === shownId) return;
  shownId = id;
  await load(id);
}

/** A call changed: the open one is read again. */
export function changed(call) {
  if (call.id === shownId) load(call.id);
}

function close() {
  const was = shownId;
  shownId = null;
  byId("detail")?.remove();
  document.body.classList.remove("with-detail");
  if (was) document.querySelector(`tr[data-id="${CSS.escape(was)}"] a`)?.focus({ preventScroll: true });
}

async function load(id) {
  const call = await trying(() => ask(`/api/tool-calls/${encodeURIComponent(id)}`));
  if (shownId !== id) return;
  if (!call) {
    go({ call: "" }, true);
    return;
  }
  const panel = paint(call);
  const old = byId("detail");
  // A button under the pointer or with the focus stays where it is.
  if (old) {
    const scrolled = old.scrollTop;
    const focus = old.contains(document.activeElement) ? document.activeElement.id : null;
    old.replaceWith(panel);
    panel.scrollTop = old.dataset.id === id ? scrolled : 0;
    if (focus) byId(focus)?.focus({ preventScroll: true });
  } else byId("main").after(panel);
  document.body.classList.add("with-detail");
}

/** A result that is text is shown as text, with its JSON to unfold. */
function answer(result) {
  const parts = result?.content;
  if (!Array.isArray(parts) || !parts.length || !parts.every((part) => typeof part?.text === "string")) return block(result);
  return el("div", { class: "answer" }, parts.map((part) => block(part.text)),
    el("details", {}, el("summary", {}, "as JSON"), block(result)));
}

const SURE = {
  sole: "this call's: its process, or what started it, was born in it, and no other call was in flight",
  matched: "fits this call, and no other in flight, by what was asked: its text or its path",
  ambiguous: "may be this call's: another was in flight too or has reached into it, or the process is older than the call",
};

/** What an event was done to: of a connection by name its server, of an address of the container's block the host that it stands for. */
function target(event) {
  const what = event.path ?? event.addr ?? "";
  if (event.connection) return event.connection.dialled ? `${what} → ${event.connection.dialled}` : what;
  return event.name && event.name !== what ? `${what} (${event.name})` : what;
}

/** What the kernel saw while the call was in flight. */
function events(call) {
  if (!call.container && !call.events?.length) return null;
  const lines = (call.events ?? []).map((event) =>
    el(
      "tr",
      {},
      el("td", {}, el("span", { class: `sure s-${event.attribution}`, title: SURE[event.attribution] ?? "" }, event.attribution)),
      el("td", {}, el("span", { class: event.verdict === "allowed" ? "" : "bad" }, event.verdict)),
      shown("td", {}, event.op),
      shown("td", { class: "arguments" }, target(event)),
      shown("td", { class: "arguments" }, event.exe),
    ),
  );
  const head = ["Sure", "Verdict", "What", "Target", "Program"].map((name) => el("th", { scope: "col" }, name));
  return [
    el("h3", {}, "What the kernel saw"),
    lines.length
      ? el("div", { class: "list" }, el("table", { class: "events" }, el("thead", {}, el("tr", {}, head)), el("tbody", {}, lines)))
      : el("p", { class: "quiet" }, "Nothing that was recorded. The profile's `audit` says what is: denials, always."),
    call.events_cut ? el("p", { class: "quiet" }, "There is more: ", el("code", {}, `ringfence events --container ${call.container}`)) : null,
  ];
}

/** Why there is no answer, where there is none: a row's value, and a sentence. */
function unanswered(call) {
  const word = verdict(call);
  if (word === "waiting") return ["not yet: it waits for a decision", "The server has not seen this call: it waits for a decision."];
  if (["blocked", "denied", "timeout", "cancelled", "session ended"].includes(word)) {
    return ["not by the server, which never saw it", "The server has not seen this call."];
  }
  return ["no answer from the server", "The server has sent nothing for this call."];
}

function paint(call) {
  const answered = call.responded_at !== null;
  const failed = call.error !== null || call.result?.isError === true;
  const later = call.task_result ?? null;
  return el(
    "aside",
    { id: "detail", "data-id": call.id, "aria-label": "Call" },
    el(
      "header",
      {},
      el("h2", { dir: "ltr" }, visible(call.tool_name)),
      el("button", { type: "button", id: "close", "aria-label": "Close", title: "Close (Esc)", onclick: () => go({ call: "" }) }, "×"),
    ),
    el("p", { class: "line" }, risk(call.risk_score), badge(call), ending(call), shown("span", {}, call.server_name), timeOf(call.requested_at)),
    waiting.buttons(call.id),
    el("p", {}, el("a", { href: `?view=rules&like=${encodeURIComponent(call.id)}` }, "Make a rule from this call"),
      call.suggested_exception && call.risk_reasons?.length
        ? el("a", { class: "beside", href: `?view=rules&except=${encodeURIComponent(call.id)}` }, "Make an exception from this call")
        : null),
    call.exceptions?.length
      ? el("p", {}, "Not counted in its score: ", ...call.exceptions.flatMap(({ name, reasons }) => visible(`${reasons.join(", ")} (by ${name}) `)))
      : null,
    el(
      "dl",
      {},
      row("Operation", visible(call.operation_type)),
      row("Why this score", ...list(call.risk_reasons)),
      row("Rules", ...(call.rules?.length ? list(call.rules) : ["none matched; the score decided"])),
      row("Policy", visible(call.policy_action)),
      call.decision ? row("Decision", visible(call.decision), call.decided_by ? [" by ", ...visible(call.decided_by)] : "") : null,
      row("Outcome", visible(became(call) || "none yet")),
      call.cancelled_at ? row("Cancelled", timeOf(call.cancelled_at)) : null,
      call.decided_at ? row("Decided", timeOf(call.decided_at)) : null,
      row("Asked", timeOf(call.requested_at)),
      row("Answered", answered ? [timeOf(call.responded_at), ` after ${duration(call.duration_ms)}`] : unanswered(call)[0]),
      row("Session", el("a", { href: href({ session: call.session_id, view: "calls" }) }, call.session_id.slice(0, 8))),
      row("Intent", el("a", { href: `?view=intents&session=${encodeURIComponent(call.session_id)}` }, "its chain of calls"),
        call.intent_source ? [", by ", ...visible(call.intent_source.replaceAll("_", " "))] : ""),
      call.human_prompt ? row("Prompt", shown("span", { class: "prompt" }, call.human_prompt)) : null,
      call.profile ? row("Profile", visible(`${call.profile}, enforcement: ${call.enforcement}`)) : null,
      call.container ? row("Container", el("a", { href: `?view=calls&container=${encodeURIComponent(call.container)}` }, call.container)) : null,
      row("Id", el("code", {}, call.id)),
    ),
    el("h3", {}, "Arguments"),
    block(call.arguments),
    el("h3", {}, failed ? "Error" : "Result"),
    answered ? answer(call.error ?? call.result) : el("p", { class: "quiet" }, unanswered(call)[1]),
    later === null ? null : [el("h3", {}, "Later, of its task"), answer(later)],
    events(call),
  );
}
