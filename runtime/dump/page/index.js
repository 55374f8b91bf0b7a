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

  // ---- Time on the worker ----

  const called = of("call");
  const steps = new Map(of("steps").map((event) => [name(event), event]));
  const places = new Map(compiled.map((event) => [name(event), event.place]));
  const micros = (seconds) => `${(1e6 * seconds).toFixed(1)} µs`;
  const percent = (part, whole) => `${(100 * part / whole).toFixed(1)} %`;
  const short = (place) => place.split("/").slice(-2).join("/");

  // svg makes an element of a drawing.
  function svg(tag, attributes, ...children) {
    const element = document.createElementNS(document.getElementById("blank").namespaceURI, tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }

  // drawing is a row of blocks: {from, took, hue, title, click}, times in seconds.
  function drawing(blocks, rows) {
    const end = Math.max(...blocks.map((block) => block.from + block.took), 1e-9);
    const height = 24;
    const out = svg("svg", { viewBox: `0 0 1000 ${height * rows}`, preserveAspectRatio: "none", height: height * rows });
    for (const block of blocks) {
      const rect = svg("rect", {
        x: 1000 * block.from / end,
        width: Math.max(1000 * block.took / end, 0.1),
        y: height * block.row + 1,
        height: height - 2,
        fill: `hsl(${block.hue} 60% 55%)`,
      }, svg("title", {}, block.title));
      if (block.click) rect.addEventListener("click", block.click);
      out.append(rect);
    }
    return out;
  }

  const hue = (number) => (137 * number) % 360;

  function show(event) {
    const { names, places: lines } = steps.get(name(event));
    const blocks = event.steps.map(([number, from, took]) => ({
      from, took, row: 0, hue: hue(number), title: `${names[number]} at ${short(lines[number])}: ${micros(took)}`,
    }));
    const title = document.createElement("p");
    title.textContent = `A call of ${name(event)} at ${places.get(name(event)) ?? "?"}, ${time(event.seconds)}:`;
    document.getElementById("call").replaceChildren(title, drawing(blocks, 1));
  }

  if (called.length > 0) {
    document.getElementById("times").hidden = false;
    document.getElementById("enough").textContent = of("enough").map((event) => event.text).join(" ");
    const devices = [...new Set(called.map((event) => event.device))].sort((a, b) => a - b);
    const blocks = called.map((event) => ({
      from: event.began, took: event.seconds, row: devices.indexOf(event.device), hue: hue(event.program),
      title: `${name(event)} at ${places.get(name(event)) ?? "?"}: ${time(event.seconds)}`, click: () => show(event),
    }));
    const picture = drawing(blocks, devices.length);
    document.getElementById("timeline").append(picture);
    document.getElementById("zoom").addEventListener("input", (event) => {
      picture.style.width = `${100 * 2 ** event.target.valueAsNumber}%`;
    });
    const all = sum(called, "seconds");
    const byTime = (a, b) => sum(b, "seconds") - sum(a, "seconds");
    for (const list of groups(called, name).sort(byTime)) {
      const took = sum(list, "seconds");
      row("busy", name(list[0]), places.get(name(list[0])) ?? "?", list.length, time(took), micros(took / list.length),
        percent(took, all));
    }
    const ran = called.flatMap((event) => event.steps.map(([number, , seconds]) => {
      const { names, places: lines } = steps.get(name(event));
      return { op: names[number], place: lines[number], seconds };
    }));
    const link = (place) => {
      const line = document.createElement("span");
      line.textContent = short(place) || "?";
      line.title = place;
      return line;
    };
    const bills = new Map(of("bill").map((event) => [event.bill, event.lines])); // the last one of each number
    const waits = [...bills.values()].flat().map((line) => ({ ...line, seconds: 0 }));
    const ranOrWaited = [...ran.map((event) => ({ ...event, round_trips: 0, stalls: 0, stall_seconds: 0 })), ...waits];
    const byTimeAndWait = (a, b) => byTime(a, b) || sum(b, "stall_seconds") - sum(a, "stall_seconds");
    for (const list of groups(ranOrWaited, (event) => event.place).sort(byTimeAndWait)) {
      const took = sum(list, "seconds");
      const callers = [...new Set(list.flatMap((event) => event.callers ?? []))];
      row("lines", link(list[0].place), time(took), percent(took, all), sum(list, "round_trips"), sum(list, "stalls"),
        time(sum(list, "stall_seconds")), callers.map(short).join(", "));
    }
    for (const list of groups(ran, (event) => `${event.op} ${event.place}`).sort(byTime)) {
      const took = sum(list, "seconds");
      row("ops", list[0].op, link(list[0].place), list.length, time(took), micros(took / list.length),
        percent(took, all));
    }
  }
});
