/* The page of a plan: its data (see draw_html.c), and what follows from it. Times are in ticks of
 * D.tick_us. First of three scripts that share one scope: report_model, report_draw, report_page. */
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
const WAIT_NAME = ["warm-up", "transfers", "imbalance", "reduction", "drain"];
const WAIT_COLOR = ["wait-warmup", "wait-transfer", "wait-imbalance", "wait-reduce", "wait-drain"];
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
