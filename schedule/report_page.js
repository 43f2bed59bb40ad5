"use strict";
/* The page of a plan. Data: see draw_html.c. Times are in ticks of D.tick_us. */
(() => {
const $ = (id) => document.getElementById(id);
const root = document.documentElement;
root.dataset.errors = "0";
window.addEventListener("error", (e) => {
  root.dataset.errors = String(+root.dataset.errors + 1);
  root.dataset.error = e.message;
});
const D = JSON.parse($("data").textContent);
const hash = new URLSearchParams(location.hash.slice(1)); // #theme=dark&select=RANK,INDEX&from=..&to=..

/* ---- numbers ---- */
const round = (x) => (x >= 99.95 ? x.toFixed(0) : x >= 9.995 ? x.toFixed(1) : x.toFixed(2));
function us(x) {
  const a = Math.abs(x);
  return a >= 999500 ? round(x / 1e6) + " s" : a >= 999.5 ? round(x / 1e3) + " ms" : round(x) + " \u00b5s";
}
function bytes(x) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let i = 0;
  while (x >= 1023.5 && i < units.length - 1) { x /= 1024; i++; }
  return (i === 0 ? String(x) : round(x)) + " " + units[i];
}
const percent = (x) => (100 * x).toFixed(Math.abs(x) < 0.0995 ? 2 : 1) + " %";
const count = (n, word) => n.toLocaleString("en") + " " + word + (n === 1 ? "" : word.endsWith("h") ? "es" : "s");
const ticks = (t) => us(t * D.tick_us);
const moment = (t) => (END * D.tick_us >= 1e6 ? (t * D.tick_us / 1e6).toFixed(6) + " s"
  : END * D.tick_us >= 1e3 ? (t * D.tick_us / 1e3).toFixed(4) + " ms" : (t * D.tick_us).toFixed(2) + " \u00b5s");

/* ---- model ---- */
const KINDS = "FBIWO";
const KIND_NAME = ["Forward", "Backward", "Backward, inputs", "Backward, weights", "Optimizer"];
const KIND_COLOR = ["forward", "backward", "input", "weight", "optimizer"];
const WAIT_NAME = ["another rank computes", "transfer", "shared core", "reduction", "end of the step"];
const WAIT_COLOR = ["wait-compute", "wait-transfer", "wait-core", "wait-reduce", "wait-end"];
const P = D.pipeline, M = D.microbatches, S = D.stages.length;
const stagesOf = Array.from({length: P}, () => []);
D.stages.forEach((s, i) => stagesOf[s.rank].push(i));
const chunkOf = D.stages.map((s, i) => stagesOf[s.rank].indexOf(i));

function decode(lane, rank) {
  const n = lane.k.length;
  const L = {n, rank, kind: new Uint8Array(n), mb: new Int32Array(n), stage: new Int32Array(n),
    start: new Float64Array(n), end: new Float64Array(n), ready: new Float64Array(n),
    bytes: new Float64Array(n), reductions: lane.x, busy: lane.busy, wait: lane.wait};
  let t = 0, held = 0;
  for (let i = 0; i < n; i++) {
    L.kind[i] = KINDS.indexOf(lane.k[i]);
    L.mb[i] = lane.m[i];
    L.stage[i] = L.kind[i] === 4 ? -1 : stagesOf[rank][lane.c ? lane.c[i] : 0];
    L.start[i] = t + lane.t[2 * i];
    t = L.end[i] = L.start[i] + lane.t[2 * i + 1];
    L.ready[i] = lane.r[i] < 0 ? -1 : L.start[i] - lane.r[i];
    held += lane.b ? lane.b[i] : 0;
    L.bytes[i] = held * D.unit;
  }
  return L;
}
/* Where the F (0) or the B or I (1) of a stage and micro-batch stands in its lane. */
function indexLanes(lanes) {
  const at = [new Int32Array(S * M).fill(-1), new Int32Array(S * M).fill(-1)];
  for (const L of lanes)
    for (let i = 0; i < L.n; i++)
      if (L.kind[i] < 3) at[L.kind[i] ? 1 : 0][L.stage[i] * M + L.mb[i]] = i;
  return at;
}
const timelines = D.timelines.map((T) => {
  const lanes = T.lanes.map(decode);
  return {name: T.name, end: T.end, lanes, at: indexLanes(lanes)};
});
const END = Math.max(...timelines.map((T) => T.end));
const inputs = Array.from({length: S}, () => [[], []]), outputs = Array.from({length: S}, () => [[], []]);
for (const f of D.flow) {
  inputs[f.to][f.kind].push(f);
  outputs[f.from][f.kind].push(f);
}
function find(T, back, stage, mb) {
  const i = T.at[back][stage * M + mb];
  return i < 0 ? null : {T, lane: T.lanes[D.stages[stage].rank], i};
}
/* Messages into and out of an action: {from, to: actions, flow: tensors}. */
function messages(c) {
  const {T, lane: L, i} = c, kind = L.kind[i], list = [];
  if (kind > 2) return list;
  const back = kind ? 1 : 0;
  const add = (flows, mine, other) => {
    for (const s of new Set(flows.map(other))) {
      const peer = find(T, back, s, L.mb[i]);
      if (peer) list.push({from: mine ? c : peer, to: mine ? peer : c,
        flow: flows.filter((f) => other(f) === s)});
    }
  };
  add(inputs[L.stage[i]][back], false, (f) => f.from);
  add(outputs[L.stage[i]][back], true, (f) => f.to);
  return list;
}
/* Why a rank stood still before action i: [what, ticks] pairs. */
function waits(T, L, i) {
  const begin = i > 0 ? L.end[i - 1] : 0, end = L.start[i], list = [];
  if (end <= begin) return list;
  if (L.kind[i] === 4) return [["reduction of the gradients", end - begin]];
  let made = begin, who = null;
  for (const m of messages({T, lane: L, i})) {
    if (m.to.lane !== L || m.to.i !== i) continue;
    const t = m.from.lane.end[m.from.i];
    if (t > made) { made = t; who = m.from; }
  }
  made = Math.min(made, end);
  const ready = Math.min(Math.max(L.ready[i], made), end);
  if (made > begin) list.push([name(who) + " on rank " + who.lane.rank, made - begin]);
  if (ready > made) list.push(["the transfer to arrive", ready - made]);
  if (end > ready) list.push([D.overlap && D.shared_cores ? "the core it shares" : "its transfers", end - ready]);
  return list;
}
function name(c) {
  const k = c.lane.kind[c.i];
  return k === 4 ? "the optimizer" : KIND_NAME[k].toLowerCase() + " of " + c.lane.mb[c.i] + ", stage " + c.lane.stage[c.i];
}

/* ---- theme ---- */
const color = {};
const media = matchMedia("(prefers-color-scheme: dark)");
let chosen = hash.get("theme");
const isDark = () => (chosen ? chosen === "dark" : media.matches);
function mix(a, b, share) { // of two #rrggbb
  const at = (c, i) => parseInt(c.slice(1 + 2 * i, 3 + 2 * i), 16);
  return "#" + [0, 1, 2].map((i) => Math.round(at(a, i) * (1 - share) + at(b, i) * share).toString(16).padStart(2, "0")).join("");
}
let hatch = null, fills = [];
function readTheme() {
  root.dataset.theme = isDark() ? "dark" : "light";
  $("theme-name").textContent = isDark() ? "Light" : "Dark";
  const style = getComputedStyle(root);
  for (const v of ["bg", "panel", "ink", "muted", "faint", "line", "grid", "idle", "hatch", "focus", ...KIND_COLOR,
    "reduce", "on-forward", "on-light", "fixed", "alive", "limit", "reserved", "sent", "dark"])
    color[v] = style.getPropertyValue("--" + v).trim();
  // Later chunks of a rank are paler: [kind][chunk].
  fills = KIND_COLOR.map((k) => Array.from({length: D.chunks}, (_, c) =>
    mix(color[k], color.panel, D.chunks > 1 ? 0.42 * c / (D.chunks - 1) : 0)));
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const g = tile.getContext("2d");
  g.fillStyle = color.idle;
  g.fillRect(0, 0, 6, 6);
  g.strokeStyle = color.hatch;
  g.beginPath();
  for (const d of [-6, 0, 6]) { g.moveTo(d, 6); g.lineTo(d + 6, 0); }
  g.stroke();
  hatch = g.createPattern(tile, "repeat");
}
$("theme").addEventListener("click", () => { chosen = isDark() ? "light" : "dark"; redraw(true); });
media.addEventListener("change", () => redraw(true));

/* ---- geometry ---- */
const rowHeight = P <= 8 ? 34 : P <= 16 ? 26 : P <= 32 ? 19 : P <= 64 ? 14 : 10;
const both = timelines.length > 1;
const rows = [];
const TOP = 26, LEFT = 74, RIGHT = 76;
{
  let y = TOP + 4;
  for (let r = 0; r < P; r++) {
    for (const T of timelines) {
      const h = Math.round(both ? rowHeight * 0.82 : rowHeight);
      rows.push({T, lane: T.lanes[r], y, h, first: T === timelines[0]});
      y += h + (both && T === timelines[0] ? 1 : rowHeight >= 19 ? (both ? 8 : 5) : 2);
    }
  }
  rows.bottom = y + 4;
}
let view = [0, END];
if (hash.has("from")) view = [END * +hash.get("from"), END * +(hash.get("to") || 1)];
const canvases = {};
function canvas(id, height) {
  const c = $(id), ratio = window.devicePixelRatio || 1, width = c.parentElement.clientWidth;
  if (c.width !== Math.round(width * ratio) || c.height !== Math.round(height * ratio)) {
    c.width = Math.round(width * ratio);
    c.height = Math.round(height * ratio);
    c.style.height = height + "px";
  }
  const g = c.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, height);
  g.font = "11px " + getComputedStyle(document.body).fontFamily;
  g.textBaseline = "middle";
  canvases[id] = {g, ratio, width, height, plot: width - LEFT - RIGHT};
  return canvases[id];
}
const xOf = (c, t) => LEFT + (t - view[0]) / (view[1] - view[0]) * c.plot;
const tOf = (c, x) => view[0] + (x - LEFT) / c.plot * (view[1] - view[0]);
/* The first action of a lane that ends after t. */
function seek(L, t) {
  let low = 0, high = L.n;
  while (low < high) {
    const mid = (low + high) >> 1;
    if (L.end[mid] > t) high = mid; else low = mid + 1;
  }
  return low;
}
const limit = (x, low, high) => Math.max(low, Math.min(high, x));

