#!/usr/bin/env bash
# The page in a browser: it draws every action, without a script error, in the colours of light and
# dark, at 8 ranks x 64 micro-batches and at 64 x 256 (in the long run 512), and tells of what is pointed
# at. A script that the test adds reads the canvas back and drives the page. Skipped where there is no Chromium.
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
browser=
for name in chromium chromium-browser google-chrome; do
    [ -n "$browser" ] || browser=$(command -v "$name" || true)
done
[ -n "$browser" ] || {
    echo "no chromium found"
    exit 77
}
export HOME=$scratch # for its settings

# What a page gets before its scripts and after them: errors are counted, frames come by the browser's
# virtual clock, which --dump-dom waits for (real ones may come after it); then each action that is
# wide enough is looked for in its colour, at its left edge. In the end a page tells what it found: the document
# that frames it, or its own.
cat >before.html <<'BEFORE'
<script>
const root = document.documentElement;
root.dataset.errors = "0";
window.addEventListener("error", () => { root.dataset.errors = String(+root.dataset.errors + 1); });
window.requestAnimationFrame = (draw) => setTimeout(draw, 16);
</script>
BEFORE
cat >after.html <<'AFTER'
<script>
function readBack() {
  const canvas = $("timeline"), g = canvas.getContext("2d"), seen = {}, wrong = {};
  for (const row of rows) {
    const image = g.getImageData(0, row.y + 2, canvas.width, 1).data;
    for (const c of row.lane.cells) {
      const at = 4 * Math.floor(xOf(c.start) + 1.5);
      if (xOf(c.end) - xOf(c.start) < 4 || c.start < view[0] || (c.stage >= 0 && chunkOf[c.stage] > 0)) continue;
      const hex = "#" + [0, 1, 2].map((i) => image[at + i].toString(16).padStart(2, "0")).join("");
      (hex === fills[c.kind] ? seen : wrong)[hex] = ((hex === fills[c.kind] ? seen : wrong)[hex] || 0) + 1;
    }
  }
  const list = (o) => Object.keys(o).sort().map((k) => k + " " + o[k]).join(" ");
  return [list(seen), list(wrong)];
}
[root.dataset.seen, root.dataset.wrong] = readBack();
root.dataset.rows = String(rows.length);
root.dataset.cells = String(rows.reduce((sum, r) => sum + r.lane.cells.length, 0));
root.dataset.tables = String($("stages").rows.length) + " " + String($("ranks").rows.length);
setTimeout(() => parent.postMessage({page: location.pathname.replace(/.*\/|\.shown.*/g, ""), ...root.dataset}, "*"), 1000);
</script>
AFTER
cat >listener.html <<'LISTENER'
<pre id="told"></pre>
<script>
window.addEventListener("message", (e) => {
  for (const key in e.data) document.getElementById("told").textContent += `\n${e.data.page}: ${key} = ${e.data[key]}`;
});
</script>
LISTENER

# prepare NAME PAGE < SCRIPT: the page as NAME.shown.html, with the script behind the above.
prepare() {
    cat after.html - >behind.html
    sed -e '/^<head>/r before.html' -e '/^<\/body>/{
r behind.html
}' "$2" >"$1.shown.html"
}

# browse DOCUMENT OPTION...: what the pages in it tell, in `dom`.
browse() {
    expect_exit 0 "$browser" --headless=new --no-sandbox --disable-gpu --hide-scrollbars \
        --force-device-scale-factor=1 --user-data-dir="$scratch/browser" --enable-logging=stderr \
        --virtual-time-budget=5000 --window-size=1400,1600 "${@:2}" --dump-dom "file://$scratch/$1"
    expect_no_match err 'Uncaught|CONSOLE.*[Ee]rror'
    cp out dom
}
light=--blink-settings=preferredColorScheme=1
dark=--blink-settings=preferredColorScheme=0

told() { # name, key: what the page says about itself
    sed -nE "s/^$1: $2 = (.*)/\\1/p" dom | sed 's/<\/pre>.*//'
}

