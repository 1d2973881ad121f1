// The page, driven in Chromium against a real auditor, interceptors and servers.
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, afterEach, before, beforeEach, test } from "node:test";
import { Home, browse, eventually, sleep } from "./harness.mjs";

let chromium;
let home;
let clients;
let pages;

before(async () => {
  chromium = await browse();
});
after(() => chromium?.close());

beforeEach(async () => {
  home = await Home.open();
  clients = [];
  pages = [];
});
afterEach(async () => {
  for (const { page, wrong, close } of pages) {
    // What goes wrong in a page fails its test.
    await page.evaluate(() => 0).catch(() => {});
    assert.deepEqual(wrong, []);
    await close();
  }
  await Promise.all(clients.map((client) => client.close()));
  await home.close();
});

async function client(server, options) {
  const opened = await home.client(server, options);
  clients.push(opened);
  return opened;
}

async function open(address = home.link, options = {}) {
  const opened = await chromium.page(options);
  pages.push(opened);
  await opened.page.goto(address);
  return opened.page;
}

const row = (page, tool) => page.locator("#calls tr").filter({ has: page.getByText(tool, { exact: true }) });
const live = (page) => page.locator('#link[data-state="live"]').waitFor();

async function openLive(...how) {
  const page = await open(...how);
  await live(page);
  return page;
}

test("the token leaves the address, and a page without one tells what to do", async () => {
  const page = await openLive();
  assert.equal(page.url(), `http://127.0.0.1:${home.port}/`);
  await page.getByText("No tool call yet").waitFor();
  const stranger = await open(`http://127.0.0.1:${home.port}/`);
  await stranger.getByText("ringfence dashboard").waitFor();
  const wrong = await open(`http://127.0.0.1:${home.port}/#token=wrong`);
  await wrong.getByText("This page needs a fresh link").waitFor();
});

test("a call appears while one looks, and its answer after it", async () => {
  const page = await openLive();
  const files = await client("files");
  await files.call("read_file", { path: "/etc/hosts" });
  await row(page, "read_file").getByText("passed").waitFor();
  await row(page, "read_file").locator(".became").getByText("answered").waitFor();
  await row(page, "read_file").getByText("path=/etc/hosts").waitFor();
  await row(page, "read_file").locator(".took").getByText("ms").waitFor();
  await files.call("read_secret", { path: "/home/a/.ssh/id_ed25519" });
  await row(page, "read_secret").getByText("credentials", { exact: true }).waitFor();
  assert.equal(await row(page, "read_file").locator(".sensitive").count(), 0, "the control");
  await files.call("fail_always");
  await row(page, "fail_always").getByText("error").waitFor();
  await page.locator("#stats").getByText("3 calls").waitFor();
});

test("approve lets the call go on", async () => {
  const page = await openLive();
  // A click that was meant for what was there before: a button that has just appeared takes none.
  await page.evaluate(() => {
    new MutationObserver(() => {
      const button = document.querySelector(".card button.yes");
      if (!button || window.early) return;
      window.early = true;
      button.dispatchEvent(new MouseEvent("click", { bubbles: true, detail: 1 }));
    }).observe(document.body, { subtree: true, childList: true });
  });
  const files = await client("files");
  let answered = false;
  const answer = files.call("delete_file", { path: "/tmp/x" }).then((message) => ((answered = true), message));
  const card = page.locator(".card");
  await card.getByText('"path": "/tmp/x"').waitFor();
  await card.getByText(/denied in \d+ s/).waitFor();
  assert.equal(await page.title(), "(1) Ringfence");
  assert.equal(answered, false, "it is held");
  assert.equal(await page.evaluate(() => window.early), true);
  await sleep(400);
  assert.equal(answered, false, "a click in the first moment does not count");
  await sleep(500);
  await card.getByRole("button", { name: "Approve" }).click();
  assert.equal((await answer).result.content[0].text, "done: delete_file");
  await row(page, "delete_file").locator(".what").getByText("approved").waitFor();
  await row(page, "delete_file").locator(".became").getByText("answered").waitFor();
  const calls = await home.api("/api/tool-calls");
  assert.equal(calls[0].approved_by, "dashboard");
  await page.mouse.move(5, 790);
  await card.waitFor({ state: "detached" });
});

test("a changed tool is shown with what changed, kept from the client, and approved or not", async () => {
  const page = await openLive(`${home.link}`);
  const tool = (name, description) => ({ name, description, inputSchema: { type: "object" } });
  const files = await client("files");
  const names = async (...tools) => (await files.list(tools)).map((listed) => listed.name);
  assert.deepEqual(await names(tool("read_file", "Reads"), tool("list_files", "Lists"), tool("odd_one", "<IMPORTANT>x</IMPORTANT>\u202eA")),
    ["read_file", "list_files", "odd_one"]);
  await page.locator("#pending-tools").getByText("A tool").waitFor();
  assert.deepEqual(await names(tool("read_file", "Reads <b>all</b> files"), tool("list_files", "Lists less")), []);
  await page.locator("#pending-tools").getByText("3 tools").waitFor();
  await page.locator("#pending-tools a").click();
  const card = (name) => page.locator("#pins .card").filter({ has: page.getByText(name, { exact: true }) });
  await card("read_file").getByText("+description: Reads <b>all</b> files").waitFor();
  await card("read_file").getByText("-description: Reads", { exact: false }).first().waitFor();
  await card("odd_one").getByText("marks that speak to the model").waitFor();
  await card("odd_one").locator(".flags").getByText("U+202E").first().waitFor();
  // What is approved is what was shown.
  const [shown] = (await home.api("/api/tools/pending")).filter((row) => row.tool === "read_file");
  await names(tool("read_file", "Reads, and more"), tool("list_files", "Lists less"));
  await card("read_file").getByText("+description: Reads, and more").waitFor();
  const late = await home.api("/api/tools/approve", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ server: shown.server, tool: "read_file", sha256: shown.sha256 }),
  });
  assert.match(late.error, /nothing is decided/);
  await card("read_file").getByRole("button", { name: "Approve" }).click();
  await page.getByText("read_file is approved.").waitFor();
  await card("list_files").getByRole("button", { name: "Reject" }).click();
  await page.getByText("list_files is rejected.").waitFor();
  assert.deepEqual(await names(tool("read_file", "Reads, and more"), tool("list_files", "Lists less")), ["read_file"]);
  const refused = await files.call("list_files");
  assert.match(refused.result.content[0].text, /changed since it was pinned/);
  await page.locator("#servers").getByRole("link", { name: "files" }).click();
  const line = (name) => page.locator(`#server tr[data-tool="${name}"]`);
  await line("read_file").getByText("approved").waitFor();
  await line("list_files").getByText("rejected").waitFor();
  await page.locator("#server .changes").getByText("removed").first().waitFor();
  // Forgotten, with a question that Enter answers with no.
  const forget = () => page.locator("#servers").getByRole("button", { name: "Forget files" }).click();
  await forget();
  await page.keyboard.press("Enter");
  assert.equal((await home.api("/api/servers")).length, 1);
  await forget();
  await page.getByRole("button", { name: "Forget it" }).click();
  await page.getByText("No server yet").waitFor();
});