/* ---- drawing: timeline ---- */
function axis(c, bottom) {
  const g = c.g, span = (view[1] - view[0]) * D.tick_us;
  let step = Math.pow(10, Math.floor(Math.log10(span / Math.max(2, c.plot / 110))));
  for (const f of [1, 2, 5, 10]) if (step * f * c.plot / span >= 92) { step *= f; break; }
  const from = Math.ceil(view[0] * D.tick_us / step - 1e-9);
  const unit = view[1] * D.tick_us >= 1e6 ? [1e6, "s"] : view[1] * D.tick_us >= 1e3 ? [1e3, "ms"] : [1, "\u00b5s"];
  const digits = limit(Math.ceil(-Math.log10(step / unit[0]) - 1e-9), 0, 9);
  g.textAlign = "center";
  for (let i = from; i * step <= view[1] * D.tick_us * (1 + 1e-12); i++) {
    const x = Math.round(xOf(c, i * step / D.tick_us)) + 0.5;
    g.strokeStyle = color.grid;
    g.beginPath(); g.moveTo(x, TOP - 4); g.lineTo(x, bottom); g.stroke();
    g.fillStyle = color.muted;
    g.fillText((i * step / unit[0]).toFixed(digits) + (i === from ? " " + unit[1] : ""), x, TOP - 14);
  }
}
/* Many actions per pixel: each column of pixels is divided by what the rank does in it. */
function drawDense(c, row, first, last) {
  const {g, ratio} = c, L = row.lane;
  const W = Math.round(c.plot * ratio), H = Math.round(row.h * ratio), scale = W / (view[1] - view[0]);
  const share = [0, 1, 2, 3, 4].map(() => new Float32Array(W));
  for (let i = first; i < last; i++) {
    const a = limit((L.start[i] - view[0]) * scale, 0, W), b = limit((L.end[i] - view[0]) * scale, 0, W);
    const s = share[L.kind[i]];
    for (let x = Math.floor(a); x < b; x++) s[x] += Math.min(b, x + 1) - Math.max(a, x);
  }
  // Averaged over some actions: else columns would show which of them happen to fall into a pixel.
  // Not beyond a gap that is longer than what is averaged.
  const reach = Math.ceil(4 * W / (last - first));
  const average = (from, to) => {
    for (const s of share) {
      const sums = new Float64Array(to - from + 1);
      for (let x = from; x < to; x++) sums[x - from + 1] = sums[x - from] + s[x];
      for (let x = from; x < to; x++) {
        const a = Math.max(from, x - reach), b = Math.min(to, x + reach + 1);
        s[x] = (sums[b - from] - sums[a - from]) / (b - a);
      }
    }
  };
  let run = first < last ? limit(Math.floor((L.start[first] - view[0]) * scale), 0, W) : W;
  for (let i = first; i < last; i++) {
    const b = limit(Math.ceil((L.end[i] - view[0]) * scale), 0, W);
    const next = i + 1 < last ? limit(Math.floor((L.start[i + 1] - view[0]) * scale), 0, W) : W;
    if (next - b > 2 * reach || i + 1 === last) {
      average(run, Math.max(run, b));
      run = next;
    }
  }
  const image = g.createImageData(W, H), px = new Uint32Array(image.data.buffer);
  const pack = (h) => 0xff000000 | parseInt(h.slice(5, 7) + h.slice(3, 5) + h.slice(1, 3), 16);
  const paint = KIND_COLOR.map((k) => pack(color[k])), idle = pack(color.idle);
  const out = pack(color.panel), stop = (row.T.end - view[0]) * scale;
  for (let x = 0; x < W; x++) {
    let y = 0, sum = 0;
    for (let k = 0; k < 5; k++) {
      sum += share[k][x];
      for (const to = Math.min(H, Math.round(sum * H)); y < to; y++) px[y * W + x] = paint[k];
    }
    for (; y < H; y++) px[y * W + x] = x < stop ? idle : out;
  }
  g.putImageData(image, Math.round(LEFT * ratio), Math.round(row.y * ratio));
}
function drawCells(c, row, first, last) {
  const {g} = c, L = row.lane, wide = c.plot / (view[1] - view[0]);
  const font = row.h >= 19 ? 11 : row.h >= 13 ? 9.5 : 0;
  g.font = g.font.replace(/^[\d.]+px/, (font || 10) + "px");
  g.textAlign = "center";
  for (let i = first; i < last; i++) {
    const a = Math.max(LEFT, xOf(c, L.start[i])), b = Math.min(LEFT + c.plot, xOf(c, L.end[i]));
    const k = L.kind[i], w = b - a;
    g.fillStyle = fills[k][k === 4 ? 0 : chunkOf[L.stage[i]]];
    g.fillRect(a, row.y, w > 3 ? w - 1 : Math.max(w, 0.4), row.h);
    if (!font || k === 4 || (L.end[i] - L.start[i]) * wide < 8) continue;
    const text = String(L.mb[i]);
    if (w >= text.length * font * 0.62 + 4) {
      g.fillStyle = k === 0 && !chunkOf[L.stage[i]] ? color["on-forward"] : color["on-light"];
      if (k === 0 && root.dataset.theme === "dark") g.fillStyle = color["on-forward"];
      g.fillText(text, a + (w - 1) / 2, row.y + row.h / 2 + 0.5);
    }
  }
}
function drawLane(c, row) {
  const {g} = c, L = row.lane;
  const first = seek(L, view[0]);
  let last = first;
  while (last < L.n && L.start[last] < view[1]) last++;
  const stop = limit(xOf(c, row.T.end), LEFT, LEFT + c.plot);
  if (last - first > c.plot * 0.4) {
    drawDense(c, row, first, last);
  } else {
    g.fillStyle = hatch;
    g.fillRect(LEFT, row.y, stop - LEFT, row.h);
    drawCells(c, row, first, last);
  }
  g.fillStyle = color.reduce;
  for (const [, start, length] of L.reductions) {
    const a = limit(xOf(c, start), LEFT, LEFT + c.plot), b = limit(xOf(c, start + length), LEFT, LEFT + c.plot);
    if (length > 0 && b > a) g.fillRect(a, row.y + row.h - (row.h > 16 ? 4 : 2), Math.max(b - a, 1), row.h > 16 ? 4 : 2);
  }
}
function labels(c, row) {
  const {g} = c, L = row.lane, mid = row.y + row.h / 2 + 0.5;
  g.font = g.font.replace(/^[\d.]+px/, (row.h >= 13 ? 11 : 9) + "px");
  g.textAlign = "right";
  g.fillStyle = row.first ? color.ink : color.muted;
  if (row.first) g.fillText((P <= 32 ? "rank " : "") + L.rank, LEFT - 12, mid);
  else if (row.h >= 13) g.fillText("measured", LEFT - 12, mid);
  g.textAlign = "left";
  g.fillStyle = color.muted;
  g.fillText(percent(L.busy / row.T.end / D.tick_us).replace(/\.\d+/, "") + (row === rows[0] ? " busy" : ""), LEFT + c.plot + 10, mid);
}
function drawTimeline() {
  const c = canvas("timeline", rows.bottom);
  axis(c, rows.bottom - 4);
  let drawn = 0;
  for (const row of rows) { drawLane(c, row); labels(c, row); drawn++; }
  root.dataset.rows = String(drawn);
  const whole = view[0] <= 0 && view[1] >= END;
  $("span").textContent = whole ? "" : us((view[1] - view[0]) * D.tick_us) + " of " + ticks(END);
  $("overlay").style.height = rows.bottom + "px";
}

