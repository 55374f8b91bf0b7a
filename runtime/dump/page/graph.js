// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// The page of one program. A value's number (data-v) and an origin's (data-o) are the same in all columns, so lighting
// one up is a query. There is one listener for each kind of event: lines and values have none, however many there are.
(() => {
  "use strict";

  const main = document.querySelector("main");
  const search = document.getElementById("search");
  const status = document.getElementById("status");
  const columns = [...main.querySelectorAll(".column")];
  const marks = ["lit", "lit-line", "lit-origin"];
  let current = main.querySelector(".line"); // the line that keys are about
  let texts = null; // of all lines, once something is searched
  let hits = [];
  let hit = -1;

  const say = (text) => {
    status.textContent = text;
  };
  const plural = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;

  function unmark(...classes) {
    for (const name of classes) {
      for (const element of main.querySelectorAll(`.${name}`)) {
        element.classList.remove(name);
      }
    }
  }

  // reveal scrolls a column, and nothing else, so that an element of it is in sight.
  function reveal(element) {
    const lines = element.closest(".lines");
    if (!lines) return;
    const box = lines.getBoundingClientRect();
    const { top, bottom } = element.getBoundingClientRect();
    if (top < box.top || bottom > box.bottom) {
      lines.scrollTop += (top + bottom - box.top - box.bottom) / 2;
    }
  }

  // light marks all that a query finds, and its lines, and shows the first of each column but the one with the query.
  function light(query, lineMark, what, from) {
    unmark(...marks);
    let places = 0;
    let stages = 0;
    for (const column of columns) {
      const found = column.querySelectorAll(`.line ${query}`);
      for (const element of found) {
        element.classList.add("lit");
        element.closest(".line").classList.add(lineMark);
      }
      places += found.length;
      stages += found.length > 0;
      if (found.length > 0 && column !== from && !column.classList.contains("folded")) reveal(found[0]);
    }
    say(`${what}: ${plural(places, "place")} in ${stages} of ${plural(columns.length, "column")}`);
  }

  function activate(element) {
    const column = element.closest(".column");
    if (element.dataset.o !== undefined) {
      light(`[data-o="${element.dataset.o}"]`, "lit-origin", element.textContent.replace(/^# /, ""), column);
    } else {
      light(`[data-v="${element.dataset.v}"]`, "lit-line", element.textContent, column);
    }
  }

  // go makes a line the current one; its values can be reached by Tab, those of other lines can't.
  function go(line, focus = true) {
    const reach = (of, index) => {
      if (!of) return;
      for (const element of [of, ...of.querySelectorAll("[data-v], [data-o]")]) {
        if (index === null) element.removeAttribute("tabindex");
        else element.tabIndex = index;
        if (element !== of) element.setAttribute("role", "button");
      }
    };
    reach(current, null);
    current = line;
    reach(line, 0);
    if (focus) line.focus({ preventScroll: true });
    reveal(line);
  }

  // visit goes to a line and lights what it defines.
  function visit(line) {
    if (!line) return;
    go(line);
    const value = line.querySelector("[data-v]");
    if (value) activate(value);
    else unmark(...marks);
  }

  const next = (line) => line.nextElementSibling ?? line.parentElement.nextElementSibling?.firstElementChild;
  const previous = (line) => line.previousElementSibling ?? line.parentElement.previousElementSibling?.lastElementChild;

  // across goes to the line of the same value in the column beside, or to one at the same height.
  function across(step) {
    let i = columns.indexOf(current.closest(".column")) + step;
    while (columns[i]?.classList.contains("folded")) i += step;
    if (!columns[i]) return;
    const same = columns[i].querySelector(".line b.lit, .line .lit");
    const top = current.getBoundingClientRect().top;
    const lines = columns[i].querySelector(".lines");
    const index = Math.floor((lines.scrollTop + top - lines.getBoundingClientRect().top) / current.offsetHeight);
    const all = lines.querySelectorAll(".line");
    visit(same?.closest(".line") ?? all[Math.min(Math.max(index, 0), all.length - 1)]);
  }

  function fold(column) {
    const button = column.querySelector("h2 > button");
    const folded = column.classList.toggle("folded");
    button.setAttribute("aria-expanded", String(!folded));
    if (folded && column.contains(document.activeElement)) button.focus();
  }

  function find() {
    unmark("hit");
    hits = [];
    hit = -1;
    const what = search.value.toLowerCase();
    if (what === "") return say("");
    texts ??= [...main.querySelectorAll(".line")].map((line) => [line, line.textContent.toLowerCase()]);
    for (const [line, text] of texts) {
      if (text.includes(what)) {
        line.classList.add("hit");
        hits.push(line);
      }
    }
    say(`${plural(hits.length, "line")} with ${search.value}`);
    if (hits.length > 0) reveal(hits[0]);
  }

  function hop(step) {
    if (hits.length === 0) return;
    hit = hit < 0 && step < 0 ? hits.length - 1 : (hit + step + hits.length) % hits.length;
    const column = hits[hit].closest(".column");
    if (column.classList.contains("folded")) fold(column);
    visit(hits[hit]);
    say(`${hit + 1} of ${plural(hits.length, "line")} with ${search.value}`);
  }

  function clear() {
    search.value = "";
    find();
    unmark(...marks);
    if (document.activeElement === search) search.blur();
  }

  const keys = {
    j: () => visit(next(current)),
    ArrowDown: () => visit(next(current)),
    k: () => visit(previous(current)),
    ArrowUp: () => visit(previous(current)),
    h: () => across(-1),
    ArrowLeft: () => across(-1),
    l: () => across(1),
    ArrowRight: () => across(1),
    n: () => hop(1),
    N: () => hop(-1),
    "/": () => search.select(),
    f: () => fold(document.activeElement.closest(".column") ?? current.closest(".column")),
    o: () => {
      const origin = current.querySelector("[data-o]");
      if (origin) activate(origin);
    },
    Escape: clear,
    Enter: () => {
      const element = document.activeElement;
      if (element.matches(".line")) visit(element);
      else if (element.matches("[data-v], [data-o]")) activate(element);
      else return true; // a button, a summary: theirs
    },
  };
  keys[" "] = keys.Enter;

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target === search && event.key !== "Escape") {
      if (event.key === "Enter") hop(1);
      return;
    }
    const key = keys[event.key];
    if (key && key() !== true) event.preventDefault();
  });

  search.addEventListener("input", find);

  main.addEventListener("click", (event) => {
    const button = event.target.closest("h2 > button");
    if (button) return fold(button.closest(".column"));
    const line = event.target.closest(".line");
    if (line) go(line);
    const element = event.target.closest("[data-v], [data-o]") ?? line?.querySelector("[data-v]");
    if (element) activate(element);
  });

  if (current) go(current, false);
})();