test("an agent's tools are shown with whose they are, and what is decided goes back to its worker", async () => {
  const page = await openLive(`${home.link}`);
  const worker = await home.worker("reviewer");
  const seen = (number, description) => worker.say({
    number, server: "github", address: "https://mcp.example.org/",
    tools: [{ name: "create_issue", now: { sha256: String(number).repeat(64), text: JSON.stringify({ name: "create_issue", description }) } }],
  });
  assert.equal((await seen(1, "Creates one")).tools[0].sha256, "1".repeat(64));
  assert.equal((await seen(2, "Creates <b>two</b>")).tools[0].sha256, "1".repeat(64), "it waits");
  await page.locator("#pending-tools").getByText("A tool").waitFor();
  await page.locator("#pending-tools a").click();
  const card = page.locator("#pins .card");
  await card.getByText("reviewer/github", { exact: true }).waitFor();
  await card.getByText("+description: Creates <b>two</b>").waitFor();
  await card.getByText("Server of the agent").waitFor();
  const line = page.locator("#servers tbody tr");
  await line.getByText("reviewer/github").waitFor();
  await line.getByText("agent", { exact: true }).waitFor();
  await card.getByRole("button", { name: "Approve" }).click();
  await page.getByText("create_issue is approved.").waitFor();
  const told = await worker.hear();
  assert.deepEqual([told.number, told.server, told.tools[0].sha256], [0, "github", "2".repeat(64)]);
  // News of an agent's come while one looks.
  await seen(3, "Creates three");
  await card.getByText("+description: Creates three").waitFor();
  await card.getByRole("button", { name: "Reject" }).click();
  await page.getByText("create_issue is rejected.").waitFor();
  assert.equal((await worker.hear()).tools[0].sha256, "2".repeat(64));
  await line.getByRole("link", { name: "reviewer/github" }).click();
  await page.locator('#server tr[data-tool="create_issue"]').getByText("rejected").waitFor();
  worker.end();
});

test("a call with the longest name there is, and words without a space, is decided like any other", async () => {
  const page = await openLive();
  const files = await client("files");
  // A tool with a longer one is not called at all.
  const refused = await files.call(`delete_${"x".repeat(2_993)}`, {});
  assert.match(refused.result.content[0].text, /its name has 3000 bytes/);
  const name = `delete_${"x".repeat(249)}`;
  const answer = files.call(name, { path: "y".repeat(3_000) });
  const card = page.locator(".card");
  await card.getByText("only the beginning of the tool's name").waitFor();
  assert.ok(await card.evaluate((element) => element.scrollWidth <= element.clientWidth), "something of it is out of sight");
  const [box, deny] = [await card.boundingBox(), await card.getByRole("button", { name: "Deny" }).boundingBox()];
  assert.ok(box.height < 400 && deny.y + deny.height < 600, JSON.stringify([box, deny]));
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "it is too wide");
  await page.keyboard.press("d");
  const confirm = await page.locator("#confirm-yes").boundingBox();
  assert.ok(confirm.y + confirm.height < 700, JSON.stringify(confirm));
  await page.keyboard.press("Escape");
  // All of it is in the call's own pane, above which the buttons stay in sight.
  await card.locator("a.name").click();
  const detail = page.locator("#detail");
  assert.equal(await detail.locator("h2").textContent(), name);
  const approve = await detail.getByRole("button", { name: "Approve" }).boundingBox();
  assert.ok(approve.y + approve.height < 700, JSON.stringify(approve));
  await detail.getByRole("button", { name: "Deny" }).click({ delay: 700 });
  assert.equal((await answer).result.isError, true);
});

test("a call that the server has not seen is not said to have no answer from it", async () => {
  const files = await client("files");
  await files.call("read_file", { path: "/a" });
  const held = files.call("delete_file", { path: "/tmp/x" });
  const page = await openLive();
  await page.locator("#calls tr").filter({ hasText: "delete_file" }).click();
  const detail = page.locator("#detail");
  await detail.getByText("not yet: it waits for a decision").waitFor();
  assert.equal(await detail.getByText("no answer from the server").count(), 0);
  // The counters are beside the pane, not behind it.
  const [stats, pane] = [await page.locator("#stats").boundingBox(), await detail.boundingBox()];
  assert.ok(stats.x + stats.width <= pane.x, JSON.stringify([stats, pane]));
  await sleep(700);
  await detail.getByRole("button", { name: "Deny" }).click();
  assert.equal((await held).result.isError, true);
  await detail.getByText("denied").first().waitFor();
  assert.equal(await detail.getByText("no answer from the server").count(), 0);
});

