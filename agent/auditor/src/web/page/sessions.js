// Sessions: each run of an interceptor, and what its server said on standard error.

import { ask } from "./api.js";
import { trying } from "./app.js";
import { byId, command, duration, el, empty, fill, risk, shown, timeOf, visible } from "./dom.js";
import { place } from "./place.js";

/** Characters of a long standard error that are shown, of its beginning and of its end each. */
const SHOWN = 100_000;

let due = null;
/** The session whose standard error is shown, and what of it is here. */
let open_ = { session: "", pieces: [] };

/** Shows the view. */
export function open(main) {
  open_ = { session: "", pieces: [] };
  main.append(el("section", { id: "stderr", "aria-label": "Standard error", hidden: true }), el("div", { id: "sessions", class: "list" }));
  load();
  moved();
}

/** The address changed. */
export function moved() {
  const { session = "" } = place();
  if (session !== open_.session) open_ = { session, pieces: [] };
  loadStderr();
}

/** News. */
export function receive(message) {
  if (message.type === "waiting") return;
  due ??= setTimeout(() => {
    due = null;
    load();
    loadStderr();
  }, 500);
}

/** Asks for what came since, page by page, and shows all. */
async function loadStderr() {
  const mine = open_;
  const stillOpen = () => mine === open_ && byId("stderr");
  if (!mine.session) {
    // News may come for a view that was left meanwhile.
    const section = byId("stderr");
    if (section) section.hidden = true;
    section?.replaceChildren();
    return;
  }
  if (mine.loading) return;
  mine.loading = true;
  const path = `/api/sessions/${encodeURIComponent(mine.session)}/stderr`;
  for (let page = null; stillOpen() && page?.length !== 0;) {
    page = await trying(() => ask(path, { after: mine.pieces.at(-1)?.number ?? 0 }));
    if (!page) break;
    mine.pieces.push(...page);
  }
  mine.loading = false;
  const section = stillOpen();
  if (!section) return;
  const old = section.querySelector("pre");
  // Whoever reads the end goes on reading it.
  const atEnd = old && old.scrollTop + old.clientHeight >= old.scrollHeight - 4;
  const pre = stderr(mine);
  section.replaceChildren(
    el("header", {}, el("h2", {}, "What the server said on standard error, session ", el("code", {}, mine.session.slice(0, 8))),
      el("a", { href: "?view=sessions" }, "close")),
    pre ?? el("p", { class: "quiet" }, "Nothing is on record."),
  );
  section.hidden = false;
  if (pre && old) pre.scrollTop = atEnd ? pre.scrollHeight : old.scrollTop;
}

/** The pieces as one text, with what is missing said where it is; nothing where there is nothing. */
function stderr({ session, pieces }) {
  const total = pieces.reduce((sum, piece) => sum + piece.text.length, 0);
  const pre = el("pre", { tabindex: "0", dir: "ltr" });
  let [at, dropped, lineEnds] = [0, 0, true];
  const say = (text) => {
    if (!text) return;
    pre.append(...visible(text, true));
    lineEnds = text.endsWith("\n");
  };
  const missing = (...what) => {
    pre.append(el("em", {}, lineEnds ? "" : "\n", "[", ...what, "]\n"));
    lineEnds = true;
  };
  const gap = () => {
    if (dropped) missing(`${dropped.toLocaleString()} bytes were not kept`);
    dropped = 0;
  };
  for (const piece of pieces) {
    dropped += piece.dropped;
    if (!piece.text) continue;
    gap();
    const first = piece.text.slice(0, Math.max(0, SHOWN - at));
    const rest = Math.max(first.length, total - SHOWN - at);
    say(first);
    if (total > 2 * SHOWN && at <= SHOWN && at + piece.text.length > SHOWN) {
      missing(`${(total - 2 * SHOWN).toLocaleString()} more characters; `, command(`ringfence mcp sessions --stderr ${session.slice(0, 8)}`), " has all");
    }
    say(piece.text.slice(rest));
    at += piece.text.length;
  }
  gap();
  return pre.childNodes.length ? pre : null;
}

/** A link to what its server said, by how much that was. */
function errors(session) {
  const bytes = session.stderr_bytes + session.stderr_dropped;
  if (!bytes) return "";
  const size = bytes < 1000 ? `${bytes} B` : bytes < 1e6 ? `${Math.round(bytes / 1000)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
  return el("a", { class: "stderr", href: `?view=sessions&session=${encodeURIComponent(session.id)}`, title: "what its server said on standard error" }, size);
}

async function load() {
  const list = await trying(() => ask("/api/sessions", { limit: 200 }));
  const table = byId("sessions");
  if (!list || !table) return;
  if (!list.length) {
    table.replaceChildren(empty("No session yet",
      el("span", {}, "A session begins when an MCP client starts a server through ", command("ringfence mcp"), ".")));
    return;
  }
  if (!table.querySelector("table")) {
    const head = ["Server", "State", "Started", "Lasted", "Client", "Calls", "Flagged", "Highest", "Stderr", "Command"];
    table.replaceChildren(
      el("table", { class: "sessions" }, el("caption", { class: "hidden" }, "Sessions, newest first"),
        el("thead", {}, el("tr", {}, head.map((name) => el("th", { scope: "col" }, name)))), el("tbody")),
    );
  }
  fill(table.querySelector("tbody"), list, (session) => session.id, line);
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
    el("td", { class: "took" }, errors(session)),
    shown("td", { class: "arguments" }, session.server_command),
  );
}
