#!/usr/bin/env bash
# A network trained, and then fine-tuned under another plan, on the King James Bible: what surrounds the steps.
#   examples/fine-tune.sh [BIN] [FOLDER]    BIN: folder of the programs (build/bin), FOLDER: results (fine-tune)
# Old Testament, four processes (2 stages x 2 replicas): a part held out, evaluated, the best checkpoint kept, a log.
# New Testament, two processes that compute every operator together: from the weights of the first run, embeddings and
# the first half of the layers frozen, LAMB, settings of single weights; then what the model predicts for held-out text.
# STEPS (default 120) of each.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=mpi-env.sh
source "$top/examples/mpi-env.sh"
bin=${1:-$top/build/bin}
out=${2:-fine-tune}
steps=${STEPS:-120}
model=$top/examples/gpt-tiny.yaml
mkdir -p "$out"

show() { # prints a command, then runs it
    printf '$ %s\n' "${*//"$top/"/}"
    "$@"
}
bible -f -l 9999 'Gen1:1-Mal4:6' </dev/null >"$out/old.txt"
bible -f -l 9999 'Mat1:1-Rev22:21' </dev/null >"$out/new.txt"
tail -c 20000 "$out/new.txt" >"$out/held-out.txt"
head -c -20000 "$out/new.txt" >"$out/tune.txt"
rm -rf "$out/old" "$out/tuned"

show "$bin/smp-partition" "$model" -n 4 --stages 2 --ddp 2 --microbatches 2 --microbatch-size 4 -o "$out/plan.yaml" >/dev/null
show mpirun -n 4 "$bin/smp-run" "$out/plan.yaml" --data "$out/old.txt" --steps "$steps" --eval-split 0.005 \
    --eval-every $((steps / 3)) --checkpoint "$out/old" --keep-best --log "$out/old.csv" --lr 0.003 --warmup 20 \
    --lr-schedule inverse-sqrt --log-every $((steps / 3)) --export-weights "$out/old.safetensors"

show "$bin/smp-partition" "$model" -n 2 --tensor 2 --stages 1 --microbatches 4 --microbatch-size 4 \
    --freeze 'w?e.*' --freeze 'h0.*' --freeze 'h1.*' -o "$out/tune.yaml" >/dev/null
show mpirun -n 2 "$bin/smp-run" "$out/tune.yaml" --data "$out/tune.txt" --eval-data "$out/held-out.txt" \
    --weights "$out/old.safetensors" --steps "$steps" --eval-every $((steps / 3)) --optimizer lamb --lr 0.03 --warmup $((steps / 12)) \
    --lr-schedule linear --decay-steps "$steps" --weights-like 'h*.ln*:weight-decay=0' --log-every $((steps / 3)) \
    --checkpoint "$out/tuned" --predict "$out/logits.npy"
wc -c "$out"/*.csv "$out"/*.safetensors "$out"/*.npy