test("news for the sessions that is shown after they were left is nobody's mistake", async () => {
  const page = await open("about:blank");
  const news = new Promise((resolve) => {
    page.on("websocket", (socket) => socket.on("framereceived", ({ payload }) => String(payload).includes("read_file") && resolve()));
  });
  await page.clock.install();
  await page.goto(`http://127.0.0.1:${home.port}/?view=sessions#token=${home.token}`);
  await live(page);
  const files = await client("files");
  await page.clock.runFor(2_000);
  await page.locator("#sessions tbody tr").first().waitFor();
  await files.call("read_file", { path: "/a" });
  await news;
  // The view waits a moment for more of the same, and is left meanwhile.
  await page.keyboard.press("1");
  await row(page, "read_file").waitFor();
  await page.clock.runFor(2_000);
  await page.clock.resume();
});

test("deny answers the client with the reason", async () => {
  const page = await openLive();
  const files = await client("files");
  const answer = files.call("delete_file", { path: "/tmp/x" });
  const deny = page.locator(".card").getByRole("button", { name: "Deny" });
  await deny.waitFor();
  await sleep(700);
  await deny.click();
  const { result } = await answer;
  assert.equal(result.isError, true);
  assert.match(result.content[0].text, /denied/i);
  await row(page, "delete_file").getByText("denied").waitFor();
});

test("a call that is decided elsewhere, or by the clock, takes its buttons away", async () => {
  const page = await openLive();
  // A busy machine may show the buttons when the time is over: then it gets more.
  const approve = page.getByRole("button", { name: "Approve" });
  let tool;
  for (const seconds of [3, 15, 90]) {
    const files = await client(`files${seconds}`, ["--approval-timeout", `${seconds}`]);
    tool = `delete_${seconds}`;
    const answer = files.call(tool, {});
    // With the pointer on it a card stays, over though it is.
    const shown = await Promise.race([approve.hover().then(() => true, () => false), answer.then(() => false)]);
    assert.equal((await answer).result.isError, true);
    if (shown) break;
    assert.ok(seconds < 90, "the buttons are not shown while it is held");
  }
  await page.locator(".card").filter({ hasText: tool }).getByText("nobody answered in time").waitFor();
  assert.equal(await approve.count(), 0);
  await row(page, tool).getByText("timeout").waitFor();
});

test("hostile names and results are text", async () => {
  const page = await openLive();
  const hostile = "<img src=x onerror=\"document.title='owned'\">";
  const files = await client("<b>files</b>");
  await files.call(hostile, { "<i>key</i>": "<script>document.title='owned'</script>", answer: `${hostile} \u001b[31mred\u0007` });
  await files.call("safe\u202egnp.exe\u2066", { a: "\u200bhidden" });
  await files.call("\u001b]0;owned\u0007screen\u001b[2J", {});
  const list = page.locator("#calls");
  await list.getByText(hostile, { exact: true }).waitFor();
  await list.getByText("safeU+202Egnp.exeU+2066", { exact: true }).waitFor();
  await list.getByText("U+001B]0;ownedU+0007screenU+001B[2J", { exact: true }).waitFor();
  await list.getByText("U+200Bhidden").waitFor();
  await list.getByText(hostile, { exact: true }).click();
  const detail = page.locator("#detail");
  await detail.getByText("<script>document.title='owned'</script>").waitFor();
  await detail.getByText("U+001B[31mredU+0007").waitFor();
  for (const view of ["intents", "sessions"]) {
    await page.goto(`http://127.0.0.1:${home.port}/?view=${view}`);
    await page.locator("main").getByText("<b>files</b>").first().waitFor();
  }
  assert.equal(await page.locator("img:not(h1 img), main script, main b, main i").count(), 0);
  assert.equal(await page.title(), "Ringfence");
});

test("a number is shown as it was written", async () => {
  const page = await openLive();
  const files = await client("files");
  // 2^53 + 1, which a careless page shows as 2^53.
  const answer = files.raw("delete_row", '{"id": 9007199254740993}');
  await page.locator(".card").getByText('"id": 9007199254740993').waitFor();
  await page.keyboard.press("d");
  await page.locator("#confirm-arguments").getByText("9007199254740993").waitFor();
  await page.keyboard.press("Enter");
  assert.equal((await answer).result.isError, true);
});

test("filters are in the address, survive a reload, and the back button undoes them", async () => {
  const files = await client("files");
  const notes = await client("notes");
  await files.call("read_file", {});
  await files.call("create_file", { password: "x" });
  await notes.call("read_note", {});
  const page = await openLive();
  await row(page, "read_note").waitFor();
  await page.locator("#filter-server").selectOption("files");
  await row(page, "read_note").waitFor({ state: "detached" });
  await page.locator("#filter-tool").fill("READ");
  await row(page, "create_file").waitFor({ state: "detached" });
  const address = new URL(page.url());
  assert.deepEqual([address.searchParams.get("server"), address.searchParams.get("tool")], ["files", "READ"]);
  await page.reload();
  await row(page, "read_file").waitFor();
  assert.equal(await page.locator("#calls tr").count(), 1);
  assert.equal(await page.locator("#filter-server").inputValue(), "files");
  assert.equal(await page.locator("#filter-tool").inputValue(), "READ");
  // What happens meanwhile is filtered too.
  await live(page);
  await notes.call("read_more", {});
  await files.call("read_other", {});
  await row(page, "read_other").waitFor();
  assert.equal(await row(page, "read_more").count(), 0);
  await page.locator("#filter-risk").selectOption("31");
  await page.getByText("No call matches").waitFor();
  await page.goBack();
  await row(page, "read_file").waitFor();
  await page.getByText("clear", { exact: true }).click();
  await row(page, "read_note").waitFor();
  await page.locator("#filter-verdict").selectOption("flag");
  await row(page, "read_note").waitFor({ state: "detached" });
  await row(page, "create_file").waitFor();
  assert.equal(await page.locator("#calls tr").count(), 1);
  await page.locator("#filter-outcome").selectOption("killed");
  await page.getByText("No call matches").waitFor();
  await page.locator("#filter-outcome").selectOption("answered");
  await row(page, "create_file").waitFor();
});

