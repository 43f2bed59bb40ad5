#!/usr/bin/env bash
# Everything the planner is measured by, as ratios, in one run:
#   workloads  slowest stage over the proven optimum on graphs of others, if a folder is given
#   inception  a branching graph with 35,683 downsets: proof, seconds and memory for 2 to 8 stages
#   branching  made-up branching graphs of 40,000 downsets
#   examples   every partitioner on every example, over the default's proven bound
#   steps      the step over its own bound, on every example (and the graphs of others), schedule fixed
#   scaling    10^4, 10^5 and 10^6 ops in 64 stages: seconds and memory, growth against n log n
# One pipeline of one chunk per rank, memory out of the way: the slowest stage is all that counts.
#
#   tests/bench/bench_planner.sh [--quick] [--only PARTS] [--workloads FOLDER] [--bin FOLDER]
# --only: names from above, separated by commas. --workloads: models layers-*, operators-*,
# pipedream-*, dapple-* and line-*.yaml with clusters cluster-*.yaml beside them. --bin: the
# programs, build/bin by default.
# --quick, for continuous integration: fewer sizes and no baselines; fails unless every gap is proven
# to be at most 1 % and 10^5 ops take less than 4 s.
#
# Standard output: a line "planner key=value..." per run, then the tables in Markdown. Where a run is
# repeated the least time counts. An entry is "-" where a partitioner is unknown or took over a minute.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(cd "$here/../.." && pwd)
examples=$top/examples
bin=$top/build/bin
quick=
workloads=
parts=workloads,inception,branching,examples,steps,scaling
while [ $# -gt 0 ]; do
    case "$1" in
    --quick) quick=1 ;;
    --only) parts=${2:?--only PARTS} && shift ;;
    --workloads) workloads=${2:?--workloads FOLDER} && shift ;;
    --bin) bin=${2:?--bin FOLDER} && shift ;;
    *)
        sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
        exit 2
        ;;
    esac
    shift
done
for program in smp-partition bench_run; do
    [ -x "$bin/$program" ] || { echo "$bin/$program is not built" >&2; exit 1; }
done

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0
limit_s=60          # of one run
max_gap=0.01        # --quick
max_seconds=4       # --quick, 10^5 ops
recompute=()        # "--recompute none", where the program has that choice
"$bin/smp-partition" --help >"$scratch/help"
! grep -q -- '--recompute' "$scratch/help" || recompute=(--recompute none)

part() { # name: whether it was asked for
    [[ ,$parts, == *,$1,* ]]
}

