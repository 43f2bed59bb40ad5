/* The page of a plan: what draw_html.c wrote about it (#data), drawn. Times are in ticks of D.tick_us
 * from the start of the step. In this order: numbers, model, drawing, details, moving, tables. */
"use strict";
const $ = (id) => document.getElementById(id);
const D = JSON.parse($("data").textContent);

/* ---- numbers ---- */
const limit = (x, low, high) => Math.max(low, Math.min(high, x));
const round = (x) => (x >= 99.95 ? x.toFixed(0) : x >= 9.995 ? x.toFixed(1) : x.toFixed(2));
const us = (x) => (x >= 999500 ? round(x / 1e6) + " s" : x >= 999.5 ? round(x / 1e3) + " ms" : round(x) + " \u00b5s");
const ticks = (t) => us(t * D.tick_us);
const percent = (x) => (100 * x).toFixed(Math.abs(x) < 0.0995 ? 2 : 1) + " %";
const count = (n, word, more) => n + " " + word + (n === 1 ? "" : more);
function bytes(x) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let i = 0;
  for (; x >= 1023.5 && i < units.length - 1; i++) x /= 1024;
  return (i === 0 ? x : round(x)) + " " + units[i];
}

/* ---- model ---- */
const KIND_NAME = ["Forward", "Backward", "Backward, inputs", "Backward, weights", "Optimizer"];
const KIND_COLOR = ["forward", "backward", "input", "weight", "optimizer"];
const BESIDE_COLOR = ["reduce", "gather", "offload", "load"]; // what goes on beside the compute
const WAIT_NAME = ["warm-up", "transfers", "imbalance", "reduction", "drain"]; // and colours
const WEIGHT = 3, OPTIMIZER = 4;
const P = D.pipeline, M = D.microbatches, S = D.stages.length;
const chunkOf = D.stages.map((s, i) => D.stages.slice(0, i).filter((o) => o.rank === s.rank).length);
const key = (back, stage, mb) => (back * S + stage) * M + mb;
const timelines = D.timelines.map((data) => {
  const T = {name: data.name, end: data.end, at: new Map()}; // at: the F, and the B or I, of a key
  T.lanes = data.lanes.map((lane, rank) => {
    const L = {T, rank, cells: [], beside: lane.beside, busy: lane.busy, wait: lane.wait};
    for (let i = 0, t = 0, held = 0; i < lane.cells.length; i += 7) {
      const [kind, mb, stage, idle, busy, late, more] = lane.cells.slice(i, i + 7);
      const c = {lane: L, kind, mb, stage, after: t, start: t + idle, end: t + idle + busy,
        ready: late < 0 ? -1 : t + idle - late, bytes: (held + more) * D.unit};
      L.cells.push(c);
      if (kind < WEIGHT) T.at.set(key(kind ? 1 : 0, stage, mb), c);
      t = c.end;
      held += more;
    }
    return L;
  });
  return T;
});
const END = Math.max(...timelines.map((T) => T.end)), both = timelines.length > 1;

/* Messages into and out of an action: {from, to: actions, flow: tensors}. */
function messages(c) {
  const list = [], back = c.kind ? 1 : 0;
  for (const f of c.kind < WEIGHT ? D.flow : []) {
    const out = f.from === c.stage;
    const peer = f.back === back && (out || f.to === c.stage) && c.lane.T.at.get(key(back, out ? f.to : f.from, c.mb));
    const same = list.find((m) => m.out === out && m.peer === peer);
    if (same) same.flow.push(f);
    else if (peer) list.push({out, peer, from: out ? c : peer, to: out ? peer : c, flow: [f]});
  }
  return list;
}
const say = (c) => KIND_NAME[c.kind].toLowerCase() + " of " + c.mb + ", stage " + c.stage + " on rank " + c.lane.rank;
/* Why its rank stood still before an action: [what, ticks] pairs. */
function waits(c) {
  if (c.start <= c.after) return [];
  if (c.kind === OPTIMIZER) return [["reduction of the gradients", c.start - c.after]];
  const last = messages(c).filter((m) => !m.out).map((m) => m.from)
    .reduce((a, from) => (from.end > (a ? a.end : c.after) ? from : a), null);
  const made = last ? Math.min(last.end, c.start) : c.after, ready = limit(c.ready, made, c.start);
  return [[last && say(last), made - c.after], ["the transfer to arrive", ready - made],
    [D.overlap && D.shared_cores ? "the core it shares" : "its transfers", c.start - ready]].filter(([, t]) => t > 0);
}

