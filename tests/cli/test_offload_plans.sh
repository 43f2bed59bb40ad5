#!/usr/bin/env bash
# Stashes and states in host memory: what the options do, what a plan says of it, and what cannot be.
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
model=$SMP_EXAMPLES/gpt-tiny.yaml
cluster() { # name, line under links:
    cat >"$1" <<CLUSTER
smp: 1
name: box
nodes: 1
devices_per_node: 4
device: {name: d, memory: 1GB, compute: {fp32: 50GFLOP/s, bf16: 50GFLOP/s}, bandwidth: 20GB/s}
links:
  intra_node: {bandwidth: 5GB/s, latency_us: 5}
$2
CLUSTER
}
cluster with.yaml '  host: {bandwidth: 4GB/s, latency_us: 10}'
cluster without.yaml ''
# A refusal with advice is brief, since without a time limit every change is planned until it is proven: 7 to 14 s.
shape=(-n 4 --stages 4 --chunks 1 --microbatches 8 --microbatch-size 8 --pipeline simple --effort full)
plan() { # cluster, plan, option...
    expect_exit 0 smp-partition "$model" --cluster "$1" "${shape[@]}" -o "$2" "${@:3}"
}
peak() {
    sed -nE 's/.*peak_bytes: \[([0-9, ]*)\].*/\1/p' "$1" | tr -d ' ' | tr ',' '\n' | sort -n | tail -n 1
}
expect_less() { # what, one, other
    [ "$2" -lt "$3" ] || { echo "$1: $2 is not less than $3" >&2 && exit 1; }
}

# Nothing travels where all fits, nor without a link; then plans are the same bytes.
plan with.yaml kept.yaml
expect_no_match kept.yaml 'offload|horizon|host_bytes'
plan without.yaml auto.yaml --memory 40MiB
plan without.yaml none.yaml --memory 40MiB --offload none
expect_exit 0 cmp auto.yaml none.yaml
for option in --offload --offload-states; do
    for words in "$model -n 4" 'check none.yaml'; do
        # shellcheck disable=SC2086 # words
        expect_bad "^smp-partition: $option all: cluster .box. has no link to host memory, .*links: \{host:" \
            smp-partition $words --cluster without.yaml "$option" all
    done
done

# Everything: less on the devices, for a step that is as long; the plan is what it says when it is checked.
plan with.yaml all.yaml --offload all --recompute none
expect_match all.yaml '^loading_horizon: [124]$'
expect_match all.yaml 'offload: true, offload_bytes: [1-9]'
expect_match all.yaml '"F0.0 S0.0 '
expect_match out 'in host memory: stashes between forward and backward, loading horizon'
expect_less "peak with everything offloaded" "$(peak all.yaml)" "$(peak kept.yaml)"
expect_exit 0 smp-partition check all.yaml --cluster with.yaml "${brief[@]}" -o again.yaml
expect_match out 'the plan is legal and fits'
expect_equal "programs" "$(grep -A4 '^programs:' again.yaml)" "$(grep -A4 '^programs:' all.yaml)"
plan with.yaml two.yaml --offload all --recompute none --loading-horizon 2
expect_match two.yaml '^loading_horizon: 2$'

# As little as fits, where nothing does without.
limit=$(($(peak all.yaml) + 1000000))
expect_exit 3 smp-partition "$model" --cluster with.yaml "${shape[@]}" --offload none --recompute none --memory "$limit" \
    "${brief[@]}"
plan with.yaml tight.yaml --recompute none --memory "$limit" --explain
expect_match out '^what it bought +step +peak +fits'
expect_match out '^nothing .* no *$'
expect_match out '^the plan .* yes *$'
expect_match out '^  host '

plan with.yaml least.yaml --optimize memory
expect_less "least peak" "$(peak least.yaml)" "$(peak all.yaml)"
plan with.yaml both.yaml --memory 22MiB
plan without.yaml again-both.yaml --memory 22MiB
step() { sed -nE 's/^predicted: .*step_us: ([0-9]+).*/\1/p' "$1"; }
expect_less "step with both" "$(step both.yaml)" "$(step again-both.yaml)"