test("the keyboard does everything", async () => {
  const files = await client("files");
  for (const name of ["read_a", "read_b", "read_c"]) await files.call(name, {});
  const page = await openLive();
  for (const name of ["read_a", "read_b", "read_c"]) await row(page, name).waitFor();
  await page.keyboard.press("j");
  await page.keyboard.press("j");
  await page.keyboard.press("k");
  await page.keyboard.press("j");
  await page.keyboard.press("Enter");
  await page.locator("#detail h2").getByText("read_b").waitFor();
  assert.match(page.url(), /call=/);
  await page.keyboard.press("j");
  await page.locator("#detail h2").getByText("read_a").waitFor();
  await page.keyboard.press("Escape");
  await page.locator("#detail").waitFor({ state: "detached" });
  await page.keyboard.press("/");
  await page.keyboard.type("read_c");
  await row(page, "read_a").waitFor({ state: "detached" });
  await page.keyboard.press("Escape");
  await page.keyboard.press("?");
  await page.getByRole("dialog").getByText("next, previous call").waitFor();
  await page.keyboard.press("Escape");
  for (const [key, text] of [["2", "Calls of one intent"], ["3", "Lasted"], ["4", "Add a rule"], ["5", "Last change"], ["1", "Arguments"]]) {
    await page.keyboard.press(key);
    await page.locator("main").getByText(text).first().waitFor();
  }
  const held = files.call("delete_a", {});
  await page.locator(".card").waitFor();
  await page.keyboard.press("a");
  await page.getByRole("dialog").getByText("Approve this call?").waitFor();
  await page.keyboard.press("Escape");
  assert.equal((await home.api("/api/waiting")).length, 1, "nothing was decided");
  await page.keyboard.press("a");
  await page.keyboard.press("Enter");
  assert.equal((await held).result.content[0].text, "done: delete_a");
  const undecided = page.locator(".card:not(.over)");
  await undecided.waitFor({ state: "detached" });
  const second = files.call("delete_b", {});
  await undecided.waitFor();
  await page.keyboard.press("d");
  await page.keyboard.press("Enter");
  assert.equal((await second).result.isError, true);
});

test("new calls move no button under the pointer and take no focus", async () => {
  const files = await client("files");
  const first = files.call("delete_a", {});
  const page = await openLive();
  const approve = page.locator(".card").first().getByRole("button", { name: "Approve" });
  await approve.waitFor();
  await sleep(700);
  const before = await approve.boundingBox();
  await approve.hover();
  const others = ["delete_b", "delete_c"].map((name) => files.call(name, {}));
  for (let n = 0; n < 20; n++) await files.call(`read_${n}`, {});
  await eventually("three cards", async () => (await page.locator(".card").count()) === 3);
  await row(page, "read_19").waitFor();
  assert.deepEqual(await approve.boundingBox(), before);
  // The first is decided elsewhere: its card stays while the pointer is on it, so that no other button comes there.
  const id = await page.locator(".card").first().getAttribute("data-id");
  await fetch(`http://127.0.0.1:${home.port}/api/tool-calls/${id}/deny`, {
    method: "POST",
    headers: { Authorization: `Bearer ${home.token}`, "Content-Type": "application/json" },
  });
  await first;
  await sleep(2500);
  assert.equal(await page.locator(".card").count(), 3);
  await page.mouse.move(5, 790);
  await eventually("it goes", async () => (await page.locator(".card").count()) === 2);
  await page.mouse.move(400, 700);
  const undecided = page.locator(".card:not(.over)");
  for (const others of [1, 0]) {
    await undecided.first().getByRole("button", { name: "Deny" }).focus();
    await page.keyboard.press("Enter");
    await eventually("it is decided", async () => (await undecided.count()) === others);
  }
  await Promise.all(others);
});

test("a call's detail, an intent's chain, sessions", async () => {
  const files = await client("files");
  const notes = await client("notes");
  // One intent by the client's word: calls that are merely close in time are so on a quick machine only.
  const asked = { "vscode.requestId": "r" };
  await files.call("read_file", { path: "/a" }, asked);
  await notes.call("create_note", { text: "b" }, asked);
  await files.call("read_file", { path: "/c" }, asked);
  const page = await open();
  await row(page, "create_note").click();
  const detail = page.locator("#detail");
  for (const text of ["write", "flag_all_writes", "first_use", '"text": "b"', "done: create_note"]) await detail.getByText(text).first().waitFor();
  await page.reload();
  await detail.getByText("flag_all_writes").waitFor();
  await detail.getByText("its chain of calls").click();
  const intent = page.locator(".intent");
  await intent.getByText("3 calls: files → notes → files").waitFor();
  assert.deepEqual(await intent.locator("li a").allTextContents(), ["read_file", "create_note", "read_file"]);
  await page.keyboard.press("3");
  const session = page.locator("#sessions tbody tr").filter({ hasText: "files" });
  await session.getByText("running").waitFor();
  await session.getByText("Example Client 2.1").waitFor();
  await clients.shift().close();
  await session.getByText("ended, status 0").waitFor();
});

test("every view is in the navigation and the help, and its digit leads there", async () => {
  const page = await openLive();
  const names = await page.locator("nav a").evaluateAll((links) => links.map((link) => link.dataset.view));
  assert.ok(names.length > 1 && names[0] === "calls", String(names));
  assert.equal(await page.locator("#help-views").textContent(), names.join(", "));
  assert.equal(await page.locator("#help-digits").textContent(), `1–${names.length}`);
  for (const [index, name] of [...names.entries()].reverse()) {
    await page.keyboard.press(String(index + 1));
    await page.locator(`nav a[aria-current][data-view="${name}"]`).waitFor();
    await page.locator("main > :not([hidden])").first().waitFor();
  }
});