/* ---- drawing ---- */
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const TOP = 30, LEFT = 74, RIGHT = 128;
const rowHeight = P <= 8 ? 30 : P <= 16 ? 22 : P <= 32 ? 16 : 11;
const pitch = timelines.length * (rowHeight + 1) + (rowHeight > 11 ? 5 : 1);
const rows = timelines[0].lanes.flatMap((_, r) =>
  timelines.map((T, t) => ({T, lane: T.lanes[r], y: TOP + r * pitch + t * (rowHeight + 1)})));
const rowOf = (c) => rows.find((r) => r.lane === c.lane);
let view = [0, END], fills = [], plot = 1; // plot: its width
const xOf = (t) => LEFT + limit((t - view[0]) / (view[1] - view[0]), 0, 1) * plot;
const inView = (cells) => cells.filter((c) => c.end > view[0] && c.start < view[1]);

/* A cleared canvas, in units of the page's pixels. */
function canvas(id, height) {
  const c = $(id), ratio = window.devicePixelRatio || 1, width = c.parentElement.clientWidth;
  c.width = Math.round(width * ratio);
  c.height = Math.round(height * ratio);
  c.style.height = height + "px";
  const g = c.getContext("2d");
  g.scale(ratio, ratio);
  g.font = "11px " + getComputedStyle(document.body).fontFamily;
  g.textBaseline = "middle";
  plot = width - LEFT - RIGHT;
  return g;
}
function write(g, text, x, y, align, ink) {
  g.textAlign = align;
  g.fillStyle = ink;
  g.fillText(text, x, y);
}
function line(g, x0, y0, x1, y1, ink) {
  g.strokeStyle = ink;
  g.beginPath();
  g.moveTo(x0, y0);
  g.lineTo(x1, y1);
  g.stroke();
}
/* Lines at round times. */
function axis(g, bottom) {
  const least = (view[1] - view[0]) * D.tick_us * 92 / plot, power = Math.pow(10, Math.floor(Math.log10(least)));
  const step = power * [1, 2, 5, 10].find((f) => power * f >= least);
  const [unit, name] = view[1] * D.tick_us >= 1e6 ? [1e6, " s"] : view[1] * D.tick_us >= 1e3 ? [1e3, " ms"] : [1, " \u00b5s"];
  const digits = limit(Math.ceil(-Math.log10(step / unit) - 1e-9), 0, 9);
  for (let i = Math.ceil(view[0] * D.tick_us / step - 1e-9); i * step <= view[1] * D.tick_us * (1 + 1e-12); i++) {
    const x = Math.round(xOf(i * step / D.tick_us)) + 0.5;
    line(g, x, TOP - 8, x, bottom, color("line"));
    write(g, (i * step / unit).toFixed(digits) + name, x, TOP - 17, "center", color("muted"));
  }
}
/* Too many actions to tell apart: columns divided by what the rank does in them. */
function drawShares(g, row, cells) {
  const n = Math.ceil(Math.min(plot / 4, cells.length / 12)), wide = (view[1] - view[0]) / n;
  const shares = Array.from({length: n}, () => [0, 0, 0, 0, 0]);
  for (const c of cells) {
    const a = Math.max(c.start - view[0], 0) / wide, b = Math.min((c.end - view[0]) / wide, n);
    for (let x = Math.floor(a); x < b; x++) shares[x][c.kind] += Math.min(b, x + 1) - Math.max(a, x);
  }
  const edge = (x) => Math.round(LEFT + x * plot / n);
  shares.forEach((share, x) => share.reduce((y, s, kind) => {
    g.fillStyle = fills[kind];
    g.fillRect(edge(x), y, edge(x + 1) - edge(x), s * rowHeight);
    return y + s * rowHeight;
  }, row.y));
}
/* Later stages of a rank are paler. */
function drawCells(g, row, cells) {
  for (const c of cells) {
    const a = xOf(c.start), w = xOf(c.end) - a, number = String(c.mb);
    g.globalAlpha = D.chunks > 1 && c.stage >= 0 ? 1 - 0.42 * chunkOf[c.stage] / (D.chunks - 1) : 1;
    g.fillStyle = fills[c.kind];
    g.fillRect(a, row.y, w > 3 ? w - 1 : Math.max(w, 0.4), rowHeight);
    g.globalAlpha = 1;
    if (rowHeight > 11 && c.kind !== OPTIMIZER && w >= 7 * number.length + 2)
      write(g, number, a + (w - 1) / 2, row.y + rowHeight / 2 + 0.5, "center", fills[c.kind ? 6 : 5]);
  }
}
function drawTimeline() {
  const height = TOP + P * pitch + 4, g = canvas("timeline", height);
  fills = [...KIND_COLOR, "on-forward", "on-other"].map(color);
  axis(g, height - 4);
  for (const row of rows) {
    const cells = inView(row.lane.cells), middle = row.y + rowHeight / 2 + 0.5, first = row.T === timelines[0];
    g.fillStyle = color("idle");
    g.fillRect(LEFT, row.y, xOf(row.T.end) - LEFT, rowHeight);
    (cells.length > plot / 3 ? drawShares : drawCells)(g, row, cells);
    for (const [start, length, kind] of row.lane.beside) { // sums and stores below, gathers and loads above
      g.fillStyle = color(BESIDE_COLOR[kind]);
      const inset = kind > 1 ? 3 : 0;
      g.fillRect(xOf(start), row.y + (kind % 2 ? inset : rowHeight - 3 - inset), xOf(start + length) - xOf(start), kind > 1 ? 2 : 3);
    }
    write(g, first ? "rank " + row.lane.rank : "measured", LEFT - 12, middle, "right", color(first ? "ink" : "muted"));
    write(g, Math.floor(100 * row.lane.busy / row.T.end / D.tick_us) + " % busy", LEFT + plot + 10, middle, "left", color("muted"));
  }
  $("span").textContent = view[1] - view[0] < END ? ticks(view[1] - view[0]) + " of " + ticks(END) : "";
}

