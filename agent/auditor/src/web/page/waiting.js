// Calls that wait for a person. A button never moves under the pointer: new cards come last, decided ones stay until the
// pointer and the focus are elsewhere, and a button that has just appeared takes no click yet.

import { ask, post } from "./api.js";
import { trying } from "./app.js";
import { block, byId, el, risk, shown, visible } from "./dom.js";
import { href } from "./place.js";
import { choices } from "./standing.js";

const UNARMED = 600;
const cards = new Map();
let waiting = [];
/** The server's clock minus ours, milliseconds. */
let ahead = 0;

const left = (call) => Math.max(0, Math.ceil((call.until_ms - Date.now() - ahead) / 1000));

/** The list of calls that wait is this now. */
export function update(calls, now) {
  if (Number.isFinite(now)) ahead = now - Date.now();
  waiting = calls;
  const section = byId("waiting");
  for (const [id, card] of cards) {
    if (!calls.some((call) => call.id === id) && !card.over) finish(id, card);
  }
  for (const call of calls) {
    if (cards.has(call.id)) continue;
    const card = make(call);
    cards.set(call.id, card);
    section.append(card.element);
  }
  tidy();
  tick();
}

/** The call as it waits, if it does. */
export const find = (id) => waiting.find((call) => call.id === id);

function make(call) {
  const timer = el("span", { class: "timer", role: "timer" });
  const bar = el("span", { class: "left" });
  const actions = el("div", { class: "actions" }, pair(call.id), timer);
  const element = el(
    "article",
    { class: "card", "data-id": call.id, "aria-label": "A call waits for approval" },
    el("p", { class: "line" }, risk(call.risk_score), shown("span", {}, call.server_name), name(call)),
    cutName(call), container(call),
    el("div", { class: "asked" }, block(call.arguments), cut(call)),
    el("p", { class: "because" }, "because: ", visible([...call.rules, ...call.risk_reasons].join(", ") || "its score")),
    actions,
    el("span", { class: "track", "aria-hidden": "true" }, bar),
  );
  return { call, element, timer, bar, actions, over: false };
}

/** Its name, which leads to all of it; of a connection nothing else is on record. */
const name = (call) => call.connection
  ? el("span", { class: "name" }, visible(call.tool_name))
  : el("a", { class: "name", href: href({ view: "calls", call: call.id }), dir: "ltr" }, visible(call.tool_name));

/** Whose connection it is. */
function container({ connection }) {
  if (!connection) return null;
  return el("p", { class: "quiet" }, "A connection of container ", shown("code", {}, connection.container), ", profile ",
    shown("code", {}, connection.profile), ...within(connection), ": to ", shown("span", { class: "server" }, connection.host),
    ` port ${connection.port}, which the profile does not grant.`);
}

/** The container around it, where there is one. */
const within = ({ within }) => within ? [", within container ", shown("code", {}, within)] : [];

/** The same of its name: what follows may say something else. */
function cutName(call) {
  if (!call.tool_name.endsWith("…")) return null;
  return el("p", { class: "cut" }, "This is only the beginning of the tool's name. ",
    el("a", { href: href({ view: "calls", call: call.id }) }, "Show all of it"));
}

/** Says so where only the beginning of a call's arguments is here, and leads to all of them. */
function cut(call) {
  if (!call.arguments_bytes) return null;
  return el("p", { class: "cut" }, `This is only the beginning of ${call.arguments_bytes.toLocaleString()} bytes. `,
    el("a", { href: href({ view: "calls", call: call.id }) }, "Show all of them"));
}

/** Approve and deny, for a call that waits, and approvals of more than that. */
function pair(id) {
  const shownAt = performance.now();
  // A click meant for what was here a moment ago. Keys have no place, and count at once.
  const isEarly = (event) => event.detail > 0 && performance.now() - shownAt < UNARMED;
  const button = (approve) =>
    el(
      "button",
      {
        type: "button",
        class: approve ? "yes" : "no",
        id: `${approve ? "approve" : "deny"}-${id}`,
        onclick: (event) => {
          if (!isEarly(event)) decide(id, approve);
        },
      },
      approve ? "Approve" : "Deny",
    );
  const more = choices(id, find(id)?.connection, (event, body) => !isEarly(event) && decide(id, true, body));
  return el("span", { class: "pair" }, button(true), button(false), more);
}

