// Rules: those in force, what each decided, and a form to add one, to change one, or to try either on past calls.

import { ask, post, send } from "./api.js";
import { stats, trying } from "./app.js";
import { CONDITIONS } from "./conditions.js";
import { block, byId, el, shown, timeOf, visible } from "./dom.js";
import * as exceptions from "./exceptions.js";
import { go, href, place } from "./place.js";
import * as standing from "./standing.js";

/** How far back a change is tried that the form does not ask about, days. */
const DAYS = 7;
/** Between two looks at how often rules applied, milliseconds. */
const COUNTED = 2_000;

/** The rule that the form changes; null where it adds one. */
let edited = null;
let counting = null;

/** Shows the view. */
export function open(main) {
  edited = null;
  main.append(
    el("p", { class: "lead" },
      "Beside its score (31 flags, 61 pauses, 81 blocks) each call is held against these rules; the strictest of all wins, so a ",
      "rule can only tighten, and their order is only that of their names in verdicts. Rules of the database hold for every ",
      "session; a session started with --rules has that file instead of the user's."),
    el("div", { id: "pending" }),
    el("p", { id: "rules-said", role: "status" }),
    el("div", { id: "rules", class: "list" }),
    el("div", { id: "exception" }),
    form(),
    el("section", { id: "standing", "aria-label": "Approvals that stand" }),
  );
  load();
  standing.load();
  loadPending();
  moved();
}

/** The address is another one: it may name a call to make a rule from. */
export async function moved() {
  const { like, except } = place();
  if (except) return makeException(except);
  if (!like) return;
  // Asked for once: whoever comes back to this address has a form of its own.
  go({ like: "" }, true);
  const call = await trying(() => ask(`/api/tool-calls/${encodeURIComponent(like)}`));
  const form = byId("add-rule");
  if (!call || !form) return;
  begin(null, { action: "pause", ...call.suggested_rule });
  form.elements.name.focus();
}

/** A form for an exception about calls like that one. */
async function makeException(id) {
  go({ except: "" }, true);
  const call = await trying(() => ask(`/api/tool-calls/${encodeURIComponent(id)}`));
  const place = byId("exception");
  if (!call?.suggested_exception || !place) return;
  const leave = () => place.replaceChildren();
  const save = async (name, body) => {
    const made = await changed("POST", "/api/rules", body, name);
    if (!made) return;
    leave();
    await load();
    say(byId("rules-said"), `${name} is in force.`);
  };
  place.replaceChildren(exceptions.form(call, save, leave));
  place.querySelector('[name="name"]').focus();
}

/** News may bring another change that waits, and calls count. */
export function receive(message) {
  if (message.type !== "call") loadPending();
  counting ??= setTimeout(() => {
    counting = null;
    if (!byId("rules")) return;
    trying(count);
    standing.load();
  }, COUNTED);
}

async function loadPending() {
  const changes = await trying(() => ask("/api/rules/pending"));
  const place = byId("pending");
  if (!changes || !place || place.dataset.of === JSON.stringify(changes)) return;
  place.dataset.of = JSON.stringify(changes);
  place.replaceChildren(...changes.map((change) => {
    const said = el("p", { role: "status" });
    const button = el("button", { type: "button", class: "yes", onclick: () => confirm(change, said) }, "Put it in force");
    return el("article", { class: "card pending", "aria-label": "A change of rules waits for a confirmation" },
      el("p", { class: "line" }, shown("span", { class: "tool" }, change.path), " loosens ", shown("b", {}, change.loosens ?? "")),
      block(change.difference),
      el("div", { class: "actions" }, button, said));
  }));
}

async function confirm(change, said) {
  said.textContent = "";
  try {
    await post("/api/rules/confirm", { path: change.path, sha256: change.sha256 });
    await Promise.all([loadPending(), load(), trying(stats)]);
  } catch (error) {
    said.className = "bad";
    said.textContent = error.message;
  }
}

