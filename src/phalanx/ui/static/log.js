// The output of a job: as events, in a bounded number of lines. The server leaves lines out when there are too many.
import { $, cluster, el, job, pathOf } from "./page.js";

const api = `/api${pathOf("clusters", cluster, "jobs", job)}/log`;
const MOST = 3000, AT_ONCE = 400;
const place = $("log");
let source = null, paused = false, timer = 0;
let pending = [], waiting = 0, drawing = 0, restMs = 0;

/** Keep what came until it is drawn, which may take a fifth of the time: a page that only draws lines can't be used. */
function add({ skipped, lines }) {
  pending = [...pending, ...lines];
  waiting += skipped + Math.max(0, pending.length - AT_ONCE);
  pending = pending.slice(-AT_ONCE);
  drawing ||= setTimeout(() => {
    const begin = performance.now();
    draw({ skipped: waiting, lines: pending });
    [pending, waiting, drawing] = [[], 0, 0];
    requestAnimationFrame(() => { restMs = Math.min(3000, 4 * (performance.now() - begin)); });
  }, restMs);
}

function draw({ skipped, lines }) {
  const isAtEnd = place.scrollTop + place.clientHeight >= place.scrollHeight - 40;
  const rows = lines.map(([time, rank, text]) => el("div", {}, el("i", {}, [time, rank && `[${rank}]`].filter(Boolean).join(" ")), text));
  if (skipped) {
    rows.unshift(el("div", { class: "left-out" }, `${skipped.toLocaleString("en")} lines left out here; the download has all`));
  }
  if (rows.length + place.childElementCount > MOST) {
    const range = document.createRange();
    range.setStart(place, 0);
    range.setEnd(place, Math.min(place.childNodes.length, rows.length + place.childElementCount - MOST));
    range.deleteContents();
  }
  place.append(...rows);
  if (isAtEnd) place.scrollTop = place.scrollHeight;
}

function end() {
  source?.close();
  source = null;
}

function begin() {
  end();
  if (paused || document.hidden) return;
  const query = new URLSearchParams({ rank: $("log-rank").value.trim(), find: $("log-find").value });
  $("log-file").href = `${api}.txt?rank=${encodeURIComponent($("log-rank").value.trim())}`;
  source = new EventSource(`${api}?${query}`);
  source.onopen = () => {
    clearTimeout(drawing);
    [pending, waiting, drawing] = [[], 0, 0];
    place.replaceChildren();
    $("log-state").textContent = $("log-find").value ? "Searching all output; new lines that match follow." : "The last lines, and new ones as they come.";
  };
  source.addEventListener("lines", (event) => add(JSON.parse(event.data)));
  source.addEventListener("end", (event) => {
    end();
    const { error } = JSON.parse(event.data);
    $("log-state").textContent = error || (place.childElementCount || pending.length ? "The output has ended." : "There is no output.");
  });
  source.onerror = () => { if (source) $("log-state").textContent = "The connection broke; it is tried again."; };
}

$("log-form").addEventListener("submit", (event) => event.preventDefault());
for (const id of ["log-rank", "log-find"]) $(id).addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(begin, 400);
});
$("log-pause").addEventListener("click", () => {
  paused = !paused;
  $("log-pause").setAttribute("aria-pressed", paused);
  $("log-pause").textContent = paused ? "Continue" : "Pause";
  paused ? end() : begin();
});
// A browser has few connections to one server: a hidden page holds none.
document.addEventListener("visibilitychange", () => document.hidden ? end() : begin());
begin();
