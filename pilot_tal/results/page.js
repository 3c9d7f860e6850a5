"use strict";
// The page can be read without this script. With it columns sort and a field finds a class.

// A number where the cell shows one, null where it shows a dash, otherwise its text.
function valueOf(cell) {
  const text = (cell.firstChild ? cell.firstChild.textContent : "").trim();
  if (text === "–" || text === "") return null;
  const plain = text.replace("−", "-");
  return /^[-+]?\d+(\.\d+)?$/.test(plain) ? Number(plain) : text;
}

// Dashes last, whichever way; numbers before texts.
function compare(a, b, sign) {
  if (a === null || b === null) return (a === null) - (b === null);
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return sign * (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
}

// A click on a title sorts: largest number or first name above, then the other way round, then as it was.
function makeSortable(table) {
  const body = table.tBodies[0], original = [...body.rows];
  const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const values = new Map(original.map((row) => [row, valueOf(row.cells[column])]));
      const numbers = [...values.values()].some((value) => typeof value === "number");
      const first = numbers ? "descending" : "ascending", second = numbers ? "ascending" : "descending";
      const before = head.getAttribute("aria-sort");
      const turn = before === null ? first : before === first ? second : null;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      if (turn) head.setAttribute("aria-sort", turn);
      const sign = turn === "descending" ? -1 : 1;
      body.append(...(turn ? [...original].sort((a, b) => compare(values.get(a), values.get(b), sign)) : original));
    });
  });
}

// A field above the table of classes that hides the classes whose names do not hold what is typed.
function makeSearch(table) {
  const label = document.createElement("label"), field = document.createElement("input");
  label.className = "search";
  label.append("Find a class: ", field);
  field.type = "search";
  table.parentElement.before(label);
  field.addEventListener("input", () => {
    const wanted = field.value.trim().toLowerCase();
    for (const row of table.tBodies[0].rows) row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted);
  });
}

document.querySelectorAll("table:not(.conditions)").forEach(makeSortable);
document.querySelectorAll("table.classes").forEach(makeSearch);
