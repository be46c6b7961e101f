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
    { name: "metric", metric: data.metric.name, title: data.metric.phrase, of: (run) => run.metric, show: (run) => measured(data.metric, run.metric), numeric: true },
    { name: "parameters", of: (run) => run.params, show: (run) => count(run.params), numeric: true, hidden: !several((run) => run.params) },
    { name: "tokens", of: (run) => run.tokens, show: (run) => count(run.tokens), numeric: true, hidden: !several((run) => run.tokens) },
    { name: "FLOPs", of: (run) => run.flops, show: (run) => power(run.flops), numeric: true, hidden: !several((run) => run.flops) },
    { name: "time", title: "training time", of: (run) => run.seconds, show: (run) => duration(run.seconds), numeric: true, hidden: data.runs.every((run) => run.seconds === null) },
    { name: "attempts", of: (run) => run.attempts, numeric: true, hidden: !several((run) => run.attempts) },
  ];
  const factors = data.factors.map((name, at) => ({ name, of: (run) => run.cell.levels[at], hidden: true, factor: true }));
  const fields = [...data.varied, ...Object.keys(data.common)].map((name) => ({ name, of: (run) => shownField(fieldsOf(data, run)[name]), hidden: true }));
  return [...columns, ...factors, ...fields];
}
const PARTS = /("[^"]*"|[^\s"<>=!]+)\s*(!=|<=|>=|=|<|>)\s*((?:"[^"]*"?|[^\s"])*)|(?:"[^"]*"?|[^\s"])+/g; // name, sign and value of a condition, or a word
const ASCII = Object.fromEntries(Object.entries(SUPERSCRIPT).map(([sign, raised]) => [raised, sign]));
const UNITS = { "": 1, k: 1e3, m: 1e6, g: 1e9, b: 1e9, t: 1e12, s: 1, min: 60, h: 3600 };
function plain(text) {
  return String(text).replace(/["\s,]/g, "").replace(/−/g, "-").toLowerCase();
}
// A number as the table prints it: 1,024, −0.5, 12.8M, 6.6×10¹³, 3.2 min. NaN for another text.
function numberIn(text) {
  const ascii = plain(text).replace(/(^|×)10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)$/, (_, times, raised) => `${times ? "" : 1}e${[...raised].map((sign) => ASCII[sign]).join("")}`);
  const [, number, unit] = /^(.*?\d\.?)([a-z]*)$/.exec(ascii) ?? [];
  return number === undefined || !(unit in UNITS) ? NaN : Number(number) * UNITS[unit];
}
// A column by its name, its heading, or the name of the metric.
function columnNamed(columns, name) {
  for (const key of ["name", "title", "metric"]) {
    const found = columns.find((one) => one[key]?.toLowerCase() === name.toLowerCase());
    if (found) return found;
  }
  return undefined;
}
// A filter of words, each found in a row's text, and conditions such as status=failed or metric<1.4. A condition that
// cannot be read filters nothing, and `faults` says why; neither does one whose value is not typed yet.
function matcher(columns, text) {
  const faults = [];
  const tests = [...text.matchAll(PARTS)].map(([part, quoted, sign, value]) => {
    const wanted = plain(value ?? "");
    if (part.split('"').length % 2 === 0) {
      faults.push(`${part}: the quote is not closed.`);
      return () => true;
    }
    if (sign === undefined) {
      const word = part.replace(/"/g, "").toLowerCase();
      return (run) => columns.some((one) => !one.hidden && String((one.show ?? one.of)(run)).toLowerCase().includes(word));
    }
    const name = quoted.replace(/"/g, "");
    const column = columnNamed(columns, name);
    const number = numberIn(value);
    if (!column) {
      const known = columns.filter((one) => !one.hidden || one.factor).map((one) => one.title ?? one.name);
      faults.push(`Unknown column ${name}; columns: ${known.join(", ")}, and the fields of a run.`);
    } else if (value && /[<>]/.test(sign) && Number.isNaN(number)) {
      faults.push(`${part}: ${value} is no number.`);
    } else if (value) {
      const equal = (run) => [column.of(run), (column.show ?? column.of)(run)].some((one) => plain(one ?? "") === wanted) || (column.of(run) ?? "") !== "" && Number(column.of(run)) === number;
      const order = { "<": (one) => one < number, ">": (one) => one > number, "<=": (one) => one <= number, ">=": (one) => one >= number }[sign];
      if (order) return (run) => (column.of(run) ?? "") !== "" && order(Number(column.of(run)));
      return sign === "=" ? equal : (run) => !equal(run);
    }
    return () => true;
  });
  return { faults: [...new Set(faults)], test: (run) => tests.every((test) => test(run)) };
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
  const { faults, test } = matcher(columns, state.filter);
  let runs = state.data.runs.filter(test);
  if (!state.others) runs = runs.filter((run) => run.role === "compare");
  if (state.charted) {
    runs = runs.filter((run) => run.role === "compare" && !state.hidden.has(groupOf(state.data, run.cell, state.group)) && !state.hiddenSeeds.has(run.seed)
      && (state.stratum === null || run.cell.stratum === state.stratum));
  }
  return { runs: ordered(runs, column, state.down), faults };
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
    const { runs, faults } = listedRuns();
    table.tBodies[0].replaceChildren(...runs.slice(0, state.shown).map((run) => rowOf(run, columns)));
    find("count").textContent = counted(runs.length);
    find("faults").textContent = faults.join(" ");
    find("more").hidden = runs.length <= state.shown;
  });
}
// How many runs are listed, of how many, and that those of other roles are not.
const ROLES = { tune: "tuning", pretrain: "pre-training" };
function counted(listed) {
  const roles = [...grouped(state.data.runs.filter((run) => !state.others && run.role !== "compare"), (run) => run.role)];
  const all = state.data.runs.length - roles.reduce((sum, [, runs]) => sum + runs.length, 0);
  const number = (count) => count.toLocaleString("en");
  // a parent is of several cells
  const rest = roles.map(([role, runs]) => `${number(new Set(runs.map((run) => run.run)).size)} ${ROLES[role]}`).join(" and ");
  return `${listed === all ? "" : `${number(listed)} of `}${number(all)} run${all === 1 ? "" : "s"}${rest && `; ${rest} runs are not listed`}`;
}
function rowOf(run, columns) {
  const cells = columns.map((column) => {
    const text = column.show ? column.show(run) : String(column.of(run) ?? "–");
    const link = { href: `#run=${run.run}`, "data-focus": `run ${run.run} ${run.cell.label} ${run.role}`, "aria-haspopup": "dialog" };
    const content = column.name === "run" ? element("a", link, text) : text;
    const bad = column.name === "status" && !["complete", "planned", "queued", "running"].includes(run.status);
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
