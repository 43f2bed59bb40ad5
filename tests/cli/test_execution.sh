#!/usr/bin/env bash
# Plans for another device and another precision: --device, --precision, what a profile and a plan say,
# and what cannot be.
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
model=$SMP_EXAMPLES/gpt-tiny.yaml
# A tiny model waits for its host on a GPU; one that waits for nothing shows what precisions cost.
cluster=h100.yaml
sed 's/memory: 80GB/memory: 80GB, efficiency: {host_us: 0}/' "$SMP_EXAMPLES/cluster-h100.yaml" >"$cluster"
plan=(smp-partition "$model" --cluster "$cluster" -n 2 --stages 2 --chunks 1 --microbatches 4
    --microbatch-size 4 --effort quick)
peak() { sed -nE 's/.*peak_bytes: \[([0-9]+),.*/\1/p' "$1"; }

# The CPU in fp32 is what a plan is for that says nothing, and saying so changes nothing.
expect_exit 0 "${plan[@]}" -o silent.yaml
expect_no_match silent.yaml 'execution'
expect_exit 0 "${plan[@]}" --device cpu --precision fp32 -o said.yaml
expect_equal "plans" "$(cmp silent.yaml said.yaml 2>&1)" ''

# In the plan, in the JSON object, in the table; a plan is made from it again and checked as it is.
for precision in fp32 tf32 bf16; do
    expect_exit 0 "${plan[@]}" --device cuda --precision $precision -o $precision.yaml
    expect_match out "^on cuda in $precision\$"
    expect_match $precision.yaml "^execution: \{device: cuda, precision: $precision\}\$"
    expect_exit 0 "${plan[@]}" --device cuda --precision $precision --json
    expect_json out
    expect_match out "\"execution\": \{\"device\": \"cuda\", \"precision\": \"$precision\"\}"
    expect_exit 0 smp-partition check $precision.yaml "${brief[@]}"
    expect_match out "^on cuda in $precision\$"
    expect_match out 'the plan is legal and fits'
    expect_no_match out 'note: .*with these costs'
    expect_exit 0 smp-partition check $precision.yaml --json "${brief[@]}"
    expect_json out
    expect_match out "\"precision\": \"$precision\""
done
expect_exit 0 "${plan[@]}" --device cuda -o default.yaml
expect_equal "plans" "$(cmp fp32.yaml default.yaml 2>&1)" ''
expect_equal "fingerprints" "$(grep -ho 'fingerprint: "[0-9a-f]*"' silent.yaml bf16.yaml | sort -u | wc -l)" 1
# NCCL's communicators, of lanes alone here: kept free beside arenas, on several GPUs.
lanes=$(sed -nE 's/.*communicator_bytes: ([0-9]+),.*/\1/p' bf16.yaml)
expect_equal "communicators" "$((lanes >= 64 << 20 && lanes <= 512 << 20))" 1
expect_no_match silent.yaml 'communicator_bytes'
needed=$((lanes + $(sed -nE 's/.*peak_bytes: \[([0-9, ]+)\].*/\1/p' bf16.yaml | tr -d ' ' | tr , '\n' | sort -n | tail -1)))
for memory in $needed $((needed - 1)); do
    sed "s/memory: 80GB/memory: $memory/" "$cluster" >limited.yaml
    run smp-partition check bf16.yaml --cluster limited.yaml "${brief[@]}"
    echo "$status" >>exits
done
expect_equal "exits" "$(tr '\n' ' ' <exits)" '0 3 '
expect_match out 'more than the device.s [0-9.]+ [KM]iB beside [0-9]+ MiB of communicators'
sed 's/memory: 80GB/memory: 1MB/' "$cluster" >limited.yaml
expect_exit 3 "${plan[@]}" --device cuda --cluster limited.yaml
expect_match err 'would fit with [0-9.]+ [KM]iB of memory per device beside [0-9]+ MiB of communicators \('
step() { value step_us "$1.yaml"; }
faster() { # plan, plan
    expect_equal "$1 is faster than $2" "$(awk -v a="$(step "$1")" -v b="$(step "$2")" 'BEGIN {print a < b}')" 1
}
faster bf16 tf32
faster tf32 fp32
expect_equal "less memory" "$([ "$(peak bf16.yaml)" -lt "$(peak fp32.yaml)" ] && echo yes)" yes
expect_exit 0 smp-partition "$model" --cluster "$cluster" -n 2 --fix bf16.yaml -o fixed.yaml --effort quick
expect_match fixed.yaml '^execution: \{device: cuda, precision: bf16\}$'
expect_exit 0 smp-partition check bf16.yaml --precision fp32 "${brief[@]}"
expect_match out '^on cuda in fp32$'
expect_exit 0 "${plan[@]}" --device cuda --precision bf16 --explain --report page.html --svg figure.svg \
    --trace trace.json --export json:exported.json
