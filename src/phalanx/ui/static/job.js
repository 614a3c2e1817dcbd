import { $, cell, clock, cluster, el, every, get, gib, heads, items, job, pairs, pathOf, post, show } from "./page.js";
import { drawCharts } from "./charts.js";

const api = `/api${pathOf("clusters", cluster, "jobs", job)}`;
const HOUR = 1800;
const MOST_BESIDE = 3, MOST_LISTED = 30;
const beside = new Set();
let node = "", samples = [], isFinal = false, isAsking = false;

function rankRow(name, count, load) {
  const choose = el("button", { type: "button", "aria-pressed": String(name === node), "data-key": name, onclick: () => chooseNode(name) }, name.replace(/^deeplearning-/, ""));
  return el("tr", {}, cell([choose]), cell(count), cell(load && `${load.cores.toFixed(1)} of ${load.node_cores_total.toFixed(0)}`),
    cell(load && `${gib(load.memory)} of ${gib(load.node_memory_total)} GiB`), cell(load && `${gib(load.peak_memory)} GiB`),
    cell(load && (load.gpus_text || "none")));
}

async function chooseNode(name) {
  node = name;
  samples = [];
  try {
    const found = await get(`${api}/load?node=${encodeURIComponent(name)}`);
    if (node !== name) return;
    samples = found.samples;
    $("load-state").textContent = found.problems.join(" ") || (samples.length ? `${name}, the last hour` : `Nothing is kept of ${name} yet.`);
  } catch (error) {
    $("load-state").textContent = error.message;
  }
  drawLoad();
}

function drawLoad() {
  const curve = (name, of) => ({ name, file: node, lines: [{ label: node, points: samples.map((one) => [one.time, of(one)]) }] });
  const found = [curve("cores of the job", (one) => one.cores), curve("memory of the job, GiB", (one) => one.memory / 2 ** 30),
    curve("network, MB/s", (one) => (one.received + one.sent) / 1e6)];
  if (samples.some((one) => one.shared_read + one.shared_written)) found.push(curve("shared directory, MB/s", (one) => (one.shared_read + one.shared_written) / 1e6));
  if (samples.some((one) => one.gpus > 0)) found.push(curve("GPU, % busy", (one) => one.gpu_busy));
  drawCharts($("load"), samples.length ? found : [], true);
}

function addSample(loads) {
  const load = loads.find((one) => one.node === node);
  const time = load && Math.round(Date.now() / 1000 - load.age_s);
  // A clock that jumps back adds nothing until it has caught up.
  if (!load || (samples.length && time <= samples.at(-1).time)) return;
  samples.push({ ...load, time });
  samples.splice(0, samples.length - HOUR);
  drawLoad();
}

every(2, async () => {
  const { job: now, loads, problems } = await get(api);
  document.title = `${now.state}: ${now.name || now.id} · phalanx`;
  $("name").textContent = now.name ? `${now.name} (${now.id})` : now.id;
  $("command").textContent = now.command_text;
  show("facts", now, () => pairs({
    State: el("span", { class: now.state }, now.state), "What happened": now.message, Ranks: now.processes, Launcher: now.launcher,
    Started: clock(now.started_at), Took: now.took_text, Restarts: now.restarts ? `${now.attempt} of ${now.restarts}` : "",
    Load: now.load.join("; "), "Left processes": now.final && now.nodes.length ? (now.verified ? "none, on every node" : "not proven") : "" }));
  show("problems", problems, items);
  $("tail").hidden = !now.tail.length;
  $("tail").textContent = now.tail.join("\n");
  const byNode = new Map(loads.map((one) => [one.node, one]));
  const names = Object.keys(now.ranks).length ? Object.keys(now.ranks) : [...byNode.keys()];
  show("ranks", [now.ranks, loads, node], () => names.length
    ? [heads("Node", "Ranks", "Cores", "Memory", "Peak", "GPUs"), el("tbody", {}, ...names.map((name) => rankRow(name, now.ranks[name], byNode.get(name))))] : []);
  if (!node && names.length) chooseNode(names[0]);
  else addSample(loads);
  isFinal = now.final;
  $("stop").hidden = now.final;
  $("ask-stacks").disabled = now.final || isAsking;
});

const redraw = every(3, async () => {
  const asked = [...beside];
  const { charts, problems } = await get(`${api}/curves?${asked.map((one) => `with=${encodeURIComponent(one)}`).join("&")}`);
  $("curves-state").textContent = problems.join(" ") || (charts.length ? "" :
    "None. Scalars that the job writes for TensorBoard, or into a CSV file with a header, appear here.");
  drawCharts($("curves"), charts, false);
  return !isFinal;
});

function compare(event) {
  const { value, checked } = event.target;
  if (checked) beside.add(value);
  else beside.delete(value);
  for (const box of $("others").querySelectorAll("input")) box.disabled = !box.checked && beside.size >= MOST_BESIDE;
  redraw();
}

$("compare").addEventListener("toggle", async () => {
  if (!$("compare").open) return;
  try {
    const { jobs } = await get(`/api${pathOf("clusters", cluster)}`);
    const others = (jobs ?? []).filter((one) => one.id !== job).slice(0, MOST_LISTED);
    $("others").replaceChildren(...others.map((one) => el("li", {}, el("label", {},
      el("input", { type: "checkbox", value: one.id, checked: beside.has(one.id) }), ` ${one.name || one.id} `, el("span", { class: "quiet" }, `${one.name ? one.id : ""} ${one.state}`)))));
    if (!others.length) $("others").replaceChildren(el("li", {}, "There is no other job."));
  } catch (error) {
    $("others").replaceChildren(el("li", {}, error.message));
  }
});
$("others").addEventListener("change", compare);

$("ask-stacks").addEventListener("click", async () => {
  $("ask-stacks").disabled = isAsking = true;
  $("stacks-state").textContent = "asking the nodes …";
  try {
    const { groups, ended, silent } = await post(`${api}/stacks`);
    $("stacks").replaceChildren(...groups.map((one) => el("div", { class: "stack" },
      el("b", {}, `${one.ranks}: ${one.does}${one.place ? ` in ${one.place}` : ""}`), el("div", { class: "quiet" }, `on ${one.nodes}${one.why ? `; no stack: ${one.why}` : ""}`),
      one.frames.length ? el("pre", { tabindex: 0 }, one.frames.map(([name, place]) => `${name}  ${place}`).join("\n")) : "")));
    const others = Object.entries(silent).map(([name, why]) => `${name}: ${why}`);
    $("stacks-state").textContent = [ended && `${ended} ended`, ...others].filter(Boolean).join("; ") || `at ${new Date().toLocaleTimeString()}`;
  } catch (error) {
    $("stacks-state").textContent = error.message;
  }
  isAsking = false;
  $("ask-stacks").disabled = isFinal;
});

$("stop").addEventListener("click", () => {
  $("stop-text").textContent = `All processes of ${$("name").textContent} are ended on all nodes, and phalanx checks that none is left.`;
  $("stop-dialog").returnValue = "";
  $("stop-dialog").showModal();
});

$("stop-dialog").addEventListener("close", async () => {
  if ($("stop-dialog").returnValue !== "stop") return;
  $("stop").disabled = true;
  $("stop").textContent = "Stopping …";
  try {
    await post(`${api}/stop`);
  } catch (error) {
    $("trouble").textContent = error.message;
  }
  $("stop").disabled = false;
  $("stop").textContent = "Stop …";
});