test("what a server says on standard error is shown as text, as it comes", async () => {
  const noisy = await client("<b>noisy</b>");
  await (await client("quiet")).call("read_a", {});
  const hostile = "<img src=x onerror=\"document.title='owned'\"> \u001b[31mred\u001b[0m \u202egnp.exe\u2066 \u200bhidden";
  await noisy.call("read_a", { stderr: `${hostile}\nkey sk-0123456789abcdefghij\n` });
  const page = await openLive(`http://127.0.0.1:${home.port}/?view=sessions#token=${home.token}`);
  const lines = page.locator("#sessions tbody tr");
  assert.equal(await lines.filter({ hasText: "quiet" }).locator("a.stderr").count(), 0);
  const link = lines.filter({ hasText: "noisy" }).locator("a.stderr");
  await link.click();
  const said = page.locator("#stderr pre");
  await said.getByText("U+001B[31mredU+001B[0m U+202Egnp.exeU+2066 U+200Bhidden").waitFor();
  await said.getByText("key [redacted]").waitFor();
  const text = await said.textContent();
  assert.ok(text.startsWith("<img src=x onerror=\"document.title='owned'\"> "), text);
  assert.ok(text.endsWith("\nkey [redacted]\n"), text);
  await noisy.call("read_b", { stderr: "it comes later\n" });
  await said.getByText("it comes later").waitFor();
  await page.reload();
  await said.getByText("it comes later").waitFor();
  assert.equal(await page.locator("#stderr img, #stderr b, #stderr script").count(), 0);
  assert.equal(await page.title(), "Ringfence");
  // More than is kept, and more than anybody reads: beginning and end, and how much is missing.
  const long = `${"x".repeat(79)}\n`.repeat(2000);
  for (let n = 0; n < 10; n++) await noisy.call("read_c", { stderr: long });
  await noisy.call("read_d", { stderr: "its last words\n" });
  await clients.shift().close();
  await said.getByText("its last words").waitFor();
  await said.getByText(/more characters; ringfence mcp sessions --stderr [0-9a-f]{8} has all/).waitFor();
  await said.getByText(/[0-9,]+ bytes were not kept/).waitFor();
  assert.ok((await said.textContent()).startsWith("<img src=x"));
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "it is too wide");
  await page.locator("#stderr").getByText("close").click();
  await page.locator("#stderr").waitFor({ state: "hidden" });
  await link.waitFor();
});

test("a rule added here binds the next call", async () => {
  const files = await client("files");
  assert.equal((await files.call("read_diary", {})).result.isError, undefined, "the control");
  const page = await openLive();
  await page.getByRole("link", { name: "Rules" }).click();
  await page.getByText("pause_deletes").waitFor();
  await page.getByLabel("Name").fill("no_diaries");
  await page.getByLabel("Action").selectOption("block");
  await page.getByLabel("Tools").fill("*diary*");
  await page.getByRole("button", { name: "Add rule" }).click();
  await page.getByText("no_diaries is in force.").waitFor();
  await page.locator("#rules tbody").getByText("no_diaries").waitFor();
  await eventually("it binds", async () => (await files.call("read_diary", {})).result.isError);
  await page.getByLabel("Name").fill("broken");
  await page.getByLabel("Tools").fill("[");
  await page.getByRole("button", { name: "Add rule" }).click();
  await page.locator("#rule-said.bad").getByText("tool_pattern").waitFor();
});

test("a call is approved for its session, the approval is listed, and revoked", async () => {
  const page = await openLive();
  const files = await client("files");
  const first = files.call("delete_file", { path: "/tmp/x" });
  const card = page.locator(".card");
  await card.getByText("More than this call").click();
  await sleep(700);
  await card.getByRole("button", { name: "This tool, in this session" }).click();
  assert.equal((await first).result.content[0].text, "done: delete_file");
  await card.getByText("approved, and others like it").waitFor();
  assert.equal((await files.call("delete_file", { path: "/tmp/y" })).result.content[0].text, "done: delete_file");
  const approval = await eventually("its use is on record", async () => {
    const [standing] = await home.api("/api/approvals");
    return standing?.uses === 1 && standing;
  });
  assert.equal(approval.scope, "session");
  await eventually("so is who decided", async () => (await home.api("/api/tool-calls"))[0].decided_by === `approval ${approval.id} of dashboard`);
  await page.getByRole("link", { name: "Rules" }).click();
  const item = page.locator(`#standing li[data-approval="${approval.id}"]`);
  await item.getByText("used 1 time").waitFor();
  await item.getByRole("button", { name: "Revoke the approval of delete_file" }).click();
  await item.waitFor({ state: "detached" });
  const again = files.call("delete_file", { path: "/tmp/y" });
  await page.locator(".card .no").last().waitFor();
  await sleep(700);
  await page.locator(".card:not(.over)").getByRole("button", { name: "Deny" }).click();
  assert.equal((await again).result.isError, true, "it waits again");
});

