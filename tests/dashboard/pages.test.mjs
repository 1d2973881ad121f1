// What pages of other sites can do to the dashboard and to an agent's HTTP endpoint, in Chromium: nothing.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, afterEach, before, beforeEach, test } from "node:test";
import { Home, binary, browse, eventually } from "./harness.mjs";

/** Names of a site of somebody else's, which lead to this machine from its second answer on: DNS rebinding. */
const NAMES = ["rebound.example", "127.0.0.1.rebound.example", "localhost.rebound.example"];
const TOOL = "delete_everything";

let chromium;
let site;
let home;
let client;

before(async () => {
  chromium = await browse([
    `--host-resolver-rules=${NAMES.map((name) => `MAP ${name} 127.0.0.1`).join(", ")}`,
    // Newer browsers let no page of elsewhere reach loopback at all: what is tried here is what holds without that.
    "--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests,PrivateNetworkAccessSendPreflights",
  ]);
  site = await serve((_, response) => {
    response.setHeader("Content-Type", "text/html");
    response.end("<!doctype html><title>a site</title><p id='site'>a site</p>");
  });
});
after(async () => {
  await chromium?.close();
  site?.close();
});

beforeEach(async () => {
  home = await Home.open();
  client = await home.client("db");
});
afterEach(async () => {
  await client.close();
  await home.close();
});

/** A server on a port of loopback. */
async function serve(answer) {
  const server = createServer(answer);
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { port: server.address().port, close: () => (server.closeAllConnections(), server.close()) };
}

/** A call that waits: its id, and its answer in the end. */
async function held() {
  const answer = client.call(TOOL, {});
  const waiting = await eventually("the call waits", async () => (await home.api("/api/waiting")).find?.((call) => call.tool_name === TOOL));
  return { id: waiting.id, answer };
}

/** The call still waits, nothing was added, and the dashboard's own page lets the call go on. */
async function nothingHappened({ id, answer }) {
  assert.equal((await home.api(`/api/tool-calls/${id}`)).outcome, null);
  assert.deepEqual((await home.api("/api/rules")).filter((rule) => rule.source === "database"), []);
  const { page, close } = await chromium.page();
  await page.goto(home.link);
  await page.locator('#link[data-state="live"]').waitFor();
  const own = await page.evaluate(attack, { base: "", port: home.port, token: home.token, id, path: "/api/tool-calls" });
  assert.equal(own["with the token"].status, 200);
  assert.ok(own["with the token"].text.includes(TOOL), "what nobody else could read");
  assert.equal(own.socket, "open");
  assert.equal(own["approve, as the page does"].status, 200);
  assert.deepEqual(own.embeds, ["/icon.svg", "/app.js", "/style.css"]);
  assert.equal((await answer).result.content[0].text, `done: ${TOOL}`);
  await close();
}

/** Runs in a page: whatever a script can try on another origin, with the token, as if it were known. */
async function attack({ base, port, token, id, path }) {
  const tries = {};
  const ask = async (name, path, options) => {
    tries[name] = await fetch(base + path, options).then(
      async (answer) => ({ status: answer.status, text: await answer.text().catch(() => "") }),
      () => "refused",
    );
  };
  const bearer = { Authorization: `Bearer ${token}` };
  document.cookie = `token=${token}`;
  await ask("plain", path);
  await ask("with cookies", path, { credentials: "include" });
  await ask("opaque", path, { credentials: "include", mode: "no-cors" });
  await ask("the page", "/", { mode: "no-cors" });
  await ask("with the token", path, { headers: bearer });
  await ask("with the token and cookies", path, { headers: bearer, credentials: "include" });
  const host = location.host === `127.0.0.1:${port}` || base === "" ? location.host : `127.0.0.1:${port}`;
  tries.socket = await new Promise((resolve) => {
    const socket = new WebSocket(`ws://${host}/ws/live`, ["ringfence.live", `ringfence.token.${token}`]);
    socket.onmessage = () => resolve("open");
    socket.onerror = () => resolve("refused");
  });
  for (const path of ["/ws/live", "/api/waiting"]) {
    tries[`events of ${path}`] = await new Promise((resolve) => {
      const source = new EventSource(base + path, { withCredentials: true });
      source.onopen = () => resolve("open");
      source.onerror = () => (source.close(), resolve("refused"));
    });
  }
  const loads = (name, attributes) =>
    new Promise((resolve) => {
      const element = Object.assign(document.createElement(name), attributes);
      element.onload = () => resolve(true);
      element.onerror = () => resolve(false);
      document.body.append(element);
    });
  tries.embeds = [];
  if (await loads("img", { src: `${base}/icon.svg` })) tries.embeds.push("/icon.svg");
  // Where trusted types are demanded (the dashboard's own page) no script can add another: that it loads is enough.
  const script = await loads("link", { rel: "modulepreload", href: `${base}/app.js` });
  if (script) tries.embeds.push("/app.js");
  if (await loads("link", { rel: "stylesheet", href: `${base}/style.css` })) tries.embeds.push("/style.css");
  for (const verb of ["deny", "approve"]) {
    const path = `/api/tool-calls/${id}/${verb}`;
    await ask(`${verb}, simply`, path, { method: "POST", mode: "no-cors", credentials: "include", body: "{}" });
    navigator.sendBeacon(base + path, "{}");
  }
  await ask("rule", "/api/rules", { method: "POST", mode: "no-cors", body: '{"name":"a","action":"flag"}' });
  const json = { ...bearer, "Content-Type": "application/json" };
  await ask("approve, as the page does", `/api/tool-calls/${id}/approve`, { method: "POST", headers: json, body: "{}" });
  return tries;
}

