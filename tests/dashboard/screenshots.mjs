// Takes the pictures in docs/screenshots: `node screenshots.mjs FOLDER`. Not a test.
import { join } from "node:path";
import { Home, browse, eventually, sleep } from "./harness.mjs";

const folder = process.argv[2];
const home = await Home.open();
const chromium = await browse();
const github = await home.client("github");
const files = await home.client("filesystem");
const postgres = await home.client("postgres");
const slack = await home.client("slack");

const look = async (name, path, options = {}, work = async () => {}) => {
  const { page, close } = await chromium.page(options);
  await page.goto(`http://127.0.0.1:${home.port}/${path}#token=${home.token}`);
  await page.locator('#link[data-state="live"]').waitFor();
  await sleep(400);
  await work(page);
  await sleep(300);
  await page.screenshot({ path: join(folder, `${name}.png`) });
  await close();
};

await look("empty", "");
await github.call("list_issues", { repo: "acme/shop", state: "open", labels: ["bug"] });
await files.call("read_file", { path: "/home/ana/shop/src/cart.ts" });
await files.call("search_files", { path: "/home/ana/shop", pattern: "total(" });
await postgres.call("query", { sql: "SELECT id, total FROM orders WHERE total < 0 LIMIT 20" });
await sleep(5200);
await files.call("edit_file", { path: "/home/ana/shop/src/cart.ts", edits: [{ old: "item.price", new: "item.price * item.count" }] });
await github.call("create_pull_request", { repo: "acme/shop", title: "Count items in the cart's total", base: "main" });
await slack.call("post_message", { channel: "#shop", text: "A fix for the cart's total is up for review." });
const blocked = postgres.call("delete_rows", { sql: "DELETE FROM sessions", password: "hunter2" });
await blocked;
await files.call("read\u202efdp.exe_<img src=x onerror=alert(1)>", { note: "a hostile tool's name" });
const held = [github.call("delete_branch", { repo: "acme/shop", branch: "fix/cart-rounding" }), files.call("run_command", { command: "npm publish --access public" })];
await eventually("both wait", async () => (await home.api("/api/waiting")).length === 2);
const calls = await home.api("/api/tool-calls");
const id = (tool) => calls.find((call) => call.tool_name === tool).id;

await look("calls", "");
await look("calls-dark", "", { colorScheme: "dark" });
await look("detail", `?call=${id("read_file")}`, { viewport: { width: 1440, height: 860 } });
await look("detail-dark", `?call=${id("delete_rows")}`, { viewport: { width: 1440, height: 860 }, colorScheme: "dark" });
await look("intents", "?view=intents");
await look("sessions", "?view=sessions");
await look("rules", "?view=rules");
await look("filtered", "?tool=no_such_tool");
await look("confirm", "", {}, (page) => page.keyboard.press("a"));
await look("help", "", { colorScheme: "dark" }, (page) => page.keyboard.press("?"));
const phone = { viewport: { width: 360, height: 740 }, deviceScaleFactor: 2, isMobile: true, hasTouch: true };
await look("phone", "", phone);
await look("phone-detail", `?call=${id("delete_branch")}`, { ...phone, colorScheme: "dark" });
await look("phone-intents", "?view=intents", phone);
await look("phone-rules", "?view=rules", phone);

for (const { id: call } of await home.api("/api/waiting")) {
  await fetch(`http://127.0.0.1:${home.port}/api/tool-calls/${call}/deny`, {
    method: "POST",
    headers: { Authorization: `Bearer ${home.token}`, "Content-Type": "application/json" },
  });
}
await Promise.all(held);
await Promise.all([github, files, postgres, slack].map((client) => client.close()));
await chromium.close();
await home.close();
