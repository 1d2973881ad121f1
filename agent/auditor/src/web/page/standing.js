// Approvals of more than one call: the choices beside a call's buttons, and those that stand, with what ends them.

import { ask, send } from "./api.js";
import { trying } from "./app.js";
import { byId, el, shown, timeOf, visible } from "./dom.js";

const HOUR = 3_600;

/** What more than one call may be approved for, as it is asked for. */
const CHOICES = [
  ["These arguments, for 1 hour", { scope: "arguments", seconds: HOUR }],
  ["This tool, in this session", { scope: "session" }],
  ["This tool, for 1 hour", { scope: "tool", seconds: HOUR }],
];

/** The same of a connection. */
const OF_CONNECTION = [["This host and port, while the container lives", { scope: "container" }]];

/** Buttons that approve a call and calls like it, or a connection; `decide` gets what is asked for. */
export const choices = (id, connection, decide) =>
  el("details", { class: "more" }, el("summary", {}, connection ? "More than this connection" : "More than this call"),
    el("div", { class: "choices" }, (connection ? OF_CONNECTION : CHOICES).map(([text, body]) =>
      el("button", { type: "button", "data-more-of": id, onclick: (event) => decide(event, body) }, text))));

const SCOPES = {
  arguments: (one) => ["calls with the arguments ", shown("code", {}, one.beginning)],
  session: (one) => ["calls of the session ", el("code", {}, one.session_id.slice(0, 8))],
  tool: () => ["all its calls"],
  container: (one) => ["connections ", shown("code", {}, one.beginning), " of the container ", shown("code", {}, one.session_id)],
};

/** Shows the approvals that stand in the element `#standing`, if it is there. */
export async function load() {
  const list = await trying(() => ask("/api/approvals"));
  const place = byId("standing");
  if (!list || !place || place.dataset.of === JSON.stringify(list)) return;
  place.dataset.of = JSON.stringify(list);
  place.replaceChildren(...(list.length === 0 ? [] : [
    el("h2", {}, "Approvals that stand"),
    el("p", { class: "quiet" }, "They answer calls that would wait; a rule that blocks still blocks. Each is of one server as it was."),
    el("ul", {}, list.map(item)),
  ]));
}

function item(one) {
  const said = el("span", { role: "status" });
  const revoke = async (event) => {
    event.target.disabled = true;
    try {
      await send("DELETE", `/api/approvals/${encodeURIComponent(one.id)}`);
    } catch (error) {
      said.className = "bad";
      said.textContent = error.message;
    }
    await load();
  };
  return el("li", { "data-approval": one.id },
    shown("span", { class: "server" }, one.server_name), " ", shown("span", { class: "tool" }, one.tool_name), ": ",
    SCOPES[one.scope]?.(one) ?? visible(one.scope), ", until ", one.until ? timeOf(one.until) : "its end", ", used ",
    `${one.uses} time${one.uses === 1 ? "" : "s"}, by `, ...visible(one.created_by), " ",
    el("button", { type: "button", class: "no", "aria-label": `Revoke the approval of ${one.tool_name}`, onclick: revoke }, "Revoke"), " ", said);
}
