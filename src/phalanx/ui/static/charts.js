// Small charts by uPlot, each with its newest value as text.
import { el } from "./page.js";

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const drawn = new Map();  // place → name of the curve → {figure, caption, chart}
const number = (value) => value === null ? "not a number" : Math.abs(value) >= 1e5 || (value && Math.abs(value) < 1e-3) ? value.toExponential(3) : String(Number(value.toPrecision(5)));

function make(place, isTime) {
  const axis = { stroke: color("--quiet"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui", size: 44 };
  const box = el("div", { role: "img" });
  const caption = el("figcaption");
  const figure = el("figure", {}, caption, box);
  place.append(figure);
  const chart = new uPlot({
    width: figure.clientWidth || 320, height: 170, legend: { show: false }, cursor: { drag: { x: true, y: false } },
    scales: { x: { time: isTime } }, axes: [{ ...axis, size: 28 }, axis],
    series: [{}, { stroke: color("--accent"), width: 1.5, points: { show: false } }],
  }, [[], []], box);
  return { figure, caption, chart, box };
}

/** Draw a chart for each curve in this place; those that are there already are changed. */
export function drawCharts(place, curves, isTime) {
  const known = drawn.get(place) ?? new Map();
  drawn.set(place, known);
  const keys = new Set(curves.map((one) => `${one.file}\n${one.name}`));
  for (const [key, one] of known) if (!keys.has(key)) { one.chart.destroy(); one.figure.remove(); known.delete(key); }
  for (const one of curves) {
    const key = `${one.file}\n${one.name}`;
    if (!known.has(key)) known.set(key, make(place, isTime));
    const { caption, chart, box, figure } = known.get(key);
    const last = one.points.at(-1);
    const words = !last ? "no value yet" : isTime ? number(last[1]) : `${number(last[1])} at ${number(last[0])}`;
    caption.replaceChildren(el("b", {}, one.name), ` ${words}`, ...(isTime ? [] : [el("span", { class: "quiet" }, ` ${one.file}`)]));
    box.setAttribute("aria-label", `Curve of ${one.name}: ${one.points.length} points, last ${words}`);
    figure.dataset.points = one.points.length;
    chart.setData([one.points.map((point) => point[0]), one.points.map((point) => point[1])]);
  }
}

function redo() {
  for (const [place, known] of drawn) {
    for (const one of known.values()) { one.chart.destroy(); one.figure.remove(); }
    drawn.delete(place);
  }
}

addEventListener("resize", () => { for (const known of drawn.values()) for (const one of known.values()) one.chart.setSize({ width: one.figure.clientWidth, height: 170 }); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redo);
