#!/usr/bin/env bash
# Plans by hand whose ops are split over groups of devices: check fills them in, writes what it reads, and
# says where a splitting cannot be.
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
model=$SMP_EXAMPLES/gpt-tiny.yaml

sketch() { # parallel, lines of `split:`
    printf 'smp: 1\nparallel: {%s}\nsplit:\n' "$1"
    printf '  - {op: "%s", as: %s}\n' "${@:2}"
    printf 'stages:\n  - {ops: [wte, wpe, "h0.*", "h1.*"]}\n  - {ops: ["h2.*", "h3.*", ln_f..loss]}\n'
}
megatron=('h*.attn.qkv' columns/3 'h*.attn' 'packed heads' 'h*.proj' rows 'h*.mlp.fc' columns 'h*.gelu' elements@1)

# Megatron-LM's pattern on two ranks of two devices.
sketch 'tensor: 2' "${megatron[@]}" >sketch.yaml
expect_exit 0 smp-partition check sketch.yaml --model "$model" --effort quick --explain -o plan.yaml
expect_match out '69 ops on 4 devices = 2 pipeline ranks x 1 replica x tensor 2, 1 chunk; interleaved, 8 micro-batches'
expect_match out '^split: 24 ops over 2 devices: 4 columns/3, 4 packed heads, 8 rows, 4 columns, 4 elements@1$'
expect_match out '^best of all: step .* ranks of tensor 2, '
expect_match out '^the plan is legal and fits$'
expect_match plan.yaml '^parallel: \{devices: 4, pipeline: 2, ddp: 1, tensor: 2, '
expect_equal "entries" "$(grep -c '^  - {op: h[0-3]\.[a-z._]*, as: ' plan.yaml)" 24
expect_match plan.yaml '^cluster: .* devices_per_node: 4, '
expect_exit 0 smp-partition check plan.yaml --effort quick -o again.yaml --json --report page.html --svg figure.svg
expect_json out
expect_match out '"parallel": \{"devices": 4, "pipeline": 2, "ddp": 1, "tensor": 2, "chunks": 1\}'
expect_equal "the same again" "$(cmp plan.yaml again.yaml && echo same)" same
expect_match page.html '"tensor":2'
expect_match figure.svg 'micro-batches, tensor 2'

# Other frameworks are given the model's own modules.
expect_exit 0 smp-partition check plan.yaml "${brief[@]}" --export torch-csv:t.csv --export megatron-layout:layout
expect_match err '^smp-partition: megatron-layout does not say that groups of 2 devices .*--tensor-model-parallel-size'
expect_no_match t.csv.stages ':'
expect_equal "layout" "$(cat layout)" 'Et*2|t*2L'

# Groups of the devices of a node.
sed 's/^devices_per_node: .*/devices_per_node: 3/' "$SMP_EXAMPLES/cluster-laptop.yaml" >three.yaml
expect_exit 0 smp-partition check sketch.yaml --model "$model" --cluster "$SMP_EXAMPLES/cluster-laptop.yaml" "${brief[@]}"
expect_bad 'sketch\.yaml:2:11: .*nodes of 3 devices, which are no groups of 2' \
    smp-partition check sketch.yaml --model "$model" --cluster three.yaml
sketch 'tensor: 2, ddp: 3' "${megatron[@]}" >large.yaml
expect_exit 2 smp-partition check large.yaml --model "$model" --cluster "$SMP_EXAMPLES/cluster-laptop.yaml"
expect_match out "illegal: large\.yaml:2:11: 2 ranks \* 3 replicas \* tensor 2 need 12 devices, cluster 'laptop' has 4"

