// The exploration as objects: runs, cells and curves. What a column of few values holds: see ablate/report/explore.py.
function column(coded) {
  return Array.isArray(coded) ? coded : coded.at.map((place) => coded.of[place]);
}
function rows(columns, names) {
  const lists = names.map((name) => column(columns[name]));
  return lists[0].map((_, row) => Object.fromEntries(names.map((name, at) => [name, lists[at][row]])));
}
const OF_RUN = ["run", "cell", "seed", "role", "status", "attempts", "metric", "seconds", "steps", "tokens", "flops", "params", "diverged_at", "config"];
const OF_ATTEMPT = ["run", "n", "status", "started", "seconds", "device", "host", "commit", "versions", "note", "error"];
function read(exploration) {
  const { arms, strata, factors } = exploration;
  const levels = factors.map((factor) => column(exploration.cells.levels[factor]));
  const cells = rows(exploration.cells, ["label", "arm", "stratum", "baseline"]).map((cell, place) => ({
    label: cell.label, arm: arms[cell.arm], stratum: strata[cell.stratum], baseline: cell.baseline, place,
    levels: levels.map((of) => of[place]),
  }));
  const runs = rows(exploration.runs, OF_RUN).map((run) => ({ ...run, cell: cells[run.cell] }));
  const byNumber = new Map();
  for (const run of runs) if (!byNumber.has(run.run)) byNumber.set(run.run, run);
  const attempts = grouped(rows(exploration.attempts, OF_ATTEMPT), (one) => one.run);
  const series = exploration.series.map(({ name, label, steps, ...columns }) => {
    const curves = rows(columns, ["run", "at", "values"]);
    return { name, label, curves: new Map(curves.map((curve) => [curve.run, { steps: steps[curve.at], values: curve.values }])) };
  });
  const seeds = [...new Set(runs.filter((run) => run.role === "compare").map((run) => run.seed))].sort((a, b) => a - b);
  return { ...exploration, cells, runs, byNumber, attempts, series, seeds };
}
function grouped(items, key) {
  const groups = new Map();
  for (const item of items) {
    const of = key(item);
    if (groups.has(of)) groups.get(of).push(item);
    else groups.set(of, [item]);
  }
  return groups;
}
