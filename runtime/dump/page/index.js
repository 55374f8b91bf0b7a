// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// The page of a run: tables of the events that stand at its end, one JSON object per line, as in events.jsonl.
addEventListener("DOMContentLoaded", () => {
  "use strict";

  const events = [];
  for (const line of document.getElementById("events").textContent.split("\n")) {
    if (line !== "") events.push(JSON.parse(line));
  }
  const of = (kind) => events.filter((event) => event.event === kind);
  const cuts = of("cut");
  const compiled = of("compile");
  const name = (event) => (event.device === 0 ? "" : `mycelya:${event.device} `) + `#${event.program}`;
  const time = (seconds) => `${(1e3 * seconds).toFixed(2)} ms`;
  const body = (table) => document.querySelector(`#${table} tbody`);

  // row adds a row; a number is set to the right, an element stays what it is.
  function row(table, ...cells) {
    const tr = body(table).insertRow();
    for (const cell of cells) {
      const td = tr.insertCell();
      td.className = typeof cell === "number" ? "number" : "text";
      td.append(typeof cell === "number" ? String(cell) : cell);
    }
    return tr;
  }

  // groups are the events that agree in what key makes of them, in the order of their first.
  function groups(list, key) {
    const found = new Map();
    for (const event of list) {
      const of = key(event);
      if (!found.has(of)) found.set(of, []);
      found.get(of).push(event);
    }
    return [...found.values()];
  }

  const [run] = of("run");
  const told = [`${cuts.length} cuts, ${compiled.length} programs`];
  if (run?.passes) told.push(`MYCELYA_PASSES=${run.passes}`);
  if (run?.check) told.push(`MYCELYA_CHECK=${run.check}`);
  document.getElementById("about").textContent = told.join("; ");

  const calls = new Map(groups(cuts, name).map((list) => [name(list[0]), list.length]));
  for (const event of compiled) {
    let link = name(event);
    if (event.folder !== "") {
      link = document.createElement("a");
      link.href = `${encodeURIComponent(event.folder)}/graph.html`;
      link.textContent = name(event);
    }
    const numbers = [event.ops, event.nodes, event.steps, event.buffers, calls.get(name(event)) ?? 0];
    const why = event.error === "" ? event.why : `could not be compiled: ${event.error}`;
    const tr = row("programs", link, event.place, event.reason, ...numbers, time(event.seconds), why);
    tr.classList.toggle("failed", event.error !== "");
  }

  const sum = (list, field) => list.reduce((total, event) => total + event[field], 0);
  for (const list of groups(cuts, (event) => `${event.reason} ${event.place}`).sort((a, b) => b.length - a.length)) {
    const programs = groups(list, name).map((same) => name(same[0]));
    const most = 8;
    const more = programs.length > most ? ` and ${programs.length - most} more` : "";
    row("cuts", list[0].reason, list[0].place, list.length, sum(list, "ops"), programs.slice(0, most).join(" ") + more);
  }

  for (const list of groups(of("pass"), (event) => event.pass)) {
    const rules = {};
    for (const event of list) {
      for (const [rule, n] of Object.entries(event.rules)) rules[rule] = (rules[rule] ?? 0) + n;
    }
    const text = Object.entries(rules).sort().map(([rule, n]) => `${rule} ${n}`);
    row("passes", list[0].pass, list.length, list.filter((event) => event.changed).length, text.join(", "), time(sum(list, "seconds")));
  }
});