/** The buttons for another place; nothing where the call does not wait. */
export function buttons(id) {
  if (!find(id)) return null;
  const both = pair(id);
  both.querySelectorAll("button[id]").forEach((button) => (button.id = `detail-${button.id}`));
  return both;
}

async function decide(id, approve, body = {}) {
  const verb = approve ? "approve" : "deny";
  const buttons = `[id$="approve-${CSS.escape(id)}"], [id$="deny-${CSS.escape(id)}"], [data-more-of="${CSS.escape(id)}"]`;
  document.querySelectorAll(buttons).forEach((b) => (b.disabled = true));
  const done = await trying(() => post(`/api/tool-calls/${encodeURIComponent(id)}/${verb}`, body));
  const card = cards.get(id);
  if (card && !card.over) finish(id, card, done?.approval ? others(done.approval) : done?.outcome);
  if (!done) update(await trying(() => ask("/api/waiting")) ?? waiting);
}

/** What was approved beside the call. Where its server's files changed while that started, no other session has the same server. */
const others = ({ only_session }) => `approved, and others like it${only_session ? " in this session only: its server changed while it started" : ""}`;

/** The call waits no longer: its card says what became of it. */
async function finish(id, card, outcome) {
  card.over = true;
  if (!outcome) {
    const call = card.call.connection ? null : await ask(`/api/tool-calls/${encodeURIComponent(id)}`).catch(() => null);
    outcome = call?.decision ?? call?.outcome ?? "over";
  }
  card.element.classList.add("over");
  card.actions.replaceChildren(el("strong", { role: "status" }, outcome === "timeout" ? "denied: nobody answered in time" : outcome));
  card.until = performance.now() + 1_500;
  setTimeout(tidy, 1_600);
}

/** Takes decided cards away, once nobody is on any of them. */
function tidy() {
  const section = byId("waiting");
  const busy = section.matches(":hover") || section.contains(document.activeElement);
  for (const [id, card] of cards) {
    if (card.over && !busy && performance.now() > (card.until ?? Infinity)) {
      card.element.remove();
      cards.delete(id);
    }
  }
  section.hidden = cards.size === 0;
  document.title = waiting.length ? `(${waiting.length}) Ringfence` : "Ringfence";
}

function tick() {
  for (const { call, timer, bar, over } of cards.values()) {
    if (over) continue;
    const seconds = left(call);
    timer.textContent = seconds ? `denied in ${seconds} s` : "time is up";
    timer.classList.toggle("soon", seconds <= 10);
    const whole = Math.max(1, call.until_ms - call.since_ms);
    bar.style.width = `${Math.min(100, ((call.until_ms - Date.now() - ahead) / whole) * 100)}%`;
  }
}

/** Asks before a key decides. `id` is the call that is selected; else the one that waits longest is meant. */
export function confirm(approve, id) {
  const call = find(id) ?? waiting[0];
  if (!call) return;
  const dialog = byId("confirm");
  byId("confirm-title").textContent = approve ? "Approve this call?" : "Deny this call?";
  byId("confirm-what").replaceChildren(...visible(`${call.server_name}: ${call.tool_name}`), ` — risk ${call.risk_score}`);
  const asked = typeof call.arguments === "string" ? call.arguments : JSON.stringify(call.arguments, null, 2);
  byId("confirm-arguments").replaceChildren(...visible(asked ?? "", true));
  if (call.arguments_bytes) {
    byId("confirm-arguments").append(el("em", {}, `\n… the beginning of ${call.arguments_bytes.toLocaleString()} bytes; the call's own page has all`));
  }
  const yes = byId("confirm-yes");
  yes.textContent = approve ? "Approve" : "Deny";
  yes.className = approve ? "yes" : "no";
  dialog.returnValue = "";
  dialog.onclose = () => dialog.returnValue === "yes" && decide(call.id, approve);
  dialog.showModal();
  yes.focus();
}

setInterval(() => {
  tick();
  tidy();
}, 500);
