// Small charts by uPlot, each with the newest value of every line as text.
import { el } from "./page.js";

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const drawn = new Map();  // place → name of the curve → {figure, caption, chart}
const number = (value) => value === null ? "not a number" : Math.abs(value) >= 1e5 || (value && Math.abs(value) < 1e-3) ? value.toExponential(3) : String(Number(value.toPrecision(5)));

// The first line has the accent; others are told apart by their dashes, too. `sign` stands for one in a text.
const STYLES = [{ color: "--accent", sign: "━" }, { color: "--warn", dash: [8, 4], sign: "╍" }, { color: "--quiet", dash: [2, 3], sign: "┅" },
  { color: "--ink", dash: [10, 3, 2, 3], sign: "┉" }];

function make(place, isTime, count) {
  const axis = { stroke: color("--quiet"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui", size: 44 };
  const box = el("div", { role: "img" });
  const caption = el("figcaption");
  const figure = el("figure", {}, caption, box);
  place.append(figure);
  const chart = new uPlot({
    width: figure.clientWidth || 320, height: 170, legend: { show: false }, cursor: { drag: { x: true, y: false } },
    scales: { x: { time: isTime } }, axes: [{ ...axis, size: 28 }, axis],
    series: [{}, ...STYLES.slice(0, count).map((one) => ({ stroke: color(one.color), dash: one.dash, width: 1.5, points: { show: false } }))],
  }, [[], ...Array(count).fill([])], box);
  return { figure, caption, chart, box };
}

/** Return the columns of several lines, each with points of its own. */
function columns(lines) {
  const tables = lines.map((one) => [one.points.map((point) => point[0]), one.points.map((point) => point[1])]);
  return tables.length === 1 ? tables[0] : uPlot.join(tables);
}

function words(points, isTime) {
  const last = points.at(-1);
  return !last ? "no value yet" : isTime ? number(last[1]) : `${number(last[1])} at ${number(last[0])}`;
}

/** Draw charts in this place, each with a line or several; those that are there already are changed. */
export function drawCharts(place, curves, isTime) {
  const known = drawn.get(place) ?? new Map();
  drawn.set(place, known);
  const keyOf = (one) => [one.file, one.name, ...one.lines.slice(0, STYLES.length).map((line) => line.label)].join("\n");
  const keys = new Set(curves.map(keyOf));
  for (const [key, one] of known) if (!keys.has(key)) { one.chart.destroy(); one.figure.remove(); known.delete(key); }
  for (const one of curves) {
    const key = keyOf(one), lines = one.lines.slice(0, STYLES.length), first = lines[0].points;
    if (!known.has(key)) known.set(key, make(place, isTime, lines.length));
    const { caption, chart, box, figure } = known.get(key);
    const others = lines.length === 1 ? [] : lines.map((line, at) => el("div", {}, `${STYLES[at].sign} ${line.label}: ${words(line.points, isTime)}`));
    caption.replaceChildren(el("b", {}, one.name), ...(others.length ? [] : [` ${words(first, isTime)}`]),
      ...(isTime ? [] : [el("span", { class: "quiet" }, ` ${one.file}`)]), ...others);
    box.setAttribute("aria-label", `Curve of ${one.name}: ${lines.map((line) => `${lines.length > 1 ? `${line.label}, ` : ""}${line.points.length} points, last ${words(line.points, isTime)}`).join("; ")}`);
    figure.dataset.points = first.length;
    chart.setData(columns(lines));
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