test("a connection that waits says whose it is, and is approved once or for its container", async () => {
  const opened = await chromium.page();
  pages.push(opened);
  const { page } = opened;
  // This auditor has no containers: connections of the daemon's, in their form.
  const host = `github.com.${"a".repeat(60)}.${"b".repeat(60)}.evil.example`;
  const connection = (id, host, within) => ({
    id, session_id: "0123456789ab", server_name: host, tool_name: "net.connect", arguments: { host, port: 443 },
    arguments_bytes: null, risk_score: 61, risk_reasons: ["name_not_granted"], rules: [], since_ms: Date.now(), until_ms: Date.now() + 600_000,
    connection: { host, port: 443, container: "0123456789ab", profile: "our-coder", ...within },
  });
  let waiting = [
    connection("3f2a9c1b-0000-4000-8000-000000000001", "api.example.org", {}),
    connection("3f2a9c1b-0000-4000-8000-000000000002", host, { within: "00000000000a" }),
    connection("3f2a9c1b-0000-4000-8000-000000000003", "other.example.org", {}),
  ];
  const decided = [];
  await page.routeWebSocket(/./, (socket) => socket.close());
  await page.route("**/api/waiting", (route) => route.fulfill({ json: waiting }));
  await page.route("**/api/tool-calls/*/*", (route) => {
    const [, id, verb] = new URL(route.request().url()).pathname.match(/tool-calls\/([^/]+)\/(approve|deny)$/);
    const body = route.request().postDataJSON();
    decided.push([id.at(-1), verb, body]);
    waiting = waiting.filter((call) => call.id !== id);
    const outcome = verb === "approve" ? "approved" : "denied";
    return route.fulfill({ json: body.scope ? { outcome, approval: { id: "a", scope: body.scope } } : { outcome } });
  });
  const details = [];
  page.on("request", (request) => /tool-calls\/3f2a9c1b[^/]*$/.test(request.url()) && details.push(request.url()));
  await page.goto(home.link);
  const card = (end) => page.locator(`.card[data-id$="${end}"]`);
  await card(1).getByText("A connection of container 0123456789ab, profile our-coder: to api.example.org port 443").waitFor();
  await card(1).getByText("because: name_not_granted").waitFor();
  assert.equal(await card(1).locator("a").count(), 0, "nothing more of it is on record");
  // All of a long host is there, with the end that says whose it is.
  await card(2).getByText(`within container 00000000000a: to ${host} port 443`).waitFor();
  await card(1).getByText("More than this connection").click();
  const choices = card(1).locator(".choices button");
  assert.deepEqual(await choices.allTextContents(), ["This host and port, while the container lives"]);
  await sleep(700);
  await choices.click();
  await card(1).getByText("approved, and others like it").waitFor();
  await card(2).getByRole("button", { name: "Deny" }).click();
  await card(2).getByText("denied", { exact: true }).waitFor();
  await card(3).getByRole("button", { name: "Approve" }).click();
  await card(3).getByText("approved", { exact: true }).waitFor();
  assert.deepEqual(decided, [["1", "approve", { scope: "container" }], ["2", "deny", {}], ["3", "approve", {}]]);
  // One that is over by itself is no call whose page would say why.
  waiting = [connection("3f2a9c1b-0000-4000-8000-000000000004", "late.example.org", {})];
  await card(4).waitFor();
  waiting = [];
  await card(4).locator("[role=status]").getByText("over").waitFor();
  assert.deepEqual(details, []);
  await page.unrouteAll({ behavior: "ignoreErrors" });
});

test("an exception is made from a call, asked about, and switched off", async () => {
  const files = await client("files");
  await files.call("read_secret", { path: "/home/a/.ssh/id_ed25519" });
  await files.call("read_secret", { path: "/home/a/.ssh/id_ed25519" });
  const score = async () => (await home.api("/api/tool-calls"))[0]?.risk_score;
  // The first one counts for more: its tool was new.
  const before = await eventually("both are on record", async () => (await home.api("/api/tool-calls")).length === 2 && score());
  const page = await openLive();
  await row(page, "read_secret").first().click();
  await page.getByRole("link", { name: "Make an exception from this call" }).click();
  const form = page.locator("#add-exception");
  await form.getByLabel("Name of the exception").fill("keys_are_fine");
  assert.ok(await form.getByLabel("sensitive_data").isChecked());
  await form.getByText('only "/home/a/.ssh/id_ed25519"').click();
  await form.getByRole("button", { name: "Add exception" }).click();
  const dialog = page.locator("#confirm");
  await dialog.getByText("Make the rule keys_are_fine looser?").waitFor();
  await dialog.getByRole("button", { name: "Make it looser" }).click();
  await page.getByText("keys_are_fine is in force.").waitFor();
  await rule(page, "keys_are_fine").getByText("not counted: sensitive_data").waitFor();
  await eventually("it lowers the score", async () => {
    await files.call("read_secret", { path: "/home/a/.ssh/id_ed25519" });
    return (await score()) < before;
  });
  await files.call("read_secret", { path: "/home/a/.ssh/id_rsa" });
  await eventually("another value counts", async () => (await score()) === before);
  await page.getByRole("button", { name: "Switch off keys_are_fine" }).click();
  await page.getByText("keys_are_fine is off.").waitFor();
  await files.call("read_secret", { path: "/home/a/.ssh/id_ed25519" });
  await eventually("and so does that one", async () => (await score()) === before);
});

const rule = (page, name) => page.locator("#rules tbody tr").filter({ has: page.getByText(name, { exact: true }) });

