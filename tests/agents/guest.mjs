// What root can see in the guest: the memory of processes, and every file.
import { spawnSync } from "node:child_process";
import fs from "node:fs";

const PAGE = 4096;
/** Bytes that are read at once; a page map has eight for each page. */
const PIECE = 1 << 22;

/** Whether a text is in the memory of a process, as far as that is there: what was never touched is not read. */
export function holds(pid, text) {
  const wanted = Buffer.from(text);
  // One that has ended has none.
  if (!fs.existsSync(`/proc/${pid}/mem`)) return false;
  const memory = fs.openSync(`/proc/${pid}/mem`, "r");
  const pagemap = fs.openSync(`/proc/${pid}/pagemap`, "r");
  try {
    return ranges(pid).some(([start, end]) => present(pagemap, start, end).some(([from, to]) => contains(memory, from, to, wanted)));
  } finally {
    fs.closeSync(memory);
    fs.closeSync(pagemap);
  }
}

/** Where a process has memory that it may read. */
function ranges(pid) {
  const lines = fs.readFileSync(`/proc/${pid}/maps`, "utf8").split("\n");
  const found = lines.map((line) => /^([0-9a-f]+)-([0-9a-f]+) r.* (\S*)$/.exec(line)).filter((match) => match !== null && !match[3].startsWith("[v"));
  return found.map(([, start, end]) => [parseInt(start, 16), parseInt(end, 16)]);
}

/** Those parts of a range whose pages are in memory. */
function present(pagemap, start, end) {
  const found = [];
  const map = Buffer.alloc(PIECE / 8);
  for (let at = start; at < end; ) {
    const count = fs.readSync(pagemap, map, 0, Math.min(map.length, ((end - at) / PAGE) * 8), (at / PAGE) * 8) / 8;
    if (count === 0) break;
    for (let page = 0; page < count; page++, at += PAGE) {
      // The top bit of each little-endian entry: the page is in memory.
      if (map[page * 8 + 7] < 0x80) continue;
      if (found.at(-1)?.[1] === at) found.at(-1)[1] += PAGE;
      else found.push([at, at + PAGE]);
    }
  }
  return found;
}

function contains(memory, from, to, wanted) {
  const piece = Buffer.alloc(Math.min(PIECE, to - from));
  // The pieces overlap: a text may lie across the end of one.
  for (let at = from; at < to; at += PIECE - wanted.length) {
    let count;
    try {
      count = fs.readSync(memory, piece, 0, Math.min(piece.length, to - at), at);
    } catch {
      // Unmapped meanwhile.
      return false;
    }
    if (piece.subarray(0, count).includes(wanted)) return true;
  }
  return false;
}

/** A process's environment; nothing where it has ended. */
export function environment(pid) {
  try {
    return fs.readFileSync(`/proc/${pid}/environ`, "utf8");
  } catch {
    return "";
  }
}

/** Whether a process is one of Ringfence's. */
export function isRingfence(pid) {
  try {
    return fs.readlinkSync(`/proc/${pid}/exe`) === "/usr/local/bin/ringfence";
  } catch {
    return false;
  }
}

/** The files with a text in them, wherever programs of the tests keep any. */
export function filesWith(text) {
  const found = spawnSync("grep", ["-rlsF", "--devices=skip", "--", text, "/home", "/tmp", "/var", "/run", "/etc", "/root", "/dev/shm"], { encoding: "utf8" });
  return found.stdout.split("\n").filter((line) => line !== "");
}