# What cannot be split so.
bad() { # regex, parallel, lines of `split:`
    sketch "${@:2}" >bad.yaml
    expect_bad "$1" smp-partition check bad.yaml --model "$model"
}
bad "bad\.yaml:4:5: split: no op of model 'gpt-tiny' is 'h9\.\*'; its ops are " 'tensor: 2' 'h9.*' rows
bad "bad\.yaml:4:5: split: no op of model 'gpt-tiny' is 'wtee', nearest is 'wte'" 'tensor: 2' wtee rows
bad "bad\.yaml:4:5: split: op 'h0\.ln_1' \(layernorm\): split 'columns', expected whole, " 'tensor: 2' 'h*.ln_?' columns
bad "bad\.yaml:5:5: split: op 'wte' is named twice" 'tensor: 2' wte rows wte features
bad "bad\.yaml:4:5: split: op 'h0\.attn' .* do not allow that on 3 devices" 'tensor: 3' 'h?.attn' 'packed heads'
bad 'bad\.yaml:2:32: parallel: tensor: got 3, expected a divisor of .devices., 8' 'devices: 8, tensor: 3' wte rows
bad 'bad\.yaml:4:3: split: got 1 op, expected .parallel: \{tensor: T\}' 'devices: 8' wte rows
bad "unknown key 'tensors'.*'tensor'" 'tensors: 8' wte rows

# A splitting of no op is one, though of no use.
printf 'smp: 1\nparallel: {tensor: 2}\nstages: [{ops: "*"}]\n' >none.yaml
expect_exit 0 smp-partition check none.yaml --model "$model" "${brief[@]}"
expect_match out 'note: none\.yaml:2:11: no op is split: 2 devices of a group all compute the same'

# Stages with the model's own ops: what splitting puts between them goes with them.
names=$(sed -nE 's/^  - \{op: [a-z_]+, name: ([a-z_]+),.*/\1/p' "$model" | paste -sd' ')
for layer in 0 1 2 3; do
    for op in ln_1 attn.qkv attn attn.proj res_1 ln_2 mlp.fc mlp.gelu mlp.proj res_2; do names+=" h$layer.$op"; done
done
{
    sketch 'tensor: 2' "${megatron[@]}" | sed '/^stages:/,$d'
    printf 'stages:\n  - {ops: [%s]}\n' "${names// /, }"
} >names.yaml
expect_exit 0 smp-partition check names.yaml --model "$model" "${brief[@]}" -o filled.yaml
expect_match filled.yaml '"h0\.mlp\.proj:whole"'

# Options of planning.
expect_bad "split: op 'h0\.attn' \(attention\): split 'foo', expected whole, heads, " \
    smp-partition "$model" -n 4 --tensor 2 --split 'h*.attn:foo'
expect_bad "^smp-partition: --split: split: no op of model 'gpt-tiny' is 'zz'" smp-partition "$model" -n 4 --tensor 2 --split zz:rows
expect_bad 'nothing is split with --tensor 1' smp-partition "$model" -n 4 --tensor 1 --split wte:rows
for text in wte wte: :rows; do
    expect_bad "--split: got '$text', expected PATTERN:RULE" smp-partition "$model" --tensor 2 --split "$text"
done
for text in 0 x -1; do
    expect_bad "--tensor: got '$text', expected a whole number" smp-partition "$model" --tensor "$text"
done
expect_bad 'tensor: got 3, expected a divisor of the 4 devices of a node' smp-partition "$model" -n 4 --tensor 3
expect_bad 'tensor: 4 devices are 1 groups of 4, which cannot hold 2 stages x 1 replicas' \
    smp-partition "$model" -n 4 --tensor 4 --stages 2
expect_bad 'stages: got 3, expected a divisor of the number of devices, 4' smp-partition "$model" -n 4 --tensor auto --stages 3
expect_exit 0 smp-partition "$model" -n 4 --tensor auto --chunks 1 --explain
expect_match out '^tensor  memory counts  ops split  in pieces  samples/s  highest peak'
for tensor in 1 2 4; do expect_match out "^$tensor  +[-0-9.]+ +[0-9]+ +[0-9]+ +[-0-9.]+ "; done

