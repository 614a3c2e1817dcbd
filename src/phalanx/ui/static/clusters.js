import { $, cell, el, every, get, heads, items, pairs, pathOf, show } from "./page.js";

const row = (one) => el("tr", {},
  cell([el("a", { href: pathOf("clusters", one.cluster), "data-key": one.cluster }, one.cluster)]),
  cell(one.state), cell(one.nodes), cell(one.cost_text), cell(one.lease_left_text),
  cell(one.age_text, { class: "tight" }), cell(`${one.cloud ?? "?"}, ${one.region ?? "?"}`));

every(5, async () => {
  const { clusters, kept, failed } = await get("/api/clusters");
  const still = clusters.map(({ age_s, lease_left_s, removal_left_s, ...one }) => one);
  show("clusters", still, () => clusters.length
    ? [heads("Cluster", "State", "Nodes", "Cost", "Lease", "Age", "Cloud"), el("tbody", {}, ...clusters.map(row))] : []);
  $("none").textContent = clusters.length ? "" : "This machine knows no cluster. Run `phalanx init`, then `phalanx up`.";
  $("failed-part").hidden = !failed.length;
  show("failed", failed, () => failed.map((one) => el("li", {}, el("a", { href: pathOf("clusters", one), "data-key": one }, one))));
  $("kept-part").hidden = !kept.length;
  show("kept", kept, () => kept.map((one) => el("li", {},
    el("a", { href: pathOf("kept", one.cluster, one.id), "data-key": one.id }, `${one.cluster} / ${one.id}`), one.name && ` ${one.name}`)));
});

every(600, async () => {
  const { plan, problems } = await get("/api/plan");
  $("plan-part").hidden = !plan && !problems.length;
  show("plan", plan, () => plan ? pairs({ file: plan.file, ...Object.fromEntries(plan.rows) }) : []);
  show("plan-problems", problems, items);
});
