// What all pages share. Everything that a server answers becomes text nodes, never markup.

export const { cluster, job } = document.body.dataset;
const token = document.querySelector('meta[name="phalanx-token"]').content;

export const $ = (id) => document.getElementById(id);

/** Make an element: attributes, then children, which are elements or text. */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") made.addEventListener("click", value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

const shown = new Map();

/** Replace the children of an element if what they show has changed; the focus stays where it was. */
export function show(id, value, make) {
  const text = JSON.stringify(value);
  if (shown.get(id) === text) return;
  shown.set(id, text);
  const place = $(id);
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  place.replaceChildren(...make(value));
  if (focused) place.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
}

export const pathOf = (...names) => "/" + names.map(encodeURIComponent).join("/");
export const cell = (value, attributes) => el("td", attributes, ...(Array.isArray(value) ? value : [value === null || value === undefined || value === "" ? "–" : String(value)]));
export const heads = (...names) => el("thead", {}, el("tr", {}, ...names.map((name) => el("th", { scope: "col" }, name))));
export const items = (values) => values.map((value) => el("li", {}, value));
export const pairs = (values) => Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined)
  .map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)));
export const gib = (bytes) => (bytes / 2 ** 30).toFixed(1);
export const clock = (seconds) => seconds
  ? new Date(seconds * 1000).toLocaleString(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" }) : "";

async function answer(path, options) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", ...options });
  } catch {
    throw new Error("`phalanx ui` does not answer: it has ended, or this machine slept.");
  }
  if (!(response.headers.get("content-type") || "").includes("json")) throw new Error((await response.text()).trim());
  const found = await response.json();
  if (!response.ok) throw new Error([found.error.message, found.error.hint].filter(Boolean).join(". "));
  return found;
}

export const get = (path) => answer(path);
export const post = (path) => answer(path, { method: "POST", headers: { "X-Phalanx-Token": token } });

/** Do something again and again while the page is visible; what fails is shown, and tried again. */
export function every(seconds, task) {
  let timer = 0;
  async function turn() {
    clearTimeout(timer);
    let again = true;
    try {
      again = (await task()) !== false;
      $("trouble").textContent = "";
    } catch (error) {
      $("trouble").textContent = error.message;
    }
    if (again && !document.hidden) timer = setTimeout(turn, seconds * 1000);
  }
  document.addEventListener("visibilitychange", () => document.hidden ? clearTimeout(timer) : turn());
  turn();
  return turn;
}
