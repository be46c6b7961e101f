// The drawer: everything about one run, or two side by side. The address of the page says which: #run=17 or #run=17,23.
const drawer = { shown: "", finalize: null, opener: null };
function numbersIn(hash) {
  const found = /^#run=(\d+)(?:,(\d+))?$/.exec(hash);
  return found ? [...new Set(found.slice(1).filter(Boolean).map(Number))] : [];
}
// Open the drawer on a run; `beside` keeps the run that is open next to it.
function show(number, beside = false) {
  const first = beside ? state.open.filter((open) => open !== number).slice(0, 1) : [];
  location.hash = `run=${[...first, number].join()}`;
}
function openFromAddress() {
  const known = numbersIn(location.hash).filter((number) => state.data.byNumber.has(number));
  if (known.length === 0) return state.open.length ? hideDrawer() : undefined;
  const opening = state.open.length === 0;
  if (opening) drawer.opener = document.activeElement?.dataset.focus ?? "";
  state.open = known;
  drawDrawer();
  drawRuns();
  if (opening) find("drawer").querySelector(".close").focus({ preventScroll: true });
}
function close() {
  history.replaceState(null, "", location.pathname + location.search);
  hideDrawer();
}
function hideDrawer() {
  state.open = [];
  drawer.shown = "";
  if (find("drawer").open) find("drawer").close();
  drawRuns();
  focusOn(drawer.opener);
}
function drawDrawer() {
  const { data } = state;
  const box = find("drawer");
  const runs = state.open.map((number) => data.byNumber.get(number)).filter(Boolean);
  if (!runs.length) return;
  const beside = baselineOf(runs[0]);
  box.classList.toggle("pair", runs.length > 1);
  if (!box.open) box.show();
  const content = JSON.stringify(runs.map((run) => [{ ...run, cell: run.cell.label }, data.attempts.get(run.run), fieldsOf(data, run), curvesOf(run)]));
  if (content !== drawer.shown) {
    const typed = find("beside")?.value ?? "";
    const top = box.scrollTop;
    keepingFocus(() => box.replaceChildren(...parts(data, runs, beside)));
    if (find("beside")) find("beside").value = typed;
    box.scrollTop = drawer.shown ? top : 0;
    drawer.shown = content;
    drawCurves(runs, beside);
  }
}
function parts(data, runs, baseline) {
  const [run, other] = runs;
  const title = other ? `Runs ${run.run} and ${other.run}` : `Run ${run.run}`;
  const isBaseline = run.cell === run.cell.baseline;
  return [
    element("header", {},
      element("h3", { id: "explore-drawer-title" }, title),
      element("button", { type: "button", class: "close", "aria-label": "Close", "data-focus": "close", click: close }, "×")),
    element("div", { id: "explore-drawer-chart", role: "img", "aria-label": `Learning curve of ${title.toLowerCase()}` }),
    ...command((other ? `ablate compare ${run.run} ${other.run}` : `ablate show ${run.run}`) + (data.database ? ` --db ${data.database}` : "")),
    facts(data, runs),
    element("h4", {}, other ? "Configuration: what differs" : "Configuration: differences from the baseline"),
    ...(other
      ? configuration(data, runs, runs.map((one) => `run ${one.run}`))
      : isBaseline && run.config === baseline?.config
        ? [element("p", { class: "note" }, "This is the baseline.")]
        : baseline ? configuration(data, [run, baseline], [`run ${run.run}`, `baseline, run ${baseline.run}`])
          : [element("p", { class: "note" }, "The baseline has no run.")]),
    ...runs.map((one) => whole(data, one)),
    ...runs.flatMap((one) => attemptsOf(data, one, other)),
    nextTo(run, other, baseline),
  ];
}
function facts(data, runs) {
  const last = (run) => (data.attempts.get(run.run) ?? []).at(-1) ?? {};
  const lines = [
    ["arm", (run) => run.cell.arm],
    ["stratum", (run) => run.cell.stratum],
    ["seed", (run) => `${run.seed}${run.role === "compare" ? "" : ` (role: ${run.role})`}`],
    ["status", (run) => (run.diverged_at === null ? run.status : `${run.status} at step ${run.diverged_at.toLocaleString("en")}`)],
    [data.metric.label, (run) => measured(data.metric, run.metric)],
    ["parameters", (run) => digits(run.params)],
    ["tokens", (run) => digits(run.tokens)],
    ["FLOPs", (run) => power(run.flops)],
    ["training time", (run) => duration(run.seconds)],
    ["device", (run) => last(run).device ?? "–"],
    ["code version", (run) => last(run).commit ?? "–"],
    ["versions", (run) => last(run).versions ?? "–"],
  ].filter(([, of]) => runs.some((run) => !["", "–"].includes(of(run))));
  return compared(["", ...runs.map((run) => `run ${run.run}`)], lines.map(([name, of]) => [name, ...runs.map(of)]), runs.length < 2);
}
function compared(heads, lines, headless = false) {
  const cells = ([name, ...values]) => element("tr", { class: values.length > 1 && new Set(values).size > 1 ? "differs" : null },
    element("th", { scope: "row" }, name), ...values.map((value) => element("td", {}, value)));
  const head = headless ? [] : [element("thead", {}, element("tr", {}, ...heads.map((text) => (text ? element("th", { scope: "col" }, text) : element("td")))))];
  return element("div", { class: "scroll" }, element("table", {}, ...head, element("tbody", {}, ...lines.map(cells))));
}
function shownField(value) {
  return value === undefined ? "–" : typeof value === "string" ? value : JSON.stringify(value);
}
function configuration(data, runs, heads) {
  const names = differing(data, ...runs);
  if (!names.length) return [element("p", { class: "note" }, "No field differs.")];
  return [compared(["field", ...heads], names.map((name) => [name, ...runs.map((run) => shownField(fieldsOf(data, run)[name]))]))];
}
function whole(data, run) {
  const fields = Object.entries(fieldsOf(data, run)).map(([name, value]) => [name, shownField(value)]);
  return element("details", {}, element("summary", { "data-focus": `whole ${run.run}` }, `All fields of run ${run.run}`), compared([], fields, true));
}
function attemptsOf(data, run, other) {
  const attempts = data.attempts.get(run.run) ?? [];
  const title = element("h4", {}, other ? `Attempts at run ${run.run}` : "Attempts");
  if (!attempts.length) return [title, element("p", { class: "note" }, "Not trained yet.")];
  return [title, element("ol", { class: "attempts" }, ...attempts.map((attempt) => element("li", { value: attempt.n },
    element("b", { class: ["complete", "running"].includes(attempt.status) ? null : "bad" }, attempt.status), " ",
    [attempt.started && `started ${attempt.started.replace("T", " ")} UTC`, attempt.seconds !== null && `${duration(attempt.seconds)} of device time`, attempt.device, attempt.host && `on ${attempt.host}`, attempt.commit && `code ${attempt.commit}`].filter(Boolean).join(", "),
    attempt.note && element("p", { class: "note" }, attempt.note),
    attempt.error && element("pre", { tabindex: "0", "aria-label": `Last lines of the error of attempt ${attempt.n}` }, attempt.error),
    attempt.log && element("pre", { tabindex: "0", "aria-label": `Last lines of the log of attempt ${attempt.n}` }, attempt.log))))];
}
function command(text) {
  const said = element("span", { role: "status" });
  const copy = async () => {
    said.textContent = (await copied(text)) ? " Copied." : " Select the command to copy it.";
  };
  return [element("p", { class: "command" }, element("code", {}, text), " ", element("button", { type: "button", "data-focus": "copy", click: copy }, "Copy"), said)];
}
// A page opened from a file may lack the clipboard: then a selection is copied the old way.
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = element("textarea", { class: "copied" });
    area.value = text;
    find("drawer").append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
