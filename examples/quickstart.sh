#!/usr/bin/env bash
# From a bare Debian 12 machine to a GPT trained on four processes: installs what is missing, builds,
# measures the model, plans it for four processes, trains it on the King James Bible.
#   examples/quickstart.sh      from any folder, as often as you like
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=setup.sh
source "$top/examples/setup.sh"
# shellcheck source=mpi-env.sh
source "$top/examples/mpi-env.sh"

build=$top/build
bin=$build/bin
out=$build/quickstart
model=$top/examples/gpt-tiny.yaml
train_s=70 # seconds of training, about

heading() {
    printf '\n== %s\n' "$*"
}

show() { # prints a command as one would type it in the source tree, then runs it
    local word line=
    for word in "$@"; do
        word=${word//"$top/"/}
        [[ $word =~ ^[-A-Za-z0-9_./=:]+$ ]] || word="'$word'"
        line+=" $word"
    done
    printf '$%s\n' "$line"
    "$@"
}

heading "set-up"
# shellcheck disable=SC2119
smp_setup
mkdir -p "$out"

heading "build"
configure=()
# The first build here: without the tests, which need one more package.
[ -e "$build/CMakeCache.txt" ] || configure=(-DSMP_BUILD_TESTS=OFF)
# It trains on the CPU: CUDA kernels are compiled where a GPU could run them.
[ -e "$build/CMakeCache.txt" ] || nvidia-smi -L >/dev/null 2>&1 || configure+=(-DSMP_WITH_CUDA=OFF)
cmake -S "$top" -B "$build" -DCMAKE_BUILD_TYPE=Release ${configure[@]+"${configure[@]}"} \
    >"$out/configure.log" 2>&1 || { cat "$out/configure.log" >&2; exit 1; }
cmake --build "$build" -j "$(nproc)" --target smp-profile smp-partition smp-run bench_bigram \
    >"$out/build.log" 2>&1 || { tail -n 40 "$out/build.log" >&2; exit 1; }
"$bin/smp-run" --version

heading "text"
bible -f -l 9999 'Gen1:1-Rev22:21' </dev/null >"$out/bible.txt"
wc -c "$out/bible.txt" | awk '{ print "the King James Bible,", $1, "bytes" }'

# As many ranks as there are cores measure side by side, so that they share the memory as later.
cores=$(nproc)
heading "profile: what each operator costs on this machine"
show mpirun -n $((cores < 2 ? 2 : cores > 4 ? 4 : cores)) "$bin/smp-profile" "$model" \
    --microbatch-size 8 --links -o "$out/profile.yaml"

heading "plan: four pipeline stages"
show "$bin/smp-partition" "$model" -n 4 --stages 4 --chunks 1 --pipeline interleaved \
    --microbatches 8 --microbatch-size 8 \
    --profile "$out/profile.yaml" -o "$out/plan.yaml"

# A short run first: how many steps fit into the time.
train=(mpirun -n 4 "$bin/smp-run" "$out/plan.yaml" --data "$out/bible.txt")
"${train[@]}" --steps 20 --json >"$out/warm-up.json"
step_us=$(sed -nE 's/.*"step_us": ?([0-9]+).*/\1/p' "$out/warm-up.json" | sort -n | sed -n 10p)
steps=$((train_s * 1000000 / (step_us > 0 ? step_us : 1)))
steps=$((steps < 250 ? 250 : steps > 3000 ? 3000 : steps)) # fewer are no better than the bigrams

heading "train: $steps steps on four processes"
show "${train[@]}" --steps "$steps" --lr 0.003 --min-lr 0.0003 --warmup 50 --decay-steps "$steps" --clip 1 \
    --log-every $((steps / 15)) --trace "$out/trace.json" | tee "$out/train.log"

heading "result"
bigram=$("$bin/bench_bigram" "$out/bible.txt" | grep -oE '[0-9]+\.[0-9]+' | tail -n 1)
awk -v bigram="$bigram" '/^step/ { loss = $4 }
    END { printf "loss %s; a bigram model of the same text: %s\n", loss, bigram
          exit !(loss < bigram) }' "$out/train.log"
echo "timeline, predicted beside measured: open ${out#"$top/"}/trace.json at https://ui.perfetto.dev"
