// Sessions: each run of an interceptor.

import { ask } from "./api.js";
import { trying } from "./app.js";
import { byId, command, duration, el, empty, risk, shown, timeOf, visible } from "./dom.js";

let due = null;

/** Shows the view. */
export function open(main) {
  main.append(el("div", { id: "sessions", class: "list" }));
  load();
}

/** News. */
export function hear(message) {
  if (message.type === "waiting") return;
  due ??= setTimeout(() => {
    due = null;
    load();
  }, 500);
}

async function load() {
  const list = await trying(() => ask("/api/sessions", { limit: 200 }));
  const place = byId("sessions");
  if (!list || !place) return;
  if (!list.length) {
    place.replaceChildren(empty("No session yet",
      el("span", {}, "A session begins when an MCP client starts a server through ", command("ringfence mcp"), ".")));
    return;
  }
  const head = ["Server", "State", "Started", "Lasted", "Client", "Calls", "Flagged", "Highest", "Command"];
  place.replaceChildren(
    el("table", { class: "sessions" }, el("caption", { class: "hidden" }, "Sessions, newest first"),
      el("thead", {}, el("tr", {}, head.map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, list.map(line))),
  );
}

function state(session) {
  if (session.broken) return el("span", { class: "bad", title: session.broken }, "record is broken");
  if (session.linked) return el("span", { class: "verdict v-approved" }, "running");
  if (!session.ended_at) return "not connected";
  return session.exit_status === null ? "broken off" : `ended, status ${session.exit_status}`;
}

/** What holds a server that has a profile. */
function held(session) {
  const where = session.container ? `container ${session.container}` : "no container: no kernel events";
  return `profile ${session.profile}, ${where}; enforcement: ${session.enforcement}`;
}

function line(session) {
  const client = session.client_info;
  const name = client && typeof client === "object" ? [client.title ?? client.name, client.version].filter(Boolean).join(" ") : client;
  const lasted = session.ended_at ? duration(new Date(session.ended_at) - new Date(session.started_at)) : "";
  const here = (view) => `?view=${view}&session=${encodeURIComponent(session.id)}`;
  return el(
    "tr",
    { "data-id": session.id },
    el("td", { class: "tool" }, el("a", { href: here("calls"), dir: "ltr" }, visible(session.server_name)),
      session.profile ? [" ", el("span", { class: "tag", title: held(session) }, visible(session.profile))] : ""),
    el("td", {}, state(session)),
    el("td", { class: "time" }, timeOf(session.started_at)),
    el("td", { class: "took" }, lasted),
    shown("td", {}, name ?? ""),
    el("td", { class: "took" }, el("a", { href: here("intents"), title: "its intents" }, String(session.calls))),
    el("td", { class: "took" }, String(session.flagged)),
    el("td", { class: "score" }, session.highest_risk === null ? "" : risk(session.highest_risk)),
    shown("td", { class: "arguments" }, session.server_command),
  );
}
