// The chart of learning curves: Vega-Lite draws it; what is under the pointer is found here, so that a near line is enough.
const chart = { view: null, spec: "", lines: [], turn: 0, busy: false, finalize: null };
function css(name) {
  return getComputedStyle(document.body).getPropertyValue(name).trim();
}
function colors(groups) {
  const ink = css("--ink");
  return groups.map((group) => group.color || ink);
}
function look(data) {
  const [ink, quiet, rule] = [css("--ink"), css("--quiet"), css("--rule")];
  return {
    background: null, font: getComputedStyle(document.body).fontFamily, padding: 4,
    view: { stroke: null },
    axis: { labelColor: quiet, titleColor: ink, gridColor: rule, domainColor: quiet, tickColor: quiet, labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal", labelFlush: true },
    header: { labelColor: ink, labelFontSize: 12, labelFontWeight: "bold", title: null, labelAnchor: "start" },
    range: { category: colors(data.arms) },
  };
}
// What is drawn in each panel. Its data are the rows of `drawn`.
function layers(data, chosen, x, y) {
  const groups = groupsOf(data, chosen.group);
  const names = groups.map((group) => group.name);
  const color = { field: "a", type: "nominal", scale: { domain: names, range: colors(groups) }, legend: null };
  const dash = { field: "a", type: "nominal", scale: { domain: names, range: groups.map((group) => (group.dash.length ? group.dash : [1, 0])) }, legend: null };
  const many = chosen.lines === "runs" && chart.lines.length > 60;
  const width = { condition: [{ test: "datum.kind === 'early'", value: 0.8 }, { test: "datum.kind === 'mean'", value: 2 }], value: many ? 0.8 : 1.4 };
  const only = (kind) => [{ filter: `datum.kind ${kind}` }];
  const axis = { x: { ...x, field: "x", type: "quantitative" }, y: { ...y, field: "y", type: "quantitative" } };
  const band = [
    {
      transform: only("=== 'mean'"), mark: { type: "area", clip: true, opacity: 0.16, line: false },
      encoding: { x: axis.x, y: { ...axis.y, field: "low" }, y2: { field: "high" }, color, detail: { field: "k" } },
    },
  ];
  return [
    ...(chosen.lines === "mean" ? band : []),
    {
      transform: only("!== 'end'"), mark: { type: "line", clip: true, strokeJoin: "round" },
      params: [{ name: "grid", bind: "scales", select: { type: "interval", zoom: "wheel![event.ctrlKey || event.metaKey]" } }],
      encoding: { ...axis, color, strokeDash: dash, strokeWidth: width, detail: { field: "k" }, opacity: { value: many ? 0.6 : 1 } },
    },
    {
      transform: only("=== 'end'"), mark: { type: "point", shape: "cross", clip: true, filled: true, angle: 45, size: 70 },
      encoding: { ...axis, color, detail: { field: "k" } },
    },
  ];
}
function scaleOf(log, which) {
  return { type: log ? "log" : "linear", ...(log ? {} : { zero: false }), nice: false, domain: [{ expr: `${which}0` }, { expr: `${which}1` }] };
}
function specOf(data, chosen, series, width) {
  const axis = AXES[chosen.x];
  const strata = chosen.stratum === null ? data.strata : [chosen.stratum];
  const columns = strata.length > 1 ? Math.max(1, Math.min(strata.length, Math.floor(width / 300))) : 1;
  const across = Math.floor((width - 64 - 24 * (columns - 1)) / columns);
  const x = { title: axis.title, scale: scaleOf(chosen.xlog, "x"), axis: { format: axis.format, tickCount: Math.max(2, Math.floor(across / 80)), grid: false } };
  const y = { title: series.label, scale: scaleOf(chosen.ylog, "y"), axis: { tickCount: 5, format: "~g" } };
  const inner = { width: Math.max(120, across), height: strata.length > 1 ? 210 : Math.min(400, Math.max(260, width / 2)), layer: layers(data, chosen, x, y) };
  const spec = {
    data: { name: "points" },
    params: ["x0", "x1", "y0", "y1"].map((name) => ({ name, value: name.endsWith("0") ? 0 : 1 })),
    ...(strata.length > 1
      ? { facet: { field: "s", type: "nominal", sort: data.strata, header: { labelLimit: across } }, columns, spacing: 24, spec: inner }
      : inner),
  };
  return spec;
}
async function embed(host, spec, points, range, config) {
  const { view, finalize } = await vegaEmbed(host, { ...spec, datasets: { points } }, {
    actions: false, renderer: "canvas", tooltip: false, defaultStyle: false, ast: false, config,
    patch: (compiled) => {
      for (const signal of compiled.signals) {
        if (/^[xy][01]$/.test(signal.name)) signal.value = range[signal.name[0]][Number(signal.name[1])];
      }
      return compiled;
    },
  });
  return { view, finalize };
}
async function drawChart() {
  const { data } = state;
  const series = data.series.find((one) => one.name === state.series);
  const host = find("chart");
  const drawable = series && data.cells.some((cell) => cell.runs.some((run) => series.curves.has(run.run)));
  find("figure").hidden = find("controls").hidden = !drawable; // as while a study only tunes
  if (!drawable) return;
  const turn = (chart.turn += 1);
  chart.busy = true;
  chart.lines = linesOf(data, series, state);
  const points = drawn(chart.lines, state.xlog, state.ylog);
  const range = ranges(chart.lines, points, state.everything);
  chart.range = range;
  tellBeyond(range.beyond);
  host.setAttribute("aria-label", `${series.label} over ${AXES[state.x].title}: ${chart.lines.length} lines. The table of runs below has their final values.`);
  const spec = specOf(data, state, series, host.clientWidth);
  const config = look(data);
  const same = JSON.stringify([spec, config]);
  if (chart.view && same === chart.spec) {
    chart.view.data("points", points);
    for (const name of ["x0", "x1", "y0", "y1"]) chart.view.signal(name, range[name[0]][Number(name[1])]);
  } else {
    const next = element("div", { class: "vega" });
    const made = await embed(next, spec, points, range, config);
    if (turn !== chart.turn) return made.finalize();
    if (chart.finalize) chart.finalize();
    host.replaceChildren(next, ...host.querySelectorAll(".mark"));
    Object.assign(chart, { ...made, spec: same });
    for (const axis of ["x", "y"]) {
      made.view.addSignalListener(`grid_${axis}`, (_, domain) => {
        state.zoom[axis] = domain ? [...domain] : null;
        tellZoom();
        unmark();
      });
    }
  }
  zoomTo(state.zoom);
  unmark();
  await chart.view.runAsync();
  if (turn === chart.turn) chart.busy = false;
}
function tellBeyond(lines) {
  const names = [...new Set(lines.map((line) => (state.data.strata.length > 1 && state.stratum === null ? `${line.group} (${line.cell.stratum})` : line.group)))];
  const few = names.length > 6 ? `${names.length} ${state.group ? "levels" : "arms"}` : names.join("; ");
  find("beyond").textContent = names.length ? `Beyond the axis: ${few}. “All values” shows them.` : "";
}
// -- zoom
function zoomTo(zoom) {
  const old = { ...zoom };
  for (const axis of ["x", "y"]) chart.view.signal(`grid_${axis}`, old[axis]);
  state.zoom = old;
  tellZoom();
}
function zoomed() {
  return Boolean(state.zoom.x || state.zoom.y);
}
function tellZoom() {
  find("chart").classList.toggle("zoomed", zoomed());
}
function domainOf(axis) {
  return state.zoom[axis] ?? chart.range[axis];
}
function zoomBy(factor) {
  const zoom = {};
  for (const axis of ["x", "y"]) {
    const log = state[`${axis}log`];
    const [low, high] = domainOf(axis).map((value) => (log ? Math.log(value) : value));
    const [middle, half] = [(low + high) / 2, ((high - low) / 2) * factor];
    zoom[axis] = [middle - half, middle + half].map((value) => (log ? Math.exp(value) : value));
  }
  zoomTo(zoom);
  return chart.view.runAsync();
}
function resetZoom(everything) {
  state.everything = everything;
  state.zoom = { x: null, y: null };
  return drawChart();
}
// -- what is under the pointer
function panels() {
  const [left, top] = chart.view.origin();
  const padding = chart.view.padding();
  const offset = [left + padding.left, top + padding.top];
  const root = chart.view.scenegraph().root.items[0];
  const cells = root.items.find((mark) => mark.marktype === "group" && mark.name === "cell");
  if (!cells) return [{ stratum: null, x: offset[0], y: offset[1], width: root.width, height: root.height }];
  return cells.items.map((item) => ({
    stratum: item.datum.s, x: offset[0] + item.x, y: offset[1] + item.y, width: item.width, height: item.height,
  }));
}
function pixels(line, panel) {
  const [x, y] = ["x", "y"].map((name) => chart.view.scale(name));
  return line.xs.map((value, at) => [panel.x + x(value), panel.y + y(line.ys[at])]);
}
const NEAR = 24; // pixels from a line that still mean it
// The line and the place on it nearest to a point of the chart.
function nearest(px, py) {
  if (!chart.view) return null;
  const panel = panels().find((one) => px >= one.x - 4 && px <= one.x + one.width + 4 && py >= one.y - 4 && py <= one.y + one.height + 4);
  if (!panel) return null;
  const [x, y] = ["x", "y"].map((name) => chart.view.scale(name));
  let best = null;
  for (const line of chart.lines) {
    if (panel.stratum !== null && line.cell.stratum !== panel.stratum) continue;
    const at = closest(line.xs, x.invert(px - panel.x));
    // between two points the line is straight: its height there decides, its nearer point is shown
    const [ax, ay] = [panel.x + x(line.xs[at]), panel.y + y(line.ys[at])];
    const next = ax < px ? Math.min(at + 1, line.xs.length - 1) : Math.max(at - 1, 0);
    const [bx, by] = [panel.x + x(line.xs[next]), panel.y + y(line.ys[next])];
    const share = bx === ax ? 0 : Math.min(1, Math.max(0, (px - ax) / (bx - ax)));
    const distance = Math.hypot(px - (ax + share * (bx - ax)), py - (ay + share * (by - ay)));
    if (Number.isFinite(distance) && distance < NEAR && (!best || distance < best.distance)) best = { line, at, distance, panel, x: ax, y: ay };
  }
  return best;
}
function closest(values, wanted) {
  let [low, high] = [0, values.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (values[middle] > wanted) high = middle;
    else low = middle;
  }
  return Math.abs(values[high] - wanted) < Math.abs(values[low] - wanted) ? high : low;
}
function describe({ line, at }) {
  const axis = AXES[state.x];
  const x = state.x === "time" ? duration(line.xs[at]) : `${axis.title.replace("training ", "")} ${count(line.xs[at])}`;
  const who = line.low && line.runs.length > 1
    ? `mean of ${line.runs.length} runs` : `run ${line.runs[0].run}, seed ${line.runs[0].seed}`;
  const range = line.low && line.runs.length > 1 ? ` (${digits(line.low[at])} to ${digits(line.high[at])})` : "";
  return [line.group, who, `${x}: ${digits(line.ys[at])}${range}`];
}
function mark(found) {
  unmark();
  if (!found) return;
  const host = find("chart");
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "mark");
  svg.setAttribute("aria-hidden", "true");
  const { panel, line } = found;
  const within = ([x, y]) => x >= panel.x && x <= panel.x + panel.width && y >= panel.y && y <= panel.y + panel.height;
  const path = document.createElementNS(svg.namespaceURI, "polyline");
  path.setAttribute("points", pixels(line, panel).filter(within).map((point) => point.join()).join(" "));
  const dot = document.createElementNS(svg.namespaceURI, "circle");
  for (const [name, value] of [["cx", found.x], ["cy", found.y], ["r", 4.5]]) dot.setAttribute(name, value);
  const group = groupsOf(state.data, state.group).find((one) => one.name === line.group);
  svg.style.color = group.color || "var(--ink)";
  svg.append(path, ...(within([found.x, found.y]) ? [dot] : []));
  const [title, ...more] = describe(found);
  const tip = element("div", { class: "mark tip", role: "status" }, element("b", {}, title), ...more.map((text) => element("span", {}, text)));
  host.append(svg, tip);
  tip.style.left = `${Math.max(0, Math.min(found.x + 12, host.clientWidth - tip.offsetWidth))}px`;
  tip.style.top = `${Math.max(0, found.y - tip.offsetHeight - 12)}px`;
}
function unmark() {
  for (const old of find("chart").querySelectorAll(".mark")) old.remove();
}
function watchPointer(open) {
  const host = find("chart");
  let down = null;
  const at = (event) => {
    const box = host.getBoundingClientRect();
    return [event.clientX - box.x, event.clientY - box.y];
  };
  host.addEventListener("pointermove", (event) => mark(event.buttons ? null : nearest(...at(event))));
  host.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && unmark());
  host.addEventListener("pointerdown", (event) => {
    down = at(event);
    if (event.pointerType !== "touch") return;
    if (!zoomed()) return event.stopPropagation(); // the page scrolls
    // Vega learns from a move alone what lies under a finger
    event.target.dispatchEvent(new PointerEvent("pointermove", event));
  }, true);
  // Vega ends a drag by this alone
  host.addEventListener("pointercancel", (event) => event.target.dispatchEvent(new PointerEvent("pointerup", event)));
  host.addEventListener("click", (event) => {
    const here = at(event);
    if (down && Math.hypot(here[0] - down[0], here[1] - down[1]) > 5) return; // the end of a drag
    const found = nearest(...here);
    mark(found);
    if (found) open(found.line, event.shiftKey);
  });
}