# plan REPEATS MODEL STAGES OPTION...: sets bottleneck_us, bound_us, gap, seconds and kib of the run; returns 1
# if there is no plan.
plan() {
    local repeats=$1 model=$2 stages=$3
    shift 3
    rm -f "$scratch/took"
    for _ in $(seq "$repeats"); do
        "$bin/bench_run" "$scratch/took" timeout "$limit_s" "$bin/smp-partition" "$model" \
            --stages "$stages" --ddp 1 --chunks 1 --objective bottleneck --memory 1000TB \
            "${recompute[@]}" --json "$@" >"$scratch/json" 2>"$scratch/err" || return 1
    done
    read -r bottleneck_us bound_us gap < <(tr -d '\n' <"$scratch/json" |
        sed -nE 's/.*"predicted": \{(.*)\}.*/\1/p' | awk '
        function value(key,    at) {
            at = index($0, "\"" key "\": ")
            return at ? substr($0, at + length(key) + 4) + 0 : -1
        }
        { printf "%.17g %.17g %.9g\n", value("bottleneck_us"), value("lower_bound_us"), value("gap") }')
    read -r seconds kib < <(sort -n "$scratch/took" |
        awk 'NR == 1 { least = $1 } $2 > kib { kib = $2 } END { print least, kib }')
}

line() { # key=value...
    echo "planner $*"
}

calc() { # awk expression, numbers as a, b, c
    awk -v a="${2-0}" -v b="${3-0}" -v c="${4-0}" "BEGIN { printf \"%.6g\", $1 }"
}

row() { # table cells...
    local table=$1 cell
    shift
    {
        for cell in "$@"; do
            printf '| %s ' "$cell"
        done
        echo '|'
    } >>"$scratch/$table.md"
}

fail() {
    failures=$((failures + 1))
    echo "planner FAILED $*"
}

# The plan just made, as a line; checked by --quick.
report() { # part, model, stages, cluster
    line "part=$1 model=$2 stages=$3 cluster=$4 bottleneck_us=$bottleneck_us bound_us=$bound_us gap=$gap" \
        "seconds=$seconds peak_kib=$kib"
    [ -z "$quick" ] || [ "$(calc 'a <= b' "$gap" "$max_gap")" = 1 ] ||
        fail "part=$1 model=$2 stages=$3: gap $gap is more than $max_gap"
}

percent() { # gap
    awk -v gap="$1" 'BEGIN { printf gap < 5e-7 ? "proven optimal" : "%.2f %%", 100 * gap }'
}

no_plan() { # part, model, stages
    fail "part=$1 model=$2 stages=$3: no plan: $(head -n 1 "$scratch/err")"
}

bench_workloads() {
    local model name cluster stages
    row workloads graph stages 'slowest stage' 'over the proven bound' seconds 'peak MiB'
    row workloads --- --- --- --- --- ---
    for model in "$workloads"/{layers,operators,pipedream,dapple,line}-*.yaml; do
        [ -e "$model" ] || continue
        name=$(basename "$model" .yaml)
        case "$name" in # clusters and stage counts that others published figures for
        operators-bert-l-3-inference) set -- cluster-3 3 ;;
        pipedream-resnet50 | dapple-*) set -- cluster-free-8 8 cluster-free-16 16 ;;
        pipedream-*) set -- cluster-free-8 8 ;;
        line-50_*) set -- cluster-free-10 10 ;;
        line-*) set -- cluster-free-20 20 ;;
        *) set -- cluster-6 6 ;;
        esac
        while [ $# -gt 0 ]; do
            cluster=$1 stages=$2
            shift 2
            [ -e "$workloads/$cluster.yaml" ] || continue
            plan 1 "$model" "$stages" --cluster "$workloads/$cluster.yaml" -n "$stages" \
                --effort normal ||
                { no_plan workloads "$name" "$stages"; continue; }
            report workloads "$name" "$stages" "$cluster"
            row workloads "$name" "$stages" "$(calc 'a / 1000' "$bottleneck_us") ms" "$(percent "$gap")" \
                "$seconds" "$((kib / 1024))"
        done
    done
}

bench_inception() {
    local stages counts='2 3 4 5 6 7 8'
    [ -z "$quick" ] || counts='2 5 8'
    row inception 'Inception-v3, 35,683 downsets' 'slowest stage' 'over the proven bound' seconds \
        'peak MiB'
    row inception --- --- --- --- ---
    for stages in $counts; do
        plan 1 "$examples/inception.yaml" "$stages" --cluster "$examples/cluster-v100.yaml" -n "$stages" ||
            { no_plan inception inception "$stages"; continue; }
        report inception inception "$stages" cluster-v100
        row inception "$stages stages" "$(calc 'a / 1000' "$bottleneck_us") ms" "$(percent "$gap")" \
            "$seconds" "$((kib / 1024))"
    done
}

bench_branching() {
    local seed stages
    row branching graph stages 'slowest stage' 'over the proven bound' seconds 'peak MiB'
    row branching --- --- --- --- --- ---
    for seed in 1 2 3; do
        bash "$here/branching.sh" 40000 "$seed" >"$scratch/model.yaml"
        for stages in 4 8; do
            plan 1 "$scratch/model.yaml" "$stages" --cluster "$examples/cluster-v100.yaml" -n "$stages" ||
                { no_plan branching "branching-$seed" "$stages"; continue; }
            report branching "branching-$seed" "$stages" cluster-v100
            row branching "$(sed -n '1s/# //p' "$scratch/model.yaml")" "$stages" \
                "$(calc 'a / 1000' "$bottleneck_us") ms" "$(percent "$gap")" "$seconds" "$((kib / 1024))"
        done
    done
}