const memoryRow = rowHeight + 12, mostReserved = Math.max(...D.memory.map((m) => m.reserved));
const mostLimit = Math.max(...D.memory.map((m) => m.limit));
const memoryTop = 1.05 * (mostReserved > 0.3 * mostLimit ? Math.max(mostReserved, mostLimit) : mostReserved); // else off the scale
function drawMemory() {
  const height = TOP + P * (memoryRow + 6) + 4, g = canvas("memory", height), end = xOf(timelines[0].end);
  axis(g, height - 4);
  timelines[0].lanes.forEach((L, r) => {
    const m = D.memory[r], base = TOP + r * (memoryRow + 6) + memoryRow;
    const y = (b) => base - b / memoryTop * memoryRow;
    g.fillStyle = color("alive");
    g.beginPath();
    g.moveTo(xOf(0), base);
    let held = m.fixed;
    for (const c of L.cells) {
      g.lineTo(xOf(c.start), y(held));
      g.lineTo(xOf(c.start), y(held = c.bytes));
    }
    g.lineTo(end, y(held));
    g.lineTo(end, base);
    g.fill();
    g.fillStyle = color("fixed");
    g.fillRect(LEFT, y(m.fixed), end - LEFT, base - y(m.fixed));
    line(g, LEFT, y(m.reserved), end, y(m.reserved), color("muted"));
    if (m.limit && m.limit <= memoryTop) line(g, LEFT, y(m.limit), LEFT + plot, y(m.limit), color("limit"));
    write(g, "rank " + r, LEFT - 12, base - memoryRow / 2, "right", color("ink"));
    write(g, bytes(m.reserved) + (m.limit ? " of " + bytes(m.limit) : ""), LEFT + plot + 10, base - memoryRow / 2, "left", color("muted"));
  });
}

