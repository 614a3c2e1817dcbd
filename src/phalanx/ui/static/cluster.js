import { $, cell, clock, cluster, el, every, get, gib, heads, items, pairs, pathOf, show } from "./page.js";

const api = `/api${pathOf("clusters", cluster)}`;
const LARGE = 24;
const tiles = new Map();
let chosen = "", eventsOf = null;

/** Sum what several jobs use on a node. */
function loadsByNode(loads) {
  const found = new Map();
  for (const one of loads) {
    const before = found.get(one.node);
    if (!before || one.age_s < before.age_s) found.set(one.node, { ...one, jobs: [...(before?.jobs ?? []), one.job] });
    else before.jobs.push(one.job);
  }
  return found;
}

function words(member, load) {
  const known = load ? [`${load.node_cores.toFixed(1)} of ${load.node_cores_total.toFixed(0)} cores`,
    `${gib(load.node_memory)} of ${gib(load.node_memory_total)} GiB`] : [];
  if (load?.gpus > 0) known.push(`GPU ${load.gpu_busy.toFixed(0)} %`);
  if (load?.age_s > 10) known.push(`measured ${load.age_s.toFixed(0)} s ago`);
  return member.state === "ready" ? known : [member.state, ...known];
}

function draw(member, load) {
  let tile = tiles.get(member.name);
  if (!tile) {
    tile = el("button", { type: "button", tabindex: tiles.size ? -1 : 0, "aria-pressed": "false", onclick: () => choose(member.name) }, el("b"), el("span"), el("span"));
    tiles.set(member.name, tile);
    $("map").append(tile);
  }
  const said = words(member, load);
  const kind = member.state.split(":")[0];
  const short = member.name.replace(/^deeplearning-/, "");
  const sign = { ready: "", silent: "? ", missing: "× " }[kind] ?? "~ ";
  const share = !load || kind === "missing" ? 0 : load.gpus > 0 ? load.gpu_busy / 100 : load.node_cores / Math.max(1, load.node_cores_total);
  tile.className = `tile ${kind}`;
  tile.style.setProperty("--share", `${Math.round(100 * Math.min(1, share))}%`);
  const [name, first, second] = tile.children;
  name.textContent = sign + (tiles.size > LARGE ? short.replace(/^worker/, "") : short);
  first.textContent = said[0] ?? "no job";
  second.textContent = said.slice(1).join(", ");
  tile.said = `${member.name} (${member.role}, ${member.address}): ${said.join(", ") || "ready, no job"}${load ? `; jobs ${load.jobs.join(", ")}` : ""}`;
  tile.setAttribute("aria-label", `${short}: ${said.join(", ") || "ready, no job"}`);
  if (chosen === member.name) $("node").textContent = tile.said;
}

function choose(name) {
  tiles.get(chosen)?.setAttribute("aria-pressed", "false");
  chosen = chosen === name ? "" : name;
  tiles.get(chosen)?.setAttribute("aria-pressed", "true");
  $("node").textContent = tiles.get(chosen)?.said ?? "";
}

$("map").addEventListener("keydown", (event) => {
  const all = [...$("map").children];
  const at = all.indexOf(document.activeElement);
  const columns = getComputedStyle($("map")).gridTemplateColumns.split(" ").length;
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
  const next = event.key === "Home" ? all[0] : event.key === "End" ? all.at(-1) : step && all[at + step];
  if (!next) return;
  event.preventDefault();
  all[at].tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
});

function drawNodes(members, loads) {
  const found = loadsByNode(loads);
  const names = new Set(members.map((member) => member.name));
  for (const [name, tile] of tiles) if (!names.has(name)) { tile.remove(); tiles.delete(name); }
  $("map").classList.toggle("large", members.length <= LARGE);
  members.forEach((member) => draw(member, found.get(member.name)));
  if (tiles.size && ![...tiles.values()].some((tile) => tile.tabIndex === 0)) $("map").firstChild.tabIndex = 0;
}

