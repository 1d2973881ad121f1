// The server: requests with the token, and the live stream with what to do when it breaks.

const KEY = "ringfence.token";

/** Takes the token from the address (`#token=`), keeps it for this tab, and cleans the address bar. */
export function takeToken() {
  const match = /^#token=([0-9A-Za-z-]+)$/.exec(location.hash);
  if (match) {
    sessionStorage.setItem(KEY, match[1]);
    history.replaceState(history.state, "", location.pathname + location.search);
  }
  return sessionStorage.getItem(KEY);
}

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Numbers that JavaScript would round are kept as they were written: a person approves what is sent, not its like. */
function exact(key, value, context) {
  if (typeof value !== "number" || !context?.source || Number.isSafeInteger(value)) return value;
  if (context.source.replace(/[eE].*|\D/g, "").length <= 15 && Number.isFinite(value)) return value;
  return JSON.rawJSON ? JSON.rawJSON(context.source) : context.source;
}

async function request(path, options = {}) {
  const headers = { Authorization: `Bearer ${sessionStorage.getItem(KEY) ?? ""}`, ...options.headers };
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store", redirect: "error" });
  } catch {
    throw new ApiError(0, "The auditor does not answer. It ends when nobody needs it; `ringfence dashboard` starts it.");
  }
  let body = null;
  try {
    body = JSON.parse(await response.text(), exact);
  } catch {
    // An answer without JSON is an error below, or has nothing to say.
  }
  if (!response.ok) throw new ApiError(response.status, body?.error ?? `The server answered ${response.status}.`);
  return body;
}

export const ask = (path, parameters = {}) => {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value != null));
  return request(query.size ? `${path}?${query}` : path);
};

/** A request that changes something. */
export const send = (method, path, body = {}) =>
  request(path, { method, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

export const post = (path, body = {}) => send("POST", path, body);

const FIRST = 500;
const SLOWEST = 15_000;
const POLL = 2_000;

/** Keeps a live stream. `receive(message)` gets each message; `state(word)` gets `live`, `polling` or `locked`. */
export function live(receive, state) {
  let pause = FIRST;
  let polling = null;

  const poll = async () => {
    try {
      const waiting = await ask("/api/waiting");
      receive({ type: "waiting", calls: waiting, now_ms: Date.now() });
      receive({ type: "behind" });
    } catch (error) {
      if (error.status === 401) {
        clearInterval(polling);
        state("locked");
      } else state("gone");
      return;
    }
    state("polling");
  };

  const connect = () => {
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    let opened = false;
    let socket;
    try {
      socket = new WebSocket(`${scheme}://${location.host}/ws/live`,
        ["ringfence.live", `ringfence.token.${sessionStorage.getItem(KEY) ?? ""}`]);
    } catch {
      polling ??= setInterval(poll, POLL);
      return;
    }
    socket.onopen = () => {
      opened = true;
      pause = FIRST;
      clearInterval(polling);
      polling = null;
      state("live");
      // What was missed meanwhile.
      receive({ type: "behind" });
    };
    socket.onmessage = (event) => receive(JSON.parse(event.data, exact));
    socket.onclose = () => {
      if (!polling) {
        polling = setInterval(poll, POLL);
        poll();
      }
      setTimeout(connect, pause);
      pause = opened ? FIRST : Math.min(pause * 2, SLOWEST);
    };
  };
  connect();
}