/* The action pointed at, those of its micro-batch, its messages. */
let selected = null;
function arrow(g, m) {
  const x0 = xOf(m.from.end), x1 = xOf(m.to.ready >= 0 ? Math.min(m.to.ready, m.to.start) : m.to.start);
  const y0 = rowOf(m.from).y + rowHeight / 2, y1 = rowOf(m.to).y + rowHeight / 2, bend = Math.max(14, Math.abs(x1 - x0) / 2);
  for (const [wide, ink] of [[4.5, color("panel")], [1.6, color("ink")]]) {
    g.lineWidth = wide;
    g.strokeStyle = g.fillStyle = ink;
    g.beginPath();
    g.moveTo(x0, y0);
    g.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
    g.stroke();
    g.beginPath();
    g.arc(x1, y1, 2 + wide / 2, 0, 7);
    g.fill();
  }
}
function drawOverlay() {
  const g = canvas("overlay", TOP + P * pitch + 4);
  if (!selected) return;
  g.strokeStyle = color("ink");
  for (const row of rows)
    for (const c of row.T === selected.lane.T ? inView(row.lane.cells) : [])
      if (c === selected || (c.mb === selected.mb && c.kind !== OPTIMIZER)) {
        g.lineWidth = c === selected ? 2 : 1;
        g.strokeRect(xOf(c.start) - 0.5, row.y - 0.5, Math.max(xOf(c.end) - xOf(c.start), 2), rowHeight + 1);
      }
  for (const m of messages(selected)) arrow(g, m);
}
function drawAll() {
  drawTimeline();
  drawMemory();
  drawOverlay();
}
let pending = false;
function redraw() {
  if (!pending) requestAnimationFrame(() => { pending = false; drawAll(); });
  pending = true;
}

/* ---- details ---- */
function element(tag, className, ...content) {
  const e = document.createElement(tag);
  e.className = className;
  e.append(...content);
  return e;
}
function details(c) { // [name, value] pairs, the title first
  const stage = c.stage < 0 ? "" : ", stage " + c.stage + (D.chunks > 1 ? " (chunk " + chunkOf[c.stage] + ")" : "");
  const list = [[KIND_NAME[c.kind], c.mb < 0 ? "" : "of micro-batch " + c.mb],
    ["Where", "rank " + c.lane.rank + stage + (both ? ", " + c.lane.T.name : "")],
    ["Time", ticks(c.start) + " to " + ticks(c.end)], ["Takes", ticks(c.end - c.start)]];
  for (const T of timelines) {
    const peer = T !== c.lane.T && c.kind < WEIGHT && T.at.get(key(c.kind ? 1 : 0, c.stage, c.mb));
    if (peer) list.push([T.name, ticks(peer.end - peer.start)]);
  }
  for (const [what, t] of waits(c)) list.push(["Waited", ticks(t) + " for " + what]);
  for (const m of messages(c))
    list.push([m.out ? "Sends" : "Receives", m.flow.map((f) => f.tensor).join(", ") + " (" +
      bytes(m.flow.reduce((sum, f) => sum + f.bytes, 0)) + ") " + (m.out ? "to" : "from") + " stage " + m.peer.stage]);
  if (c.lane.T === timelines[0]) list.push(["Memory", bytes(c.bytes)]);
  return list;
}
/* What is told of the moment t: [the action, or null if idle; its details]. */
function lookUp(lane, t) {
  const c = lane.cells.find((o) => o.end > t);
  if (c && c.start <= t) return [c, details(c)];
  const why = c ? waits(c).map(([what, w]) => ["Waits", ticks(w) + " for " + what])
    : [["Until", "the slowest rank is done"]];
  return [null, [["Idle", ""], ["Where", "rank " + lane.rank], ...why]];
}
function showTip(list, x, y) {
  const tip = $("tip");
  tip.hidden = !list;
  if (!list) return;
  tip.replaceChildren(element("table", "", ...list.map(([k, v]) => element("tr", "", element("th", "", k), element("td", "", v)))));
  tip.style.left = limit(x + 18 + tip.offsetWidth > innerWidth ? x - tip.offsetWidth - 18 : x + 18, 4, innerWidth) + "px";
  tip.style.top = limit(y + 20 + tip.offsetHeight > innerHeight ? y - tip.offsetHeight - 14 : y + 20, 4, innerHeight) + "px";
}

