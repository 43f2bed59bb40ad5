/* The page of a plan: details, moving about, keyboard, figures and tables. */
/* ---- details ---- */
function element(tag, text, className) {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  if (className) e.className = className;
  return e;
}
function details(c) { // [title, kind, [name, value] pairs]
  const {T, lane: L, i} = c, k = L.kind[i], list = [];
  const title = k === 4 ? "Optimizer" : KIND_NAME[k] + " of micro-batch " + L.mb[i];
  const stage = k === 4 ? null : D.stages[L.stage[i]];
  list.push(["Where", "rank " + L.rank + (stage ? ", stage " + L.stage[i] + (D.chunks > 1 ? " (chunk " + chunkOf[L.stage[i]] + ")" : "") : "") + (both ? ", " + T.name : "")]);
  list.push(["Time", moment(L.start[i]) + " to " + moment(L.end[i])]);
  list.push(["Takes", ticks(L.end[i] - L.start[i])]);
  for (const [what, t] of waits(T, L, i)) list.push(["Waited", ticks(t) + " for " + what]);
  for (const m of messages(c)) {
    const mine = m.from.lane === L && m.from.i === i, total = m.flow.reduce((a, f) => a + f.bytes, 0);
    list.push([mine ? "Sends" : "Receives", m.flow.map((f) => f.tensor).join(", ") + " (" + bytes(total) + ") " + (mine ? "to stage " + m.flow[0].to : "from stage " + m.flow[0].from)]);
  }
  if (T === timelines[0]) list.push(["Memory", bytes(L.bytes[i])]);
  if (both && k < 4) {
    const peer = timelines.find((o) => o !== T), j = peer && k < 3 ? find(peer, k ? 1 : 0, L.stage[i], L.mb[i]) : null;
    if (j) list.push([peer.name === "measured" ? "Measured" : "Predicted", ticks(j.lane.end[j.i] - j.lane.start[j.i])]);
  }
  return [title, KIND_COLOR[k], list];
}
function idleDetails(row, t) {
  const L = row.lane, i = seek(L, t);
  if (t < 0 || t > row.T.end) return null;
  if (i >= L.n) return ["Idle", "idle", [["Where", "rank " + L.rank], ["Until", "the slowest rank is done, " + ticks(row.T.end - (L.n ? L.end[L.n - 1] : 0))]]];
  const begin = i > 0 ? L.end[i - 1] : 0, list = [["Where", "rank " + L.rank], ["Takes", ticks(L.start[i] - begin)]];
  for (const [what, w] of waits(row.T, L, i)) list.push(["Waits", ticks(w) + " for " + what]);
  return ["Idle", "idle", list];
}
function showTip(content, x, y) {
  const tip = $("tip");
  tip.hidden = !content;
  if (!content) return;
  const [title, kind, list] = content, h = element("h3"), swatch = element("i"), table = element("table");
  swatch.style.background = "var(--" + kind + ")";
  h.append(swatch, title);
  for (const [k, v] of list) {
    const tr = element("tr");
    tr.append(element("th", k), element("td", v));
    table.append(tr);
  }
  tip.replaceChildren(h, table);
  const w = tip.offsetWidth, height = tip.offsetHeight;
  tip.style.left = limit(x + 18 + w > innerWidth ? x - w - 18 : x + 18, 4, innerWidth) + "px";
  tip.style.top = limit(y + 20 + height > innerHeight ? y - height - 14 : y + 20, 4, innerHeight) + "px";
}
function say(content) {
  $("live").textContent = content ? content[0] + ". " + content[2].map((p) => p.join(" ")).join(". ") : "";
}