/* ---- drawing: overview ---- */
let busyImage = null;
function drawOverview() {
  const c = canvas("overview", 44), {g} = c, W = Math.max(1, Math.round(c.plot)), H = 30, y = 7;
  if (!busyImage || busyImage.W !== W) {
    const share = [0, 1, 2, 3, 4].map(() => new Float32Array(W));
    for (const L of timelines[0].lanes)
      for (let i = 0; i < L.n; i++) {
        const a = L.start[i] / END * W, b = L.end[i] / END * W, s = share[L.kind[i]];
        for (let x = Math.floor(a); x < b && x < W; x++) s[x] += Math.min(b, x + 1) - Math.max(a, x);
      }
    busyImage = {W, share};
  }
  g.fillStyle = color.idle;
  g.fillRect(LEFT, y, c.plot, H);
  for (let x = 0; x < W; x++) {
    let from = y + H;
    for (let k = 0; k < 5; k++) {
      const h = busyImage.share[k][x] / P * H;
      if (h <= 0) continue;
      g.fillStyle = color[KIND_COLOR[k]];
      g.fillRect(LEFT + x, from - h, 1, h);
      from -= h;
    }
  }
  g.textAlign = "right";
  g.fillStyle = color.muted;
  g.fillText("all ranks", LEFT - 12, y + H / 2);
  const a = LEFT + view[0] / END * c.plot, b = LEFT + view[1] / END * c.plot;
  if (view[0] > 0 || view[1] < END) {
    g.globalAlpha = 0.62;
    g.fillStyle = color.panel;
    g.fillRect(LEFT, y, a - LEFT, H);
    g.fillRect(b, y, LEFT + c.plot - b, H);
    g.globalAlpha = 1;
    g.strokeStyle = color.focus;
    g.lineWidth = 1.5;
    g.strokeRect(a, y - 2, Math.max(b - a, 2), H + 4);
  }
}

