// Intents: calls that belong together, as chains across servers.

import { ask } from "./api.js";
import { trying } from "./app.js";
import { badge, byId, duration, el, empty, fill, risk, shown, summary, timeOf, visible } from "./dom.js";
import { href, place } from "./place.js";

/** How it is known that calls belong together. */
const BY = {
  runtime: "asked of an agent of yours",
  client: "one request, by the client's word",
  tool_use: "one tool use, by the client's word",
  sampling: "asked of the client's model, in the server's words",
  time: "close in time",
};

let asked = null;
let due = null;

/** Shows the view. */
export function open(main) {
  asked = null;
  main.append(el("p", { class: "lead", id: "intents-of" }), el("div", { id: "intents" }));
  moved();
}

/** The address changed. */
export function moved() {
  const { session = "" } = place();
  if (session === asked) return;
  asked = session;
  byId("intents-of").replaceChildren(
    "Calls of one intent, whatever servers they went to: by what the client says of them, or by what a server asked its ",
    "model; where nothing better is known, calls less than five seconds apart. ",
    session ? el("a", { href: "?view=intents" }, "Show all sessions") : "",
  );
  load();
}

/** News. */
export function receive(message) {
  if (message.type === "waiting" || message.type === "session") return;
  due ??= setTimeout(() => {
    due = null;
    load();
  }, 500);
}

async function load() {
  const { session } = place();
  const found = await trying(() =>
    session ? ask(`/api/sessions/${encodeURIComponent(session)}/intents`) : ask("/api/intents", { limit: 50 }));
  const place_ = byId("intents");
  if (!found || !place_) return;
  if (found.length) {
    fill(place_, found, (intent) => intent.id, paint);
    return;
  }
  place_.replaceChildren(
    empty("No intent yet", "An intent begins with a tool call. Calls that the client says are for the same thing, or that follow within five seconds, join it."),
  );
}

function paint(intent) {
  const calls = intent.tool_calls;
  const servers = calls.map((call) => call.server_name).filter((name, i, all) => i === 0 || all[i - 1] !== name);
  const first = calls[0];
  const last = calls.at(-1);
  const took = first ? new Date(last.responded_at ?? last.requested_at) - new Date(first.requested_at) : 0;
  const highest = calls.reduce((most, call) => Math.max(most, call.risk_score), 0);
  return el(
    "section",
    { class: "intent", "data-id": intent.id },
    el(
      "h2",
      {},
      risk(highest),
      shown("span", {}, intent.human_prompt ?? `${calls.length} ${calls.length === 1 ? "call" : "calls"}: ${servers.join(" → ")}`),
      el("small", {}, timeOf(intent.created_at), ` · ${duration(Math.max(0, took))}`,
        " · ", ...visible(BY[intent.source] ?? intent.source)),
    ),
    el(
      "ol",
      {},
      calls.map((call) =>
        el(
          "li",
          { class: call.policy_action },
          shown("span", { class: "server" }, call.server_name),
          el("a", { href: href({ call: call.id }), dir: "ltr" }, visible(call.tool_name)),
          shown("span", { class: "arguments" }, summary(call.arguments)),
          badge(call),
          el("span", { class: "took" }, duration(call.duration_ms)),
        )),
    ),
  );
}
