// Stands between two processes and keeps what passes, each direction in a file. Without a PAIR in its environment it makes
// one, so that the one before the interceptor and the one behind it know each other.
//   node tee.mjs FOLDER NAME COMMAND ARG...
import { spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { closeSync, mkdirSync, openSync, writeSync } from "node:fs";
import { join } from "node:path";

const [folder, name, command, ...args] = process.argv.slice(2);
const pair = process.env.PAIR ?? randomUUID();
mkdirSync(join(folder, pair), { recursive: true });
const child = spawn(command, args, { stdio: ["pipe", "pipe", "inherit"], env: { ...process.env, PAIR: pair } });

function pass(from, to, file) {
  const kept = openSync(join(folder, pair, file), "w");
  from.on("data", (bytes) => {
    writeSync(kept, bytes);
    if (!to.write(bytes)) {
      from.pause();
      to.once("drain", () => from.resume());
    }
  });
  from.on("end", () => {
    closeSync(kept);
    if (to !== process.stdout) to.end();
  });
  // Whoever reads may be gone; what came is kept all the same.
  to.on("error", () => {});
}

pass(process.stdin, child.stdin, `${name}.to-server`);
pass(child.stdout, process.stdout, `${name}.to-client`);
for (const signal of ["SIGTERM", "SIGINT", "SIGHUP"]) process.on(signal, () => child.kill(signal));
child.on("close", (code, signal) => {
  process.exitCode = code ?? 128 + { SIGTERM: 15, SIGKILL: 9, SIGINT: 2, SIGHUP: 1 }[signal];
  process.stdin.destroy();
});