/* ---- moving ---- */
function setView(from, span) {
  span = limit(span, END * 1e-5, END);
  from = limit(from, 0, END - span);
  view = [from, from + span];
  redraw();
}
const zoom = (factor, t = (view[0] + view[1]) / 2) => setView(t - (t - view[0]) * factor, (view[1] - view[0]) * factor);
const move = (share) => setView(view[0] + share * (view[1] - view[0]), view[1] - view[0]);
const overlay = $("overlay");
const timeAt = (e) => view[0] + (e.clientX - overlay.getBoundingClientRect().left - LEFT) / plot * (view[1] - view[0]);
function hover(e) {
  const y = e.clientY - overlay.getBoundingClientRect().top, t = timeAt(e);
  const row = rows.find((r) => y >= r.y && y <= r.y + rowHeight && t >= view[0] && t <= Math.min(view[1], r.T.end));
  const [cell, list] = row ? lookUp(row.lane, t) : [null, null];
  showTip(list, e.clientX, e.clientY);
  if (cell === selected) return;
  selected = cell;
  drawOverlay();
}
function leave() {
  selected = null;
  showTip(null);
  drawOverlay();
}
let drag = null;
overlay.addEventListener("pointerdown", (e) => {
  drag = {x: e.clientX, from: view[0]};
  overlay.setPointerCapture(e.pointerId);
});
overlay.addEventListener("pointermove", (e) => {
  if (!drag) return hover(e);
  showTip(null);
  setView(drag.from - (e.clientX - drag.x) / plot * (view[1] - view[0]), view[1] - view[0]);
});
overlay.addEventListener("pointerup", (e) => { drag = null; hover(e); });
overlay.addEventListener("pointerleave", leave);
overlay.addEventListener("dblclick", (e) => zoom(0.4, timeAt(e)));
overlay.addEventListener("wheel", (e) => {
  if (!e.ctrlKey && !e.metaKey && !e.deltaX) return; // the page scrolls
  e.preventDefault();
  if (e.deltaX) move(e.deltaX / plot);
  else zoom(Math.exp(limit(e.deltaY, -120, 120) * 0.004), timeAt(e));
}, {passive: false});
const keys = {"+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), "0": () => setView(0, END),
  ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), Escape: leave};
