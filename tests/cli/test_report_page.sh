#!/usr/bin/env bash
# The page in a browser: it draws every action, without a script error, in the colours of light and
# dark, at 8 ranks x 64 micro-batches and at 64 x 512, and tells of what is pointed at. A script that
# the test adds reads the canvas back and drives the page. Skipped where there is no Chromium.
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
# wide enough is looked for in its colour, at its left edge.
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
  root.dataset.seen = list(seen);
  root.dataset.wrong = list(wrong);
}
readBack();
root.dataset.rows = String(rows.length);
root.dataset.cells = String(rows.reduce((sum, r) => sum + r.lane.cells.length, 0));
root.dataset.tables = String($("stages").rows.length) + " " + String($("ranks").rows.length);
</script>
AFTER

# show PAGE [OPTION...] < SCRIPT: the page, with the script behind the above, in `dom`.
show() {
    local page=$1
    shift
    cat after.html - >behind.html
    sed -e '/^<head>/r before.html' -e '/^<\/body>/{
r behind.html
}' "$page" >shown.html
    expect_exit 0 "$browser" --headless=new --no-sandbox --disable-gpu --hide-scrollbars \
        --force-device-scale-factor=1 --user-data-dir="$scratch/browser" --enable-logging=stderr \
        --virtual-time-budget=5000 --window-size=1400,1600 "$@" --dump-dom "file://$scratch/shown.html"
    expect_no_match err 'Uncaught|CONSOLE.*[Ee]rror'
    cp out dom
    expect_equal "$page: errors" "$(told errors)" 0
}
light=--blink-settings=preferredColorScheme=1
dark=--blink-settings=preferredColorScheme=0

told() { # name: what the page says about itself
    grep -o "data-$1=\"[^\"]*\"" dom | head -n 1 | cut -d '"' -f 2
}

# expect_page PAGE ROWS ACTIONS "STAGES RANKS" [OPTION...]: rows and actions drawn, rows of both tables
# with their heads; nothing that is wide enough has another colour than its own.
expect_page() {
    show "$1" "${@:5}" </dev/null
    expect_equal "$1: rows" "$(told rows)" "$2"
    expect_equal "$1: actions" "$(told cells)" "$3"
    expect_equal "$1: tables" "$(told tables)" "$4"
    expect_equal "$1: actions of another colour" "$(told wrong)" ""
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
expect_page whole.html 4 52 '5 5' "$light"
expect_match dom 'data-seen="#2f6db3 24 (#454b55 [0-9] )?#efa43f 24"'
expect_page whole.html 4 52 '5 5' "$dark"
expect_match dom 'data-seen="#3f80c9 24 (#9aa2ad [0-9] )?#f2b253 24"'
expect_exit 0 smp-partition model.yaml --cluster four.yaml --stages 4 --ddp 1 --chunks 1 \
    --microbatches 6 --microbatch-size 16 --pipeline zero-bubble --report split.html
expect_page split.html 4 76 '5 5' "$light"
expect_match dom 'data-seen="#2f6db3 24 (#454b55 [0-9] )?#cbd97f [0-9]+ #d9662b [0-9]+"'

# Two stages per rank; a part of the step.
expect_exit 0 smp-partition model.yaml --cluster four.yaml --stages 2 --ddp 2 --chunks 2 \
    --microbatches 4 --microbatch-size 4 --pipeline interleaved --report chunks.html
expect_page chunks.html 2 34 '5 3' "$light"
show chunks.html "$light" <<'PART'
<script>
setView(0.2 * END, 0.3 * END);
setTimeout(readBack, 50);
</script>
PART
expect_match dom 'data-seen="#'
expect_equal "part of chunks.html: actions of another colour" "$(told wrong)" ""

# Driven: the pointer over actions and over idle time, keys, buttons, the wheel.
show whole.html "$light" <<'DRIVE'
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
(told told || true) | tr ';' '\n' >told.txt
expect_match told.txt '^Forwardof micro-batch 0.*rank 0, stage 0.*Sends'
expect_match told.txt '^ Idle.*rank 3.*Waits.*forward of 0, stage 2 on rank 2'
expect_equal "nothing beside the rows" "$(sed -n 3p told.txt)" ' -'
expect_match told.txt '^ Forwardof micro-batch 0.*rank 1, stage 1.*Waited.*Receives'
expect_match told.txt '^ [0-9.]+ [a-z]*s of [0-9.]+ [a-z]*s$'

# Of a run: every curve is drawn, within its figure; ranks of both tables.
write_text text.txt 20000
expect_exit 0 smp-partition model.yaml -n 2 --stages 2 --ddp 1 --chunks 1 --microbatches 4 --microbatch-size 1 -o two.yaml
expect_exit 0 mpirun -n 2 smp-run two.yaml --data text.txt --eval-data text.txt --eval-every 4 --steps 9 --report run.html
show run.html "$light" <<'RUN'
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
expect_equal "curves" "$(told figures)" "true true true true true"
expect_equal "rows and dots of a run" "$(told run)" "3 3 3"

# The sizes that the page is made for.
model 8 >eight.yaml
cluster 8 >eight-devices.yaml
expect_exit 0 smp-partition eight.yaml --cluster eight-devices.yaml --stages 8 --ddp 1 --chunks 1 \
    --microbatches 64 --microbatch-size 4 --pipeline interleaved --report large.html
expect_page large.html 8 1032 '9 9'
model 64 >sixty.yaml
cluster 64 >sixty-devices.yaml
expect_exit 0 smp-partition sixty.yaml --cluster sixty-devices.yaml --stages 64 --ddp 1 --chunks 1 \
    --microbatches 512 --microbatch-size 4 --pipeline interleaved --report huge.html
expect_equal "megabytes" "$(($(wc -c <huge.html) / 1000000 < 3))" 1
expect_page huge.html 64 65600 '65 65'
finish
