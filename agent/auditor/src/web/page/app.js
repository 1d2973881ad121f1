// The page: which view is shown, what the keys do, what the live stream brings.

import { ask, live, takeToken } from "./api.js";
import * as calls from "./calls.js";
import * as detail from "./detail.js";
import { byId, command, el, empty } from "./dom.js";
import * as intents from "./intents.js";
import * as inventory from "./inventory.js";
import { followLinks, go, onMove, place } from "./place.js";
import * as rules from "./rules.js";
import * as sessions from "./sessions.js";
import * as waiting from "./waiting.js";

// Every view, in the order of the navigation and of the digits that lead there; the first is where the page begins.
const VIEWS = { calls, intents, sessions, rules, inventory };
const NAMES = Object.keys(VIEWS);
const STATES = {
  connecting: "connecting",
  live: "live",
  polling: "every 2 s",
  gone: "no answer",
  locked: "locked",
};
let shown = null;
let notices = 0;

/** Says something that went wrong, for a while; with nothing, takes it back. */
export function notice(text) {
  const line = byId("notice");
  line.hidden = !text;
  line.textContent = text ?? "";
  const mine = ++notices;
  if (text) setTimeout(() => mine === notices && notice(), 12_000);
}

/** Runs something and says what goes wrong in it. */
export async function trying(work) {
  try {
    return await work();
  } catch (error) {
    if (error.status === 401) locked();
    else notice(error.message);
    return undefined;
  }
}

function locked() {
  state("locked");
  byId("waiting").hidden = true;
  byId("pending-rules").hidden = true;
  byId("pending-tools").hidden = true;
  byId("main").replaceChildren(
    empty(
      "This page needs a fresh link",
      el("span", {}, "Run ", command("ringfence dashboard"), " in a terminal and open the link that it prints."),
      "Each start of the auditor makes a new token, and a token is kept for one tab only.",
    ),
  );
  shown = null;
}

function state(word) {
  const link = byId("link");
  if (word === "gone" && link.dataset.state !== word) {
    notice("The auditor does not answer. It ends when nobody needs it: run `ringfence dashboard` in a terminal and open the link that it prints.");
  }
  link.dataset.state = word;
  link.textContent = STATES[word];
  link.title = {
    live: "Calls and sessions appear as they happen.",
    polling: "The live stream is broken; the page asks every two seconds.",
    gone: "The auditor does not answer. It ends when nobody needs it; `ringfence dashboard` starts it.",
  }[word] ?? "";
}

export async function stats() {
  const totals = await ask("/api/stats");
  const part = (name, value) => el("span", {}, el("b", {}, Number(value ?? 0).toLocaleString()), ` ${name}`);
  byId("stats").replaceChildren(
    part("calls", totals.total_calls),
    part("flagged", totals.flagged),
    part("blocked", totals.blocked),
    part("average risk", totals.average_risk),
  );
  const pending = byId("pending-rules");
  pending.hidden = !totals.pending_rules;
  pending.replaceChildren(
    "A rule file was changed so that it loosens a rule: the old rules stay in force until a person ",
    el("a", { href: "?view=rules" }, "looks at it and confirms"), ".",
  );
  const tools = byId("pending-tools");
  tools.hidden = !totals.pending_tools;
  tools.replaceChildren(
    totals.pending_tools === 1 ? "A tool" : `${totals.pending_tools} tools`,
    " of MCP servers changed, or an odd description: a person ",
    el("a", { href: "?view=inventory" }, "looks at it and decides"), ".",
  );
  if (totals.problems.length) notice(totals.problems.join(" "));
}

function navigation() {
  byId("views").replaceChildren(...NAMES.map((name) =>
    el("a", { href: `?view=${name}`, "data-view": name }, name[0].toUpperCase() + name.slice(1))));
  byId("help-digits").replaceChildren(el("kbd", {}, "1"), "–", el("kbd", {}, NAMES.length));
  byId("help-views").textContent = NAMES.join(", ");
}

function move() {
  const { view: named, call } = place();
  const view = NAMES.includes(named) ? named : NAMES[0];
  document.querySelectorAll("nav a").forEach((link) => {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  });
  const main = byId("main");
  if (shown !== view) {
    shown = view;
    main.replaceChildren();
    VIEWS[view].open(main);
  } else VIEWS[view].moved?.();
  detail.show(call);
}

let statsDue = null;
function receive(message) {
  if (message.type === "waiting") waiting.update(message.calls, message.now_ms);
  if (message.type === "call") detail.changed(message.call);
  VIEWS[shown]?.receive?.(message);
  statsDue ??= setTimeout(() => {
    statsDue = null;
    trying(stats);
  }, 1_000);
}

function keys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = event.target.closest("input, select, textarea");
  if (event.key === "Escape") {
    if (typing) event.target.blur();
    else if (place().call) go({ call: "" });
    return;
  }
  if (typing) return;
  const acts = {
    j: () => calls.step(1),
    k: () => calls.step(-1),
    a: () => waiting.confirm(true, calls.selected() ?? place().call),
    d: () => waiting.confirm(false, calls.selected() ?? place().call),
    "/": () => (shown === "calls" ? byId("filter-tool")?.focus() : go("?view=calls")),
    "?": () => byId("help").showModal(),
  };
  const act = acts[event.key] ?? (NAMES[event.key - 1] && (() => go(`?view=${NAMES[event.key - 1]}`)));
  if (act) {
    event.preventDefault();
    act();
  }
}

takeToken();
navigation();
followLinks();
onMove(move);
document.addEventListener("keydown", keys);
byId("help-button").addEventListener("click", () => byId("help").showModal());
state("connecting");
if (sessionStorage.length === 0) locked();
else {
  trying(stats).then(() => {
    if (byId("link").dataset.state === "locked") return;
    move();
    live(receive, (word) => (word === "locked" ? locked() : state(word)));
  });
}
// A fresh link pasted into the same tab.
window.addEventListener("hashchange", () => takeToken() && location.reload());