/* ---- drawing: memory ---- */
const memoryRow = P <= 8 ? 44 : P <= 16 ? 32 : P <= 32 ? 22 : P <= 64 ? 15 : 11;
const memoryGap = memoryRow >= 22 ? 8 : 3;
const memoryTop = Math.max(...D.memory.map((m) => m.reserved));
const memoryLimit = Math.max(0, ...D.memory.map((m) => m.limit));
const memoryShown = memoryLimit > 0 && memoryTop > 0.3 * memoryLimit; // else the limit is off the scale
const memoryFull = memoryShown ? memoryLimit : memoryTop; // of the darkest strip
const memoryScale = memoryShown ? Math.max(memoryLimit, memoryTop) * 1.04 : memoryTop * 1.12 || 1;
const memoryHeat = memoryRow < 18; // rows too low for a curve: darker is fuller
function memoryArea(c, L, m, base, stop) {
  const {g} = c, y = (b) => base - b / memoryScale * memoryRow;
  g.fillStyle = color.alive;
  g.beginPath();
  g.moveTo(LEFT, base);
  for (let i = Math.max(0, seek(L, view[0]) - 1); i < L.n && L.start[i] < view[1];) {
    const a = limit(xOf(c, L.start[i]), LEFT, stop);
    let held = L.bytes[i], next = i + 1; // what shares a pixel: its largest
    while (next < L.n && (L.bytes[next] === held || xOf(c, L.start[next]) < a + 0.7)) { held = Math.max(held, L.bytes[next]); next++; }
    const b = next < L.n ? limit(xOf(c, L.start[next]), LEFT, stop) : stop;
    if (i === 0 && a > LEFT) { g.lineTo(LEFT, y(m.fixed)); g.lineTo(a, y(m.fixed)); }
    g.lineTo(a, y(held));
    g.lineTo(b, y(held));
    i = next;
  }
  g.lineTo(Math.max(stop, LEFT), base);
  g.fill();
  g.fillStyle = color.fixed;
  if (stop > LEFT) g.fillRect(LEFT, y(m.fixed), stop - LEFT, base - y(m.fixed));
  g.strokeStyle = color.reserved;
  g.lineWidth = 1;
  g.setLineDash([1.5, 2.5]);
  g.beginPath(); g.moveTo(LEFT, Math.round(y(m.reserved)) + 0.5); g.lineTo(stop, Math.round(y(m.reserved)) + 0.5); g.stroke();
  g.setLineDash([]);
  if (memoryShown && m.limit) {
    g.strokeStyle = color.limit;
    g.beginPath(); g.moveTo(LEFT, Math.round(y(m.limit)) + 0.5); g.lineTo(LEFT + c.plot, Math.round(y(m.limit)) + 0.5); g.stroke();
  }
}
function memoryStrip(c, L, m, base, stop) {
  const {g} = c, W = Math.max(0, Math.round(stop - LEFT)), most = new Float64Array(W);
  for (let i = Math.max(0, seek(L, view[0]) - 1); i < L.n && L.start[i] < view[1]; i++) {
    const from = limit(Math.floor(xOf(c, L.start[i]) - LEFT), 0, W);
    const to = i + 1 < L.n ? limit(Math.ceil(xOf(c, L.start[i + 1]) - LEFT), 0, W) : W;
    for (let x = from; x < to; x++) most[x] = Math.max(most[x], L.bytes[i]);
  }
  for (let x = 0, from = 0; x < W; from = x) {
    const shade = (v) => Math.round(40 * limit((v || m.fixed) / memoryFull, 0, 1)), level = shade(most[x]);
    while (x < W && shade(most[x]) === level) x++;
    g.fillStyle = mix(color.idle, color.dark, level / 40);
    g.fillRect(LEFT + from, base - memoryRow, x - from, memoryRow);
  }
}
function drawMemory() {
  const c = canvas("memory", TOP + 4 + P * (memoryRow + memoryGap) + 4), {g} = c;
  axis(c, c.height - 4);
  g.font = g.font.replace(/^[\d.]+px/, (memoryRow >= 13 ? 11 : 9) + "px");
  for (let r = 0; r < P; r++) {
    const L = timelines[0].lanes[r], m = D.memory[r];
    const base = TOP + 4 + r * (memoryRow + memoryGap) + memoryRow, stop = Math.min(xOf(c, timelines[0].end), LEFT + c.plot);
    (memoryHeat ? memoryStrip : memoryArea)(c, L, m, base, stop);
    g.textAlign = "right"; g.fillStyle = color.ink;
    g.fillText((P <= 32 ? "rank " : "") + r, LEFT - 12, base - memoryRow / 2 + 0.5);
    g.textAlign = "left"; g.fillStyle = color.muted;
    if (memoryRow >= 30 && m.limit) {
      g.fillText(bytes(m.reserved), LEFT + c.plot + 10, base - memoryRow / 2 - 6);
      g.fillText("of " + bytes(m.limit), LEFT + c.plot + 10, base - memoryRow / 2 + 8);
    } else g.fillText(bytes(m.reserved), LEFT + c.plot + 10, base - memoryRow / 2 + 0.5);
  }
}

