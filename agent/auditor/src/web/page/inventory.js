// The inventory: servers that sessions and agents had, their tools, what changed in them, and what waits for a person to look.

import { ask, post, send } from "./api.js";
import { stats, trying } from "./app.js";
import { block, byId, command, el, empty, fill, shown, timeOf, visible } from "./dom.js";
import { place } from "./place.js";

/** Between two looks, milliseconds: news may come in hundreds. */
const GATHERED = 500;

let due = null;
/** The server whose tools are shown. */
let opened = "";

const WORDS = {
  new: "new tool",
  back: "is back",
  removed: "removed",
  changed: "changed",
  as_before: "is as it was pinned",
  approved: "approved",
  rejected: "rejected",
  version: "version",
  another_program: "another program under this name, before it:",
};

/** Shows the view. */
export function open(main) {
  opened = "";
  main.append(
    el("p", { class: "lead" },
      "A tool is pinned when its server first lists it: its name, title, description, schemas and annotations. One that changed is ",
      "kept from clients, and not called, until a person approves it. An odd description raises the risk of its calls until then."),
    el("p", { id: "pins-said", role: "status" }),
    el("div", { id: "pins" }),
    el("section", { id: "server", "aria-label": "A server's tools", hidden: true }),
    el("div", { id: "servers", class: "list" }),
  );
  load();
  moved();
}

/** The address is another one: it may name a server. */
export function moved() {
  const { server = "" } = place();
  opened = server;
  loadServer();
}

/** News. */
export function receive(message) {
  if (message.type === "waiting") return;
  due ??= setTimeout(() => {
    due = null;
    if (!byId("servers")) return;
    load();
    loadServer();
  }, GATHERED);
}

async function load() {
  const [servers, waiting] = await Promise.all([trying(() => ask("/api/servers")), trying(() => ask("/api/tools/pending"))]);
  const table = byId("servers");
  if (!servers || !waiting || !table) return;
  showPending(waiting);
  if (!servers.length) {
    table.replaceChildren(empty("No server yet",
      el("span", {}, "A server is on record when an MCP client starts it through ", command("ringfence mcp"), ", or an agent lists its tools.")));
    return;
  }
  if (!table.querySelector("table")) {
    const head = ["Server", "Version", "Tools", "Calls", "Waits", "Odd", "First seen", "Last seen", "Last change", "Command", ""];
    table.replaceChildren(
      el("table", { class: "servers" }, el("caption", { class: "hidden" }, "Servers, those first that were seen last"),
        el("thead", {}, el("tr", {}, head.map((name) => el("th", { scope: "col" }, name)))), el("tbody")),
    );
  }
  fill(table.querySelector("tbody"), servers, (server) => server.id, line);
}

function showPending(waiting) {
  const box = byId("pins");
  const text = JSON.stringify(waiting);
  if (box.dataset.of === text) return;
  box.dataset.of = text;
  const leftOut = waiting[0]?.left_out;
  box.replaceChildren(...waiting.map(card),
    leftOut ? el("p", { class: "quiet" }, `and ${leftOut.toLocaleString()} more; decide about these first`) : "");
}

/** A tool that waits, with what changed or what is odd. */
function card(tool) {
  const said = el("p", { role: "status" });
  const decide = (verb) => decideAbout(tool, verb, said);
  const what = tool.changed
    ? ["changed", tool.parts?.length ? ` (${tool.parts.join(", ")})` : "", ", and waits since "]
    : ["has an odd description, since "];
  const body = tool.difference || tool.shown;
  return el("article", { class: "card pending", "aria-label": "A tool waits for a person to look" },
    el("p", { class: "line" }, shown("span", { class: "server" }, nameOf(tool.agent, tool.server_name)), " ", shown("b", { class: "tool" }, tool.tool), " ", what, timeOf(tool.since)),
    el("ul", { class: "flags" }, tool.flags.map((flag) =>
      el("li", {}, visible(flag.why), " (", shown("code", {}, flag.place), "): ", shown("q", {}, flag.excerpt)))),
    body ? block(body) : el("p", { class: "quiet" },
      tool.agent ? "There was no room for its definition." : "Its definition is in the session's journal only."),
    el("p", { class: "quiet" }, tool.agent ? ["Server of the agent ", shown("b", {}, tool.agent), ", at "] : "Started by ", shown("code", {}, tool.command), ". Hash: ", shown("code", {}, tool.sha256)),
    el("div", { class: "actions" },
      el("button", { type: "button", class: "yes", onclick: () => decide("approve") }, "Approve"),
      el("button", { type: "button", class: "no", onclick: () => decide("reject") }, tool.changed ? "Reject" : "Keep it away"),
      said));
}

/** A server's name; an agent's is not the one that the user's clients have under this name. */
function nameOf(agent, name) {
  return agent ? `${agent}/${name}` : name;
}