# Models with the cluster and the number of stages they are cut into.
example_cases() {
    cat <<'CASES'
mlp cluster-a100 4
branches cluster-laptop 4
gpt-tiny cluster-laptop 4
gpt-small cluster-laptop 4
vit-digits cluster-laptop 3
vit-b16 cluster-a100 8
bert-large cluster-a100 8
inception cluster-v100 8
t5-11b cluster-a100 16
gpt2-30b cluster-h100 16
gpt-175b cluster-h100 64
CASES
}

bench_examples() {
    local model cluster stages partitioner bound cells best ratio
    local partitioners=(equal-layers equal-parameters metis-kway metis-recursive linear)
    [ -z "$quick" ] || partitioners=()
    row examples model stages "${partitioners[@]}" default seconds
    row examples --- --- "${partitioners[@]/*/---}" --- ---
    while read -r model cluster stages; do
        local options=(--cluster "$examples/$cluster.yaml" -n "$stages")
        plan 1 "$examples/$model.yaml" "$stages" "${options[@]}" ||
            { no_plan examples "$model" "$stages"; continue; }
        report examples "$model" "$stages" "$cluster"
        bound=$bound_us best=$(calc 'a / b' "$bottleneck_us" "$bound_us")
        local default_seconds=$seconds
        cells=()
        for partitioner in "${partitioners[@]}"; do
            ratio=-
            if plan 1 "$examples/$model.yaml" "$stages" "${options[@]}" --partitioner "$partitioner" \
                --explain; then
                grep -q "^solver: $partitioner " "$scratch/err" ||
                    fail "part=examples model=$model partitioner=$partitioner:" \
                        "$(grep '^solver:' "$scratch/err"): not its own"
                ratio=$(calc 'a / b' "$bottleneck_us" "$bound")
                line "part=examples model=$model stages=$stages partitioner=$partitioner ratio=$ratio" \
                    "bottleneck_us=$bottleneck_us seconds=$seconds"
                ratio=$(printf '%.3f' "$ratio")
            fi
            cells+=("$ratio")
        done
        line "part=examples model=$model stages=$stages partitioner=default ratio=$best"
        row examples "$model" "$stages" "${cells[@]}" "$(printf '%.3f' "$best")" "$default_seconds"
    done < <(example_cases)
}

# step MODEL STAGES RULE CHUNKS OPTION...: sets cell to the gap between the step and its bound, two micro-batches
# per rank, and step_us; "-" where the rule cannot run the model, or no plan of it fits.
step() {
    local model=$1 stages=$2 rule=$3 chunks=$4 bound_us code=0
    shift 4
    cell=- step_us=-
    timeout "$limit_s" "$bin/smp-partition" "$model" --stages "$stages" --ddp 1 --chunks "$chunks" \
        --pipeline "$rule" --microbatches $((2 * stages)) --memory 1000TB --json "$@" \
        >"$scratch/json" 2>"$scratch/err" || code=$?
    if [ "$code" -ne 0 ]; then
        [ "$code" -eq 2 ] || [ "$code" -eq 3 ] ||
            fail "part=steps model=$model rule=$rule: exit code $code: $(head -n 1 "$scratch/err")"
        return 0
    fi
    read -r step_us bound_us cell < <({ tr -d '\n ' <"$scratch/json"; echo; } | sed -nE \
        's/.*"step_us":([^,]*),.*"step_lower_bound_us":([^,]*),"step_gap":([^,}]*).*/\1 \2 \3/p')
    [ "$(calc 'a <= b * (1 + 1e-9)' "$bound_us" "$step_us")" = 1 ] ||
        fail "part=steps model=$model: a bound of $bound_us us on a step of $step_us us"
    cell=$(awk -v gap="$cell" 'BEGIN { printf "%.1f %%", 100 * gap }')
}