# --cut-at, and --fix, which keeps how ops are split; or splits them otherwise, whatever stood between them.
split=(--split '*:whole')
for ((i = 0; i < ${#megatron[@]}; i += 2)); do split+=(--split "${megatron[i]}:${megatron[i + 1]}"); done
expect_exit 0 smp-partition "$model" -n 4 --stages 2 --ddp 1 --tensor 2 "${split[@]}" --cut-at h2.mlp.fc --effort quick -o kept.yaml
expect_match kept.yaml 'stage: 1, .*ops: \[h2\.mlp\.fc,'
expect_exit 0 smp-partition "$model" --fix kept.yaml --effort quick -o again.yaml
expect_equal "splitting and first ops" "$(grep -oE 'op: .*|ops: \[[^,]*' again.yaml)" "$(grep -oE 'op: .*|ops: \[[^,]*' kept.yaml)"
expect_bad '--split: with --fix of a plan that says how ops are split' smp-partition "$model" --fix kept.yaml --split wte:rows
expect_exit 0 smp-partition "$model" --fix kept.yaml --tensor 2 --split '*:whole' --split 'h*.mlp.fc:columns' \
    --split 'h*.gelu:elements@1' --split 'h*.mlp.proj:rows' --effort quick -o other.yaml
expect_equal "entries" "$(grep -c '^  - {op: ' other.yaml)" 12
expect_match other.yaml 'stage: 1, .*ops: \[h2\.mlp\.fc,'
sed 's/h0\.ln_1,/h0.ln_one,/' kept.yaml >bad.yaml
expect_bad "op 'h0\.ln_one': model 'gpt-tiny' has none" smp-partition "$model" --fix bad.yaml

# Of splittings that are equally good to 1 % one is chosen, whatever the replicas, stages and objective.
planned() { # name model option...
    expect_exit 0 smp-partition "$SMP_EXAMPLES/$2-tiny.yaml" --tensor 2 --gradient-blocks 4 --pipeline simple --chunks 1 \
        --effort full -o "$1.yaml" "${@:3}"
}
for name in gpt llama moe; do
    planned one $name --stages 1 --ddp 1 --microbatches 4
    planned two $name --stages 1 --ddp 2 --microbatches 2
    planned staged $name --stages 2 --ddp 1 --microbatches 4
    planned small $name --stages 1 --ddp 1 --microbatches 4 --optimize memory
    for plan in two staged small; do expect_exit 0 smp-partition check one.yaml --same-bits-as $plan.yaml; done
done

# --split-from: the splitting, and nothing else, so that bits stay.
from=(--split-from kept.yaml --microbatch-size 1 --gradient-blocks 8 --effort quick)
expect_exit 0 smp-partition "$model" -n 2 --stages 1 --microbatches 8 "${from[@]}" -o alone.yaml
expect_exit 0 smp-partition "$model" -n 8 --tensor 2 --stages 2 --ddp 2 --microbatches 4 --pipeline zero-bubble "${from[@]}" -o many.yaml
entries() { grep '^  - {op: ' "$1"; }
for plan in alone many; do expect_equal "splitting of $plan" "$(entries $plan.yaml)" "$(entries kept.yaml)"; done
expect_no_match many.yaml 'stage: 1, .*ops: \[h2\.mlp\.fc,'
expect_exit 0 smp-partition check alone.yaml --same-bits-as many.yaml
expect_exit 0 smp-partition "$model" --fix other.yaml "${from[@]}" --cluster "$SMP_EXAMPLES/cluster-laptop.yaml" -o both.yaml
expect_equal "splitting of two plans" "$(entries both.yaml)" "$(entries kept.yaml)"
expect_match both.yaml 'stage: 1, .*ops: \[h2\.mlp\.fc,'
expect_bad '--split: with --split-from' smp-partition "$model" "${from[@]}" --split wte:rows
expect_bad '--tensor: got 4, expected the 2 of --split-from kept\.yaml' smp-partition "$model" "${from[@]}" --tensor 4
expect_exit 0 smp-partition "$model" -n 1 --microbatches 1 --effort quick -o plain.yaml
expect_bad '--split-from: plain\.yaml splits nothing' smp-partition "$model" --split-from plain.yaml

# What a run of two devices measured, of which the first speaks: its plan is checked with that.
write_text text.txt 20000
expect_exit 0 smp-partition "$model" -n 2 --stages 1 --ddp 1 --tensor 2 "${split[@]}" --microbatches 2 --effort quick -o two.yaml
expect_exit 0 mpirun -n 2 smp-run two.yaml --data text.txt --steps 4 --profile-out profile.yaml --trace trace.json --report page.html
expect_match profile.yaml 'name: "h0\.mlp\.proj:whole", forward_us: [0-9.]*[1-9]'
expect_exit 0 smp-partition check two.yaml --profile profile.yaml
expect_match out '^the plan is legal and fits$'
expect_bad 'the profile was taken from another model, or from this one split otherwise' \
    smp-partition "$model" -n 2 --profile profile.yaml
expect_json trace.json
for rank in 0 1; do expect_match trace.json "\"name\": ?\"rank $rank\""; done
expect_match page.html '"tensor":2'
# Groups of their own sizes for stages: planned around, checked, drawn, exported with what the format lacks.
sed 's/, weight: wte.weight//' "$model" >untied.yaml
printf '%s\n' 'smp: 1' 'split: [{op: "h0.mlp.fc", as: columns}, {op: "h0.mlp.gelu", as: elements@1}]' 'stages:' \
    '  - {ops: [wte..h0.res_2], rank: 0, tensor: 2}' '  - {ops: ["h1.*"], rank: 1, tensor: 1}' \
    '  - {ops: ["h2.*"], rank: 0}' '  - {ops: ["h3.*", ln_f..loss], rank: 1, tensor: 1}' >groups.yaml
expect_exit 0 smp-partition untied.yaml --fix groups.yaml --microbatches 4 --effort quick -o groups.plan --svg figure.svg \
    --export megatron-layout:layout
expect_match out 'ops on 3 devices = 2 pipeline ranks x 1 replica x tensor 1 to 2, 2 chunks'
expect_match groups.plan '^parallel: \{devices: 3, pipeline: 2, ddp: 1, tensor: 2, placement: cluster'
expect_equal "stages of two devices" "$(grep -c 'rank: 0, tensor: 2, ops' groups.plan)" 2
expect_match figure.svg 'micro-batches, tensor 1 to 2'
expect_match err 'does not say that stages have groups of different sizes, of up to 2 devices'
expect_exit 0 smp-partition check groups.plan --effort quick
expect_match out 'groups of different sizes .*no other plan is compared'
expect_exit 0 smp-partition check groups.yaml --model untied.yaml --effort quick
expect_match out '^the plan is legal and fits$'
expect_exit 3 smp-partition untied.yaml --fix groups.yaml --pipeline zero-bubble --effort quick
expect_match err "schedule 'zero-bubble' places stage 2, of 2 devices, on rank 1, which has 1"
expect_bad 'groups\.plan:.*--split-from: a stage has a group of its own' smp-partition untied.yaml --split-from groups.plan
expect_bad 'share the weight .wte.weight. with op' smp-partition "$model" --fix groups.yaml
sed -i 's/rank: 0}/rank: 0, tensor: 1}/' groups.yaml
expect_bad 'stage: tensor: got 1, expected 2, as in another stage of its rank' smp-partition untied.yaml --fix groups.yaml

# Groups of whole nodes.
expect_exit 0 smp-partition "$model" --cluster "$SMP_EXAMPLES/cluster-h100.yaml" -n 16 --tensor 16 --split 'h*.mlp.fc:columns' \
    --effort quick -o wide.yaml
expect_match wide.yaml '^parallel: \{devices: 16, pipeline: 1, ddp: 1, tensor: 16'
expect_exit 0 smp-partition check wide.yaml --effort quick
expect_bad 'tensor: got 12, expected a divisor of the 8 devices of a node, or a multiple' \
    smp-partition "$model" --cluster "$SMP_EXAMPLES/cluster-h100.yaml" -n 12 --tensor 12

# Nothing split is said, since it only costs.
expect_exit 0 smp-partition "$model" -n 2 --stages 1 --ddp 1 --tensor 2 --split '*:whole' -o whole.yaml
expect_match err 'no op is split'
finish