overlay.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || !keys[e.key]) return;
  e.preventDefault();
  keys[e.key]();
});
$("zoom-in").addEventListener("click", keys["+"]);
$("zoom-out").addEventListener("click", keys["-"]);
$("zoom-fit").addEventListener("click", keys["0"]);
window.addEventListener("resize", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

/* ---- figures and tables ---- */
function swatch(name, label) {
  const i = element("i", "");
  i.style.background = "var(--" + name + ")";
  return element("li", "", i, label);
}
function stack(parts, total) { // [amount, colour, title]
  return element("div", "stack", ...parts.map(([amount, name, title]) => {
    const i = element("i", "");
    i.style = "flex: 0 0 " + limit(100 * amount / (total || 1), 0, 100).toFixed(2) + "%; background: var(--" + name + ")";
    i.title = title;
    return i;
  }));
}
/* heads: one that begins with '<' is left-aligned. Cells: texts or elements. */
function table(id, heads, lines) {
  const left = heads.map((h) => (h.startsWith("<") ? "left" : ""));
  $(id).replaceChildren(element("tr", "", ...heads.map((h, i) => element("th", left[i], h.replace("<", "")))),
    ...lines.map((cells) => element("tr", "", ...cells.map((c, i) => element("td", left[i], c)))));
}
function figures() {
  const p = D.predicted, worst = D.memory.findIndex((m) => m.reserved === mostReserved), room = D.memory[worst].limit;
  const put = (name, value, more) => $("figures").append(
    element("div", "", element("dt", "", name), element("dd", "value", value), element("dd", "", more)));
  put(both ? "Step, predicted" : "Step", us(p.step_us), p.samples_per_s ? round(p.samples_per_s) + " samples/s" : "");
  if (both) {
    const error = p.step_us / (timelines[1].end * D.tick_us) - 1;
    put("Step, measured", ticks(timelines[1].end), "predicted " + (error < 0 ? "\u2212" : "+") + percent(Math.abs(error)));
  }
  put("Bubble", percent(p.bubble), "idle share of all ranks");
  put("Peak memory", bytes(mostReserved), "rank " + worst + (room ? ", " + percent(mostReserved / room) + " of " + bytes(room) : ""));
  if (p.step_lower_bound_us > 0)
    put("Step, proven lower bound", us(p.step_lower_bound_us), "the plan is " + percent(p.step_gap) + " above it");
  if (p.lower_bound_us > 0)
    put("Bottleneck per micro-batch", us(p.bottleneck_us), "proven lower bound " + us(p.lower_bound_us) + ", gap " + percent(p.gap));
}
function stageTable() {
  const most = Math.max(...D.stages.map((s) => s.forward + s.backward));
  table("stages", ["Stage", "Rank", "<Ops", "Forward", "Backward", "<Compute, of the slowest stage", "Weights", "Stash", "<Recompute"],
    D.stages.map((s, i) => [i, s.rank,
      s.ops.length === 1 ? s.ops[0] : element("details", "", element("summary", "", s.ops[0] + " \u2026 " +
        s.ops[s.ops.length - 1] + " (" + s.ops.length + ")"), s.ops.join(", ")),
      us(s.forward), us(s.backward), stack([[s.forward, "forward", us(s.forward)], [s.backward, "backward", us(s.backward)]], most),
      bytes(s.weights), bytes(s.stash),
      s.recompute ? s.recompute < s.ops.length ? s.recompute + " of " + s.ops.length : "yes" : ""]));
}
function rankTable() {
  const total = timelines[0].end * D.tick_us, counts = (w) => w > total * 5e-4;
  table("ranks", ["Rank", "<Step", "Busy", "<Idle", "Reserved", "Limit"], timelines[0].lanes.map((L, r) => [r,
    stack([[L.busy, "forward", "busy " + us(L.busy)], ...L.wait.map((w, k) => [w, WAIT_NAME[k], WAIT_NAME[k] + " " + us(w)])], total),
    percent(L.busy / total), WAIT_NAME.map((name, k) => [name, L.wait[k]]).filter(([, w]) => counts(w)).sort((a, b) => b[1] - a[1])
      .map(([name, w]) => name + " " + us(w)).join(", "), bytes(D.memory[r].reserved), D.memory[r].limit ? bytes(D.memory[r].limit) : "\u2013"]));
  $("legend-ranks").append(swatch("forward", "busy"), ...WAIT_NAME.filter((_, k) => timelines[0].lanes.some((L) => counts(L.wait[k])))
    .map((name) => swatch(name, "idle: " + name)));
}
document.title = D.model + ": plan";
$("name").textContent = D.model;
$("subtitle").textContent = [D.schedule, count(P, "rank", "s") + (D.ddp > 1 ? " \u00d7 " + D.ddp + " replicas" : "") +
  (D.tensor > 1 ? " \u00d7 tensor " + D.tensor : "") +
  (D.replica > 0 ? ", of which the slowest, replica " + D.replica + ", is drawn" : ""),
  D.chunks > 1 ? D.chunks + " stages per rank" : "", count(M, "micro-batch", "es") + " of " + count(D.microbatch_size, "sample", "s"),
  D.cluster && "cluster " + D.cluster].filter(Boolean).join("  \u00b7  ");
$("legend").append(...KIND_NAME.flatMap((name, k) => (rows.some((r) => r.lane.cells.some((c) => c.kind === k))
  ? [swatch(KIND_COLOR[k], name.toLowerCase())] : [])), swatch("reduce", "reduction"),
  ...["gathered weights", "stored on the host", "loaded again"].flatMap((name, i) => (
    rows.some((r) => r.lane.beside.some((x) => x[2] === i + 1)) ? [swatch(BESIDE_COLOR[i + 1], name)] : [])), swatch("idle", "idle"));
figures();
stageTable();
rankTable();
drawAll();
