"use strict";
// Asks the board that served this page for what changed, every two seconds while the page is seen.
const EVERY = 2000;
const study = document.body.dataset.study; // "" for a list of studies
const explored = document.querySelector("#explore");
const shown = new Map(); // part → its HTML as the board sent it
const known = { tag: "", revision: 0, table: null, series: new Map(), due: 0, over: false, busy: false, next: 0 };
const pulse = document.querySelector("#pulse");

function say(text, off = false) {
  pulse.textContent = text;
  pulse.classList.toggle("off", off);
}
class Problem extends Error {}
async function ask(path, headers = {}) {
  let answer;
  try {
    answer = await fetch(path, { headers, cache: "no-store" });
  } catch {
    throw new Problem("The board does not answer: it has ended, or the connection is lost.");
  }
  if (answer.status === 403) {
    known.over = true;
    throw new Problem("This board was started again: open the address that it printed.");
  }
  return answer;
}
async function tick() {
  if (!document.hidden) {
    known.busy = true;
    try {
      await live();
      say(known.over ? `The run has ended, and its board with it; "ablate board ${study}" shows it again.` : `Updated ${new Date().toLocaleTimeString()}.`, known.over);
      if (explored) await grow();
    } catch (error) {
      say(error.message, true);
      if (!(error instanceof Problem)) console.error(error);
    }
  }
  known.busy = false;
  if (!known.over) known.next = setTimeout(tick, EVERY);
}
async function live() {
  const answer = await ask(`live?study=${encodeURIComponent(study)}`, known.tag ? { "if-none-match": known.tag } : {});
  if (answer.status !== 200) return;
  const found = await answer.json();
  document.title = found.title;
  document.querySelector("#question").textContent = found.question || "Studies";
  const error = document.querySelector("#error");
  if (error.textContent !== found.error) error.textContent = found.error;
  error.hidden = !found.error;
  let whole = true;
  for (const part of document.querySelectorAll("[id^=part-]")) {
    whole = replace(part, found.parts[part.id.slice(5)] ?? "") && whole;
  }
  if (whole) known.tag = answer.headers.get("etag");
  known.over = found.ended;
}
// Shows a part anew, with what the reader opened, scrolled and focused; not while text in it is selected.
function replace(part, html) {
  if (shown.get(part.id) === html) return true;
  const chosen = getSelection();
  if (!chosen.isCollapsed && part.contains(chosen.anchorNode)) return false;
  const open = new Set([...part.querySelectorAll("details[open]")].map((one) => one.dataset.key));
  const scrolled = [...part.querySelectorAll(".scroll, pre")].map((one) => [one.scrollLeft, one.scrollTop]);
  const focusable = () => [...part.querySelectorAll("a, summary, [tabindex]")];
  const focused = focusable().indexOf(document.activeElement);
  part.innerHTML = html;
  part.hidden = !html;
  for (const one of part.querySelectorAll("details")) one.open = open.has(one.dataset.key);
  part.querySelectorAll(".scroll, pre").forEach((one, at) => { if (scrolled[at]) [one.scrollLeft, one.scrollTop] = scrolled[at]; });
  if (focused >= 0) focusable()[focused]?.focus({ preventScroll: true });
  shown.set(part.id, html);
  return true;
}
// The curves: additions to what this page has, until the board sends all of them.
async function grow() {
  if (performance.now() < known.due && !known.over) return;
  const reading = document.querySelector("#reading");
  reading.hidden = Boolean(known.table);
  const answer = await ask(`growth?study=${encodeURIComponent(study)}&since=${known.revision}`);
  if (answer.status !== 200) return; // nothing new, or an error, which `live` shows
  const found = await answer.json();
  const begun = performance.now();
  if (found.whole) known.series = new Map();
  if (found.table) {
    known.table = found.table;
    const { role } = found.table.runs;
    if (!known.revision && !(role.of ?? role).includes("compare")) ablateExplore.state.others = true; // it tunes first
  }
  for (const { name, label, curves } of found.series) {
    if (!known.series.has(name)) known.series.set(name, { label, curves: new Map() });
    const all = known.series.get(name).curves;
    for (const [run, steps, values] of curves) {
      if (steps.length) all.set(run, { steps, values });
      else all.delete(run);
    }
  }
  const series = [...known.series].filter(([, one]) => one.curves.size).map(([name, { label, curves }]) => ({
    name, label, run: [...curves.keys()], at: [...curves.keys()].map((_, at) => at),
    steps: [...curves.values()].map((one) => one.steps), values: [...curves.values()].map((one) => one.values),
  }));
  if (known.table) await ablateExplore.update({ ...known.table, series, thinned: [] });
  known.revision = found.revision;
  reading.hidden = true;
  known.due = performance.now() + 10 * (performance.now() - begun); // drawing thousands of curves takes long
}
document.addEventListener("visibilitychange", () => {
  if (document.hidden || known.over || known.busy) return;
  clearTimeout(known.next);
  tick();
});
tick();
