#!/usr/bin/env bash
# What smp-partition writes: reproducible, readable, honest about what does not fit.
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
model=$SMP_EXAMPLES/gpt-tiny.yaml

# What is fixed where a check is not about the search; the long run searches everything.
fixed=(--chunks 1 --microbatches 4)
[ -z "${SMP_TEST_LONG-}" ] || fixed=()

# Same inputs and seed, same bytes.
expect_exit 0 smp-partition "$model" -n 4 --seed 7 "${fixed[@]}" -o first.yaml
expect_exit 0 smp-partition "$model" -n 4 --seed 7 "${fixed[@]}" -o second.yaml
expect_equal "same seed" "$(cmp first.yaml second.yaml && echo same)" same
expect_exit 0 smp-partition "$model" -n 4 --stages 4 --pipeline interleaved --chunks 2 \
    --microbatches 8 --microbatch-size 2 -o plan.yaml
expect_match plan.yaml '^smp: 1'
expect_match plan.yaml 'pipeline: 4.*chunks: 2|chunks: 2.*pipeline: 4'
expect_match plan.yaml 'microbatches: 8'
expect_match plan.yaml '^schedule: "?interleaved'
expect_equal "stages" "$(grep -cE '^ *- *\{?stage: ' plan.yaml)" 8
expect_equal "programs" "$(grep -cE '^ *- *"?[<>FBIWRO]' plan.yaml)" 4
expect_match plan.yaml 'lower_bound_us'

# The table: a row per stage on standard output; --explain says why.
expect_exit 0 smp-partition "$model" -n 2 --stages 2 --microbatches 4 -o two.yaml
expect_match out '[Ss]tage'
expect_match out '%'
expect_exit 0 smp-partition "$model" -n 4 "${fixed[@]}" --explain -o explained.yaml
[ -s out ] || fail "--explain printed nothing"

# --json: one valid object, nothing else.
expect_exit 0 smp-partition "$model" -n 2 --stages 2 --chunks 1 --microbatches 4 --json
expect_json out
expect_match out '"fingerprint"'
expect_match out '"programs"'

# With --explain the object carries the reasons, a key for each part of the text.
expect_exit 0 smp-partition "$model" -n 4 --stages 2 --tensor 2 --chunks 1 --microbatches 4 --json --explain
expect_json out
expect_equal "on standard error" "$(cat err)" ""
for key in solver costs splittings split bounds schedule memory recompute offload bought search configurations \
    hints bottleneck drawing; do
    expect_match out "\"explanation\": .*\"$key\": "
done
expect_exit 0 smp-partition "$model" -n 2 --stages 2 --chunks 1 --microbatches 4 -o traced.yaml --trace trace.json
expect_json trace.json

# A profile takes the place of the estimate; of another model it is refused.
write_good_model good.yaml
expect_exit 0 smp-profile good.yaml --microbatch-size 2 -o profile.yaml
expect_equal "operators with a spread" "$(grep -c 'spread: [0-9.]*}$' profile.yaml)" \
    "$(grep -c '^  - {name: ' profile.yaml)"
expect_match profile.yaml '^smp: 1'
expect_match profile.yaml 'forward_us'
expect_exit 0 smp-partition good.yaml -n 2 --profile profile.yaml -o profiled.yaml
expect_bad 'profile\.yaml.*fingerprint|fingerprint.*profile\.yaml' \
    smp-partition "$model" -n 2 --profile profile.yaml -o refused.yaml
sed -E 's/forward_us: [^,}]*/forward_us: soon/' profile.yaml >bad-profile.yaml
expect_bad 'bad-profile\.yaml:[0-9]+:[0-9]+: .*forward_us' \
    smp-partition good.yaml -n 2 --profile bad-profile.yaml -o refused.yaml

# Clusters.
cat >cluster.yaml <<'CLUSTER'
smp: 1
name: pair
nodes: 1
devices_per_node: 2
device: {name: small, memory: 8GB, compute: {fp32: 1TFLOP/s}, bandwidth: 100GB/s}
links:
  intra_node: {bandwidth: 10GB/s, latency_us: 3}
  inter_node: {bandwidth: 1GB/s, latency_us: 8}