/** A page that came from elsewhere, at this address: later requests go where the name leads now. */
async function rebound(address) {
  const { page, close } = await chromium.page();
  await page.route(address, (route) => route.fulfill({ contentType: "text/html", body: "<!doctype html><title>a site</title>" }), { times: 1 });
  await page.goto(address);
  return { page, close };
}

test("a name that was rebound to this machine reads nothing and decides nothing", async () => {
  const call = await held();
  for (const name of NAMES) {
    const { page, close } = await rebound(`http://${name}:${home.port}/`);
    const said = await page.evaluate(attack, { base: "", port: home.port, token: home.token, id: call.id, path: "/api/tool-calls" });
    const { embeds, ...tries } = said;
    assert.deepEqual(embeds, [], name);
    for (const [what, got] of Object.entries(tries)) {
      if (got === "refused") continue;
      // The server answers, and says by which names alone it does.
      assert.equal(got.status, 403, `${name}: ${what}`);
      assert.match(got.text, /answers only to 127\.0\.0\.1/, `${name}: ${what}`);
    }
    assert.equal(tries.socket, "refused", name);
    assert.equal(tries["with the token"].status, 403, name);
    await close();
  }
  // The link with its token, at such a name, is no page of ours.
  const { page, close } = await chromium.page();
  const answer = await page.goto(home.link.replace("127.0.0.1", NAMES[0]));
  assert.equal(answer.status(), 403);
  await close();
  await nothingHappened(call);
});

test("a page of another port reads nothing and decides nothing", async () => {
  const call = await held();
  for (const host of ["127.0.0.1", "localhost", NAMES[0]]) {
    const { page, close } = await chromium.page();
    await page.goto(`http://${host}:${site.port}/`);
    const base = `http://127.0.0.1:${home.port}`;
    const said = await page.evaluate(attack, { base, port: home.port, token: home.token, id: call.id, path: "/api/tool-calls" });
    const { embeds, ...tries } = said;
    assert.deepEqual(embeds, [], host);
    for (const [what, got] of Object.entries(tries)) {
      // An opaque answer has neither.
      assert.ok(got === "refused" || (got.status === 0 && got.text === ""), `${host}: ${what}: ${JSON.stringify(got)}`);
    }
    await close();
  }
  await nothingHappened(call);
});

test("a form of another site decides nothing", async () => {
  const call = await held();
  for (const verb of ["approve", "deny"]) {
    for (const encoding of ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]) {
      const { page, close } = await chromium.page();
      await page.goto(`http://127.0.0.1:${site.port}/`);
      const action = `http://127.0.0.1:${home.port}/api/tool-calls/${call.id}/${verb}`;
      const answered = page.waitForResponse(action);
      await page.evaluate(([action, encoding]) => {
        const form = Object.assign(document.createElement("form"), { method: "post", action, enctype: encoding });
        document.body.append(form);
        form.submit();
      }, [action, encoding]);
      assert.equal((await answered).status(), 403, `${verb} as ${encoding}`);
      await close();
    }
  }
  await nothingHappened(call);
});

test("a frame of another site stays empty, and a window that it opens is not its own", async () => {
  const call = await held();
  const { page, close } = await chromium.page();
  await page.goto(`http://127.0.0.1:${site.port}/`);
  const own = `http://127.0.0.1:${site.port}/frame`;
  await page.evaluate(([link, own]) => {
    const add = (name, attributes) => document.body.append(Object.assign(document.createElement(name), attributes));
    add("iframe", { src: link });
    add("object", { data: link });
    add("embed", { src: link });
    add("iframe", { src: own });
  }, [home.link, own]);
  // The control: what may be framed is.
  await eventually("the site's own frame", async () => {
    const frame = page.frames().find((frame) => frame.url() === own);
    return frame && (await frame.locator("#site").count()) === 1;
  });
  await eventually("the others were refused", () => page.frames().filter((frame) => frame.url().startsWith("chrome-error:")).length >= 1);
  for (const frame of page.frames()) {
    assert.equal(await frame.locator("#waiting").count().catch(() => 0), 0, frame.url());
    assert.ok(!frame.url().includes(`:${home.port}`) || frame.url() === "", frame.url());
  }
  const open = async (address) => {
    const opened = page.waitForEvent("popup");
    await page.evaluate((address) => void (window.handle = window.open(address)), address);
    const popup = await opened;
    await popup.waitForLoadState();
    return popup;
  };
  const popup = await open(home.link);
  await popup.locator('#link[data-state="live"]').waitFor();
  assert.equal(await popup.evaluate(() => window.opener), null);
  await eventually("the site has no window any more", () => page.evaluate(() => window.handle.closed));
  await popup.close();
  const control = await open(own);
  assert.equal(await control.evaluate(() => window.opener !== null), true);
  assert.equal(await page.evaluate(() => window.handle.closed), false);
  await close();
  await nothingHappened(call);
});

