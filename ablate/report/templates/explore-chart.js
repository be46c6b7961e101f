// The chart of learning curves: a panel with axes of its own for each stratum. Vega-Lite draws it; what is under the pointer is found here, so that a near line is enough.
const chart = { view: null, spec: "", lines: [], strata: [], ranges: [], turn: 0, busy: false, finalize: null };
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
    title: { color: ink, fontSize: 12, anchor: "start", frame: "group" },
    range: { category: colors(data.arms) },
  };
}
// What is drawn in a panel. Its data are the rows of `drawn` of its stratum.
function layers(data, chosen, x, y, grid) {
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
      params: [{ name: grid, bind: "scales", select: { type: "interval", zoom: "wheel![event.ctrlKey || event.metaKey]" } }],
      encoding: { ...axis, color, strokeDash: dash, strokeWidth: width, detail: { field: "k" }, opacity: { value: many ? 0.6 : 1 } },
    },
    {
      transform: only("=== 'end'"), mark: { type: "point", shape: "cross", clip: true, filled: true, angle: 45, size: 70 },
      encoding: { ...axis, color, detail: { field: "k" } },
    },
  ];
}
const WRITTEN = { count, power, digits }; // functions that axes write numbers with
function ticks(write) {
  return `${write.name}(datum.value${write === digits ? ", 6" : ""})`;
}
const ENDS = ["low", "high"];
function scaleOf(log, which) {
  return { type: log ? "log" : "linear", ...(log ? {} : { zero: false }), nice: false, domain: ENDS.map((end) => ({ expr: `${which}_${end}` })) };
}
// Of the panel at a place: signals x0_low to y0_high, scales panel0_x and panel0_y, and the selection grid0, which zooms.
function specOf(data, chosen, series, width) {
  const axis = AXES[chosen.x];
  const { strata } = chart;
  const several = strata.length > 1;
  const columns = several ? Math.max(1, Math.min(strata.length, Math.floor(width / 300))) : 1;
  const across = Math.floor((width - 64 - 66 * (columns - 1)) / columns);
  const panel = (stratum, at) => {
    const x = { title: at + columns < strata.length ? null : axis.title, scale: scaleOf(chosen.xlog, `x${at}`), axis: { labelExpr: ticks(axis.write === duration ? digits : axis.write), tickCount: Math.max(2, Math.floor(across / 80)), grid: false } };
    const y = { title: at % columns ? null : series.label, scale: scaleOf(chosen.ylog, `y${at}`), axis: { tickCount: 5, labelExpr: ticks(digits) } };
    return {
      name: `panel${at}`, width: Math.max(120, across), height: several ? 210 : Math.min(400, Math.max(260, width / 2)), ...(several ? { title: { text: stratum, limit: across } } : {}),
      transform: [{ filter: { field: "s", equal: stratum } }], layer: layers(data, chosen, x, y, `grid${at}`),
    };
  };
  return { data: { name: "points" }, params: signalsOf(strata.map(() => ({ x: [0, 1], y: [0, 1] }))), concat: strata.map(panel), columns, spacing: 24 };
}
function signalsOf(ranges) {
  return ranges.flatMap((range, at) => ["x", "y"].flatMap((axis) => ENDS.map((end, place) => ({ name: `${axis}${at}_${end}`, value: range[axis][place] }))));
}
async function embed(host, spec, points, ranges, config) {
  const values = new Map(signalsOf(ranges).map(({ name, value }) => [name, value]));
  const { view, finalize } = await vegaEmbed(host, { ...spec, datasets: { points } }, {
    mode: "vega-lite", actions: false, renderer: "canvas", tooltip: false, defaultStyle: false, ast: false, config, expressionFunctions: WRITTEN,
    patch: (compiled) => {
      for (const signal of compiled.signals) {
        if (values.has(signal.name)) signal.value = values.get(signal.name);
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
  chart.strata = state.stratum === null ? data.strata : [state.stratum];
  const goal = series.name === data.metric.series ? data.metric.goal : "min";
  chart.ranges = chart.strata.map((stratum) => ranges(chart.lines.filter((line) => line.cell.stratum === stratum), points.filter((point) => point.s === stratum), state.everything, goal));
  tellBeyond(chart.ranges.flatMap((range) => range.beyond));
  host.setAttribute("aria-label", `${series.label} over ${AXES[state.x].title}: ${chart.lines.length} lines. The table of runs below has their final values.`);
  const spec = specOf(data, state, series, host.clientWidth);
  const config = look(data);
  const same = JSON.stringify([spec, config]);
  if (chart.view && same === chart.spec) {
    chart.view.data("points", points);
    for (const { name, value } of signalsOf(chart.ranges)) chart.view.signal(name, value);
  } else {
    const next = element("div");
    const made = await embed(next, spec, points, chart.ranges, config);
    if (turn !== chart.turn) return made.finalize();
    if (chart.finalize) chart.finalize();
    host.replaceChildren(next, ...host.querySelectorAll(".mark"));
    Object.assign(chart, { ...made, spec: same });
    chart.strata.forEach((stratum, at) => {
      for (const axis of ["x", "y"]) {
        made.view.addSignalListener(`grid${at}_${axis}`, (_, domain) => {
          state.zoom[axis][stratum] = domain ? [...domain] : null;
          tellZoom();
          unmark();
        });
      }
    });
  }
  zoomTo(state.zoom);
  unmark();
  await chart.view.runAsync();
  if (turn === chart.turn) chart.busy = false;
}
function tellBeyond(beyond) {
  const name = (line) => (chart.strata.length > 1 ? `${line.group} (${line.cell.stratum})` : line.group);
  const [outside, all] = [beyond, chart.lines].map((lines) => grouped(lines, name));
  const names = [...outside].map(([of, lines]) => (lines.length < all.get(of).length ? `${of}, ${lines.length} of ${all.get(of).length} lines` : of));
  const few = names.length > 6 ? `${names.length} ${state.group ? "levels" : "arms"}` : names.join("; ");
  find("beyond").textContent = names.length ? `Beyond the axis: ${few}. “All values” shows them.` : "";
}
// -- zoom: of each axis, the domain in each stratum's panel that is zoomed
function zoomTo(zoom) {
  const old = { x: { ...zoom.x }, y: { ...zoom.y } };
  chart.strata.forEach((stratum, at) => {
    for (const axis of ["x", "y"]) chart.view.signal(`grid${at}_${axis}`, old[axis][stratum] ?? null);
  });
  state.zoom = old;
  tellZoom();
}
function zoomed() {
  return chart.strata.some((stratum) => state.zoom.x[stratum] || state.zoom.y[stratum]);
}
function tellZoom() {
  find("chart").classList.toggle("zoomed", zoomed());
}
function zoomBy(factor) {
  const zoom = { x: {}, y: {} };
  for (const axis of ["x", "y"]) {
    const log = state[`${axis}log`];
    chart.strata.forEach((stratum, at) => {
      const [low, high] = (state.zoom[axis][stratum] ?? chart.ranges[at][axis]).map((value) => (log ? Math.log(value) : value));
      const [middle, half] = [(low + high) / 2, ((high - low) / 2) * factor];
      zoom[axis][stratum] = [middle - half, middle + half].map((value) => (log ? Math.exp(value) : value));
    });
  }
  zoomTo(zoom);
  return chart.view.runAsync();
}
function resetZoom(everything) {
  state.everything = everything;
  state.zoom = { x: {}, y: {} };
  return drawChart();
}
// -- what is under the pointer
function panels() {
  const [left, top] = chart.view.origin();
  const padding = chart.view.padding();
  const groups = chart.view.scenegraph().root.items[0].items;
  return chart.strata.map((stratum, at) => {
    const [item] = groups.find((mark) => mark.name === `panel${at}_group`).items;
    const [x, y] = ["x", "y"].map((axis) => chart.view.scale(`panel${at}_${axis}`));
    return { stratum, scales: { x, y }, x: left + padding.left + item.x, y: top + padding.top + item.y, width: item.width, height: item.height };
  });
}
function pixels(line, panel) {
  const { x, y } = panel.scales;
  return line.xs.map((value, at) => [panel.x + x(value), panel.y + y(line.ys[at])]);
}
const NEAR = 24; // pixels from a line that still mean it
// The line and the place on it nearest to a point of the chart.
function nearest(px, py) {
  if (!chart.view) return null;
  const panel = panels().find((one) => px >= one.x - 4 && px <= one.x + one.width + 4 && py >= one.y - 4 && py <= one.y + one.height + 4);
  if (!panel) return null;
  const { x, y } = panel.scales;
  let best = null;
  for (const line of chart.lines) {
    if (line.cell.stratum !== panel.stratum) continue;
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
  const x = `${state.x === "time" ? "" : `${axis.title.replace("training ", "")} `}${axis.write(line.xs[at])}`;
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