test("a rule is made from a call, tried, changed, moved and deleted, and what loosens it is asked about", async () => {
  const files = await client("files");
  await files.call("read_diary", {});
  const page = await openLive();
  await row(page, "read_diary").click();
  await page.getByRole("link", { name: "Make a rule from this call" }).click();
  await page.waitForFunction(() => document.querySelector("#add-rule")?.elements.name.value === "like_read_diary");
  assert.equal(await page.getByLabel("Tools").inputValue(), "read_diary");
  assert.equal(await page.getByLabel("Servers").inputValue(), "files");
  assert.ok(await page.getByLabel("read", { exact: true }).isChecked());
  assert.ok(!(await page.getByLabel("write", { exact: true }).isChecked()));
  await page.getByLabel("Action").selectOption("block");
  await page.getByRole("button", { name: "Try it on past calls" }).click();
  await page.locator("#trial").getByText("1 call of the last 7 days: the rule is about 1 of them; 1 would have had a stricter verdict").waitFor();
  await page.locator("#trial li").getByText("pass → block").waitFor();
  assert.equal(await rule(page, "like_read_diary").count(), 0, "nothing was done");
  await page.getByRole("button", { name: "Add rule" }).click();
  await page.getByText("like_read_diary is in force.").waitFor();
  await eventually("it binds", async () => (await files.call("read_diary", {})).result.isError);
  await rule(page, "like_read_diary").locator(".took[title]", { hasText: /^[1-9]/ }).waitFor();

  await page.getByLabel("Name").fill("second");
  await page.getByLabel("Tools").fill("x_*");
  await page.getByRole("button", { name: "Add rule" }).click();
  await rule(page, "second").waitFor();
  const up = page.getByRole("button", { name: "Move up second" });
  await up.click();
  await page.getByText("second is moved.").waitFor();
  const names = () => page.locator("#rules tbody tr .tool").allTextContents();
  assert.deepEqual((await names()).slice(0, 2), ["second", "like_read_diary"]);
  assert.ok(await up.isDisabled());

  // An edit that loosens is asked about, and nothing is done without a yes.
  await page.getByRole("button", { name: "Edit like_read_diary" }).click();
  assert.equal(await page.getByLabel("Name").getAttribute("readonly"), "");
  await page.getByLabel("Tools").fill("");
  await page.getByLabel("Servers").fill("elsewhere");
  await page.getByRole("button", { name: "Save" }).click();
  const dialog = page.locator("#confirm");
  await dialog.getByText("Make the rule like_read_diary looser?").waitFor();
  await dialog.getByText(/ a milder one\./).waitFor();
  await page.keyboard.press("Enter");
  await dialog.waitFor({ state: "hidden" });
  assert.equal((await home.api("/api/rules"))[1].tool_pattern, "read_diary");
  await page.getByRole("button", { name: "Save" }).click();
  await dialog.getByRole("button", { name: "Make it looser" }).click();
  await page.getByText("like_read_diary is in force.").waitFor();
  const edited = (await home.api("/api/rules"))[1];
  assert.deepEqual([edited.tool_pattern, edited.server_pattern], [null, "elsewhere"]);
  await eventually("it is about other calls", async () => !(await files.call("read_diary", {})).result.isError);

  // Somebody else was faster.
  await page.getByRole("button", { name: "Edit second" }).click();
  const second = (await home.api("/api/rules"))[0];
  await home.api(`/api/rules/${second.id}`, {
    method: "PATCH",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ version: second.version, description: "theirs" }),
  });
  await page.getByLabel("Description").fill("mine");
  await page.getByRole("button", { name: "Save" }).click();
  await page.locator("#rule-said.bad").getByText("changed meanwhile by").waitFor();
  await rule(page, "second").getByText("theirs").waitFor();
  await page.getByRole("button", { name: "Cancel" }).click();

  await page.getByRole("button", { name: "Switch off second" }).click();
  await dialog.getByRole("button", { name: "Make it looser" }).click();
  await page.getByText("second is off.").waitFor();
  await page.getByRole("button", { name: "Switch on second" }).click();
  await page.getByText("second is on.").waitFor();
  await page.getByRole("button", { name: "Delete second" }).click();
  await dialog.getByRole("button", { name: "Make it looser" }).click();
  await page.getByText("second is deleted.").waitFor();
  assert.deepEqual((await names())[0], "like_read_diary");
  assert.equal(await page.getByRole("button", { name: "Delete pause_deletes" }).count(), 0, "a file's is not for this page");
});

test("an intent says what was asked and how that is known", async () => {
  const files = await client("files");
  const notes = await client("notes");
  await files.call("read_a", {}, { "vscode.requestId": "r1" });
  await notes.call("read_b", {}, { "vscode.requestId": "r2" });
  await notes.call("read_c", {}, { "vscode.requestId": "r1" });
  await files.call("ask_model", { ask: "what is <b>old</b>?" });
  // Rows are made a moment after the call.
  const of = async (tool) => (await home.api("/api/tool-calls")).find((call) => call.tool_name === tool);
  await eventually("the question is on record", async () => (await of("ask_model"))?.responded_at);
  await files.call("read_d", {});
  await eventually("the last call is on record", async () => of("read_d"));
  const page = await open(`http://127.0.0.1:${home.port}/?view=intents#token=${home.token}`);
  const chain = (text) => page.locator(".intent").filter({ has: page.getByText(text, { exact: true }) });
  const one = chain("read_a");
  await one.getByText("one request, by the client's word").waitFor();
  assert.deepEqual(await one.locator("li a").allTextContents(), ["read_a", "read_c"]);
  const sampled = chain("read_d");
  await sampled.getByText("what is <b>old</b>?", { exact: true }).waitFor();
  await sampled.getByText("asked of the client's model, in the server's words").waitFor();
  await chain("ask_model").getByText("close in time").waitFor();
  await sampled.locator("li a").first().click();
  await page.locator("#detail").getByText("what is <b>old</b>?", { exact: true }).waitFor();
  await page.locator("#detail").getByText("by sampling").waitFor();
});

test("a change of the rule file that loosens something waits until it is confirmed here", async () => {
  const rules = join(home.dir, "rules.yaml");
  const write = (action) => writeFileSync(rules, `rules:\n  - name: my_diary\n    tool_pattern: "*diary*"\n    action: ${action}\n`);
  write("block");
  const files = await client("files", ["--rules", rules]);
  assert.equal((await files.call("read_diary")).result.isError, true, "the control");
  const page = await openLive(`http://127.0.0.1:${home.port}/?view=rules#token=${home.token}`);
  assert.equal(await page.locator(".card.pending").count(), 0);
  write("flag");
  const card = page.locator(".card.pending");
  await card.getByText("my_diary").first().waitFor();
  assert.equal((await files.call("read_diary")).result.isError, true, "it waits");
  await card.getByRole("button", { name: "Put it in force" }).click();
  await card.waitFor({ state: "detached" });
  await eventually("it is in force", async () => !(await files.call("read_diary")).result.isError);
});

