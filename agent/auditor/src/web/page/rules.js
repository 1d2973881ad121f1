// Rules: those in force, and a form to add one.

import { ask, post } from "./api.js";
import { stats, trying } from "./app.js";
import { block, byId, el, shown, visible } from "./dom.js";

const OPERATIONS = ["read", "write", "delete", "execute", "unknown"];

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
  const head = ["Action", "Name", "Tools", "Servers", "Operations", "Score from", "Source", "Description"];
  place.replaceChildren(
    el("table", { class: "rules" }, el("caption", { class: "hidden" }, "Rules"),
      el("thead", {}, el("tr", {}, head.map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, list.map((rule) =>
        el(
          "tr",
          { class: rule.enabled ? "" : "off" },
          el("td", {}, el("span", { class: `verdict v-${rule.action}` }, visible(rule.action)), rule.enabled ? "" : " off"),
          shown("td", { class: "tool" }, rule.name),
          shown("td", { class: "pattern" }, listOf(rule.tool_pattern)),
          shown("td", { class: "pattern" }, listOf(rule.server_pattern)),
          shown("td", {}, rule.operation_types?.join(", ") ?? "any"),
          el("td", { class: "took" }, String(rule.min_risk_score ?? 0)),
          shown("td", {}, rule.source),
          shown("td", { class: "description" }, rule.description ?? ""),
        )))),
  );
}

/** Globs with room to break a line between them. */
const listOf = (patterns) => patterns?.split(",").map((glob) => glob.trim()).join(", ") ?? "any";

const field = (label, input, hint) => el("label", {}, el("span", {}, label), input, hint ? el("small", {}, hint) : null);
const input = (name, more = {}) => el("input", { name, autocomplete: "off", spellcheck: "false", ...more });

function form() {
  const said = el("p", { id: "rule-said", role: "status" });
  const action = el("select", { name: "action" }, ["flag", "pause", "block"].map((name) => el("option", { value: name }, name)));
  const boxes = el("fieldset", {}, el("legend", {}, "Operations"),
    OPERATIONS.map((name) => el("label", { class: "box" }, el("input", { type: "checkbox", name: "operation_types", value: name }), name)),
    el("small", {}, "none ticked: all"));
  return el(
    "form",
    { id: "add-rule", "aria-labelledby": "add-title", onsubmit: (event) => {
      event.preventDefault();
      add(event.target, said);
    } },
    el("h2", { id: "add-title" }, "Add a rule"),
    field("Name", input("name", { required: true, maxlength: 100, pattern: "[A-Za-z0-9_.\\-]+" }), "letters, digits, _ - ."),
    field("Action", action),
    field("Tools", input("tool_pattern", { placeholder: "delete_*,drop_*" }), "globs, comma between them; empty: all"),
    field("Servers", input("server_pattern", { placeholder: "postgres,mysql" }), "globs; empty: all"),
    field("Score from", input("min_risk_score", { type: "number", min: 0, max: 100, value: 0 })),
    field("Description", input("description", { maxlength: 1000 })),
    boxes,
    el("div", { class: "submit" }, el("button", { class: "yes" }, "Add rule"), said),
  );
}

async function add(form, said) {
  const data = new FormData(form);
  const text = (name) => String(data.get(name) ?? "").trim() || undefined;
  said.textContent = "";
  said.className = "";
  try {
    const rule = await post("/api/rules", {
      name: text("name"),
      action: text("action"),
      tool_pattern: text("tool_pattern"),
      server_pattern: text("server_pattern"),
      min_risk_score: Number(text("min_risk_score") ?? 0),
      description: text("description"),
      operation_types: data.getAll("operation_types"),
    });
    form.reset();
    said.textContent = `${rule.name} is in force.`;
    await load();
  } catch (error) {
    said.className = "bad";
    said.textContent = error.message;
  }
}