function nextTo(run, other, baseline) {
  if (other) {
    const alone = (one) => element("button", { type: "button", "data-focus": `alone ${one.run}`, click: () => show(one.run) }, `Only run ${one.run}`);
    return element("p", { class: "beside" }, alone(run), " ", alone(other));
  }
  const field = element("input", { id: "explore-beside", type: "number", min: "1", required: true, "data-focus": "beside" });
  const said = element("span", { role: "status" });
  const submit = (event) => {
    event.preventDefault();
    const number = Number(field.value);
    if (number === run.run || !state.data.byNumber.has(number)) said.textContent = ` There is no other run ${field.value} here.`;
    else show(number, true);
  };
  const same = baseline && baseline !== run ? element("button", { type: "button", "data-focus": "baseline", click: () => show(baseline.run, true) }, `Its baseline, run ${baseline.run}`) : null;
  return element("form", { class: "beside", submit }, element("label", {}, "Side by side with run ", field), " ", element("button", { type: "submit", "data-focus": "compare" }, "Compare"), " ", same, said);
}
// -- the curves of the runs, with that of the baseline's run for one alone
function curvesOf(run) {
  const series = state.data.series.find((one) => one.name === state.series && one.curves.has(run.run)) ?? state.data.series.find((one) => one.curves.has(run.run));
  return series ? { label: series.label, ...series.curves.get(run.run) } : null;
}
async function drawCurves(runs, baseline) {
  const host = find("drawer-chart");
  const shown = runs.length > 1 || !baseline || baseline.run === runs[0].run ? runs : [...runs, baseline];
  const points = shown.flatMap((run, at) => {
    const curve = curvesOf(run);
    const name = at && runs.length < 2 ? `baseline, run ${run.run}` : `run ${run.run}`;
    return curve ? curve.steps.map((step, place) => ({ x: step, y: curve.values[place], low: curve.values[place], high: curve.values[place], name, k: name })) : [];
  });
  host.hidden = !points.length;
  if (!points.length) return;
  const arms = new Map(state.data.arms.map((arm, at) => [arm.name, colors(state.data.arms)[at]]));
  const names = [...new Set(points.map((point) => point.name))];
  const shades = names.map((name) => arms.get(shown.find((run) => name.endsWith(`run ${run.run}`)).cell.arm));
  const y = ranges([], points, false).y;
  const legend = names.length > 1 ? { orient: "top", title: null, symbolType: "stroke", symbolSize: 300, symbolStrokeWidth: 2.5 } : null;
  const spec = {
    data: { values: points }, width: Math.max(200, host.clientWidth - 20), height: 200, autosize: { type: "fit", contains: "padding" },
    mark: { type: "line", clip: true, point: points.length < 40 * names.length },
    encoding: {
      x: { field: "x", type: "quantitative", title: AXES.step.title, axis: { labelExpr: ticks(count), grid: false, tickCount: 5 } },
      y: { field: "y", type: "quantitative", title: curvesOf(shown[0])?.label ?? "", scale: { zero: false, domain: y, nice: true }, axis: { tickCount: 5, labelExpr: ticks(digits) } },
      color: { field: "name", type: "nominal", sort: names, scale: { domain: names, range: shades }, legend },
      strokeDash: { field: "name", type: "nominal", sort: names, scale: { domain: names, range: [[1, 0], [5, 3]] }, legend },
    },
  };
  const config = look(state.data);
  const made = await vegaEmbed(host, spec, { actions: false, renderer: "canvas", tooltip: false, defaultStyle: false, expressionFunctions: WRITTEN, config: { ...config, legend: { labelColor: css("--ink"), labelFontSize: 12 } } });
  if (drawer.finalize) drawer.finalize();
  drawer.finalize = made.finalize;
}
