// Elements from text, and text made safe to look at. Nothing here, or anywhere, makes HTML from a string.

/** An element: `el("td", { class: "x", onclick: f }, "text", child)`. Text is text, whatever is in it. */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export const byId = (id) => document.getElementById(id);

/** What each child of a list was painted from. */
const painted = new WeakMap();

/**
 * Gives `place` one child for each item. A child whose item is as it was is not touched, so that a click that has begun on it
 * counts and the focus stays: `key` names what an item is about, `paint` makes its element.
 */
export function fill(place, items, key, paint) {
  const old = new Map([...place.children].map((child) => [painted.get(child)?.key, child]));
  const made = items.map((item) => {
    const of = { key: key(item), text: JSON.stringify(item) };
    const was = old.get(of.key);
    if (was && painted.get(was).text === of.text) return was;
    const child = paint(item);
    painted.set(child, of);
    return child;
  });
  const stays = new Set(made);
  [...place.childNodes].forEach((child) => stays.has(child) || child.remove());
  let next = place.firstChild;
  for (const child of made) {
    if (child === next) next = next.nextSibling;
    else place.insertBefore(child, next);
  }
}

// Controls, bidirectional overrides and invisible characters: they make a name look like another one.
const INVISIBLE =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff]|[\u{e0000}-\u{e0fff}\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}]|[\ud800-\udfff]/gu;

/** Text as nodes: what cannot be seen is shown as its code, marked. Line ends and tabs only where `lines` says so. */
export function visible(value, lines = false) {
  const text = String(value ?? "");
  const nodes = [];
  let last = 0;
  const pattern = lines ? INVISIBLE : new RegExp(`[\\t\\n]|${INVISIBLE.source}`, "gu");
  for (const match of text.matchAll(pattern)) {
    if (match.index > last) nodes.push(text.slice(last, match.index));
    last = match.index + match[0].length;
    if (match[0] === "\n" || match[0] === "\t") {
      nodes.push(el("span", { class: "gap", title: match[0] === "\n" ? "line end" : "tab" }, match[0] === "\n" ? "↵" : "⇥"));
      continue;
    }
    const code = match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    nodes.push(el("span", { class: "code", title: `U+${code}` }, `U+${code}`));
  }
  if (last < text.length) nodes.push(text.slice(last));
  return nodes;
}

/** As `visible`, in an element that keeps its direction to itself. */
export const shown = (tag, attributes, value, lines) => el(tag, { dir: "ltr", ...attributes }, visible(value, lines));

const LONGEST = 200_000;

/** JSON or text, laid out, cut where it is too long to read. */
export function block(value) {
  let text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  text ??= "";
  const cut = text.length > LONGEST;
  const pre = shown("pre", { tabindex: "0" }, cut ? text.slice(0, LONGEST) : text, true);
  if (cut) pre.append(el("em", {}, `\n… ${(text.length - LONGEST).toLocaleString()} more characters; `
    + "`ringfence mcp calls --json` has all"));
  return pre;
}

/** One line of a call's arguments. */
export function summary(value) {
  if (typeof value === "string") return value.slice(0, 300);
  if (value === null || typeof value !== "object") return String(value ?? "");
  return Object.entries(value)
    .map(([key, item]) => `${key}=${typeof item === "string" ? item : JSON.stringify(item)}`)
    .join("  ")
    .slice(0, 300);
}

const two = (n) => String(n).padStart(2, "0");

/** Local time of day; with the date where it is not today's. */
export function clock(iso, now = new Date()) {
  const at = new Date(iso);
  if (Number.isNaN(at.getTime())) return String(iso ?? "");
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  if (at.toDateString() === now.toDateString()) return time;
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${time}`;
}

/** An element with a time, exact when pointed at. */
export const timeOf = (iso) => el("time", { datetime: iso, title: iso }, clock(iso));

export function duration(ms) {
  if (ms === null || ms === undefined) return "";
  if (ms < 1000) return `${ms} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
}

/** What was decided about a call, in a word. */
export function verdict(call) {
  const decision = call.decision ?? (call.outcome === "ended" ? "ended" : null);
  if (decision === "ended") return "session ended";
  if (decision) return decision;
  if (call.policy_action === "pause") return "waiting";
  return { pass: "passed", flag: "flagged", block: "blocked" }[call.policy_action] ?? call.policy_action;
}

/** Ends of calls that the server never had. */
const NOT_RUN = ["blocked", "denied", "timeout", "cancelled", "ended"];

/** What became of a call, in a word. */
export function became(call) {
  if (NOT_RUN.includes(call.outcome)) return "not run";
  if (call.outcome) return call.outcome.replaceAll("_", " ");
  return call.policy_action === "pause" && !call.decision ? "" : "in flight";
}

export const level = (score) => (score > 80 ? "block" : score > 60 ? "pause" : score > 30 ? "flag" : "pass");

export const risk = (score) =>
  el("span", { class: `risk ${level(score)}`, title: `risk ${score} of 100`, "aria-label": `risk ${score}` }, String(score));

export const badge = (call) => {
  const word = verdict(call);
  return el("span", { class: `verdict v-${word.replace(" ", "-")}` }, word);
};

export const ending = (call) => {
  const word = became(call);
  return el("span", { class: `verdict o-${word.replaceAll(" ", "-")}` }, visible(word));
};

/** A place with nothing in it says what to do. */
export const empty = (title, ...lines) =>
  el("div", { class: "empty" }, el("h2", {}, title), ...lines.map((line) => el("p", {}, line)));

export const command = (text) => el("code", {}, text);