expect_json exported.json
expect_match exported.json '"execution"'
expect_match page.html "\"limit\": ?$((80000000000 - lanes))[,}]"

# A sketch may say it too.
cat >sketch.yaml <<SKETCH
smp: 1
model: {path: $model}
execution: {device: cuda, precision: bf16}
stages: [{ops: wte..h1.mlp.fc}, {ops: h1.mlp.gelu..loss}]
SKETCH
expect_exit 0 smp-partition check sketch.yaml --cluster "$cluster" "${brief[@]}" -o whole.yaml
expect_match out "note: sketch.yaml:4:.*op 'h1.mlp.fc' and op 'h1.mlp.gelu' are one kernel on cuda"
expect_match whole.yaml '^execution: \{device: cuda, precision: bf16\}$'
sed 's/cuda/tpu/' sketch.yaml >bad.yaml
expect_bad "bad\.yaml:3:21: execution: device: got 'tpu', expected cpu or cuda" \
    smp-partition check bad.yaml --cluster "$cluster"
sed 's/bf16/fp4/' sketch.yaml >bad.yaml
expect_bad "bad\.yaml:3:38: execution: precision: got 'fp4', expected fp32, tf32, bf16, fp16 or fp8" \
    smp-partition check bad.yaml --cluster "$cluster"
sed 's/cuda/cpu/; s/precision: bf16/precision: tf32/' bf16.yaml >bad.yaml
expect_bad 'bad\.yaml:[0-9]+:[0-9]+: execution: precision: got tf32.*the CPU' smp-partition check bad.yaml
sed 's/precision/precisoin/' bf16.yaml >bad.yaml
expect_bad 'bad\.yaml:[0-9]+:[0-9]+: .*precisoin.*precision' smp-partition check bad.yaml

# What cannot be.
expect_bad 'device.*tpu.*cpu or cuda' "${plan[@]}" --device tpu -o refused.yaml
expect_bad 'precision.*fp4.*fp32, tf32, bf16, fp16 or fp8' "${plan[@]}" --precision fp4 -o refused.yaml
expect_bad "--device cpu: it has no tf32.*--device cuda" "${plan[@]}" --precision tf32 -o refused.yaml
expect_bad "'v100-16gb'.*\`compute: bf16\`.*--profile" smp-partition "$model" -n 2 --device cuda \
    --precision bf16 --cluster "$SMP_EXAMPLES/cluster-v100.yaml" -o refused.yaml
expect_bad 'cuda: nothing says what the GPUs are.*--cluster.*--profile' \
    smp-partition "$model" -n 2 --device cuda -o refused.yaml

# fp8 is faster than bf16 where products are long, and asked of no card that is not said to have it; its
# scales are of whole tensors, so that devices do not share ops.
large=(smp-partition "$SMP_EXAMPLES/gpt2-30b-stage.yaml" -n 2 --stages 2 --microbatches 4 --effort quick --device cuda)
for precision in bf16 fp8; do
    expect_exit 0 "${large[@]}" --cluster "$SMP_EXAMPLES/cluster-h200.yaml" --precision $precision -o $precision.yaml
    expect_match $precision.yaml "^execution: \{device: cuda, precision: $precision\}\$"
done
faster fp8 bf16
expect_match fp8.yaml 'flops_fp8: 1\.979e\+15,'
expect_bad "'a100-80gb[^']*'.*\`compute: fp8\`" "${large[@]}" --cluster "$SMP_EXAMPLES/cluster-a100.yaml" --precision fp8
printf '%s\n' 'smp: 1' 'nodes: 1' 'devices_per_node: 2' \
    'device: [{description: h100-80gb-sxm}, {description: a100-80gb-sxm}]' \
    'links: {intra_node: {bandwidth: 300GB/s, latency_us: 5}}' >mixed.yaml