test("no page uses a provider's key by an agent's HTTP endpoint", async () => {
  const asked = [];
  const provider = await serve((request, response) => {
    asked.push(request.headers["x-api-key"]);
    response.setHeader("Content-Type", "application/json");
    response.end(JSON.stringify({
      id: "m", type: "message", role: "assistant", model: "fixed", content: [{ type: "text", text: "said for the key" }],
      stop_reason: "end_turn", usage: { input_tokens: 1, output_tokens: 1 },
    }));
  });
  const port = await serve(() => {}).then((server) => (server.close(), server.port));
  // Short, for the sockets' paths.
  const dir = mkdtempSync(join(tmpdir(), "rf"));
  mkdirSync(join(dir, ".config/ringfence/agents"), { recursive: true });
  const profile = `http = true\nhttp_port = ${port}\n[llm.m]\nprovider = "anthropic"\nmodel = "fixed"\napi_key = "sk-of-the-host"\nbase_url = "http://127.0.0.1:${provider.port}"\n`;
  writeFileSync(join(dir, ".config/ringfence/agents/a.toml"), profile, { mode: 0o600 });
  const env = { HOME: dir, PATH: process.env.PATH, RINGFENCE_RUNTIME_DIR: join(dir, "run") };
  const service = spawn(binary, ["start"], { env, stdio: "ignore" });
  try {
    const file = join(dir, ".local/share/ringfence/state/a/http-token");
    await eventually("the endpoint has a token", () => existsSync(file) && readFileSync(file, "utf8").trim() !== "");
    const token = readFileSync(file, "utf8").trim();
    const attack = async ({ base, token }) => {
      const body = JSON.stringify({ model: "m", max_tokens: 9, messages: [{ role: "user", content: "hi" }] });
      const tries = {};
      const ask = async (name, path, options) => {
        tries[name] = await fetch(base + path, options).then(async (answer) => ({ status: answer.status, text: await answer.text() }), () => "refused");
      };
      const json = { "Content-Type": "application/json" };
      await ask("key", "/v1/messages", { method: "POST", body, headers: { ...json, "x-api-key": token } });
      await ask("bearer", "/v1/messages", { method: "POST", body, headers: { ...json, Authorization: `Bearer ${token}` } });
      await ask("cookies", "/v1/messages", { method: "POST", body, credentials: "include", headers: json });
      await ask("simple", "/v1/messages", { method: "POST", body, mode: "no-cors", credentials: "include" });
      await ask("models", "/v1/models", { headers: { "x-api-key": token } });
      await ask("models, simply", "/v1/models", { mode: "no-cors" });
      navigator.sendBeacon(`${base}/v1/messages`, body);
      return tries;
    };
    const base = `http://127.0.0.1:${port}`;
    for (const host of ["127.0.0.1", "localhost", NAMES[0]]) {
      const { page, close } = await chromium.page();
      await page.goto(`http://${host}:${site.port}/`);
      for (const [what, got] of Object.entries(await page.evaluate(attack, { base, token }))) {
        assert.ok(got === "refused" || (got.status === 0 && got.text === ""), `${host}: ${what}: ${JSON.stringify(got)}`);
      }
      await close();
    }
    for (const name of NAMES) {
      const { page, close } = await rebound(`http://${name}:${port}/`);
      for (const [what, got] of Object.entries(await page.evaluate(attack, { base: "", token }))) {
        assert.equal(got.status, 403, `${name}: ${what}: ${JSON.stringify(got)}`);
      }
      await close();
    }
    assert.deepEqual(asked, []);
    // The control: whoever is no page, and has the token.
    const answer = await fetch(`${base}/v1/messages`, {
      method: "POST",
      headers: { "Content-Type": "application/json", "x-api-key": token },
      body: JSON.stringify({ model: "m", max_tokens: 9, messages: [{ role: "user", content: "hi" }] }),
    });
    assert.equal(answer.status, 200);
    assert.match(await answer.text(), /said for the key/);
    assert.deepEqual(asked, ["sk-of-the-host"]);
  } finally {
    const gone = new Promise((resolve) => service.once("exit", resolve));
    service.kill("SIGKILL");
    await gone;
    provider.close();
    rmSync(dir, { recursive: true, force: true });
  }
});
