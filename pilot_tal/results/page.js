"use strict";
// The page can be read without this script. With it columns sort, plots answer a pointer, and a field finds a class.
// Names go in as text, never as markup.

function add(parent, tag, text) {
  const element = document.createElement(tag);
  element.textContent = text;
  parent.append(element);
  return element;
}

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

const percent = (value) => (value === null ? "–" : value.toFixed(1) + " %");

function describe(data, place, parent, role) {
  const box = add(parent, "div", "");
  add(box, "b", role + data.names[place]);
  add(box, "span", data.images[place] + " training images, " + (data.tail[place] ? "tail" : "head"));
  data.variants.forEach((variant, i) => add(box, "span", variant + ": " + percent(data.accuracy[i][place])));
}

// The classes under a point of a plot, as places among the classes from many to few images; none if there is none.
function classesAt(panel, data, x, y) {
  const [left, top, width, height] = panel.box, count = data.names.length;
  const right = (x - left) / width, down = (y - top) / height;
  if (right < 0 || right >= 1 || down < 0 || down >= 1) return [];
  return panel.kind === "columns" ? [Math.floor(right * count)] : [down, right].map((share) => Math.floor(share * count));
}

function makeAnswering(figure, data, tip) {
  const svg = figure.querySelector("svg"), panels = JSON.parse(figure.dataset.panels);
  const answer = (event) => {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const found = panels.map((panel) => classesAt(panel, data, point.x, point.y)).find((places) => places.length) || [];
    tip.replaceChildren();
    tip.hidden = !found.length;
    found.forEach((place, i) => describe(data, place, tip, found.length < 2 ? "" : i ? "taken for: " : "class: "));
    const room = document.documentElement;
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, room.clientWidth - tip.offsetWidth - 4)) + "px";
    const below = event.clientY + 14 + tip.offsetHeight < room.clientHeight;
    tip.style.top = Math.max(4, below ? event.clientY + 14 : event.clientY - 14 - tip.offsetHeight) + "px";
  };
  svg.addEventListener("pointermove", answer);
  svg.addEventListener("pointerdown", answer);
  svg.addEventListener("pointerleave", () => { tip.hidden = true; });
}

// A field that lists the classes whose names hold what is typed; a click on one leads to its row.
function makeSearch(data, rows) {
  const box = add(document.querySelector("header"), "div", "");
  box.className = "search";
  const label = add(box, "label", "Find a class: ");
  const field = add(label, "input", "");
  field.type = "search";
  const list = add(box, "ul", "");
  list.setAttribute("aria-live", "polite");
  field.addEventListener("input", () => {
    const wanted = field.value.trim().toLowerCase();
    list.replaceChildren();
    if (!wanted) return;
    const found = data.names.map((name, place) => [name, place]).filter((hit) => hit[0].toLowerCase().includes(wanted));
    found.slice(0, 12).forEach(([name, place]) => {
      const values = data.variants.map((variant, i) => variant + " " + percent(data.accuracy[i][place]));
      const text = [name, data.images[place] + " training images", ...values].join(" · ");
      add(add(list, "li", ""), "button", text).addEventListener("click", () => {
        document.querySelectorAll("tr.found").forEach((row) => row.classList.remove("found"));
        rows[place].closest("details").open = true;
        rows[place].classList.add("found");
        rows[place].scrollIntoView({ block: "center" });
      });
    });
    if (found.length > 12) add(list, "li", "and " + (found.length - 12) + " more");
    if (!found.length) add(list, "li", "no class");
  });
}

document.querySelectorAll("table:not(.conditions)").forEach(makeSortable);
const section = document.querySelector("main > section[id]");
if (section) {
  const tip = add(document.body, "div", "");
  tip.id = "tip";
  tip.hidden = true;
  const data = JSON.parse(section.querySelector("script").textContent);
  section.querySelectorAll("figure[data-panels]").forEach((figure) => makeAnswering(figure, data, tip));
  makeSearch(data, [...section.querySelector("table.classes").tBodies[0].rows]);
}
