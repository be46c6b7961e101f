// The lines of the chart: curves of runs, smoothed, and their means, with the range of the axes that shows them.
const AXES = {
  step: { title: "optimiser step", of: null, write: count },
  tokens: { title: "training tokens", of: "tokens", write: count },
  flops: { title: "training FLOPs", of: "flops", write: power },
  time: { title: "training time (s)", of: "seconds", write: duration },
};
const EARLY = 0.2; // share of training, with its steep fall, that the vertical axis does not fit
const SMOOTHED = 200; // parts of training, of each of which a smoothed curve keeps the chosen weight: points of the longest curves
const FAR = 3; // a line that ends this many times as far out as three quarters of them is not fitted
function axesOf(data, series) {
  const known = (of) => [...series.curves.keys()].some((run) => {
    const its = data.byNumber.get(run);
    return its && its.steps && its[of] !== null;
  });
  return Object.keys(AXES).filter((name) => AXES[name].of === null || known(AXES[name].of));
}
// Points of one run on the chosen axis; none if the run lacks what the axis needs. `whole`: steps of its whole training.
function pointsOf(curve, run, x, smoothing, whole) {
  const of = AXES[x].of;
  if (of && (!run.steps || run[of] === null)) return null;
  const per = of ? run[of] / run.steps : 1;
  return { xs: curve.steps.map((step) => step * per), ys: smoothed(curve.steps, curve.values, smoothing, whole / SMOOTHED), steps: curve.steps };
}
// Exponential moving average over uneven steps, whose start is corrected, as of Adam's moments. An average keeps `weight`
// of its share for each `unit` steps up to the next point, so that few points, far apart, hardly lag behind.
function smoothed(steps, values, weight, unit) {
  if (!weight) return values;
  let [sum, share] = [0, 0];
  return values.map((value, at) => {
    const gap = at ? steps[at] - steps[at - 1] : (steps[1] ?? Infinity) - steps[0]; // nothing is before the first point
    const kept = weight ** (gap / unit);
    sum = kept * sum + (1 - kept) * value;
    share = kept * share + 1 - kept;
    return sum / share;
  });
}
function linesOf(data, series, chosen) {
  const single = [];
  for (const cell of data.cells) {
    const group = groupOf(data, cell, chosen.group);
    if (chosen.hidden.has(group) || (chosen.stratum !== null && cell.stratum !== chosen.stratum)) continue;
    const whole = Math.max(...cell.runs.map((run) => series.curves.get(run.run)?.steps.at(-1) ?? 0));
    for (const run of cell.runs) {
      const curve = series.curves.get(run.run);
      if (!curve || chosen.hiddenSeeds.has(run.seed)) continue;
      const points = pointsOf(curve, run, chosen.x, chosen.smooth, whole);
      if (points && points.xs.length) single.push({ key: `${cell.label} ${run.run}`, group, cell, runs: [run], ...points });
    }
  }
  if (chosen.lines === "runs") return single;
  return [...grouped(single, (line) => JSON.stringify([line.group, line.cell.stratum])).values()].flatMap(meanOf);
}
// The mean of the runs of a group that went furthest, with their range; the others stay single lines.
function meanOf(lines) {
  const end = (line) => line.steps[line.steps.length - 1];
  const furthest = Math.max(...lines.map(end));
  const whole = lines.filter((line) => end(line) === furthest);
  const early = lines.filter((line) => end(line) !== furthest).map((line) => ({ ...line, early: true }));
  const at = new Map();
  for (const line of whole) {
    line.steps.forEach((step, place) => {
      if (!at.has(step)) at.set(step, { x: 0, y: 0, low: Infinity, high: -Infinity, n: 0 });
      const point = at.get(step);
      const y = line.ys[place];
      point.x += line.xs[place];
      point.y += y;
      point.low = Math.min(point.low, y);
      point.high = Math.max(point.high, y);
      point.n += 1;
    });
  }
  const steps = [...at.keys()].filter((step) => at.get(step).n === whole.length).sort((a, b) => a - b);
  const of = (name) => steps.map((step) => at.get(step)[name] / whole.length);
  const mean = {
    key: JSON.stringify([whole[0].group, whole[0].cell.stratum]), group: whole[0].group, cell: whole[0].cell, runs: whole.flatMap((line) => line.runs), steps, xs: of("x"), ys: of("y"),
    low: steps.map((step) => at.get(step).low), high: steps.map((step) => at.get(step).high),
  };
  return [mean, ...early];
}
// The rows that Vega draws: one for each point.
function drawn(lines, xlog, ylog) {
  const found = [];
  for (const line of lines) {
    const kind = line.early ? "early" : line.low ? "mean" : "run";
    const [k, a, s] = [line.key, line.group, line.cell.stratum];
    for (let at = 0; at < line.xs.length; at += 1) {
      const [x, y] = [line.xs[at], line.ys[at]];
      if ((xlog && x <= 0) || (ylog && y <= 0)) continue;
      const low = line.low ? (ylog ? Math.max(line.low[at], Number.MIN_VALUE) : line.low[at]) : y;
      found.push({ k, a, s, kind, x, y, low, high: line.high ? line.high[at] : y });
    }
    const last = line.xs.length - 1;
    if (line.runs.length === 1 && line.runs[0].status === "diverged" && !(xlog && line.xs[last] <= 0)) {
      found.push({ k, a, s, kind: "end", x: line.xs[last], y: line.ys[last], low: line.ys[last], high: line.ys[last] });
    }
  }
  return found;
}
// The ranges of a panel's axes: those of all points, or without the early steps, the lines of cells that did not learn and
// the lines far from the others. A line that ends outside is beyond them.
function ranges(lines, points, everything) {
  if (!points.length) return { x: [0, 1], y: [0, 1], beyond: [] };
  const spread = (values) => values.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
  const x = spread(points.map((point) => point.x));
  const learnt = lines.filter((line) => !line.cell.untrained);
  const fitted = learnt.length ? learnt : lines;
  const beyond = [...lines.filter((line) => !fitted.includes(line)), ...farLines(fitted)];
  const far = new Set(everything ? [] : beyond.map((line) => line.key));
  const start = everything ? x[0] : x[0] + EARLY * (x[1] - x[0]);
  const near = points.filter((point) => !far.has(point.k));
  const late = near.filter((point) => point.x >= start);
  const of = late.length ? late : near;
  const y = roomy(spread(of.flatMap((point) => [point.low, point.high])));
  const outside = (value) => value < y[0] || value > y[1];
  return { x, y, beyond: everything ? [] : lines.filter((line) => outside(line.ys.at(-1))) };
}
// A range with room at both ends; that of a single value is 1 wide. A range above 0 stays above it, for a log axis.
function roomy([low, high]) {
  if (low === high) return [low - 0.5, high + 0.5];
  const room = 0.04 * (high - low);
  return [low > 0 ? Math.max(low - room, low / 2) : low - room, high + room];
}
function farLines(lines) {
  const ends = lines.map((line) => line.ys[line.ys.length - 1]);
  if (ends.length < 3) return [];
  const sorted = [...ends].sort((a, b) => a - b);
  const middle = sorted[Math.floor(sorted.length / 2)];
  const distances = ends.map((end) => Math.abs(end - middle));
  const ordered = [...distances].sort((a, b) => a - b);
  const limit = FAR * ordered[Math.floor((3 * (ordered.length - 1)) / 4)];
  return limit > 0 ? lines.filter((_, at) => distances[at] > limit) : [];
}
