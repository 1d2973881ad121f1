// Rules: those in force, and a form to add one.

import { ask, post } from "./api.js";
import { stats, trying } from "./app.js";
import { CONDITIONS } from "./conditions.js";
import { block, byId, el, shown, visible } from "./dom.js";

/** Shows the view. */
export function open(main) {
  main.append(
    el("p", { class: "lead" },
      "Beside its score (31 flags, 61 pauses, 81 blocks) each call is held against these rules; the strictest of all wins, so a ",
      "rule can only tighten. Rules of the database hold for every session; a session started with --rules has that file ",
      "instead of the user's."),
    el("div", { id: "pending" }),
    el("div", { id: "rules", class: "list" }),
    form(),
  );
  load();
  loadPending();
}

/** News may bring another change that waits. */
export function receive(message) {
  if (message.type !== "call") loadPending();
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
  const head = ["Action", "Name", ...CONDITIONS.map(({ label }) => label), "Source", "Description"];
  place.replaceChildren(
    el("table", { class: "rules" }, el("caption", { class: "hidden" }, "Rules"),
      el("thead", {}, el("tr", {}, head.map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, list.map((rule) =>
        el(
          "tr",
          { class: rule.enabled ? "" : "off" },
          el("td", {}, el("span", { class: `verdict v-${rule.action}` }, visible(rule.action)), rule.enabled ? "" : " off"),
          shown("td", { class: "tool" }, rule.name),
          CONDITIONS.map(({ name, kind }) => KINDS[kind].cell(rule[name])),
          shown("td", {}, rule.source),
          shown("td", { class: "description" }, rule.description ?? ""),
        )))),
  );
}

/** Globs with room to break a line between them. */
const listOf = (patterns) => patterns?.split(",").map((glob) => glob.trim()).join(", ") ?? "any";

const field = (label, input, hint) => el("label", {}, el("span", {}, label), input, hint ? el("small", {}, hint) : null);
const input = (name, more = {}) => el("input", { name, autocomplete: "off", spellcheck: "false", ...more });
const text = (data, name) => String(data.get(name) ?? "").trim() || undefined;

/** The kinds of conditions: what the table shows, what the form asks, what of that is sent. Wide ones have a row of the form. */
const KINDS = {
  globs: {
    cell: (patterns) => shown("td", { class: "pattern" }, listOf(patterns)),
    ask: ({ name, label, hint, placeholder }) => field(label, input(name, { placeholder }), hint),
    given: text,
  },
  operations: {
    wide: true,
    cell: (names) => shown("td", {}, names?.join(", ") ?? "any"),
    ask: ({ name, label, hint, all }) => el("fieldset", {}, el("legend", {}, label),
      all.map((value) => el("label", { class: "box" }, el("input", { type: "checkbox", name, value }), value)),
      el("small", {}, hint)),
    given: (data, name) => data.getAll(name),
  },
  score: {
    cell: (score) => el("td", { class: "took" }, String(score ?? 0)),
    ask: ({ name, label, hint }) => field(label, input(name, { type: "number", min: 0, max: 100, value: 0 }), hint),
    given: (data, name) => Number(text(data, name) ?? 0),
  },
};

function form() {
  const said = el("p", { id: "rule-said", role: "status" });
  const action = el("select", { name: "action" }, ["flag", "pause", "block"].map((name) => el("option", { value: name }, name)));
  const asked = (wide) => CONDITIONS.filter(({ kind }) => Boolean(KINDS[kind].wide) === wide)
    .map((condition) => KINDS[condition.kind].ask(condition));
  return el(
    "form",
    { id: "add-rule", "aria-labelledby": "add-title", onsubmit: (event) => {
      event.preventDefault();
      add(event.target, said);
    } },
    el("h2", { id: "add-title" }, "Add a rule"),
    field("Name", input("name", { required: true, maxlength: 100, pattern: "[A-Za-z0-9_.\\-]+" }), "letters, digits, _ - ."),
    field("Action", action),
    asked(false),
    field("Description", input("description", { maxlength: 1000 })),
    asked(true),
    el("div", { class: "submit" }, el("button", { class: "yes" }, "Add rule"), said),
  );
}

async function add(form, said) {
  const data = new FormData(form);
  said.textContent = "";
  said.className = "";
  try {
    const rule = await post("/api/rules", {
      name: text(data, "name"),
      action: text(data, "action"),
      description: text(data, "description"),
      ...Object.fromEntries(CONDITIONS.map(({ name, kind }) => [name, KINDS[kind].given(data, name)])),
    });
    form.reset();
    said.textContent = `${rule.name} is in force.`;
    await load();
  } catch (error) {
    said.className = "bad";
    said.textContent = error.message;
  }
}