/* ---- moving ---- */
let pending = false, pendingTheme = false;
function redraw(theme) {
  pendingTheme = pendingTheme || theme === true;
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => { pending = false; drawAll(); });
}
function drawAll() {
  if (pendingTheme) { readTheme(); figures(); pendingTheme = false; }
  drawTimeline(); drawOverview(); drawMemory(); drawOverlay();
}
function setView(from, to) {
  const span = limit(to - from, Math.max(2, END * 1e-5), END);
  const start = limit(from, 0, END - span);
  view = [start, start + span];
  redraw();
}
const zoom = (factor, at) => setView(at - (at - view[0]) * factor, at + (view[1] - at) * factor);
const middle = () => (selected ? limit((selected.lane.start[selected.i] + selected.lane.end[selected.i]) / 2, view[0], view[1]) : (view[0] + view[1]) / 2);
$("zoom-in").addEventListener("click", () => zoom(0.5, middle()));
$("zoom-out").addEventListener("click", () => zoom(2, middle()));
$("zoom-fit").addEventListener("click", () => setView(0, END));
const overlay = $("overlay");
function at(e) {
  const box = overlay.getBoundingClientRect(), c = canvases.overlay, y = e.clientY - box.top, x = e.clientX - box.left;
  const row = x >= LEFT && x <= LEFT + c.plot ? rows.find((r) => y >= r.y && y <= r.y + r.h) : null;
  return {row, t: tOf(c, x)};
}
function hover(e) {
  if (pinned) return;
  const {row, t} = at(e);
  let content = null, cell = null;
  if (row) {
    const L = row.lane, i = seek(L, t);
    if (i < L.n && L.start[i] <= t) { cell = {T: row.T, lane: L, i}; content = details(cell); }
    else content = idleDetails(row, t);
  }
  const changed = !selected !== !cell || (cell && (selected.lane !== cell.lane || selected.i !== cell.i));
  selected = cell;
  showTip(content, e.clientX, e.clientY);
  if (changed) drawOverlay();
}
let drag = null;
overlay.addEventListener("pointerdown", (e) => {
  if (e.button !== 0) return;
  drag = {x: e.clientX, view: view.slice(), moved: false};
  overlay.setPointerCapture(e.pointerId);
});
overlay.addEventListener("pointermove", (e) => {
  if (!drag) return hover(e);
  if (!drag.moved && Math.abs(e.clientX - drag.x) < 4) return;
  drag.moved = true;
  overlay.classList.add("drag");
  showTip(null);
  const d = (e.clientX - drag.x) / canvases.overlay.plot * (drag.view[1] - drag.view[0]);
  setView(drag.view[0] - d, drag.view[1] - d);
});
overlay.addEventListener("pointerup", (e) => {
  if (drag && !drag.moved) { pinned = false; hover(e); pinned = !!selected; }
  drag = null;
  overlay.classList.remove("drag");
});
overlay.addEventListener("pointerleave", () => { if (!pinned && !drag) { selected = null; showTip(null); drawOverlay(); } });
overlay.addEventListener("dblclick", (e) => zoom(0.4, at(e).t));
overlay.addEventListener("wheel", (e) => {
  const sideways = e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY);
  if (!e.ctrlKey && !e.metaKey && !sideways) return; // the page scrolls
  e.preventDefault();
  if (sideways) {
    const d = (e.deltaX || e.deltaY) / canvases.overlay.plot * (view[1] - view[0]);
    setView(view[0] + d, view[1] + d);
  } else zoom(Math.exp(limit(e.deltaY, -120, 120) * 0.004), at(e).t);
}, {passive: false});
function select(cell, reveal) {
  selected = cell;
  pinned = !!cell;
  if (!cell) { showTip(null); say(null); drawOverlay(); return; }
  const L = cell.lane, span = view[1] - view[0];
  if (reveal && (L.start[cell.i] < view[0] || L.end[cell.i] > view[1])) {
    const mid = (L.start[cell.i] + L.end[cell.i]) / 2;
    setView(mid - span / 2, mid + span / 2);
  }
  drawAll();
  const box = overlay.getBoundingClientRect(), row = rowOf(cell), c = canvases.overlay, content = details(cell);
  showTip(content, box.left + limit(xOf(c, L.end[cell.i]), LEFT, LEFT + c.plot), box.top + row.y + row.h);
  say(content);
}
function stepBy(di, dr) {
  if (!selected) {
    const L = rows[0].lane;
    return select({T: rows[0].T, lane: L, i: limit(seek(L, view[0]), 0, L.n - 1)}, true);
  }
  const row = rows[limit(rows.indexOf(rowOf(selected)) + dr, 0, rows.length - 1)], L = row.lane;
  const mid = (selected.lane.start[selected.i] + selected.lane.end[selected.i]) / 2;
  const i = dr ? seek(L, mid) : selected.i + di;
  if (L.n > 0) select({T: row.T, lane: L, i: limit(i, 0, L.n - 1)}, true);
}
overlay.addEventListener("keydown", (e) => {
  const keys = {
    ArrowLeft: () => (e.shiftKey ? setView(view[0] - (view[1] - view[0]) * 0.2, view[1] - (view[1] - view[0]) * 0.2) : stepBy(-1, 0)),
    ArrowRight: () => (e.shiftKey ? setView(view[0] + (view[1] - view[0]) * 0.2, view[1] + (view[1] - view[0]) * 0.2) : stepBy(1, 0)),
    ArrowUp: () => stepBy(0, -1), ArrowDown: () => stepBy(0, 1),
    Home: () => selected && stepBy(-Infinity, 0), End: () => selected && stepBy(Infinity, 0),
    "+": () => zoom(0.5, middle()), "=": () => zoom(0.5, middle()), "-": () => zoom(2, middle()), "0": () => setView(0, END),
    f: () => { follow = !follow; drawOverlay(); }, F: () => { follow = !follow; drawOverlay(); },
    Escape: () => { follow = false; select(null); },
    Enter: () => {
      if (!selected) return;
      const L = selected.lane, length = Math.max(1, L.end[selected.i] - L.start[selected.i]);
      setView(L.start[selected.i] - 8 * length, L.end[selected.i] + 8 * length);
    },
  };
  if (e.ctrlKey || e.metaKey || e.altKey || !keys[e.key]) return;
  e.preventDefault();
  keys[e.key]();
});
let brush = false;
function moveBrush(e) {
  const box = $("overview").getBoundingClientRect(), t = (e.clientX - box.left - LEFT) / canvases.overview.plot * END;
  const span = view[1] - view[0] >= END ? END / 8 : view[1] - view[0];
  setView(t - span / 2, t + span / 2);
}
$("overview").addEventListener("pointerdown", (e) => { brush = true; $("overview").setPointerCapture(e.pointerId); moveBrush(e); });
$("overview").addEventListener("pointermove", (e) => brush && moveBrush(e));
$("overview").addEventListener("pointerup", () => { brush = false; });

