#!/usr/bin/env bash
# The page in a browser: it draws every action, without a script error, in the colours of light and
# dark, at 8 ranks x 64 micro-batches and at 64 x 512. Skipped where there is no Chromium.
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

show() { # page#hash width height option...: the browser's output in `out`, its messages in `err`
    local page=$1 width=$2 height=$3
    shift 3
    expect_exit 0 "$browser" --headless=new --no-sandbox --disable-gpu --hide-scrollbars \
        --force-device-scale-factor=1 --user-data-dir="$scratch/browser" --enable-logging=stderr \
        --virtual-time-budget=5000 --window-size="$width,$height" "$@" "file://$scratch/$page"
    expect_no_match err 'Uncaught|CONSOLE.*[Ee]rror'
}

report() { # name: what the page says about itself
    grep -o "data-$1=\"[^\"]*\"" dom | head -n 1 | cut -d '"' -f 2
}

# expect_page PAGE#HASH ROWS ACTIONS: rows and actions drawn, no errors; all that is wide enough has
# its colour.
expect_page() {
    show "$1" 1400 1600 --dump-dom
    cp out dom
    expect_equal "$1: errors" "$(report errors)" 0
    expect_equal "$1: ready" "$(report ready)" 1
    expect_equal "$1: rows" "$(report rows)" "$2"
    expect_equal "$1: actions" "$(report cells)" "$3"
    local good all
    read -r good _ all <<<"$(report check)"
    expect_equal "$1: coloured actions" "$good" "$all"
}

# expect_colors PAGE#HASH HEIGHT "RRGGBB BANDS"...: bands of rows of a screenshot that show a colour.
expect_colors() {
    local page=$1 height=$2 color
    show "$page" 1400 "$height" --screenshot="$scratch/shot.png"
    shift 2
    for color in "$@"; do
        run png_colors shot.png "${color% *}"
        expect_equal "$page: bands of ${color% *}" "$(cut -d ' ' -f 3 out)" "${color#* }"
    done
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

# Whole and split backwards. A colour stands in a band for each rank, in the legend, in the overview
# of all ranks, and in the table of stages (forward and backward; forward in that of ranks too).
expect_exit 0 smp-partition model.yaml --cluster four.yaml --stages 4 --ddp 1 --chunks 1 \
    --microbatches 6 --microbatch-size 16 --pipeline interleaved --report whole.html
expect_page 'whole.html#theme=light&check' 4 52
expect_equal "whole.html: actions that are wide enough" "$(($(report check | cut -d ' ' -f 1) >= 48))" 1
expect_colors 'whole.html#theme=light' 1600 'efa43f 10' '2f6db3 15' 'd9662b 0' 'f2b253 0'
expect_colors 'whole.html#theme=dark' 1600 'f2b253 10' '3f80c9 15' 'efa43f 0'
expect_exit 0 smp-partition model.yaml --cluster four.yaml --stages 4 --ddp 1 --chunks 1 \
    --microbatches 6 --microbatch-size 16 --pipeline zero-bubble --report split.html
expect_page 'split.html#theme=light&check' 4 76
expect_colors 'split.html#theme=light' 1600 'd9662b 6' 'cbd97f 6'

# Parts of the step, a chosen action with its messages, two stages per rank.
expect_exit 0 smp-partition model.yaml --cluster four.yaml --stages 2 --ddp 2 --chunks 2 \
    --microbatches 4 --microbatch-size 4 --pipeline interleaved --report chunks.html
expect_page 'chunks.html#from=0.2&to=0.5&select=1,4&follow&check' 2 34
expect_match dom 'Receives'
expect_match dom 'Micro-batch|micro-batch'

# Driven: the pointer over an action and over idle time, keys, zoom, the other theme. Frames come by
# the browser's virtual clock, which --dump-dom waits for: real ones may come after it.
frames='<script>window.requestAnimationFrame = (draw) => setTimeout(draw, 16);</script>'
cat >drive.html <<'DRIVE'
<script>
(() => {
  const overlay = document.getElementById("overlay"), tip = document.getElementById("tip"), seen = [];
  const box = overlay.getBoundingClientRect(), hash = document.getElementById("span");
  const move = (x, y) => overlay.dispatchEvent(new PointerEvent("pointermove",
    {clientX: box.left + x, clientY: box.top + y, bubbles: true}));
  const key = (name) => overlay.dispatchEvent(new KeyboardEvent("keydown", {key: name, bubbles: true}));
  const say = () => seen.push(tip.hidden ? "-" : tip.textContent.replace(/[^ -~]/g, ""));
  move(80, 45); say();
  move(80, 160); say();
  move(20, 45); say();
  key("ArrowRight"); say();
  key("ArrowRight"); say();
  key("ArrowDown"); say();
  key("f"); key("Enter"); key("Escape"); say();
  document.getElementById("theme").click();
  document.getElementById("zoom-in").click();
  overlay.dispatchEvent(new WheelEvent("wheel", {deltaY: -100, ctrlKey: true, clientX: box.left + 300, clientY: box.top + 50}));
  requestAnimationFrame(() => requestAnimationFrame(() => {
    seen.push(hash.textContent.replace(/[^ -~]/g, ""), document.documentElement.dataset.theme);
    document.documentElement.dataset.seen = seen.join("; ");
  }));
})();
</script>
DRIVE
sed -e "s|^<head>|&$frames|" -e '/^<\/body>/{
r drive.html
}' whole.html >driven.html
expect_match driven.html '^<head><script>window.requestAnimationFrame'
show 'driven.html#theme=light' 1400 1600 --dump-dom
cp out dom
expect_equal "driven: errors" "$(report errors)" 0
(report seen || true) | tr ';' '\n' >seen.txt
expect_match seen.txt '^Forward of micro-batch 0.*rank 0, stage 0.*Sends'
expect_match seen.txt '^ Idle.*rank 3.*Waits.*forward of 0, stage 2'
expect_equal "nothing beside the rows" "$(sed -n 3p seen.txt)" ' -'
expect_match seen.txt '^ Forward of micro-batch 0.*rank 0'
expect_match seen.txt '^ Forward of micro-batch 1.*rank 0'
expect_match seen.txt '^ .*rank 1, stage 1'
expect_match seen.txt '^ [0-9.]+ [a-z]*s of [0-9.]+ [a-z]*s$'
expect_match seen.txt '^ dark$'

# The sizes that the page is made for.
model 8 >eight.yaml
cluster 8 >eight-devices.yaml
expect_exit 0 smp-partition eight.yaml --cluster eight-devices.yaml --stages 8 --ddp 1 --chunks 1 \
    --microbatches 64 --microbatch-size 4 --pipeline interleaved --report large.html
expect_page 'large.html#check' 8 1032
model 64 >sixty.yaml
cluster 64 >sixty-devices.yaml
expect_exit 0 smp-partition sixty.yaml --cluster sixty-devices.yaml --stages 64 --ddp 1 --chunks 1 \
    --microbatches 512 --microbatch-size 4 --pipeline interleaved --report huge.html
expect_equal "megabytes" "$(($(wc -c <huge.html) / 1000000 < 3))" 1
expect_page 'huge.html#check' 64 65600
finish