overlap: true
CLUSTER
expect_exit 0 smp-partition good.yaml --cluster cluster.yaml -o on-cluster.yaml
bad_cluster() { # sed expression, line, regex
    sed -E "$1" cluster.yaml >bad.yaml
    expect_bad "bad\.yaml:$2:[0-9]+: .*$3" smp-partition good.yaml --cluster bad.yaml -o refused.yaml
}
bad_cluster '5s/8GB/8Gigs/' 5 '8Gigs'
bad_cluster '5s/8GB/-8GB/' 5 '-8GB'
bad_cluster '5s/memory/memori/' 5 'memori.*memory'
bad_cluster '7s/10GB\/s/0GB\/s/' 7 'bandwidth|0GB'
bad_cluster '7s/latency_us: 3/latency_us: -3/' 7 'latency'
bad_cluster '7s/10GB\/s/1e-320/' 7 'bandwidth.*1e-320'
bad_cluster '4s/2/0/' 4 'devices_per_node'
bad_cluster '3s/1/100000000000/' 3 'nodes'
expect_bad 'device|3' smp-partition good.yaml --cluster cluster.yaml -n 3 -o refused.yaml

# What does not fit: exit 3, the numbers, nothing written.
no_fit() {
    rm -f out err
    expect_exit 3 "$@"
    expect_match err '[0-9.]+ ?[KMG]?i?B'
    expect_match err '[Ss]tage|[Rr]ank'
    expect_equal "refused.yaml written" "$(ls refused.yaml 2>/dev/null || true)" ''
}
no_fit smp-partition "$model" -n 2 --stages 2 --memory 1MB -o refused.yaml
no_fit smp-partition "$model" -n 2 --memory 100KB "${fixed[@]}" -o refused.yaml
sed -E '5s/8GB/10KB/' cluster.yaml >tiny.yaml
no_fit smp-partition good.yaml --cluster tiny.yaml -o refused.yaml

# Live micro-batches: as many as the memory allows, as few as are asked for, and what can be.
cat >equal.yaml <<'MODEL'
smp: 1
name: equal
inputs:
  x: {dtype: float32, shape: [1]}
ops:
MODEL
for i in 0 1 2 3; do
    echo "  - {op: opaque, name: o$i, in: ${in:-x}, out: t$i, cost: {forward_us: 1, backward_us: 2," \
        "weight_bytes: 0, stash_bytes: 1000000, output_bytes: 0}}"
    in=t$i
done >>equal.yaml
sed -E 's/devices_per_node: .*/devices_per_node: 4/' cluster.yaml >four.yaml
equal=(smp-partition equal.yaml --cluster four.yaml -n 4 --stages 4 --ddp 1 --chunks 1 --microbatches 16
    --microbatch-size 1 --recompute none -o equal-plan.yaml)
expect_exit 0 "${equal[@]}" --pipeline zero-bubble --memory 3MB --explain
expect_match out 'zero-bubble, bound to 3 live micro-batches'
expect_match equal-plan.yaml 'peak_bytes: \[3000000,'
expect_exit 0 "${equal[@]}" --memory 2.1MB
expect_match equal-plan.yaml 'peak_bytes: \[2000000,'
expect_exit 3 "${equal[@]}" --pipeline zero-bubble --memory 3MB --active-microbatches 6
expect_match err ', or --active-microbatches 3 \(step [^:]*: [^)]*, 3 of them live, zero-bubble\)'
expect_exit 3 "${equal[@]}" --pipeline interleaved --memory 3MB
expect_match err ', or --pipeline auto \(step [^:]*: [^)]*16 micro-batches, searched\)'
expect_exit 3 "${equal[@]}" --memory 900KB
expect_no_match err 'active-microbatches'
expect_exit 2 "${equal[@]}" --pipeline interleaved --active-microbatches 2
expect_match err 'interleaved keeps 4 micro-batches alive on rank 0.*at most 2.*zero-bubble'
expect_exit 0 "${equal[@]}" --active-microbatches 2
expect_match equal-plan.yaml 'peak_bytes: \[2000000,'

# GPipe runs in rounds of that many, which cost their fill and drain: three of two here, and one of one.
expect_exit 0 "${equal[@]}" --pipeline simple --active-microbatches 2 --microbatches 5
expect_match equal-plan.yaml 'peak_bytes: \[2000000, 2000000, 2000000, 2000000\]'
expect_match equal-plan.yaml '"?(<F[0-9.]+ )?F0.0 .*B1.0 .*F2.0 .*B3.0 .*F4.0 .*B4.0'
expect_exit 0 smp-partition check equal-plan.yaml --active-microbatches 2 "${brief[@]}"
expect_exit 2 smp-partition check equal-plan.yaml --active-microbatches 1 "${brief[@]}"

