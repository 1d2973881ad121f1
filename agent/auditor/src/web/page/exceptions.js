// Exceptions: a form that is made from a call, and what the table of rules says of one.

import { block, el, shown, visible } from "./dom.js";

/** Values that an exception can ask for: every reader takes them for the same, and the record has them. */
const isExact = (value) =>
  value === null || typeof value === "boolean" || Number.isSafeInteger(value)
  || (typeof value === "string" && !value.includes("[redacted]") && value.length <= 500);

/** What an exception is about, in a sentence. */
export const about = ({ arguments: given, reasons }) => [
  "not counted: ", ...visible(reasons.join(", ")), "; arguments: ",
  ...visible(given.map(({ name, type, equals }) => `${name} (${type}${equals === undefined ? "" : `, ${JSON.stringify(equals)}`})`).join(", ") || "none"),
];

/** A form for an exception about calls like this one; `save(name, body)` sends it, `cancel()` takes the form away. */
export function form(call, save, cancel) {
  const suggested = call.suggested_exception;
  const box = (name, value, label, more = {}) =>
    el("label", { class: "box" }, el("input", { type: "checkbox", name, value, ...more }), ...label);
  const asked = suggested.arguments.map(({ name, type }, index) => {
    const value = call.arguments[name];
    return el("li", {}, shown("code", {}, name), ` ${type} `,
      isExact(value)
        ? box("equals", String(index), ["only ", shown("code", {}, JSON.stringify(value))])
        : el("small", {}, "any value"));
  });
  const said = el("p", { role: "status" });
  const onsubmit = async (event) => {
    event.preventDefault();
    const data = new FormData(event.target);
    const fixed = data.getAll("equals").map(Number);
    const given = suggested.arguments.map((argument, index) =>
      (fixed.includes(index) ? { ...argument, equals: call.arguments[argument.name] } : argument));
    const exception = { server: suggested.server, tool: suggested.tool, arguments: given, reasons: data.getAll("reasons") };
    said.textContent = "";
    try {
      const name = String(data.get("name")).trim();
      await save(name, { name, description: String(data.get("description")).trim(), action: "except", exception });
    } catch (error) {
      said.className = "bad";
      said.textContent = error.message;
    }
  };
  return el("form", { id: "add-exception", "aria-labelledby": "exception-title", onsubmit },
    el("h2", { id: "exception-title" }, "Make an exception from a call"),
    el("p", {}, "Of calls of ", shown("b", {}, suggested.tool), " on ", shown("b", {}, suggested.server),
      " with these arguments, and no others, the ticked reasons are not counted. Every rule holds all the same."),
    block(call.arguments),
    el("ul", {}, asked.length ? asked : el("li", {}, "no arguments")),
    el("fieldset", {}, el("legend", {}, "Reasons that do not count"),
      call.risk_reasons.map((reason) => box("reasons", reason, visible(reason), { checked: suggested.reasons.includes(reason) })),
      el("small", {}, "what destroys is ticked by nobody but you")),
    el("label", {}, el("span", {}, "Name of the exception"), el("input", { name: "name", required: true, maxlength: 100, pattern: "[A-Za-z0-9_.\\-]+", autocomplete: "off" })),
    el("label", {}, el("span", {}, "Why"), el("input", { name: "description", maxlength: 1000, autocomplete: "off" })),
    el("div", { class: "submit" }, el("button", { class: "yes" }, "Add exception"),
      el("button", { type: "button", onclick: cancel }, "Leave it"), said));
}