expect_bad "'a100-80gb[^']*'.*\`compute: fp8\`" "${large[@]}" --cluster mixed.yaml --precision fp8
expect_bad 'fp8: got 2 devices that compute ops together.*--tensor 1, or --precision bf16' smp-partition "$model" -n 2 \
    --tensor 2 --cluster "$cluster" --device cuda --precision fp8 -o refused.yaml

# A profile decides, unless an option does; times of another device or precision are refused.
write_good_model good.yaml
expect_exit 0 smp-profile good.yaml --microbatch-size 2 --device cpu --dtype fp32 -o cpu.yaml
expect_match cpu.yaml '^device: "?cpu"?$'
expect_match cpu.yaml '^dtype: fp32$'
sed -E 's/^device:.*/device: "NVIDIA H200"/; s/^dtype:.*/dtype: bf16\nmemory: 141GB/' cpu.yaml >card.yaml
expect_exit 0 smp-partition good.yaml -n 2 --profile cpu.yaml -o plan.yaml
expect_no_match plan.yaml 'execution'
expect_exit 0 smp-partition good.yaml -n 2 --stages 2 --profile card.yaml -o plan.yaml
expect_match plan.yaml '^execution: \{device: cuda, precision: bf16\}$'
expect_match plan.yaml 'memory: 141000000000, '
expect_match plan.yaml 'cores_per_node: 0,'
expect_exit 0 smp-partition good.yaml --stages 2 --profile card.yaml --cluster "$cluster" -o plan.yaml
expect_exit 0 smp-partition check plan.yaml --profile card.yaml
expect_bad "measured on 'NVIDIA H200' in bf16, the plan is for cuda in fp32.*--dtype fp32" \
    smp-partition good.yaml -n 2 --profile card.yaml --precision fp32 -o refused.yaml
expect_bad "measured on 'NVIDIA H200' in bf16, the plan is for cuda in fp8.*--dtype fp8" \
    smp-partition good.yaml -n 2 --profile card.yaml --precision fp8 -o refused.yaml
expect_bad "measured on 'cpu' in fp32, the plan is for cuda in fp32.*smp-profile --device cuda" \
    smp-partition good.yaml -n 2 --profile cpu.yaml --device cuda -o refused.yaml
sed -E '/^memory/d' card.yaml >small.yaml
expect_bad 'nothing says what the GPUs are' smp-partition good.yaml -n 2 --profile small.yaml -o refused.yaml
sed -E 's/^dtype:.*/dtype: fp4/' card.yaml >bad.yaml
expect_bad "bad\.yaml:[0-9]+:8: dtype: got 'fp4'" smp-partition good.yaml -n 2 --profile bad.yaml -o refused.yaml
expect_bad '--dtype tf32: the CPU.*--device cuda' smp-profile good.yaml --dtype tf32
expect_bad '--dtype: got .fp4., expected fp32, tf32, bf16, fp16 or fp8' smp-profile good.yaml --dtype fp4 --device cuda
finish

# This machine, described: the file is a device of a cluster, whose plan is near the one of a profile of the model itself.
expect_exit 0 smp-profile "$SMP_EXAMPLES/profiles/describe-device.yaml" --set n=512 --describe-device mine.yaml
printf 'smp: 1\nnodes: 1\ndevices_per_node: 1\ndevice: {description: mine.yaml}\n' >one.yaml
expect_exit 0 smp-partition "$SMP_EXAMPLES/gpt-tiny.yaml" --cluster one.yaml --microbatches 4 --microbatch-size 4
expect_match out '^costs: estimated from cpu \(measured here\)$'
expect_exit 2 smp-profile "$SMP_EXAMPLES/linear.yaml" --describe-device other.yaml
expect_match err 'a device is described by products and by operators that move over 1 MiB'
expect_exit 2 smp-profile "$SMP_EXAMPLES/linear.yaml" --describe-device other.yaml --check-gradients
expect_bad "one\.yaml: it is read, too" smp-profile one.yaml --describe-device one.yaml
