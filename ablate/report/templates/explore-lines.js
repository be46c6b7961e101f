// The lines of the chart: curves of runs, smoothed, and their means, with the range of the axes that shows them.
const AXES = {
  step: { title: "optimiser step", of: null, write: count },
  tokens: { title: "training tokens", of: "tokens", write: count },
  flops: { title: "training FLOPs", of: "flops", write: power },
  time: { title: "training time (s)", of: "seconds", write: duration },
};
const EARLY = 0.2; // share of training, with its steep fall, that the vertical axis does not fit
const SMOOTHED = 200; // parts of training, of each of which a smoothed curve keeps the chosen weight: points of the longest curves
const FEW = 8; // points of a line that the vertical axis fits whole
const [TWO, MORE] = [1 / 15, 1 / 6]; // shares of an axis that two lines, and that more lines, need to be distinguishable
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
  // at the steps of the line with the fewest points, where the others may have to be interpolated
  const fewest = whole.reduce((one, other) => (other.steps.length < one.steps.length ? other : one));
  const first = whole.reduce((most, line) => Math.max(most, line.steps[0]), 0);
  const steps = fewest.steps.filter((step) => step >= first);
  const at = whole.map((line) => ({ xs: valuesAt(steps, line.steps, line.xs), ys: valuesAt(steps, line.steps, line.ys) }));
  const over = (name, join, start) => steps.map((_, place) => at.reduce((found, line) => join(found, line[name][place]), start));
  const of = (name) => over(name, (sum, value) => sum + value, 0).map((sum) => sum / whole.length);
  const mean = {
    key: JSON.stringify([whole[0].group, whole[0].cell.stratum]), group: whole[0].group, cell: whole[0].cell, runs: whole.flatMap((line) => line.runs), steps, xs: of("xs"), ys: of("ys"),
    low: over("ys", Math.min, Infinity), high: over("ys", Math.max, -Infinity),
  };
  return [mean, ...early];
}
// Values of a line at steps between its first and last one.
function valuesAt(steps, known, values) {
  let after = 0;
  return steps.map((step) => {
    while (known[after] < step) after += 1;
    if (known[after] === step) return values[after];
    const share = (step - known[after - 1]) / (known[after] - known[after - 1]);
    return values[after - 1] + share * (values[after] - values[after - 1]);
  });
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
// The ranges of a panel's axes: those of all points, or without the early steps of lines with many points, the lines of
// cells that did not learn and the lines far from the others. A line that ends outside is beyond them.
function ranges(lines, points, everything, goal) {
  if (!points.length) return { x: [0, 1], y: [0, 1], beyond: [] };
  const x = spread(points.map((point) => point.x));
  const learnt = lines.filter((line) => !line.cell.untrained);
  const fitted = learnt.length ? learnt : lines;
  const counts = new Map();
  for (const point of points) counts.set(point.k, (counts.get(point.k) ?? 0) + 1);
  const late = points.filter((point) => everything || counts.get(point.k) <= FEW || point.x >= EARLY * x[1]);
  const beyond = [...lines.filter((line) => !fitted.includes(line)), ...farLines(fitted, grouped(late, (point) => point.k), goal)];
  const far = new Set(everything ? [] : beyond.map((line) => line.key));
  const near = late.filter((point) => !far.has(point.k));
  const of = near.length ? near : points;
  const y = roomy(spread(of.flatMap((point) => [point.low, point.high])));
  const outside = (value) => value < y[0] || value > y[1];
  return { x, y, beyond: everything ? [] : lines.filter((line) => outside(line.ys.at(-1))) };
}
function spread(values) {
  return values.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
}
// A range with room at both ends; that of a single value is 1 wide. A range above 0 stays above it, for a log axis.
function roomy([low, high]) {
  if (low === high) return [low - 0.5, high + 0.5];
  const room = 0.04 * (high - low);
  return [low > 0 ? Math.max(low - room, low / 2) : low - room, high + room];
}
// The lines that the vertical axis leaves out, as `near` of the figures does: the furthest, never the best, for as long as two
// thirds of all, or more than half that lie before a gap, end too close together to be distinguishable, and would have more than
// twice the room.
function farLines(lines, late, goal) {
  if (lines.length < 3) return [];
  const all = lines.map((line) => {
    const end = line.ys.at(-1);
    const ends = [line.low?.at(-1) ?? end, line.high?.at(-1) ?? end];
    return { line, end, ends, extent: spread((late.get(line.key) ?? []).flatMap((point) => [point.low, point.high]).concat(ends)) };
  });
  const middles = all.map((one) => (one.ends[0] + one.ends[1]) / 2).sort((a, b) => a - b);
  const half = middles.length / 2;
  const middle = (middles[Math.ceil(half) - 1] + middles[Math.floor(half)]) / 2;
  const best = all.reduce((one, other) => ((goal === "max" ? other.end > one.end : other.end < one.end) ? other : one));
  const apart = (one) => (one === best ? 0 : Math.max(...one.ends.map((end) => Math.abs(end - middle))));
  all.sort((a, b) => apart(a) - apart(b));
  const reach = (name) => {
    let [low, high] = [Infinity, -Infinity];
    return all.map((one) => {
      [low, high] = [Math.min(low, one[name][0]), Math.max(high, one[name][1])];
      return high - low;
    });
  };
  const [told, whole] = [reach("ends"), reach("extent")];
  const least = Math.floor(all.length / 2); // place of the last of those that are always kept
  let last = all.length - 1;
  const squeezed = (at) => {
    const beside = told[3 * (at + 1) > 2 * all.length ? last : at + 1]; // without a gap only a few are left out
    return told[at] > 0 && told[at] < (at > 1 ? MORE : TWO) * beside && whole[at] < whole[last] / 2;
  };
  while (last > least && told.slice(least, last).some((_, at) => squeezed(least + at))) last -= 1;
  return all.slice(last + 1).map((one) => one.line);
}
