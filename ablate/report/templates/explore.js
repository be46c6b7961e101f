// The section "Explore": what its reader chose, and what changes it. `update` takes what ablate.report.explore.exploration returns; calling it again keeps all choices.
const state = {
  data: null, series: "", stratum: "", lines: "", x: "step", xlog: false, ylog: false, smooth: 0,
  hiddenArms: new Set(), hiddenSeeds: new Set(), filter: "", sort: "run", down: false, shown: 50, open: [],
};
function update(exploration) {
  state.data = read(exploration);
  document.querySelector("#explore").hidden = false;
}