/** Decides about what was shown, and nothing else: by its hash. */
async function decideAbout(tool, verb, said) {
  said.textContent = "";
  try {
    await post(`/api/tools/${verb}`, { server: tool.server, tool: tool.tool, sha256: tool.sha256 });
    await Promise.all([load(), loadServer(), trying(stats)]);
    const line = byId("pins-said");
    line?.replaceChildren(...visible(tool.tool), verb === "approve" ? " is approved." : " is rejected.");
  } catch (error) {
    said.className = "bad";
    said.textContent = error.message;
    if (error.status === 409) await load();
  }
}

function version({ info }) {
  return info && typeof info === "object" ? [info.name, info.version].filter(Boolean).join(" ") : "";
}

function line(server) {
  const number = (value) => el("td", { class: "took" }, value === null ? "" : Number(value).toLocaleString());
  return el(
    "tr",
    { "data-id": server.id },
    el("td", { class: "tool" }, el("a", { href: `?view=inventory&server=${server.id}`, dir: "ltr" }, visible(nameOf(server.agent, server.name))),
      server.agent ? [" ", el("span", { class: "tag", title: "a server of an agent's; its calls are in the agent's trace" }, "agent")] : "",
      server.contained ? [" ", el("span", { class: "tag", title: "its sessions begin in a container" }, "container")] : ""),
    shown("td", {}, version(server)),
    number(server.tool_count),
    number(server.calls),
    number(server.held),
    number(server.flagged),
    el("td", { class: "time" }, timeOf(server.first_seen)),
    el("td", { class: "time" }, timeOf(server.last_seen)),
    el("td", { class: "time" }, server.last_change ? timeOf(server.last_change) : ""),
    shown("td", { class: "arguments" }, server.command),
    el("td", { class: "acts" },
      el("button", { type: "button", class: "no", "aria-label": `Forget ${nameOf(server.agent, server.name)}`, onclick: () => forget(server) }, "Forget")),
  );
}

/** Forgets a server, once a person agreed to that. */
async function forget(server) {
  const dialog = byId("confirm");
  byId("confirm-title").replaceChildren("Forget the server ", ...visible(nameOf(server.agent, server.name)), "?");
  byId("confirm-what").textContent = server.agent
    ? "When the agent lists its tools next, it trusts whatever they say then."
    : "Its next session trusts whatever its tools say then.";
  byId("confirm-arguments").replaceChildren(...visible(server.command));
  const yes = byId("confirm-yes");
  yes.textContent = "Forget it";
  yes.className = "no";
  dialog.returnValue = "";
  const agreed = new Promise((resolve) => {
    dialog.onclose = () => resolve(dialog.returnValue === "yes");
  });
  dialog.showModal();
  // Whoever presses Enter without reading has changed nothing.
  dialog.querySelector('button[value="no"]').focus();
  if (!(await agreed)) return;
  await trying(() => send("DELETE", `/api/servers/${server.id}`));
  await Promise.all([load(), loadServer()]);
}

async function loadServer() {
  const section = byId("server");
  if (!section) return;
  if (!opened) {
    section.hidden = true;
    section.replaceChildren();
    return;
  }
  const mine = opened;
  const found = await trying(() => ask(`/api/servers/${encodeURIComponent(mine)}`));
  if (!found?.length || mine !== opened || !byId("server")) return;
  const head = ["Tool", "Calls", "Last call", "First seen", "Last seen", "Pinned", "State"];
  section.replaceChildren(...found.flatMap((server) => [
    el("header", {}, el("h2", {}, "Tools of ", ...visible(nameOf(server.agent, server.name))), el("a", { href: "?view=inventory" }, "close")),
    el("div", { class: "list" }, el("table", { class: "tools" }, el("caption", { class: "hidden" }, "Tools"),
      el("thead", {}, el("tr", {}, head.map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, server.tools.map(toolLine)))),
    el("ol", { class: "changes" }, server.changes.map((change) =>
      el("li", {}, timeOf(change.at), " ", change.tool === null ? "" : shown("b", { class: "tool" }, change.tool), " ",
        WORDS[change.change] ?? visible(change.change), " ", shown("span", { class: "quiet" }, change.detail)))),
  ]));
  section.hidden = false;
}

function toolLine(tool) {
  const time = (value) => el("td", { class: "time" }, value ? timeOf(value) : "");
  return el("tr", { "data-tool": tool.name },
    shown("td", { class: "tool" }, tool.name),
    el("td", { class: "took" }, tool.calls === null ? "" : Number(tool.calls).toLocaleString()),
    time(tool.last_call), time(tool.first_seen), time(tool.last_seen),
    el("td", {}, shown("code", { title: tool.sha256 ?? "" }, tool.sha256?.slice(0, 12) ?? "")),
    el("td", {}, standing(tool)));
}

/** How a tool stands. */
function standing(tool) {
  if (tool.gone_at) return ["gone since ", timeOf(tool.gone_at)];
  if (tool.rejected_at) return el("span", { class: "verdict v-blocked" }, "rejected");
  if (tool.changed_sha256) return el("span", { class: "verdict v-waiting" }, "changed");
  if (tool.held) return shown("span", { class: "bad" }, tool.held);
  if (tool.flags?.length && !tool.approved_at) return el("span", { class: "verdict v-flagged" }, "odd");
  return tool.approved_at ? "approved" : "as first seen";
}
