/* The page of a plan: its four canvases (overview, timeline, overlay, memory). */
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
    if (!font || k === 4 || (L.end[i] - L.start[i]) * wide < 7) continue;
    const text = String(L.mb[i]);
    if (w >= text.length * font * 0.6 + 2.5) {
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
