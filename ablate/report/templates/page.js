"use strict";
const FEW = 8; // rows of a table that are seen at once
// Headers become buttons that sort: numbers by their value, text by the reader's language; what is missing stays last.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  if (body.rows.length > FEW) addFilter(table);
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => row.cells[column].dataset.value ?? "";
      const numeric = head.classList.contains("n");
      const rows = [...body.rows].sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === "" || y === "") return (x === "") - (y === "");
        const order = numeric ? toNumber(x) - toNumber(y) : x.localeCompare(y, undefined, { numeric: true });
        return down ? -order : order;
      });
      body.append(...rows);
    });
  });
}
// A field above a long table that leaves the rows with all its words; words in quotes are one.
function addFilter(table) {
  const rows = [...table.tBodies[0].rows];
  const label = document.createElement("label");
  const field = document.createElement("input");
  const found = document.createElement("span");
  field.type = "search";
  field.id = table.id.replace("table-", "filter-");
  found.setAttribute("role", "status");
  label.append("Filter rows ", field);
  const box = document.createElement("p");
  box.className = "filter";
  box.append(label, found);
  table.closest(".scroll").before(box);
  field.addEventListener("input", () => {
    const typed = field.value.toLowerCase().match(/(?:"[^"]*"?|[^\s"])+/g) ?? [];
    const open = typed.find((word) => word.split('"').length % 2 === 0);
    const words = typed.filter((word) => word !== open).map((word) => word.replace(/"/g, ""));
    let left = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      left += !row.hidden;
    }
    const fault = open ? `${open}: the quote is not closed. ` : "";
    found.textContent = fault + (words.length ? `${left} of ${rows.length} rows` : "");
  });
}
function toNumber(text) {
  return text === "inf" ? Infinity : text === "-inf" ? -Infinity : Number(text);
}
// The value of a mark, at once, under the pointer or the finger.
const tip = document.createElement("div");
tip.id = "tip";
tip.hidden = true;
document.body.append(tip);
for (const mark of document.querySelectorAll("svg .tip")) {
  const title = mark.querySelector("title");
  mark.dataset.tip = title.textContent;
  title.remove();
}
document.addEventListener("pointermove", show);
document.addEventListener("pointerdown", show);
function show(event) {
  const mark = event.target.closest?.("svg .tip");
  tip.hidden = !mark;
  if (!mark) return;
  tip.textContent = mark.dataset.tip;
  tip.style.left = Math.max(4, Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = Math.max(4, event.clientY - tip.offsetHeight - 10) + "px";
}