steps_row() { # NAME MODEL STAGES TRAINING OPTION...
    local name=$1 model=$2 stages=$3 training=$4 rules='interleaved:1 zero-bubble:1 interleaved:2' rule
    local cells=()
    shift 4
    [ "$training" = 1 ] || rules='forward:1 - -'
    for rule in $rules; do
        cell=- step_us=-
        [ "$rule" = - ] || step "$model" "$stages" "${rule%:*}" "${rule#*:}" "$@"
        cells+=("$cell")
        line "part=steps model=$name stages=$stages rule=$rule step_us=$step_us gap=$cell"
    done
    row steps "$name" "$stages" "${cells[@]}"
}

bench_steps() {
    local model cluster stages
    row steps model stages '1F1B (inference: forward)' zero-bubble '1F1B, 2 chunks'
    row steps --- --- --- --- ---
    while read -r model cluster stages; do
        steps_row "$model" "$examples/$model.yaml" "$stages" 1 --cluster "$examples/$cluster.yaml" \
            -n "$stages"
    done < <(example_cases)
    [ -n "$workloads" ] || return 0
    while read -r model cluster stages training; do
        [ ! -e "$workloads/$model.yaml" ] || steps_row "$model" "$workloads/$model.yaml" "$stages" \
            "$training" --cluster "$workloads/$cluster.yaml" -n "$stages"
    done < <(step_workloads)
}

# Graphs of others with cluster, stages, and 1 if they train.
step_workloads() {
    cat <<'CASES'
layers-bert24-training cluster-6 6 1
layers-resnet50-training cluster-6 6 1
pipedream-vgg16 cluster-free-8 8 1
pipedream-resnet50 cluster-free-8 8 1
pipedream-resnet50 cluster-free-16 16 1
dapple-gnmt-16-pbs-64 cluster-free-8 8 1
dapple-gnmt-16-pbs-64 cluster-free-16 16 1
dapple-amoeba-36-pbs-1 cluster-free-8 8 1
dapple-amoeba-36-pbs-1 cluster-free-16 16 1
operators-bert-l-3-inference cluster-3 3 0
operators-resnet50-inference cluster-6 6 0
line-50_100 cluster-free-10 10 0
line-100_100 cluster-free-20 20 0
CASES
}

bench_scaling() {
    local ops real before_ops='' before_seconds='' growth repeats
    local sizes='10000 100000 1000000'
    [ -z "$quick" ] || sizes='10000 100000'
    row scaling 'ops in 64 stages' seconds 'peak MiB' 'over the proven bound' 'growth over n log n'
    row scaling --- --- --- --- ---
    for ops in $sizes; do
        bash "$here/transformer.sh" "$ops" >"$scratch/model.yaml"
        repeats=$((ops < 1000000 ? 3 : 1))
        plan "$repeats" "$scratch/model.yaml" 64 --cluster "$examples/cluster-h100.yaml" -n 64 \
            --microbatches 64 || { no_plan scaling "transformer-$ops" 64; continue; }
        real=$((ops / 10 * 10 + 5))
        growth=-
        [ -z "$before_ops" ] ||
            growth=$(awk -v t="$seconds" -v s="$before_seconds" -v n="$real" -v m="$before_ops" \
                'BEGIN { printf "%.2f", t / s * (m * log(m)) / (n * log(n)) }')
        report scaling "transformer-$ops" 64 cluster-h100
        line "part=scaling ops=$real seconds=$seconds growth_over_n_log_n=$growth"
        [ -z "$quick" ] || [ "$ops" != 100000 ] || [ "$(calc 'a < b' "$seconds" "$max_seconds")" = 1 ] ||
            fail "part=scaling ops=$ops: $seconds s, expected less than $max_seconds"
        row scaling "$real" "$seconds" "$((kib / 1024))" "$(percent "$gap")" "$growth"
        before_ops=$real before_seconds=$seconds
    done
}

start=$SECONDS
for name in workloads inception branching examples steps scaling; do
    part "$name" || continue
    [ "$name" != workloads ] || [ -n "$workloads" ] || continue
    "bench_$name"
done
for name in workloads inception branching examples steps scaling; do
    [ ! -e "$scratch/$name.md" ] || { echo; cat "$scratch/$name.md"; }
done
echo
line "total_seconds=$((SECONDS - start)) failures=$failures"
[ "$failures" -eq 0 ] || {
    echo "bench_planner: $failures failures" >&2
    exit 1
}
