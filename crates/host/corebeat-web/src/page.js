"use strict";
// Draws charts into the tables of the page, and keeps a live page up to date. Texts of programs
// enter the page by textContent only.
(() => {
  const SHARES = ["user", "spin", "system", "lock", "park", "wait", "sleep"];
  const POINTS_MAX = 300, ROWS_MAX = 500, WIDTH = 600, HEIGHT = 100;
  const UNKNOWN = "–";
  const $ = (id) => document.getElementById(id);
  const body = (id) => document.querySelector("#" + id + " tbody");

  const make = (name, text, className) => {
    const element = document.createElement(name);
    if (text !== undefined) element.textContent = text;
    if (className) element.className = className;
    return element;
  };
  const draw = (name, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    return element;
  };
  const setText = (element, text) => {
    if (element.textContent !== text) element.textContent = text;
  };
  const percent = (share) => (share === null ? UNKNOWN : Math.round(share / 10) + "%");
  const number = (value, digits) => (value === null ? UNKNOWN : value.toFixed(digits));

  // Charts have paths and are drawn while they are visible only: a host may have hundreds of
  // programs.
  const redrawn = new Map();
  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const chart = redrawn.get(entry.target);
      if (!chart) continue;
      chart.visible = entry.isIntersecting;
      if (chart.visible) chart.redraw();
    }
  });
  const addChart = (cell, classes, redraw) => {
    const svg = draw("svg", {
      class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
    });
    cell.replaceChildren(svg);
    let paths = null;
    const chart = {
      visible: false,
      redraw: () => {
        paths = paths || classes.map((name) => svg.appendChild(draw("path", { class: name })));
        redraw(paths);
      },
    };
    redrawn.set(svg, chart);
    observer.observe(svg);
    return { svg, update: () => chart.visible && !document.hidden && chart.redraw() };
  };
  const removeChart = (chart) => {
    observer.unobserve(chart.svg);
    redrawn.delete(chart.svg);
  };

  let live = true, now = 0, day = "";
  const begin = (first) => (live ? Math.max(first, now - POINTS_MAX) : 0);
  const toX = (at, from) => (WIDTH * (at - from) / Math.max(now - from, 0.001)).toFixed(1);

  // A rectangle for each share of each point, from the bottom to the top. Unknown shares are gaps.
  const stack = (paths, points, from) => {
    const d = SHARES.map(() => "");
    for (const [end, span, shares] of points) {
      if (end <= from) continue;
      const left = toX(Math.max(end - span, from), from), right = toX(end, from);
      let low = 0;
      shares.forEach((share, n) => {
        let part = share;
        if (n === 0 && share !== null) part = share - (shares[1] || 0);
        if (part === null || part <= 0) return;
        const bottom = (HEIGHT * (1 - low / 1000)).toFixed(1);
        low = Math.min(low + part, 1000);
        const top = (HEIGHT * (1 - low / 1000)).toFixed(1);
        d[n] += `M${left} ${bottom}V${top}H${right}V${bottom}Z`;
      });
    }
    paths.forEach((path, n) => path.setAttribute("d", d[n]));
  };
  const marks = (path, name, pid, from) => {
    let d = "";
    for (const row of body("decisions").rows) {
      const { at, program, process, outcome } = row.dataset;
      const same = process && pid !== null ? process === String(pid) : program === name;
      if (same && at > from && (outcome === "done" || outcome === "refused")) {
        d += `M${toX(at, from)} 0V${HEIGHT}`;
      }
    }
    path.setAttribute("d", d);
  };

  const programs = new Map(), groups = new Map();

  const programRow = (id) => {
    const row = make("tr");
    const cells = [make("th")];
    cells[0].scope = "row";
    for (let n = 0; n < 5 + SHARES.length; n++) cells.push(make("td"));
    row.append(...cells);
    const program = { id, row, cells, points: [], name: "", pid: null };
    program.chart = addChart(cells[cells.length - 1], [...SHARES, "mark"], (paths) => {
      const points = program.points;
      const from = begin(points.length ? points[0][0] - points[0][1] : now);
      stack(paths.slice(0, -1), points, from);
      marks(paths[SHARES.length], program.name, program.pid, from);
    });
    return program;
  };
  const updateProgram = (program, news) => {
    program.name = news.name;
    program.pid = news.pid;
    program.points.push(...news.points);
    program.points.splice(0, live ? program.points.length - POINTS_MAX : 0);
    const { cells, points } = program;
    const head = JSON.stringify([news.name, news.pid, news.gone, news.threads]);
    if (head !== program.head) {
      program.head = head;
      cells[0].replaceChildren(make("bdi", news.name));
      if (news.pid !== null) cells[0].append(" ", make("small", news.pid));
      if (news.gone) cells[0].append(" ", make("small", "gone"));
      for (const thread of news.threads) {
        const line = make("div", undefined, "thread");
        line.append(make("bdi", thread.name), " ", make("small", thread.tid), " ",
          percent(thread.running * 1000));
        cells[0].append(line);
      }
      program.row.className = news.gone ? "gone" : "";
      program.chart.svg.setAttribute("aria-label", "Time shares of " + news.name + " over time");
    }
    setText(cells[1], news.policy);
    setText(cells[2], news.changes.join(", "));
    const none = [0, 0, SHARES.map(() => null), null, null];
    const [, , shares, threads, cpus] = news.mean || points[points.length - 1] || none;
    setText(cells[3], number(threads, 0));
    setText(cells[4], number(cpus === null ? null : cpus / 100, 2));
    shares.forEach((share, n) => setText(cells[5 + n], percent(share)));
    program.chart.update();
  };

  const groupRow = (id) => {
    const row = make("tr");
    const cells = [make("th")];
    cells[0].scope = "row";
    for (let n = 0; n < 7; n++) cells.push(make("td"));
    row.append(...cells);
    const group = { id, row, cells, rates: [] };
    group.chart = addChart(cells[7], ["band", "rate"], (paths) => drawRates(group, paths));
    return group;
  };
  // The rate as a line, and the goal as a band behind it.
  const drawRates = (group, [band, line]) => {
    const { rates, low, high } = group;
    const from = begin(rates.length ? rates[0][0] : now);
    const shown = rates.filter(([at]) => at >= from);
    const values = shown.filter(([, rate]) => rate !== null);
    const top = 1.2 * Math.max(1e-9, low || 0, high || 0, ...values.map(([, rate]) => rate));
    const toY = (rate) => (HEIGHT * (1 - Math.max(rate, 0) / top)).toFixed(1);
    const has = low !== null || high !== null;
    band.setAttribute("d", has
      ? `M0 ${toY(low === null ? 0 : low)}V${toY(high === null ? top : high)}H${WIDTH}` +
        `V${toY(low === null ? 0 : low)}Z`
      : "");
    // An unknown rate interrupts the line.
    let d = "", command = "M";
    for (const [at, rate] of shown) {
      if (rate !== null) d += `${command}${toX(at, from)} ${toY(rate)}`;
      command = rate === null ? "M" : "L";
    }
    line.setAttribute("d", d);
  };
  const updateGroup = (group, news) => {
    group.rates.push(...news.rates);
    group.rates.splice(0, live ? group.rates.length - POINTS_MAX : 0);
    [group.low, group.high] = [news.rate_min, news.rate_max];
    const last = group.rates[group.rates.length - 1];
    const { low, high } = group;
    const some = low === null ? `at most ${high}` : high === null ? `at least ${low}` : `${low} to ${high}`;
    const goal = low === null && high === null ? UNKNOWN : some;
    const texts = [news.group, news.owner, news.pids.join(" "), news.members, news.beats,
      number(last ? last[1] : null, 1), goal];
    texts.forEach((text, n) => setText(group.cells[n], String(text)));
    const label = `Rate of group ${news.group} and its goal over time`;
    group.chart.svg.setAttribute("aria-label", label);
    group.chart.update();
  };

  // Keeps one row for each item, in the order of the items.
  const reconcile = (table, known, items, idOf, makeRow, update) => {
    const present = new Set(items.map(idOf));
    for (const [id, row] of known) {
      if (present.has(id)) continue;
      removeChart(row.chart);
      row.row.remove();
      known.delete(id);
    }
    items.forEach((item, n) => {
      const id = idOf(item, n);
      if (!known.has(id)) known.set(id, makeRow(id));
      const row = known.get(id);
      if (table.rows[n] !== row.row) table.insertBefore(row.row, table.rows[n] || null);
      update(row, item);
    });
  };

  const outcomeText = ({ kind, detail }) => ({
    done: `done: ${detail} changed`, refused: `refused: ${detail}`,
    unchanged: "no change", event: "event",
  })[kind];
  // With the date if it is not today.
  const wallTime = (unix) => {
    const time = new Date(unix * 1000);
    return time.toDateString() === day ? time.toLocaleTimeString() : time.toLocaleString();
  };
  const updateDay = () => {
    const today = new Date().toDateString();
    if (today === day) return;
    day = today;
    for (const row of body("decisions").rows) {
      if (row.dataset.unix) setText(row.cells[0], wallTime(Number(row.dataset.unix)));
    }
  };
  const decisionRow = (decision) => {
    const row = make("tr");
    const program = make("td");
    program.append(make("bdi", decision.program));
    if (decision.pid !== null) program.append(" ", make("small", decision.pid));
    row.append(make("td", wallTime(decision.unix_s)), program, make("td", decision.policy), make("td", decision.what),
      make("td", decision.why), make("td", outcomeText(decision.outcome)));
    row.dataset.at = decision.at_s;
    row.dataset.unix = decision.unix_s;
    row.dataset.program = decision.program;
    if (decision.pid !== null) row.dataset.process = decision.pid;
    row.dataset.outcome = decision.outcome.kind;
    return row;
  };
  const filterRows = () => {
    const words = $("filter").value.toLowerCase(), outcome = $("outcome").value;
    const rows = body("decisions").rows;
    let shown = 0;
    for (const row of rows) {
      row.hidden = (outcome && row.dataset.outcome !== outcome) ||
        !row.textContent.toLowerCase().includes(words);
      shown += row.hidden ? 0 : 1;
    }
    setText($("shown"), words || outcome ? `${shown} of ${rows.length} decisions` : "");
  };
  const addDecisions = (decisions, whole) => {
    if (!decisions.length && !whole) return;
    const table = body("decisions");
    if (whole) table.replaceChildren();
    table.prepend(...decisions.map(decisionRow).reverse());
    while (table.rows.length > ROWS_MAX) table.rows[ROWS_MAX].remove();
    filterRows();
  };

  const updateNotes = (notes) => {
    const shown = [...$("notes").children];
    const isSame = (note, n) => shown[n] && shown[n].textContent === note;
    if (notes.length === shown.length && notes.every(isSame)) return;
    $("notes").replaceChildren(...notes.map((note) => make("p", note)));
  };
  let claimText = "", mapText = "";
  const updateClaims = (claims) => {
    const text = JSON.stringify(claims);
    if (text === claimText) return;
    claimText = text;
    const row = (claim) => {
      const tr = make("tr");
      const head = make("th", claim.claim);
      head.scope = "row";
      tr.append(head, make("td", claim.pid), make("td", claim.name),
        make("td", claim.cpus.join(" ")), make("td", (claim.keep || []).join(" ")));
      return tr;
    };
    body("machine").replaceChildren(...claims.map(row));
  };
  const updateMap = (cpus) => {
    const text = JSON.stringify(cpus);
    if (text === mapText) return;
    mapText = text;
    const byNumber = new Map(cpus.map((cpu) => [cpu.cpu, cpu]));
    const none = { claims: [], programs: [], more: 0 };
    for (const cell of document.querySelectorAll("#map .cpu")) {
      const { claims, programs, more } = byNumber.get(Number(cell.dataset.cpu)) || none, parts = [];
      for (const name of claims) parts.push(make("b", name), " ");
      for (const name of programs) parts.push(make("span", name), " ");
      if (more) parts.push(`and ${more} more`);
      cell.classList.toggle("held", claims.length > 0);
      cell.querySelector(".users").replaceChildren(...parts);
    }
  };

  const update = (state) => {
    now = state.at_s;
    if (state.whole) {
      for (const known of [programs, groups]) {
        known.forEach((row) => { removeChart(row.chart); row.row.remove(); });
        known.clear();
      }
      for (const table of [body("programs"), body("groups")]) if (table) table.replaceChildren();
    }
    if (live) updateDay();
    if (live) addDecisions(state.decisions, state.whole);
    reconcile(body("programs"), programs, state.programs, (p) => p.id, programRow, updateProgram);
    const empty = document.querySelector("#programs .empty");
    if (empty) empty.hidden = state.programs.length > 0;
    // A page about the past has a row of a group for each boot.
    const idOf = (group, n) => live ? group.owner + ":" + group.group : n;
    const table = body("groups");
    if (table) reconcile(table, groups, state.groups, idOf, groupRow, updateGroup);
    if (!live) return;
    updateClaims(state.claims);
    updateMap(state.cpus);
    updateNotes(state.notes);
    setText($("status"), state.steering
      ? "Live. The daemon acts." : "Live. The daemon observes, and does not act.");
    $("status").className = "";
  };

  document.querySelector(".filter").hidden = false;
  $("filter").addEventListener("input", filterRows);
  $("outcome").addEventListener("change", filterRows);
  const own = $("state");
  if (own) {
    live = false;
    update(JSON.parse(own.textContent));
    return;
  }
  // A page that is hidden or paused has no connection. The first event of a new one is whole.
  let source = null, paused = false;
  const show = (text, className) => {
    setText($("status"), text);
    $("status").className = className;
  };
  const connect = () => {
    const opened = new EventSource("events");
    opened.addEventListener("message", (event) => {
      if (opened === source) update(JSON.parse(event.data));
    });
    opened.addEventListener("error", () => {
      if (opened !== source) return;
      show(opened.readyState === EventSource.CLOSED
        ? "The connection has ended; load the page again."
        : "The connection is lost; trying again.", "lost");
    });
    return opened;
  };
  const follow = () => {
    const wanted = !paused && !document.hidden;
    if (wanted && !source) source = connect();
    if (!wanted && source) {
      source.close();
      source = null;
    }
  };
  $("pause").hidden = false;
  $("pause").addEventListener("click", () => {
    paused = !paused;
    setText($("pause"), paused ? "Continue" : "Pause");
    if (paused) show("Paused.", "");
    follow();
  });
  document.addEventListener("visibilitychange", follow);
  follow();
})();