async function load() {
  const list = await trying(() => ask("/api/rules"));
  const place = byId("rules");
  if (!list || !place) return;
  const head = ["Action", "Name", ...CONDITIONS.map(({ label }) => label), "Hits", "Last hit", "Source", "Description", ""];
  const focus = place.contains(document.activeElement) ? document.activeElement.id : null;
  place.replaceChildren(
    el("table", { class: "rules" }, el("caption", { class: "hidden" }, "Rules"),
      el("thead", {}, el("tr", {}, head.map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, list.map((rule) =>
        el(
          "tr",
          { class: rule.enabled && !rule.not_in_force ? "" : "off", "data-rule": key(rule) },
          el("td", {}, el("span", { class: `verdict v-${rule.action}` }, visible(rule.action)), state(rule)),
          shown("td", { class: "tool" }, rule.name),
          CONDITIONS.map(({ name, kind }) => {
            const { server, tool } = rule.exception ?? {};
            const of = { tool_pattern: tool, server_pattern: server }[name];
            return of === undefined ? KINDS[kind].cell(rule[name]) : shown("td", { class: "pattern" }, of);
          }),
          el("td", { class: "took", title: "calls whose verdict names the rule" }, hits(rule)),
          el("td", { class: "time" }, lastHit(rule)),
          shown("td", {}, rule.source),
          rule.exception
            ? el("td", { class: "description" }, exceptions.about(rule.exception), ...visible(remarks(rule)))
            : shown("td", { class: "description" }, rule.description ?? ""),
          el("td", { class: "acts" }, rule.yours ? acts(rule, list) : null),
        )))),
  );
  // The first is at its end: the next button takes the focus.
  if (focus) (byId(focus) ?? place.querySelector("button"))?.focus({ preventScroll: true });
}

/** What a row is found by: rules of a file have no id. */
const key = (rule) => rule.id ?? `file ${rule.name}`;
const hits = (rule) => Number(rule.hits ?? 0).toLocaleString();
/** Whether it counts, in a word: an exception that an earlier version took may not. */
const state = (rule) => (!rule.enabled ? " off" : rule.not_in_force ? " not in force" : "");
const remarks = ({ description, not_in_force: why }) =>
  [why && `not in force: ${why}`, description].filter(Boolean).map((text) => `; ${text}`).join("");
const lastHit = (rule) => (rule.last_hit ? timeOf(rule.last_hit) : "never");

/** Brings the counts of the rows up to date, and nothing else: no button moves under the pointer. */
async function count() {
  for (const rule of await ask("/api/rules")) {
    const row = document.querySelector(`#rules tr[data-rule="${CSS.escape(key(rule))}"]`);
    row?.querySelector(".took[title]").replaceChildren(hits(rule));
    row?.querySelector(".time").replaceChildren(lastHit(rule));
  }
}

/** The buttons of a rule of the database. */
function acts(rule, list) {
  const button = (verb, text, onclick, more = {}) =>
    el("button", { type: "button", id: `${verb}-${rule.id}`, title: `${text} ${rule.name}`, "aria-label": `${text} ${rule.name}`, onclick, ...more },
      { up: "↑", down: "↓" }[verb] ?? text);
  const last = Math.max(...list.filter(({ source, uid }) => source === rule.source && uid === rule.uid).map(({ place }) => place));
  const to = (place) => () => make(rule, "PATCH", { place }, "moved");
  return [
    // An exception is another one by another call.
    rule.exception ? null : button("edit", "Edit", () => {
      begin(rule, rule);
      byId("add-rule").scrollIntoView({ block: "nearest" });
      byId("add-rule").elements.action.focus({ preventScroll: true });
    }),
    button("switch", rule.enabled ? "Switch off" : "Switch on", () =>
      make(rule, "PATCH", { enabled: !rule.enabled }, rule.enabled ? "off" : "on")),
    button("delete", "Delete", () => make(rule, "DELETE", {}, "deleted"), { class: "no" }),
    button("up", "Move up", to(rule.place - 1), { disabled: rule.place <= 1 }),
    button("down", "Move down", to(rule.place + 1), { disabled: rule.place >= last }),
  ];
}

/** Makes a change of a row's and says how it went, once the table shows it. */
async function make(rule, method, body, done) {
  const said = byId("rules-said");
  say(said, "");
  try {
    const path = `/api/rules/${encodeURIComponent(rule.id)}`;
    const made = await changed(method, path, { version: rule.version, ...body }, rule.name);
    await load();
    if (made) say(said, `${rule.name} is ${done}.`);
  } catch (error) {
    say(said, error.message, true);
    await load();
  }
}

function say(place, text, bad = false) {
  if (!place) return;
  place.className = bad ? "bad" : "";
  place.textContent = text;
}

/** Makes a change; what loosens a rule only once a person agreed to that. Null where nobody did. */
async function changed(method, path, body, name) {
  try {
    return await send(method, path, body);
  } catch (error) {
    if (error.status !== 428) throw error;
    const report = await send(method, `${path}?dry_run=${DAYS}`, body);
    return (await agreed(report, name)) ? send(method, path, { ...body, agreed: true }) : null;
  }
}

/** Asks whether a rule is to be looser, and says what that would have meant. */
function agreed(report, name) {
  const dialog = byId("confirm");
  byId("confirm-title").replaceChildren("Make the rule ", ...visible(name ?? ""), " looser?");
  byId("confirm-what").textContent = "Calls that the rule is about would be judged more mildly.";
  byId("confirm-arguments").replaceChildren(summed(report));
  const yes = byId("confirm-yes");
  yes.textContent = "Make it looser";
  yes.className = "no";
  dialog.returnValue = "";
  const answered = new Promise((resolve) => {
    dialog.onclose = () => resolve(dialog.returnValue === "yes");
  });
  dialog.showModal();
  // Whoever presses Enter without reading has changed nothing.
  dialog.querySelector('button[value="no"]').focus();
  return answered;
}

/** What a trial found, in a sentence. */
function summed({ calls, days, matched, stricter, milder, cut, oldest }) {
  const some = (number, noun) => `${Number(number).toLocaleString()} ${noun}${number === 1 ? "" : "s"}`;
  return `${some(calls, "call")} of the last ${some(days, "day")}: the rule is about ${Number(matched).toLocaleString()} of them; `
    + `${stricter} would have had a stricter verdict, ${milder} a milder one.`
    + (!cut ? "" : oldest ? ` Older calls than ${oldest} were not looked at.` : " So many rules left no time to look at calls.");
}

/** Globs with room to break a line between them. */
const listOf = (patterns) => patterns?.split(",").map((glob) => glob.trim()).join(", ") ?? "any";

const field = (label, input, hint) => el("label", {}, el("span", {}, label), input, hint ? el("small", {}, hint) : null);
const input = (name, more = {}) => el("input", { name, autocomplete: "off", spellcheck: "false", ...more });
const text = (data, name) => String(data.get(name) ?? "").trim() || undefined;

/** The kinds of conditions: what the table shows, what the form asks, what of that is sent, how it is
 * filled. Wide ones have a row of the form. */
const KINDS = {
  globs: {
    cell: (patterns) => shown("td", { class: "pattern" }, listOf(patterns)),
    ask: ({ name, label, hint, placeholder }) => field(label, input(name, { placeholder }), hint),
    given: text,
    fill: (form, name, patterns) => (form.elements[name].value = patterns ?? ""),
  },
  operations: {
    wide: true,
    cell: (names) => shown("td", {}, names?.join(", ") ?? "any"),
    ask: ({ name, label, hint, all }) => el("fieldset", {}, el("legend", {}, label),
      all.map((value) => el("label", { class: "box" }, el("input", { type: "checkbox", name, value }), value)),
      el("small", {}, hint)),
    given: (data, name) => data.getAll(name),
    fill: (form, name, names) => form.querySelectorAll(`[name="${name}"]`).forEach((box) => (box.checked = names?.includes(box.value) ?? false)),
  },
  score: {
    cell: (score) => el("td", { class: "took" }, String(score ?? 0)),
    ask: ({ name, label, hint }) => field(label, input(name, { type: "number", min: 0, max: 100, value: 0 }), hint),
    given: (data, name) => Number(text(data, name) ?? 0),
    fill: (form, name, score) => (form.elements[name].value = score ?? 0),
  },
};

function form() {
  const said = el("p", { id: "rule-said", role: "status" });
  const action = el("select", { name: "action" }, ["flag", "pause", "block"].map((name) => el("option", { value: name }, name)));
  const asked = (wide) => CONDITIONS.filter(({ kind }) => Boolean(KINDS[kind].wide) === wide)
    .map((condition) => KINDS[condition.kind].ask(condition));
  const days = [1, 7, 30, 90].map((days) => el("option", { value: days, selected: days === DAYS }, String(days)));
  return el(
    "form",
    { id: "add-rule", "aria-labelledby": "add-title", onsubmit: (event) => {
      event.preventDefault();
      save(event.target, said);
    } },
    el("h2", { id: "add-title" }, "Add a rule"),
    field("Name", input("name", { required: true, maxlength: 100, pattern: "[A-Za-z0-9_.\\-]+" }), "letters, digits, _ - ."),
    field("Action", action),
    asked(false),
    field("Description", input("description", { maxlength: 1000 })),
    asked(true),
    el("div", { class: "submit" },
      el("button", { class: "yes", id: "rule-save" }, "Add rule"),
      el("button", { type: "button", id: "rule-cancel", hidden: true, onclick: () => begin(null, {}) }, "Cancel"),
      el("button", { type: "button", onclick: () => tryIt(byId("add-rule"), said) }, "Try it on past calls"),
      el("label", { class: "box" }, el("select", { id: "trial-days" }, days), "days"),
      said),
    el("div", { id: "trial", "aria-live": "polite" }),
  );
}

/** Fills the form: to change that rule, or to add one. */
function begin(rule, values) {
  const form = byId("add-rule");
  edited = rule;
  form.reset();
  form.elements.name.value = values.name ?? "";
  form.elements.name.readOnly = Boolean(rule);
  form.elements.action.value = values.action ?? "flag";
  form.elements.description.value = values.description ?? "";
  for (const { name, kind } of CONDITIONS) KINDS[kind].fill(form, name, values[name]);
  byId("add-title").replaceChildren(...(rule ? ["Change ", ...visible(rule.name)] : ["Add a rule"]));
  byId("rule-save").textContent = rule ? "Save" : "Add rule";
  byId("rule-cancel").hidden = !rule;
  byId("trial").replaceChildren();
  say(byId("rule-said"), "");
}

/** What the form asks for as a request. */
function wanted(form) {
  const data = new FormData(form);
  const parts = {
    action: text(data, "action"),
    description: text(data, "description"),
    ...Object.fromEntries(CONDITIONS.map(({ name, kind }) => [name, KINDS[kind].given(data, name)])),
  };
  if (!edited) return { method: "POST", path: "/api/rules", body: { name: text(data, "name"), ...parts } };
  // What the form has nothing for is taken away.
  const whole = Object.fromEntries(Object.entries(parts).map(([name, value]) => [name, value ?? null]));
  return { method: "PATCH", path: `/api/rules/${encodeURIComponent(edited.id)}`, body: { version: edited.version, ...whole } };
}

async function save(form, said) {
  const { method, path, body } = wanted(form);
  say(said, "");
  try {
    const rule = await changed(method, path, body, edited?.name ?? body.name);
    if (!rule) return;
    begin(null, {});
    await load();
    say(said, `${rule.name} is ${rule.enabled ? "in force" : "off"}.`);
  } catch (error) {
    say(said, error.message, true);
    // Somebody else changed it: the table has what there is.
    if (error.status === 409) await load();
  }
}

/** Shows what the rule in the form would have meant. */
async function tryIt(form, said) {
  if (!form.reportValidity()) return;
  const { method, path, body } = wanted(form);
  const place = byId("trial");
  say(said, "");
  place.replaceChildren();
  try {
    const report = await send(method, `${path}?dry_run=${byId("trial-days").value}`, body);
    const verdict = ({ was, would_be: would }) => (was === would ? was : `${was} → ${would}`);
    place.replaceChildren(el("p", {}, summed(report)), el("ul", {}, report.examples.map((call) =>
      el("li", {}, timeOf(call.requested_at), " ", shown("span", { class: "server" }, call.server_name), " ",
        el("a", { href: href({ call: call.id }), class: "name", dir: "ltr" }, visible(call.tool_name)), ` ${verdict(call)}`))));
  } catch (error) {
    say(said, error.message, true);
  }
}