function jobRow(one, begin, end) {
  const from = one.started_at ?? one.submitted_at, to = one.ended_at ?? end;
  const bar = el("i", { class: one.state });
  bar.style.left = `${100 * Math.max(0, from - begin) / (end - begin)}%`;
  bar.style.width = `${100 * Math.max(0, Math.min(to, end) - Math.max(from, begin)) / (end - begin)}%`;
  return el("tr", {},
    cell([el("a", { href: pathOf("clusters", cluster, "jobs", one.id), "data-key": one.id }, one.name || one.id)], { class: "tight" }),
    cell([el("span", { class: one.state }, one.state)], { class: "tight" }), cell([el("div", { class: "span", "aria-hidden": "true" }, bar)], { class: "optional" }),
    cell(clock(from), { class: "tight" }), cell(one.took_text, { class: "tight" }), cell(one.processes),
    cell([el("span", {}, one.command_text), one.message && el("div", { class: "quiet" }, one.message)]));
}

function drawJobs(jobs) {
  if (!jobs) return;
  $("no-jobs").textContent = jobs.length ? "" : "No job has been run yet.";
  const now = Date.now() / 1000;
  const begin = Math.min(now - 60, ...jobs.slice(0, 30).map((one) => one.started_at ?? one.submitted_at));
  const timeHead = heads("Job", "State", "When", "Started", "Took", "Ranks", "Command");
  timeHead.querySelectorAll("th")[2].className = "optional";
  show("jobs", jobs, () => jobs.length ? [timeHead, el("tbody", {}, ...jobs.map((one) => jobRow(one, begin, now)))] : []);
}

$("ask-why").addEventListener("click", async () => {
  $("why").textContent = "asking AWS and the nodes …";
  try {
    const found = await get(`${api}/why`);
    $("why").textContent = found.cause ? `${found.cause}. ${found.advice}` : "Nothing is wrong that AWS or a node has recorded.";
    $("evidence").replaceChildren(...items(found.evidence.map((one) => `${one.source}: ${one.text}`)));
  } catch (error) {
    $("why").textContent = error.message;
  }
});

function eventRow(one) {
  const kind = one.status.endsWith("_FAILED") ? "failed" : one.status.endsWith("_IN_PROGRESS") ? "running" : "";
  return el("tr", {}, cell(new Date(one.time * 1000).toLocaleTimeString(), { class: "tight" }), cell([el("span", { class: kind }, one.status)], { class: "tight" }),
    cell([el("span", {}, one.what), el("div", { class: "quiet" }, one.type)]), cell(one.reason));
}

/** Show the stack's events, the newest first, while it changes; and what failed first. */
async function drawEvents(state) {
  if (eventsOf === state) return;
  let events = [];
  try {
    ({ events } = await get(`${api}/events`));
  } catch (error) {
    $("stack-cause").textContent = state && error.message;
    return;
  }
  if (!state.endsWith("_IN_PROGRESS")) eventsOf = state;
  const began = events.findLastIndex((one) => one.type === "CloudFormation::Stack" && /^(CREATE|UPDATE|DELETE)_IN_PROGRESS$/.test(one.status));
  const cause = /ROLLBACK|FAILED|^$/.test(state) && events.slice(Math.max(0, began)).find((one) => one.cause);
  $("stack-cause").textContent = cause ? `${cause.what} failed first: ${cause.reason}` : "";
  if (state.endsWith("_IN_PROGRESS") || cause) $("stack-part").open = true;
  $("stack-sum").textContent = `${events.length} events, the newest first`;
  show("events", events, () => [heads("Time", "State", "Resource", "Reason"), el("tbody", {}, ...events.toReversed().map(eventRow))]);
}

every(2, async () => {
  // A cluster that could not be created has events, and nothing else.
  const found = await get(api).catch(async (error) => { await drawEvents(""); throw error; });
  const { state, jobs, loads, load, problems } = found;
  if (state) await drawEvents(state.state);
  show("problems", problems, items);
  drawJobs(jobs);
  if (!state) return;
  const stopped = state.ended || (state.stopped ? "none: they are stopped" : "");
  show("facts", [state, load], () => pairs({
    State: state.state, Nodes: stopped || `${state.nodes.length} ready of ${state.requested ?? "?"}`, Cost: state.cost_text,
    Lease: state.lease_text && `ends in ${state.lease_text}`, Removal: state.removal_text && `in ${state.removal_text}`,
    Load: load, Place: `${state.cloud}, ${state.region}` }));
  $("nodes-sum").textContent = state.members.length ? "The fill is the share of cores that is busy, or of GPUs. Nodes without a job are not measured." : stopped || "No node has answered yet.";
  show("missing", state.missing, (missing) => items(missing.map((one) => `${one.name} is missing: ${one.reason}`)));
  drawNodes(state.members, loads);
});