test("calls of a container are filtered, and show what the kernel saw", async () => {
  const files = await client("files");
  await files.call("read_outside", {});
  const [call] = home.contained("jailed", "0123456789ab", ["read_inside"]);
  assert.equal(call.tool_name, "read_inside");
  const page = await openLive();
  await row(page, "read_outside").waitFor();
  await page.locator("#filter-container").selectOption("0123456789ab");
  await row(page, "read_outside").waitFor({ state: "detached" });
  await row(page, "read_inside").waitFor();
  assert.equal(new URL(page.url()).searchParams.get("container"), "0123456789ab");
  // This auditor has no events: those of the daemon's, in their form.
  const seen = [
    { id: 1, attribution: "sole", verdict: "denied", op: "open", path: "/etc/<b>shadow</b>", exe: "/usr/bin/cat" },
    { id: 2, attribution: "ambiguous", verdict: "allowed", op: "connect", addr: "192.0.2.1:443", exe: "/usr/bin/curl\u202e" },
  ];
  await page.route(`**/api/tool-calls/${call.id}`, async (route) => {
    const response = await route.fetch();
    await route.fulfill({ response, json: { ...(await response.json()), events: seen, events_cut: true } });
  });
  await row(page, "read_inside").click();
  const detail = page.locator("#detail");
  await detail.getByText("coder, enforcement: kernel").waitFor();
  const lines = detail.locator("table.events tbody tr");
  assert.deepEqual(await lines.nth(0).locator("td").allTextContents(), ["sole", "denied", "open", "/etc/<b>shadow</b>", "/usr/bin/cat"]);
  assert.deepEqual(await lines.nth(1).locator("td").allTextContents(), ["ambiguous", "allowed", "connect", "192.0.2.1:443", "/usr/bin/curlU+202E"]);
  await detail.getByText("ringfence events --container 0123456789ab").waitFor();
  await page.reload();
  await row(page, "read_inside").waitFor();
  assert.equal(await page.locator("#calls tr").count(), 1);
  assert.equal(await page.locator("#filter-container").inputValue(), "0123456789ab");
  // A question that the page still has is none of the next test's.
  await page.unrouteAll({ behavior: "ignoreErrors" });
});

test("without the live stream the page asks, and says so; a new auditor needs a new link", async () => {
  const opened = await chromium.page();
  pages.push(opened);
  const { page } = opened;
  await page.routeWebSocket(/./, (socket) => socket.close());
  await page.goto(home.link);
  await page.locator('#link[data-state="polling"]').waitFor();
  const files = await client("files");
  await files.call("read_a", {});
  await row(page, "read_a").waitFor();
  // A client that is there would start an auditor itself.
  await clients.shift().close();
  await home.stopAuditor();
  await page.locator('#link[data-state="gone"]').waitFor();
  await page.getByText("run `ringfence dashboard` in a terminal").waitFor();
  await home.startAuditor(home.port);
  await page.getByText("This page needs a fresh link").waitFor();
  const fresh = await open();
  await row(fresh, "read_a").waitFor();
});

test("a phone's width needs no sideways scrolling, and its buttons are big", async () => {
  const files = await client("filesystem");
  await files.call("read_a_file_with_a_rather_long_name_that_does_not_fit", { path: "/home/someone/a/long/path/to/some/file.txt" });
  const held = files.call("delete_file", { path: "/tmp/x" });
  const page = await openLive(home.link, { viewport: { width: 360, height: 740 }, hasTouch: true, isMobile: true });
  const approve = page.locator(".card").getByRole("button", { name: "Approve" });
  await approve.waitFor();
  const fits = async (where) =>
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${where} is too wide`);
  await fits("calls");
  assert.ok((await approve.boundingBox()).height >= 44);
  await page.locator("#calls tr").last().tap();
  await page.locator("#detail").getByText("Why this score").waitFor();
  await fits("detail");
  await page.getByRole("button", { name: "Close" }).tap();
  for (const view of ["Intents", "Sessions", "Rules"]) {
    await page.getByRole("link", { name: view, exact: true }).tap();
    await sleep(200);
    await fits(view);
  }
  await page.locator(".card").getByRole("button", { name: "Approve" }).tap();
  assert.equal((await held).result.content[0].text, "done: delete_file");
});

test("a frame of another site stays empty, and its scripts hear nothing", async () => {
  const { createServer } = await import("node:http");
  const evil = createServer((_, response) => {
    response.setHeader("Content-Type", "text/html");
    response.end(`<iframe src="http://127.0.0.1:${home.port}/"></iframe><form method="post" action="http://127.0.0.1:${home.port}/api/rules" enctype="text/plain"><input name='{"name":"a","action":"flag","x":"' value='"}'></form>`);
  });
  await new Promise((resolve) => evil.listen(0, "127.0.0.1", resolve));
  try {
    const { page, close } = await chromium.page();
    await page.goto(`http://127.0.0.1:${evil.address().port}/`);
    const said = await page.evaluate(async ([port, token]) => {
      const tries = {};
      tries.fetch = await fetch(`http://127.0.0.1:${port}/api/stats`, { headers: { Authorization: `Bearer ${token}` } }).then(() => "read", () => "refused");
      tries.post = await fetch(`http://127.0.0.1:${port}/api/rules`, { method: "POST", mode: "no-cors", body: '{"name":"a","action":"flag"}' }).then((r) => r.type, () => "refused");
      tries.socket = await new Promise((resolve) => {
        const socket = new WebSocket(`ws://127.0.0.1:${port}/ws/live`, ["ringfence.live", `ringfence.token.${token}`]);
        socket.onopen = () => resolve("open");
        socket.onerror = () => resolve("refused");
      });
      return tries;
    }, [home.port, home.token]);
    assert.equal(said.fetch, "refused");
    assert.equal(said.socket, "refused");
    await page.locator("form").evaluate((form) => form.submit());
    await page.waitForLoadState();
    const frames = await Promise.all(page.frames().map((frame) => frame.locator("#waiting").count().catch(() => 0)));
    assert.deepEqual(frames.filter(Boolean), []);
    assert.deepEqual((await home.api("/api/rules")).filter((rule) => rule.source === "database"), []);
    await close();
  } finally {
    evil.closeAllConnections();
    evil.close();
  }
});