# expect_page NAME ROWS ACTIONS "STAGES RANKS" COLOURS: rows and actions drawn, rows of both tables
# with their heads; nothing that is wide enough has another colour than its own.
expect_page() {
    expect_equal "$1: errors" "$(told "$1" errors)" 0
    expect_equal "$1: rows" "$(told "$1" rows)" "$2"
    expect_equal "$1: actions" "$(told "$1" cells)" "$3"
    expect_equal "$1: tables" "$(told "$1" tables)" "$4"
    expect_equal "$1: actions of another colour" "$(told "$1" wrong)" ""
    expect_match <(told "$1" seen) "^$5"
}

model() { # layers
    sed "s/layers: [0-9]*/layers: $1/" "$SMP_EXAMPLES/gpt-tiny.yaml"
}
cluster() { # devices
    cat <<CLUSTER
smp: 1
name: test
nodes: 1
devices_per_node: $1
device: {name: fast, memory: 8GB, compute: {fp32: 60TFLOP/s}, bandwidth: 3TB/s}
links:
  intra_node: {bandwidth: 450GB/s, latency_us: 1}
  inter_node: {bandwidth: 450GB/s, latency_us: 1}
overlap: true
CLUSTER
}
model 4 >model.yaml
cluster 4 >four.yaml

# Whole and split backwards: four ranks, six micro-batches; optimizers may be too short to see.
expect_exit 0 smp-partition model.yaml --cluster four.yaml --stages 4 --ddp 1 --chunks 1 \
    --microbatches 6 --microbatch-size 16 --pipeline interleaved --report whole.html
expect_exit 0 smp-partition model.yaml --cluster four.yaml --stages 4 --ddp 1 --chunks 1 \
    --microbatches 6 --microbatch-size 16 --pipeline zero-bubble --report split.html
prepare dark whole.html <listener.html
prepare split split.html </dev/null

# Two stages per rank; a part of the step.
expect_exit 0 smp-partition model.yaml --cluster four.yaml --stages 2 --ddp 2 --chunks 2 \
    --microbatches 4 --microbatch-size 4 --pipeline interleaved --shard 1 --report chunks.html
prepare chunks chunks.html <<'PART'
<script>
setView(0.2 * END, 0.3 * END);
setTimeout(() => { [root.dataset.partSeen, root.dataset.partWrong] = readBack(); }, 50);
</script>
PART

# Driven: the pointer over actions and over idle time, keys, buttons, the wheel.
prepare whole whole.html <<'DRIVE'
<script>
(() => {
  const overlay = $("overlay"), tip = $("tip"), told = [], box = overlay.getBoundingClientRect();
  const say = (text) => told.push(text.replace(/[^ -~]/g, ""));
  const point = (rank, t) => {
    overlay.dispatchEvent(new PointerEvent("pointermove",
      {clientX: box.left + (rank < 0 ? 20 : xOf(t)), clientY: box.top + rows[Math.max(rank, 0)].y + 5, bubbles: true}));
    say(tip.hidden ? "-" : tip.textContent);
  };
  const middle = (c) => (c.start + c.end) / 2, lanes = timelines[0].lanes;
  point(0, middle(lanes[0].cells[0]));
  point(3, lanes[3].cells[0].start / 2);
  point(-1);
  point(1, middle(lanes[1].cells[0]));
  overlay.dispatchEvent(new KeyboardEvent("keydown", {key: "+", bubbles: true}));
  $("zoom-in").click();
  overlay.dispatchEvent(new WheelEvent("wheel", {deltaY: -100, ctrlKey: true, clientX: box.left + 300, clientY: box.top + 50}));
  overlay.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight", bubbles: true}));
  setTimeout(() => {
    say($("span").textContent);
    root.dataset.told = told.join("; ");
  }, 100);
})();
</script>
DRIVE