# By hand: patterns; what is away is loaded before it is read.
sed -E 's/offload: true, offload_bytes: [0-9]+/offload: ["h*.mlp.*"]/; /^programs:/,$d' all.yaml >sketch.yaml
expect_exit 0 smp-partition check sketch.yaml --cluster with.yaml "${brief[@]}" -o some.yaml
expect_match some.yaml 'offload: \[h[0-9].mlp'
expect_less "peak with everything offloaded" "$(peak all.yaml)" "$(peak some.yaml)"
sed 's/ L0\.0 / /' all.yaml >lost.yaml
expect_exit 2 smp-partition check lost.yaml --cluster with.yaml "${brief[@]}"
expect_match out 'what it reads is in host memory: expected before it L0\.0'
sed 's/"F0\.0 S0\.0 /"F0.0 S0.0 L0.0 /; s/ L0\.0 B0\.0/ B0.0/' all.yaml >early.yaml
expect_exit 2 smp-partition check early.yaml --cluster with.yaml "${brief[@]}"
expect_match out 'it may not be stored yet'

# States of the optimizer.
plan with.yaml states.yaml --offload-states
expect_match states.yaml 'offload_states: true'
expect_match states.yaml 'host_bytes: \['
expect_less "peak without states" "$(peak states.yaml)" "$(peak kept.yaml)"
expect_bad 'offload_states: true.: cluster .box. has no link to host memory' \
    smp-partition check states.yaml --cluster without.yaml

# Kept, or away, or not at all: what the shortest step that fits needs, and it says what that bought.
cluster slow.yaml '  host: {bandwidth: 40MB/s, latency_us: 10}'
states() { # cluster, plan, option...
    plan "$1" "$2" --device cuda --pipeline interleaved --offload none "${@:3}"
}
states with.yaml away.yaml --memory 13MiB --explain
expect_match away.yaml 'offload_states: true'
expect_match out '^states in host memory alone '
expect_match out '^  states in host memory: .* samples/s'
states slow.yaml here.yaml --memory 13MiB
expect_no_match here.yaml 'offload_states'
states slow.yaml named.yaml --memory 13MiB --offload-states
expect_match named.yaml 'offload_states: true'
expect_less "step with states on the device" "$(step here.yaml)" "$(step named.yaml)"
states with.yaml named.yaml --memory 13MiB --offload-states none
expect_less "step with states away" "$(step away.yaml)" "$(step named.yaml)"
smallest=(--recompute none --memory 15MiB --offload-states)
expect_exit 3 smp-partition "$model" --cluster slow.yaml "${shape[@]}" --device cuda --pipeline interleaved --offload none \
    "${brief[@]}" "${smallest[@]}" none
states slow.yaml only.yaml "${smallest[@]}" auto
expect_match only.yaml 'offload_states: true'
expect_bad '--offload-states: got .some.' smp-partition "$model" --offload-states=some

# Everything offloaded and, where that does not fit, made again: stages of which nothing is left to travel.
plan with.yaml mixed.yaml --offload all --memory 21MiB
expect_match mixed.yaml 'recompute: (true|\[)'
expect_exit 0 smp-partition check mixed.yaml --cluster with.yaml "${brief[@]}"
sed -E 's/, recompute: (true|false|\[[^]]*\])//; s/, recompute_us: [0-9.]+//; /^programs:/,$d' all.yaml >open.yaml
expect_exit 0 smp-partition check open.yaml --cluster with.yaml --memory 21MiB "${brief[@]}"

# The host area is part of the plan, and is checked.
sed -E 's/host_bytes: \[[0-9]/&9/' all.yaml >more.yaml
expect_exit 2 smp-partition check more.yaml --cluster with.yaml "${brief[@]}"
expect_match out 'predicted: host_bytes of rank 0: got [0-9]+, expected'
sed -E 's/host_bytes: \[[0-9, ]*\], //; s/, host_bytes: \[[0-9, ]*\]//' all.yaml >fewer.yaml
expect_exit 2 smp-partition check fewer.yaml --cluster with.yaml "${brief[@]}"
expect_match out 'predicted: host_bytes of rank 0: got 0, expected'

# What others do not say; what a plan that is kept says.
expect_exit 0 smp-partition "$model" --cluster with.yaml "${shape[@]}" --offload all --recompute none \
    -o out.yaml --export torch-csv:out.csv
expect_match err 'torch-csv does not say that [0-9] of the stages send stashes to host memory: .*save_on_cpu'
expect_exit 0 smp-partition "$model" --cluster with.yaml --fix two.yaml --offload all --recompute none \
    --effort full -o kept-two.yaml
expect_match kept-two.yaml '^loading_horizon: 2$'
finish
