// The exploration as objects: runs, cells, attempts and curves. How it is coded: ablate/report/explore.py.
const OF_RUN = ["run", "cell", "seed", "role", "status", "attempts", "metric", "seconds", "steps", "tokens", "flops", "params", "diverged_at", "config"];
const OF_ATTEMPT = ["run", "n", "status", "started", "seconds", "device", "host", "commit", "versions", "note", "error", "log"];
function column(coded) {
  if (Array.isArray(coded)) return coded;
  if (!coded.add) return coded.at.map((place) => coded.of[place]);
  let sum = 0;
  return column(coded.add).map((distance) => (sum += distance));
}
function rows(columns, names) {
  const lists = names.map((name) => column(columns[name]));
  return lists[0].map((_, row) => Object.fromEntries(names.map((name, at) => [name, lists[at][row]])));
}
function grouped(items, key) {
  const groups = new Map();
  for (const item of items) {
    const name = key(item);
    if (groups.has(name)) groups.get(name).push(item);
    else groups.set(name, [item]);
  }
  return groups;
}
function read(exploration) {
  const { arms, strata, factors } = exploration;
  const levels = factors.map((factor) => column(exploration.cells.levels[factor]));
  const cells = rows(exploration.cells, ["label", "arm", "stratum", "baseline", "untrained"]).map((cell, place) => ({
    ...cell, arm: arms[cell.arm].name, stratum: strata[cell.stratum], levels: levels.map((of) => of[place]), runs: [],
  }));
  for (const cell of cells) cell.baseline = cells[cell.baseline];
  const runs = rows(exploration.runs, OF_RUN).map((run) => ({ ...run, cell: cells[run.cell] }));
  const byNumber = new Map();
  for (const run of runs) {
    if (!byNumber.has(run.run)) byNumber.set(run.run, run);
    if (run.role === "compare") run.cell.runs.push(run);
  }
  const series = exploration.series.map(({ steps, name, label, ...columns }) => {
    const curves = new Map();
    for (const { run, at, values } of rows(columns, ["run", "at", "values"])) {
      const kept = values.map((value, place) => [steps[at][place], value]).filter(([, value]) => value !== null);
      curves.set(run, { steps: kept.map(([step]) => step), values: kept.map(([, value]) => value) });
    }
    return { name, label, curves };
  });
  const seeds = [...new Set(cells.flatMap((cell) => cell.runs.map((run) => run.seed)))].sort((a, b) => a - b);
  const attempts = grouped(rows(exploration.attempts, OF_ATTEMPT), (attempt) => attempt.run);
  return { ...exploration, cells, runs, byNumber, series, seeds, attempts };
}
// What the lines of the chart are grouped by: the arms, or the levels of a factor, which look as the first arms do.
function groupsOf(data, factor) {
  if (!factor) return data.arms.filter((arm) => data.cells.some((cell) => cell.arm === arm.name));
  const names = [...new Set(data.cells.map((cell) => groupOf(data, cell, factor)))];
  return names.map((name, at) => ({ ...data.arms[at % data.arms.length], name }));
}
function groupOf(data, cell, factor) {
  return factor ? String(cell.levels[data.factors.indexOf(factor)] ?? "–") : cell.arm;
}
// A run of the baseline to compare with: of the same seed, if there is one.
function baselineOf(run) {
  const of = run.cell.baseline.runs;
  return of.find((other) => other.seed === run.seed) ?? of[0];
}
function fieldsOf(data, run) {
  return run && run.config !== null ? { ...data.common, ...data.configs[run.config] } : {};
}
// The names of the fields in which two runs differ.
function differing(data, one, other) {
  const [a, b] = [fieldsOf(data, one), fieldsOf(data, other)];
  const names = new Set([...Object.keys(a), ...Object.keys(b)]);
  return [...names].filter((name) => JSON.stringify(a[name]) !== JSON.stringify(b[name]));
}
// -- numbers, as ablate/units.py writes them, and elements
const SUPERSCRIPT = { "-": "⁻", ...Object.fromEntries([..."⁰¹²³⁴⁵⁶⁷⁸⁹"].entries()) };
// Python rounds a tie to the even digit, JavaScript away from zero: a value just below it is rounded alike. `kept`: significant digits.
function untied(value, kept) {
  const all = value.toExponential(40).replace(/e.*|\D/g, "");
  return /^[02468]50*$/.test(all.slice(kept - 1)) ? value * (1 - 1e-15) : value;
}
function precise(value, kept) {
  return untied(value, kept).toPrecision(kept);
}
function fixed(value, places) {
  const exponent = Number(value.toExponential().split("e")[1]);
  return untied(value, places + exponent + 1).toFixed(places).replace("-", "−");
}
// 3.04×10¹⁴
function power(value, kept = 3) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const [head, exponent] = Number(precise(value, kept)).toExponential().split("e");
  const ten = `10${[...String(Number(exponent))].map((sign) => SUPERSCRIPT[sign]).join("")}`;
  return head === "1" ? ten : `${head.replace("-", "−")}×${ten}`;
}
function digits(value, kept = 4) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e12) return value.toLocaleString("en").replace("-", "−");
  if (value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-3)) return power(value, kept);
  return Number(precise(value, kept)).toLocaleString("en", { maximumFractionDigits: 9 }).replace("-", "−");
}
function count(value) {
  if (value === null || value === undefined) return "–";
  if (Math.abs(value) >= 1e15) return power(value);
  for (const [size, letter] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size * 0.9995) return `${Number(precise(value / size, 3))}${letter}`;
  }
  return String(Number(precise(value, 3)));
}
function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  for (const [size, least, unit] of [[86400, 2 * 86400, "days"], [3600, 5400, "h"], [60, 89.5, "min"]]) {
    if (seconds >= least) return `${Number((seconds / size).toPrecision(seconds < 99.5 * size ? 2 : 6)).toLocaleString("en", { maximumFractionDigits: seconds < 99.5 * size ? 1 : 0 })} ${unit}`;
  }
  return `${Number(seconds.toPrecision(2))} s`;
}
// A value of the metric, with the decimals that it has everywhere.
function measured(metric, value) {
  if (value === null || value === undefined || Math.abs(value) >= 1e9) return power(value);
  return fixed(value, metric.places);
}
// element("td", { class: "n" }, "text", node, …): texts are never read as HTML
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(key, value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}
function find(name) {
  return document.querySelector(`#explore-${name}`);
}
