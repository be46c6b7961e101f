// The section "Explore": what its reader has chosen, and the controls that change it. `update` takes what
// ablate.report.explore.exploration returns; another call shows newer results and keeps what was chosen.
const state = {
  data: null, series: null, stratum: undefined, lines: null, x: null, xlog: false, ylog: false, smooth: 0, everything: false,
  zoom: { x: {}, y: {} }, group: "", hidden: new Set(), hiddenSeeds: new Set(), charted: false, others: false,
  filter: "", sort: "run", down: false, shown: PART, open: [],
};
const SMALL_MULTIPLES = 6; // strata that are shown together at first
const SINGLE_LINES = 40; // runs that are drawn one by one at first
function update(exploration) {
  const first = state.data === null;
  state.data = read(exploration);
  if (first) {
    for (const hidden of document.querySelectorAll("#explore, .explored")) hidden.hidden = false;
    listen();
  }
  choose();
  drawControls();
  drawRuns();
  drawDrawer();
  if (first) openFromAddress();
  return drawChart();
}
// In a page that holds both: unpack the libraries and the exploration. A browser of before 2023 cannot, and shows the page without this section.
async function start() {
  if (typeof DecompressionStream === "undefined") return;
  document.head.append(element("script", {}, await unpacked("vega")));
  await update(JSON.parse(await unpacked("exploration")));
}
async function unpacked(name) {
  const bytes = Uint8Array.from(atob(document.querySelector(`#packed-${name}`).textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}
// Fill in what was not chosen yet, or is no longer there.
function choose() {
  const { series, strata, cells } = state.data;
  if (!series.some((one) => one.name === state.series)) state.series = (metricSeries() ?? series.find((one) => one.name === "loss") ?? series[0])?.name ?? null;
  const its = currentSeries();
  if (state.stratum === undefined || (state.stratum !== null && !strata.includes(state.stratum))) state.stratum = strata.length > SMALL_MULTIPLES ? strata[0] : null;
  const known = its ? axesOf(state.data, its) : ["step"];
  if (!state.data.factors.includes(state.group)) state.group = "";
  if (!known.includes(state.x)) state.x = known.includes("tokens") ? "tokens" : "step";
  const curves = cells.reduce((sum, cell) => sum + cell.runs.length, 0);
  state.lines ??= curves > SINGLE_LINES ? "mean" : "runs";
}
function currentSeries() {
  return state.data.series.find((one) => one.name === state.series);
}
function metricSeries() {
  return state.data.series.find((one) => one.name === state.data.metric.series);
}
// Why the metric cannot be chosen as curve; "" before a run has a value of it.
function uncurved({ metric, runs }) {
  const known = runs.some((run) => run.role === "compare" && run.metric !== null);
  return known && !metricSeries() ? `There is no curve of ${metric.phrase}: each run has one value of it, in the table of runs.` : "";
}
// -- the controls, as chosen
function drawControls() {
  const { data } = state;
  const its = currentSeries();
  options("series", data.series.map((one) => [one.name, one.label]), state.series);
  options("stratum", [["", "all, side by side"], ...data.strata.map((name) => [`=${name}`, name])], state.stratum === null ? "" : `=${state.stratum}`);
  find("stratum").parentNode.hidden = data.strata.length < 2;
  find("series").parentNode.hidden = data.series.length < 2;
  options("x", (its ? axesOf(data, its) : ["step"]).map((name) => [name, AXES[name].title]), state.x);
  options("group", [["", "arm"], ...data.factors.map((name) => [name, name])], state.group);
  find("group").parentNode.hidden = data.factors.length < 2;
  find("lines").value = state.lines;
  find("xlog").checked = state.xlog;
  find("ylog").checked = state.ylog;
  find("smooth").value = state.smooth;
  find("smoothed").textContent = state.smooth;
  find("charted").checked = state.charted;
  find("others").checked = state.others;
  find("others").parentNode.hidden = data.runs.every((run) => run.role === "compare");
  find("uncurved").textContent = uncurved(data);
  find("uncurved").hidden = !uncurved(data);
  find("notes").textContent = data.thinned.join(" ");
  find("notes").hidden = !data.thinned.length;
  legend("arms", groupsOf(data, state.group), state.hidden, (group) => group.name, swatch);
  find("grouped").textContent = state.group || "Arms";
  legend("seeds", data.seeds.map((seed) => ({ seed })), state.hiddenSeeds, (one) => one.seed);
}
function options(name, pairs, chosen) {
  const list = find(name);
  const wanted = JSON.stringify(pairs);
  if (list.dataset.of !== wanted) {
    list.replaceChildren(...pairs.map(([value, text]) => element("option", { value }, text)));
    list.dataset.of = wanted;
  }
  list.value = chosen;
}
function legend(name, items, hidden, key, sign = () => null) {
  const list = find(name);
  find(`${name}-of`).hidden = items.length < 2;
  const shown = items.filter((item) => !hidden.has(key(item)));
  keepingFocus(() => list.replaceChildren(...items.map((item) => {
    const toggle = (event) => {
      if (event.target.checked) hidden.delete(key(item));
      else hidden.add(key(item));
      changed();
    };
    const alone = shown.length === 1 && shown[0] === item;
    const isolate = () => {
      hidden.clear();
      if (!alone) for (const other of items) if (other !== item) hidden.add(key(other));
      changed();
    };
    const box = element("input", { type: "checkbox", change: toggle, "data-focus": `${name} ${key(item)}`, "data-value": key(item) });
    box.checked = !hidden.has(key(item));
    const only = element("button", { type: "button", "aria-pressed": String(alone), "aria-label": `Only ${key(item)}`, click: isolate, "data-focus": `only ${name} ${key(item)}` }, "only");
    return element("li", {}, element("label", {}, box, sign(item), element("span", {}, key(item))), only);
  })));
}
function swatch(arm) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const line = document.createElementNS(svg.namespaceURI, "line");
  for (const [name, value] of Object.entries({ width: 24, height: 10, "aria-hidden": "true" })) svg.setAttribute(name, value);
  for (const [name, value] of Object.entries({ x1: 0, x2: 24, y1: 5, y2: 5, "stroke-width": 2.5, "stroke-dasharray": arm.dash.join(" ") })) line.setAttribute(name, value);
  line.style.stroke = arm.color || "var(--ink)";
  svg.append(line);
  return svg;
}
// -- what the controls do
function changed() {
  drawControls();
  if (state.charted) drawRuns();
  return drawChart();
}
function listen() {
  find("table").append(element("table", { id: "explore-runs" }, element("thead", {}, element("tr")), element("tbody")));
  const set = (name, event, change) => find(name).addEventListener(event, (happened) => { change(happened.target); changed(); });
  const unzoom = (axis) => { state.zoom[axis] = {}; };
  set("series", "change", (list) => { state.series = list.value; unzoom("y"); });
  set("stratum", "change", (list) => { state.stratum = list.value ? list.value.slice(1) : null; });
  set("group", "change", (list) => { state.group = list.value; state.hidden.clear(); });
  set("lines", "change", (list) => { state.lines = list.value; });
  set("x", "change", (list) => { state.x = list.value; unzoom("x"); });
  set("xlog", "change", (box) => { state.xlog = box.checked; unzoom("x"); });
  set("ylog", "change", (box) => { state.ylog = box.checked; unzoom("y"); });
  set("smooth", "input", (slider) => { state.smooth = Number(slider.value); });
  set("charted", "change", (box) => { state.charted = box.checked; drawRuns(); });
  set("others", "change", (box) => { state.others = box.checked; drawRuns(); });
  set("all-arms", "click", () => state.hidden.clear());
  set("all-seeds", "click", () => state.hiddenSeeds.clear());
  find("in").addEventListener("click", () => zoomBy(0.7));
  find("out").addEventListener("click", () => zoomBy(1 / 0.7));
  find("whole").addEventListener("click", () => resetZoom(true));
  find("reset").addEventListener("click", () => resetZoom(false));
  find("filter").addEventListener("input", (event) => filterBy(event.target.value));
  find("more").addEventListener("click", () => { state.shown += 4 * PART; drawRuns(); });
  watchPointer(openLine);
  addEventListener("hashchange", openFromAddress);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && state.open.length) close(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let width = find("chart").clientWidth;
  new ResizeObserver(() => {
    if (find("chart").clientWidth === width) return;
    width = find("chart").clientWidth;
    redraw();
  }).observe(find("chart"));
}
function redraw() {
  drawer.shown = "";
  drawDrawer();
  return drawChart();
}
function filterBy(text) {
  state.filter = text;
  state.shown = PART;
  find("filter").value = text;
  drawRuns();
}
// A click on a run's curve opens the run; on a mean, the table lists the runs behind it.
function openLine(line, beside) {
  if (line.runs.length === 1) return show(line.runs[0].run, beside);
  const quoted = (text) => (/[\s<>=!]/.test(text) ? `"${text}"` : text);
  filterBy(`${quoted(state.group || "arm")}=${quoted(line.group)}${state.data.strata.length > 1 ? ` stratum=${quoted(line.cell.stratum)}` : ""}`);
  find("runs-title").scrollIntoView({ block: "nearest" });
  return undefined;
}