# Of a run: every curve is drawn, within its figure; ranks of both tables.
write_text text.txt 20000
write_text eval.txt 2000
expect_exit 0 smp-partition model.yaml -n 2 --stages 2 --ddp 1 --chunks 1 --microbatches 4 --microbatch-size 1 -o two.yaml
expect_exit 0 mpirun -n 2 smp-run two.yaml --data text.txt --eval-data eval.txt --eval-every 4 --steps 9 --report run.html
prepare run run.html <<'RUN'
<script>
const inside = [...document.querySelectorAll("figure")].map((figure) => {
  const box = figure.querySelector("svg").viewBox.baseVal, marks = figure.querySelectorAll(".curve, .planned, circle");
  return [...marks].every((m) => m.getBBox().x >= 0 && m.getBBox().y >= 0 && m.getBBox().x + m.getBBox().width <= box.width &&
    m.getBBox().y + m.getBBox().height <= box.height) && figure.querySelector(".curve").getTotalLength() > 100;
});
root.dataset.figures = inside.join(" ");
root.dataset.run = [$("times").rows.length, $("resident").rows.length, document.querySelectorAll("circle").length].join(" ");
</script>
RUN

# The sizes that the page is made for. Where stages are cut is not looked at.
cut=(--partitioner equal-layers) microbatches=256
[ -z "${SMP_TEST_LONG-}" ] || cut=() microbatches=512
model 8 >eight.yaml
cluster 8 >eight-devices.yaml
expect_exit 0 smp-partition eight.yaml --cluster eight-devices.yaml --stages 8 --ddp 1 --chunks 1 \
    --microbatches 64 --microbatch-size 4 --pipeline interleaved "${cut[@]}" --report large.html
prepare large large.html </dev/null
model 64 >sixty.yaml
cluster 64 >sixty-devices.yaml
expect_exit 0 smp-partition sixty.yaml --cluster sixty-devices.yaml --stages 64 --ddp 1 --chunks 1 \
    --microbatches "$microbatches" --microbatch-size 4 --pipeline interleaved "${cut[@]}" --report huge.html
expect_equal "bytes of an action below 45" "$(($(wc -c <huge.html) / (64 * 2 * microbatches) < 45))" 1 # 3 MB for 512
prepare huge huge.html </dev/null

# Alone, in the dark.
browse dark.shown.html "$dark"
expect_page dark 4 52 '5 5' '#3f80c9 24 (#9aa2ad [0-9] )?#f2b253 24'

# All others at one start of the browser, each in a frame of the window's size.
{
    cat listener.html
    printf '<iframe src="%s.shown.html" style="position: absolute; left: 0; top: 0; width: 1400px; height: 1600px"></iframe>\n' \
        whole split chunks run large huge
} >all.html
browse all.html "$light"
expect_page whole 4 52 '5 5' '#2f6db3 24 (#454b55 [0-9] )?#efa43f 24'
expect_page split 4 76 '5 5' '#2f6db3 24 (#454b55 [0-9] )?#cbd97f [0-9]+ #d9662b [0-9]+'
expect_page chunks 2 34 '5 3' '#'
expect_match <(told chunks partSeen) '^#'
expect_equal "part of chunks: actions of another colour" "$(told chunks partWrong)" ""
expect_page large 8 1032 '9 9' '#2f6db3 [0-9]+ #efa43f '
expect_page huge 64 $((64 * (2 * microbatches + 1))) '65 65' ''
told whole told | tr ';' '\n' >told.txt
expect_match told.txt '^Forwardof micro-batch 0.*rank 0, stage 0.*Sends'
expect_match told.txt '^ Idle.*rank 3.*Waits.*forward of 0, stage 2 on rank 2'
expect_equal "nothing beside the rows" "$(sed -n 3p told.txt)" ' -'
expect_match told.txt '^ Forwardof micro-batch 0.*rank 1, stage 1.*Waited.*Receives'
expect_match told.txt '^ [0-9.]+ [a-z]*s of [0-9.]+ [a-z]*s$'
expect_equal "errors of a run's page" "$(told run errors)" 0
expect_equal "curves" "$(told run figures)" "true true true true true"
expect_equal "rows and dots of a run" "$(told run run)" "3 3 3"
finish
