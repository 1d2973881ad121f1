// Where the reader is: view, filters and open call live in the address, so that reload and back keep them.

const listeners = [];

/** The parameters of the address. */
export const place = () => Object.fromEntries(new URLSearchParams(location.search));

/** Address of the present place with changes; an empty value takes a parameter away. */
export function href(changes) {
  const parameters = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value === "" || value === null || value === undefined) parameters.delete(name);
    else parameters.set(name, value);
  }
  return parameters.size ? `?${parameters}` : location.pathname;
}

/** Goes there. `replace` makes no step back: for what is typed letter by letter. */
export function go(target, replace = false) {
  const address = typeof target === "string" ? target : href(target);
  if (address === location.search || (address === location.pathname && !location.search)) return;
  history[replace ? "replaceState" : "pushState"](null, "", address);
  listeners.forEach((listener) => listener());
}

export function onMove(listener) {
  listeners.push(listener);
  window.addEventListener("popstate", listener);
}

/** Links within the page change the address without a load. */
export function followLinks() {
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href^='?']");
    if (!link || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    go(link.getAttribute("href"));
  });
}