# More stages than ops, pins that no pipeline can satisfy.
expect_exit 3 smp-partition good.yaml -n 8 --stages 8 --ddp 1 -o refused.yaml
expect_exit 3 "${equal[@]}" --chunks 2 --pipeline interleaved
expect_match err 'enough for 1 chunks'
sed -E '8s/\}/, stage: 1}/; 9s/\}/, stage: 0}/' good.yaml >pinned.yaml
run smp-partition pinned.yaml -n 2 --stages 2 -o refused.yaml
expect_equal "pins against the flow refused" "$([ "$status" -ge 2 ] && echo yes)" yes
expect_match err 'wte|head|pin'

# An unwritable output is a failure, not a crash, and leaves nothing behind.
expect_exit 1 smp-partition good.yaml -n 1 -o no/such/folder/plan.yaml
expect_match err 'no/such/folder'

# Number formats have two families of names, of which either is taken everywhere.
sed 's/float32/fp32/' "$SMP_EXAMPLES/mlp.yaml" >named.yaml
cp "$SMP_EXAMPLES/mlp.yaml" mlp.yaml
for model in mlp named; do
    expect_exit 0 smp-partition "$model.yaml" -n 2 --stages 2 --ddp 1 --chunks 1 --microbatches 2 --pipeline simple \
        --precision float32 -o "$model.plan"
    sed -i 's/path: [a-z]*\.yaml/path: model/' "$model.plan"
done
expect_equal 'plans' "$(cmp mlp.plan named.plan && echo same)" same
expect_exit 0 smp-partition named.yaml -n 2 --stages 2 --precision bfloat16 "${brief[@]}" -o half.plan
expect_match half.plan 'precision: bf16'
# What keeping states costs, and a host that has no room for them.
cat >host.yaml <<'END'
smp: 1
name: host
nodes: 1
devices_per_node: 2
host_memory: 1GB
device: {name: cpu, memory: 2GB, compute: {fp32: 100GFLOP/s}, bandwidth: 20GB/s}
links: {intra_node: {bandwidth: 10GB/s, latency_us: 3}}
END
keeps=("$SMP_EXAMPLES/gpt-small.yaml" --cluster host.yaml --stages 1 --ddp 2 --microbatches 2 --microbatch-size 1)
expect_exit 0 smp-partition "${keeps[@]}" --keep-every 1 -o kept.yaml
expect_match out '^keeping the state of every step: 25\.9 ms more a step in the mean \([0-9.]+ %\), ranks write at most 61\.8 MiB; 3 x 123\.5 MiB in the host.s memory, [0-9.]+ MiB with the ranks of 953\.7 MiB$'
expect_exit 0 smp-partition check kept.yaml --model "$SMP_EXAMPLES/gpt-small.yaml" --keep-every 10
expect_match out '^keeping the state of every 10 steps: 2\.59 ms more'
rate_of() { grep -oE 'keep_bytes_per_s: [0-9]+' "$1" || true; }
sed -i -E '/^keep_bytes_per_s/d; s/^microbatch_size.*/&\nkeep_bytes_per_s: 123456789\nlaunch: {kernel_us: 2, graph_us: 3, graph_kernel_us: 0.125}/' profile.yaml
expect_exit 0 smp-partition good.yaml --cluster host.yaml --profile profile.yaml -n 1 --effort quick -o rate.yaml
expect_equal 'the rate measured' "$(rate_of rate.yaml)" 'keep_bytes_per_s: 123456789'
expect_match rate.yaml 'launch: \{kernel_us: 2, graph_us: 3, graph_kernel_us: 0\.125\}'
sed '/^nodes/s/$/\nkeep_bytes_per_s: 2GB\/s/' host.yaml >own.yaml
expect_exit 0 smp-partition good.yaml --cluster own.yaml --profile profile.yaml -n 1 --effort quick -o rate.yaml
expect_equal 'its own rate' "$(rate_of rate.yaml)" 'keep_bytes_per_s: 2000000000'
sed -i 's/host_memory: 1GB/host_memory: 400MB/' host.yaml
expect_exit 3 smp-partition "${keeps[@]}" --keep-every 1
expect_match err '^smp-partition: --keep-every: a host needs .*, with three states of 123\.5 MiB, and has 381\.5 MiB'
expect_exit 0 smp-partition "${keeps[@]}" # not asked for
expect_no_match out 'keeping the state'
finish
