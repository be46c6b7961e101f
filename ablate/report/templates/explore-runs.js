// The table of runs: sorted by a heading, filtered by words and conditions, a part of it at a time.
const PART = 50;
function columnsOf(data) {
  const several = (of) => new Set(data.runs.map(of)).size > 1;
  const columns = [
    { name: "run", of: (run) => run.run, numeric: true },
    { name: "arm", of: (run) => run.cell.arm },
    { name: "stratum", of: (run) => run.cell.stratum, hidden: data.strata.length < 2 },
    { name: "seed", of: (run) => run.seed, show: (run) => String(run.seed), numeric: true },
    { name: "role", of: (run) => run.role, hidden: !state.others },
    { name: "status", of: (run) => run.status },
    { name: "metric", title: data.metric.label.replace(/ \(.*/, ""), of: (run) => run.metric, show: (run) => digits(run.metric), numeric: true },
    { name: "parameters", of: (run) => run.params, show: (run) => count(run.params), numeric: true, hidden: !several((run) => run.params) },
    { name: "tokens", of: (run) => run.tokens, show: (run) => count(run.tokens), numeric: true, hidden: !several((run) => run.tokens) },
    { name: "FLOPs", of: (run) => run.flops, show: (run) => count(run.flops), numeric: true, hidden: !several((run) => run.flops) },
    { name: "time", title: "training time", of: (run) => run.seconds, show: (run) => duration(run.seconds), numeric: true, hidden: data.runs.every((run) => run.seconds === null) },
    { name: "attempts", of: (run) => run.attempts, numeric: true, hidden: !several((run) => run.attempts) },
  ];
  const factors = data.factors.map((name, at) => ({ name, of: (run) => run.cell.levels[at], hidden: true }));
  const changed = data.varied.map((name) => ({ name, of: (run) => shownField(fieldsOf(data, run)[name]), hidden: true }));
  return [...columns, ...factors, ...changed];
}
// A filter of words, each found in a row's text, and conditions such as status=failed or metric<1.4.
function matcher(columns, text) {
  const tests = (text.match(/[^\s"]*"[^"]*"|\S+/g) ?? []).map((part) => {
    const [, name, sign, raw] = /^([^<>=]+)(<=|>=|=|<|>)(.+)$/.exec(part) ?? [];
    const wanted = (raw ?? part).replace(/"/g, "").toLowerCase();
    const column = name && columns.find((one) => one.name.toLowerCase() === name.toLowerCase());
    if (!column) {
      return (run) => columns.some((one) => !one.hidden && String((one.show ?? one.of)(run)).toLowerCase().includes(wanted));
    }
    const number = Number(wanted);
    return (run) => {
      const value = column.of(run);
      if (value === null || value === undefined) return false;
      if (sign === "=") return String(value).toLowerCase() === wanted || (wanted !== "" && Number(value) === number);
      const order = Number(value) - number;
      return sign === "<" ? order < 0 : sign === ">" ? order > 0 : sign === "<=" ? order <= 0 : order >= 0;
    };
  });
  return (run) => tests.every((test) => test(run));
}
function ordered(runs, column, down) {
  const value = (run) => column.of(run) ?? "";
  return [...runs].sort((one, other) => {
    const [a, b] = [value(one), value(other)];
    if (a === "" || b === "") return (a === "") - (b === "");
    const order = column.numeric ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
    return down ? -order : order;
  });
}
function listedRuns() {
  const columns = columnsOf(state.data);
  const column = columns.find((one) => one.name === state.sort) ?? columns[0];
  let runs = state.data.runs.filter(matcher(columns, state.filter));
  if (!state.others) runs = runs.filter((run) => run.role === "compare");
  if (state.charted) {
    runs = runs.filter((run) => run.role === "compare" && !state.hidden.has(groupOf(state.data, run.cell, state.group)) && !state.hiddenSeeds.has(run.seed)
      && (state.stratum === null || run.cell.stratum === state.stratum));
  }
  return ordered(runs, column, state.down);
}
function drawRuns() {
  const columns = columnsOf(state.data).filter((one) => !one.hidden);
  const table = find("runs");
  keepingFocus(() => {
    table.tHead.rows[0].replaceChildren(...columns.map((column) => {
      const sorted = column.name === state.sort ? (state.down ? "descending" : "ascending") : null;
      const sort = () => {
        state.down = state.sort === column.name && !state.down;
        state.sort = column.name;
        drawRuns();
      };
      const button = element("button", { type: "button", click: sort, "data-focus": `sort ${column.name}` }, column.title ?? column.name);
      return element("th", { scope: "col", class: column.numeric ? "n" : null, "aria-sort": sorted }, button);
    }));
    const runs = listedRuns();
    table.tBodies[0].replaceChildren(...runs.slice(0, state.shown).map((run) => rowOf(run, columns)));
    find("count").textContent = `${runs.length.toLocaleString("en")} of ${state.data.runs.length.toLocaleString("en")} runs`;
    find("more").hidden = runs.length <= state.shown;
  });
}
function rowOf(run, columns) {
  const cells = columns.map((column) => {
    const text = column.show ? column.show(run) : String(column.of(run) ?? "–");
    const link = { href: `#run=${run.run}`, "data-focus": `run ${run.run} ${run.cell.label} ${run.role}`, "aria-haspopup": "dialog" };
    const content = column.name === "run" ? element("a", link, text) : text;
    const bad = column.name === "status" && !["complete", "planned", "running"].includes(run.status);
    return element("td", { class: column.numeric ? "n" : bad ? "bad" : null }, content);
  });
  const open = (event) => {
    if (!event.target.closest("a") && !String(getSelection())) show(run.run, event.shiftKey);
  };
  return element("tr", { click: open, class: state.open.includes(run.run) ? "open" : null }, ...cells);
}
// Redraw without losing the place of the keyboard.
function keepingFocus(redraw) {
  const name = document.activeElement?.dataset?.focus;
  redraw();
  focusOn(name);
}
function focusOn(name) {
  if (name) [...document.querySelectorAll("#explore [data-focus]")].find((one) => one.dataset.focus === name)?.focus({ preventScroll: true });
}