/* ---- figures and tables ---- */
function figure(term, value, unit, more, wide) {
  const div = element("div"), dd = element("dd", value);
  if (unit) dd.append(element("small", unit));
  div.append(element("dt", term), dd);
  if (more) { const p = element("dd", more, "more"); div.append(p); }
  if (wide) div.className = "wide";
  return div;
}
function figures() {
  const p = D.predicted, list = $("figures"), [time, unit] = us(p.step_us).split(" ");
  list.replaceChildren();
  list.append(figure(both ? "Step, predicted" : "Step", time, unit, p.samples_per_s ? round(p.samples_per_s) + " samples/s" : ""));
  if (both) {
    const end = timelines[1].end * D.tick_us, [t, u] = us(end).split(" ");
    list.append(figure("Step, measured", t, u, "predicted " + (p.step_us >= end ? "+" : "\u2212") + percent(Math.abs(p.step_us / end - 1)).replace("-", "")));
  }
  const worst = D.memory.reduce((a, m, r) => (m.reserved > D.memory[a].reserved ? r : a), 0), m = D.memory[worst], [size, sizeUnit] = bytes(m.reserved).split(" ");
  list.append(figure("Bubble", percent(p.bubble).replace(" %", ""), "%", "idle share of all ranks"));
  list.append(figure("Peak memory", size, sizeUnit, "rank " + worst + (m.limit ? ", " + percent(m.reserved / m.limit) + " of " + bytes(m.limit) : "")));
  if (p.lower_bound_us > 0) {
    const div = figure("Bottleneck per micro-batch", us(p.bottleneck_us).split(" ")[0], us(p.bottleneck_us).split(" ")[1],
      "proven lower bound " + us(p.lower_bound_us) + ", gap " + percent(p.gap), true);
    const share = limit(p.lower_bound_us / (p.bottleneck_us || 1), 0, 1);
    const bar = element("div", undefined, "bound"), proven = element("i");
    bar.setAttribute("role", "img");
    bar.setAttribute("aria-label", percent(share) + " of the bottleneck are proven to be needed");
    proven.style.width = 100 * share + "%";
    bar.append(proven);
    div.append(bar);
    list.append(div);
  }
}
function swatch(name, label, className) {
  const li = element("li"), i = element("i", undefined, className);
  if (name) i.style.background = "var(--" + name + ")";
  li.append(i, label);
  return li;
}
function stack(parts, total) {
  const bar = element("div", undefined, "stack");
  for (const [share, name, title] of parts) {
    const i = element("i");
    i.style.flex = "0 0 " + limit(100 * share / (total || 1), 0, 100).toFixed(2) + "%";
    i.style.background = "var(--" + name + ")";
    i.title = title;
    bar.append(i);
  }
  return bar;
}
function head(table, titles) {
  const tr = element("tr");
  for (const t of titles) { const th = element("th", t.replace("<", ""), t.startsWith("<") ? "left" : ""); th.scope = "col"; tr.append(th); }
  const thead = element("thead");
  thead.append(tr);
  table.append(thead, element("tbody"));
}
function row(table, cells, className) {
  const tr = element("tr", undefined, className);
  for (const c of cells) {
    const td = element("td", typeof c === "string" ? c : undefined);
    if (Array.isArray(c)) { td.className = c[0]; td.append(c[1]); }
    tr.append(td);
  }
  table.tBodies[0].append(tr);
}
function stageTable() {
  const table = $("stages"), most = Math.max(...D.stages.map((s) => s.forward + s.backward));
  head(table, ["Stage", "Rank", "<Ops", "Forward", "Backward", "<Compute, of the slowest stage", "Weights", "Stash", "<Recompute"]);
  D.stages.forEach((s, i) => {
    const ops = element("details"), summary = element("summary", s.ops.length === 1 ? s.ops[0] : s.ops[0] + " \u2026 " + s.ops[s.ops.length - 1]);
    summary.append(" ", element("small", s.ops.length === 1 ? "" : String(s.ops.length)));
    ops.append(summary, element("p", s.ops.join(", ")));
    const sum = s.forward + s.backward;
    row(table, [String(i), String(s.rank), ["left ops", s.ops.length === 1 ? s.ops[0] : ops], us(s.forward), us(s.backward),
      ["fill", stack([[s.forward, "forward", "forward " + us(s.forward)], [s.backward, "backward", "backward " + us(s.backward)]], most)],
      bytes(s.weights), bytes(s.stash), ["left", s.recompute ? "yes" : ""]], sum === most ? "top-load" : "");
  });
}
function rankTable() {
  const table = $("ranks"), T = timelines[0], total = T.end * D.tick_us;
  head(table, ["Rank", "<Step", "Busy", "<Idle", "<Memory, of " + (memoryShown ? "its limit" : "the largest"), "Reserved", "Limit"]);
  T.lanes.forEach((L, r) => {
    const m = D.memory[r], full = memoryShown ? m.limit || memoryScale : memoryTop;
    const why = L.wait.map((w, k) => [w, k]).filter(([w]) => w > total * 5e-4).sort((a, b) => b[0] - a[0]).slice(0, 3);
    row(table, [String(r),
      ["fill", stack([[L.busy, "forward", "busy " + us(L.busy)], ...L.wait.map((w, k) => [w, WAIT_COLOR[k], WAIT_NAME[k] + " " + us(w)])], total)],
      percent(L.busy / total), ["left", element("small", why.map(([w, k]) => WAIT_NAME[k] + " " + us(w)).join(", "))],
      ["fill", stack([[m.fixed, "fixed", "fixed " + bytes(m.fixed)], [m.alive - m.fixed, "alive", "activations and messages " + bytes(m.alive - m.fixed)]], full)],
      bytes(m.reserved), m.limit ? bytes(m.limit) : "\u2013"]);
  });
  $("legend-ranks").append(swatch("forward", "busy"), ...WAIT_NAME.map((n, k) => [n, k])
    .filter(([, k]) => T.lanes.some((L) => L.wait[k] > total * 5e-4)).map(([n, k]) => swatch(WAIT_COLOR[k], "idle: " + n)));
}
function start() {
  document.title = D.model + ": plan";
  $("name").textContent = D.model;
  $("subtitle").textContent = [D.schedule, count(P, "rank") + (D.ddp > 1 ? " \u00d7 " + count(D.ddp, "replica") : ""),
    D.chunks > 1 ? D.chunks + " stages per rank" : "", count(M, "micro-batch") + " of " + count(D.microbatch_size, "sample"),
    D.cluster ? "cluster " + D.cluster : ""].filter(Boolean).join("  \u00b7  ");
  const used = new Set(timelines.flatMap((T) => T.lanes.flatMap((L) => Array.from(L.kind))));
  $("legend").append(...KIND_NAME.map((n, k) => [n, k]).filter(([, k]) => used.has(k)).map(([n, k]) => swatch(KIND_COLOR[k], n.toLowerCase())));
  if (timelines.some((T) => T.lanes.some((L) => L.reductions.some((x) => x[2] > 0)))) $("legend").append(swatch("reduce", "reduction", "thin"));
  $("legend").append(swatch("", "idle", "idle"));
  if (memoryHeat) {
    const scale = element("i", undefined, "scale"), li = element("li", "0");
    li.append(scale, bytes(memoryFull) + (memoryShown ? ", the limit" : ", the largest"));
    $("legend-memory").replaceChildren(li);
  }
  if (both) $("legend").append(element("li", "of each rank: predicted above measured"));
  readTheme(); figures(); stageTable(); rankTable(); drawAll();
  const pick = (hash.get("select") || "").split(",").map(Number);
  if (pick.length === 2 && pick[0] < P && pick[1] < timelines[0].lanes[pick[0]].n) {
    follow = hash.has("follow");
    select({T: timelines[0], lane: timelines[0].lanes[pick[0]], i: pick[1]}, true);
  }
  window.addEventListener("resize", () => redraw());
  root.dataset.cells = String(timelines.reduce((a, T) => a + T.lanes.reduce((b, L) => b + L.n, 0), 0));
  root.dataset.ready = "1";
  if (hash.has("check")) root.dataset.check = check();
}
/* Reads the drawing back: "N of N" actions that are wide enough have their colour at their edge. */
function check() {
  const c = canvases.timeline, image = $("timeline").getContext("2d").getImageData(0, 0, $("timeline").width, $("timeline").height);
  let good = 0, all = 0;
  for (const r of rows)
    for (let i = 0; i < r.lane.n; i++) {
      const a = xOf(c, r.lane.start[i]), b = xOf(c, r.lane.end[i]), k = r.lane.kind[i];
      if (b - a < 4 || a < LEFT || b > LEFT + c.plot) continue;
      const at = 4 * (Math.floor((r.y + 2) * c.ratio) * image.width + Math.floor((a + 1.5) * c.ratio));
      const hex = "#" + [0, 1, 2].map((j) => image.data[at + j].toString(16).padStart(2, "0")).join("");
      all++;
      if (hex === fills[k][k === 4 ? 0 : chunkOf[r.lane.stage[i]]]) good++;
    }
  return good + " of " + all;
}
start();