/* ---- overlay: selection, its messages, its micro-batch ---- */
let selected = null, pinned = false, follow = false;
const rowOf = (c) => rows.find((r) => r.lane === c.lane);
function arrow(c, m) {
  const g = c.g, a = rowOf(m.from), b = rowOf(m.to), x0 = xOf(c, m.from.lane.end[m.from.i]);
  const arrived = m.to.lane.ready[m.to.i], start = m.to.lane.start[m.to.i];
  const x1 = xOf(c, arrived >= 0 ? Math.min(arrived, start) : start), y0 = a.y + a.h / 2, y1 = b.y + b.h / 2;
  if (Math.max(x0, x1) < LEFT - 400 || Math.min(x0, x1) > LEFT + c.plot + 400) return;
  const bend = Math.max(14, Math.abs(x1 - x0) * 0.5);
  for (const [halo, ink] of [[1.6, color.panel], [0, color.sent]]) {
    g.lineWidth = 1.6 + 2 * halo;
    g.strokeStyle = g.fillStyle = ink;
    g.beginPath();
    g.arc(x0, y0, 2.6 + halo, 0, 7);
    g.fill();
    g.beginPath();
    g.moveTo(x0, y0);
    g.bezierCurveTo(x0 + bend, y0, x1 - bend - 6, y1, x1 - 6, y1);
    g.stroke();
    g.beginPath();
    g.moveTo(x1 + halo, y1);
    g.lineTo(x1 - 7 - halo, y1 - 3.8 - halo);
    g.lineTo(x1 - 7 - halo, y1 + 3.8 + halo);
    g.fill();
  }
}
function outline(c, cell, width, ink) {
  const row = rowOf(cell), L = cell.lane, g = c.g;
  const a = limit(xOf(c, L.start[cell.i]), LEFT - 2, LEFT + c.plot + 2), b = limit(xOf(c, L.end[cell.i]), LEFT - 2, LEFT + c.plot + 2);
  if (b <= LEFT - 2 || a >= LEFT + c.plot + 2) return;
  g.lineWidth = width; g.strokeStyle = ink;
  g.strokeRect(a - 0.5, row.y - 0.5, Math.max(b - a, 2), row.h + 1);
}
function drawOverlay() {
  const c = canvas("overlay", rows.bottom), {g} = c;
  if (!selected) return;
  g.save();
  g.beginPath(); g.rect(LEFT - 3, 0, c.plot + 6, c.height); g.clip();
  const {T, lane: L, i} = selected;
  if (L.kind[i] < 4) {
    if (follow) {
      g.globalAlpha = 0.6; g.fillStyle = color.panel;
      g.fillRect(LEFT, TOP, c.plot, c.height - TOP);
      g.globalAlpha = 1;
    }
    for (const lane of T.lanes)
      for (let j = seek(lane, view[0]); j < lane.n && lane.start[j] < view[1]; j++)
        if (lane.kind[j] < 4 && lane.mb[j] === L.mb[i]) {
          if (follow) {
            const row = rowOf({lane}), a = xOf(c, lane.start[j]), b = xOf(c, lane.end[j]);
            g.fillStyle = fills[lane.kind[j]][chunkOf[lane.stage[j]]];
            g.fillRect(a, row.y, Math.max(b - a, 1.5), row.h);
          }
          outline(c, {lane, i: j}, 1, color.sent);
        }
  }
  outline(c, selected, 2, color.sent);
  for (const m of messages(selected)) arrow(c, m);
  g.restore();
}

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
  head(table, ["Rank", "<Step", "Busy", "<Waits", "<Memory, of " + (memoryShown ? "its limit" : "the largest"), "Reserved", "Limit"]);
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
    .filter(([, k]) => T.lanes.some((L) => L.wait[k] > total * 5e-4)).map(([n, k]) => swatch(WAIT_COLOR[k], "waits: " + n)));
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
/* Reads the drawing back: "N of N" cells that are wide enough have their colour at their edge. */
function check() {
  const c = canvases.timeline, px = $("timeline").getContext("2d");
  let good = 0, all = 0;
  for (const r of rows)
    for (let i = 0; i < r.lane.n; i++) {
      const a = xOf(c, r.lane.start[i]), b = xOf(c, r.lane.end[i]);
      if (b - a < 4 || a < LEFT || b > LEFT + c.plot) continue;
      const p = px.getImageData(Math.floor((a + 1.5) * c.ratio), Math.floor((r.y + 2) * c.ratio), 1, 1).data;
      const hex = "#" + [p[0], p[1], p[2]].map((v) => v.toString(16).padStart(2, "0")).join("");
      all++;
      if (hex === fills[r.lane.kind[i]][r.lane.kind[i] === 4 ? 0 : chunkOf[r.lane.stage[i]]]) good++;
    }
  return good + " of " + all;
}
start();
})();
