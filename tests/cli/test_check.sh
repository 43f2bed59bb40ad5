#!/usr/bin/env bash
# smp-partition check: every plan gets the same scores as when it was made, sketches are filled in, all
# that is wrong is listed, and exit codes say which kind it is.
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
model=$SMP_EXAMPLES/gpt-tiny.yaml

# The planner's own plan: legal, and scored as it was predicted.
expect_exit 0 smp-partition "$model" -n 2 --stages 2 --chunks 1 --microbatches 4 -o plan.yaml
expect_exit 0 smp-partition check plan.yaml --effort quick
expect_match out 'the plan is legal and fits'
expect_match out 'proven lower bound'
expect_match out '^best of the same numbers: '
expect_match out '^best of all: '
expect_exit 0 smp-partition check plan.yaml --json --explain "${brief[@]}"
expect_match out '"explanation": {"bottleneck": {"rank": [0-9]+.*"drawing": \["rank 0'
expect_json out
expect_match out '"legal": true, "fits": true, "problems": \[\]'
step=$(sed -nE 's/^predicted: \{step_us: ([0-9.e+-]+),.*/\1/p' plan.yaml)
expect_equal "step time" "$(sed -nE 's/.*"batch": \{[^}]*\}, "schedule": "[a-z-]*", "step_us": ([0-9.e+-]+),.*/\1/p' out)" "$step"
peaks=$(sed -nE 's/.*peak_bytes: \[([0-9, ]*)\].*/\1/p' plan.yaml)
expect_match out "\"peak_bytes\": \[$peaks\]"
expect_exit 0 smp-partition check plan.yaml -o again.yaml --explain "${brief[@]}"
expect_match out '^bottleneck: rank [01], '
expect_equal "programs written again" "$(grep -c . <(diff <(sed -n '/^programs/,/^predicted/p' plan.yaml | grep '^ .*"') \
    <(sed -n '/^programs/,/^predicted/p' again.yaml | grep '^ .*"')) || true)" 0
expect_exit 0 smp-partition check again.yaml "${brief[@]}"

# Bounds hold of programs that a plan brings along, whatever its rule would order.
expect_exit 0 smp-partition "$model" -n 2 --stages 2 --chunks 1 --microbatches 4 --pipeline zero-bubble \
    --effort quick -o bubble.yaml
expect_exit 2 smp-partition check bubble.yaml "${brief[@]}" --weight-lag 2
expect_match out 'bubble\.yaml:.*on rank 1 weight gradients of 3 micro-batches are still to come at a time, --weight-lag allows 2'
expect_exit 2 smp-partition check bubble.yaml "${brief[@]}" --active-microbatches 2
expect_match out 'rank [01] keeps 3 micro-batches alive, --active-microbatches allows 2'
run smp-partition check bubble.yaml "${brief[@]}" --weight-lag 3 --active-microbatches 3
expect_no_match out 'micro-batches (alive|are still to come)'

# What a plan says of its GPUs stays, unless a profile says it anew.
expect_exit 0 smp-partition "$model" -n 2 --stages 2 --chunks 1 --microbatches 4 --device cuda \
    --cluster "$SMP_EXAMPLES/cluster-h100.yaml" --effort quick -o gpu.yaml
sed -i 's/precision: fp32}/precision: fp32, libraries: 123456789}/' gpu.yaml
echo 'products: {format: 1, device: "A GPU", library: lib, chosen: [{product: p, algorithm: a}]}' >>gpu.yaml
for command in "check gpu.yaml" "$model --fix gpu.yaml"; do
    # shellcheck disable=SC2086 # words
    expect_exit 0 smp-partition $command "${brief[@]}" -o kept.yaml
    expect_match kept.yaml 'libraries: 123456789'
    expect_match kept.yaml '^products: .*chosen: \[\{product: p, algorithm: a\}\]'
    # shellcheck disable=SC2086
    expect_exit 0 smp-partition $command --device cpu "${brief[@]}" -o kept.yaml
    expect_no_match kept.yaml 'libraries|^products'
done

# More devices than the cluster has are a finding like any other.
sed 's/parallel: {devices: 2, pipeline: 2, ddp: 1/parallel: {devices: 6, pipeline: 2, ddp: 3/' plan.yaml >large.yaml
expect_exit 2 smp-partition check large.yaml --cluster "$SMP_EXAMPLES/cluster-laptop.yaml" "${brief[@]}"
expect_match out 'large\.yaml:3:11: 2 ranks \* 3 replicas need 6 devices'

# A step without end is no legal plan.
sed -E 's/(intra_node: \{latency_us: [^,]*, bytes_per_s: )[^}]*/\11e-320/' plan.yaml >endless.yaml
expect_bad 'endless\.yaml:[0-9]+:[0-9]+: intra_node: bytes_per_s: got .1e-320' smp-partition check endless.yaml

# Costs that are not those of the plan are noted, no more.
write_good_model good.yaml
expect_exit 0 smp-profile good.yaml --microbatch-size 2 -o profile.yaml
expect_exit 0 smp-partition good.yaml -n 2 --stages 2 --profile profile.yaml -o profiled.yaml
expect_exit 0 smp-partition check profiled.yaml "${brief[@]}"
expect_match out 'note: profiled\.yaml:.*the plan predicts a step of .*with these costs \(estimated from the peaks of .*\)'
expect_exit 0 smp-partition check profiled.yaml --profile profile.yaml "${brief[@]}"
expect_no_match out 'the plan predicts'
# The halves of a backward, measured, here unequal: planning, the plan's file and check take the same.
halves() { # input_us weight_us
    sed -E "s/forward_us: [0-9.]+, .* weight_bytes/forward_us: 100, backward_us: 200, backward_input_us: $1, \
backward_weight_us: $2, weight_bytes/" profile.yaml
}
halves 40 160 >uneven.yaml
halves 160 40 >turned.yaml
expect_exit 0 smp-partition good.yaml -n 2 --stages 2 --chunks 1 --microbatches 4 --pipeline zero-bubble \
    --profile uneven.yaml -o split.yaml
expect_match split.yaml 'backward_input_us: '
expect_exit 0 smp-partition check split.yaml --profile uneven.yaml "${brief[@]}"
expect_no_match out 'the plan predicts'
expect_exit 0 smp-partition check split.yaml --profile turned.yaml "${brief[@]}"
expect_match out 'the plan predicts'

expect_exit 0 smp-partition check plan.yaml "${brief[@]}" --report page.html --svg figure.svg \
    --trace trace.json --export torch-csv:schedule.csv --export json:plan.json
expect_json trace.json
expect_json plan.json
expect_match page.html '<html'
expect_match figure.svg '<svg'
expect_equal "schedule.csv" "$([ -s schedule.csv ] && echo there)" there

# A sketch: stages alone, with names, patterns and ranges.
cat >sketch.yaml <<'PLAN'
smp: 1
stages:
  - {ops: [wte, wpe, "h0.*", "h1.*"]}
  - {ops: ["h2.*", h3.ln_1..h3.res_2, "ln_?", lm_head, loss]}
PLAN
expect_exit 0 smp-partition check sketch.yaml --model "$model" "${brief[@]}" -o filled.yaml
expect_match out '45 ops on 2 devices = 2 pipeline ranks x 1 replica, 1 chunk; interleaved, 8 micro-batches'
expect_exit 0 smp-partition check filled.yaml "${brief[@]}"
printf 'smp: 1\nstages: [{ops: "*"}]\n' >one.yaml
expect_exit 0 smp-partition check one.yaml --model "$model" "${brief[@]}" -o filled.yaml
write_text text.txt 20000
expect_exit 0 smp-run filled.yaml --data text.txt --steps 1
expect_bad 'one\.yaml:1:1: .*model' smp-run one.yaml --data text.txt --steps 1
expect_exit 0 smp-partition check sketch.yaml --model "$model" --microbatches 3 --pipeline simple --json "${brief[@]}"
expect_match out '"microbatches": 3, .*"schedule": "simple"'

# Other names of schedules are read everywhere and written nowhere.
for schedule in gpipe:simple 1f1b:interleaved; do
    expect_exit 0 smp-partition "$model" -n 2 --stages 2 --chunks 1 --microbatches 4 --schedule "${schedule%:*}" -o alias.yaml
    expect_match alias.yaml "^schedule: ${schedule#*:}\$"
    sed -i "s/^schedule: .*/schedule: ${schedule%:*}/" alias.yaml
    expect_exit 0 smp-partition check alias.yaml -o named.yaml "${brief[@]}"
    expect_match named.yaml "^schedule: ${schedule#*:}\$"
    expect_exit 0 smp-partition "$model" --fix alias.yaml -o kept.yaml --effort quick
    expect_match kept.yaml "^schedule: ${schedule#*:}\$"
done
expect_exit 2 smp-partition check sketch.yaml
expect_one_message 'names no model.*--model'

# Four stages on two ranks.
printf 'smp: 1\nparallel: {pipeline: 2}\nstages:\n' >chunks.yaml
printf '  - {ops: [%s]}\n' 'wte, wpe, "h0.*"' '"h1.*"' '"h2.*"' '"h3.*", ln_f..loss' >>chunks.yaml
expect_exit 0 smp-partition check chunks.yaml --model "$model" "${brief[@]}"
expect_match out '2 pipeline ranks x 1 replica, 2 chunks; interleaved, 8 micro-batches'

# Ranks dealt out in an order of one's own: fine, unless a schedule is asked for that has another.
printf 'smp: 1\nstages:\n' >ranks.yaml
printf '  - {rank: %s, ops: [%s]}\n' 1 'wte, wpe, "h0.*"' 0 '"h1.*"' 0 '"h2.*"' 1 '"h3.*", ln_f..loss' >>ranks.yaml
expect_exit 0 smp-partition check ranks.yaml --model "$model" "${brief[@]}" -o filled.yaml
expect_match out '2 pipeline ranks x 1 replica, 2 chunks; searched, 8 micro-batches'
expect_match filled.yaml '^schedule: searched$'
sed 's/^schedule: searched$/schedule: auto/' filled.yaml >former.yaml
expect_exit 0 smp-partition check former.yaml "${brief[@]}"
expect_match out '2 chunks; searched, '
expect_exit 0 smp-partition check filled.yaml "${brief[@]}"
expect_exit 2 smp-partition check ranks.yaml --model "$model" --pipeline interleaved
expect_match out "stage 0 lies on rank 1, schedule 'interleaved' places it on rank 0"

# Everything that is wrong, not only the first thing.
cat >bad.yaml <<'PLAN'
smp: 1
stages:
  - {ops: [wte, wpee, "h1.*"]}
  - {ops: ["h0.*", "h2.*", nothing_like_it, h1.ln_1]}
  - {ops: ["h3.*", lm_head, loss]}
  - {ops: []}
PLAN
expect_exit 2 smp-partition check bad.yaml --model "$model"
expect_match out "bad\.yaml:3:17: stage 0 names 'wpee'.*nearest is 'wpe'"
expect_match out "bad\.yaml:4:[0-9]+: stage 1 names 'nothing_like_it'"
expect_match out "op 'h1\.ln_1' lies in stage 0 and in stage 1"
expect_match out "op 'wpe' lies in no stage"
expect_match out "op 'ln_f' lies in no stage"
expect_match out 'stage 3 of 4 holds no op'
expect_match out "op 'h1\.ln_1' in stage 0 reads tensor 'x', which op 'h0\.res_2' makes in the later stage 1"
expect_match out 'stages 0 and 1 feed each other'
expect_match out 'the plan is illegal: 9 findings'
expect_match err '^smp-partition: bad\.yaml: the plan is illegal: 9 findings$'
expect_exit 2 smp-partition check bad.yaml --model "$model" --json
expect_json out
expect_equal "findings" "$(grep -o '"level": "illegal"' out | wc -l | tr -d ' ')" 9

# Stages that are only numbered wrongly.
printf 'smp: 1\nstages:\n  - {stage: 1, ops: ["h0.*", wte, wpe]}\n  - {stage: 0, ops: ["h[1-3].*", ln_f..loss]}\n' >order.yaml
expect_exit 2 smp-partition check order.yaml --model "$model" # no brackets in patterns
sed -i 's/"h\[1-3\]\.\*"/"h1.*", "h2.*", "h3.*"/' order.yaml
expect_exit 2 smp-partition check order.yaml --model "$model"
expect_match out 'would be legal with its stages in the order 1, 0'

# Pins and groups of the model.
write_good_model good.yaml
sed -E '8s/\}/, stage: 1}/; 9s/\}/, group: g}/; 10s/\}/, group: g}/' good.yaml >pinned.yaml
printf 'smp: 1\nmodel: {path: pinned.yaml}\nstages:\n  - {ops: [wte, head]}\n  - {ops: [loss]}\n' >pins.yaml
expect_exit 2 smp-partition check pins.yaml
expect_match out "op 'wte' lies in stage 0, the model pins it to stage 1 \(.*pinned\.yaml:8:5\)"
expect_match out "group 'g' is torn apart: op 'head' lies in stage 0, op 'loss' in stage 1"

# Memory: legal, but too large by so much, on that rank.
expect_exit 3 smp-partition check sketch.yaml --model "$model" --memory 2MB --effort quick
expect_match out 'does not fit: .*rank 0 \(stage 0\) needs [0-9.]+ [KM]iB, [0-9.]+ [KM]iB more than'
expect_match out 'the plan is legal and does not fit the memory'
expect_exit 3 smp-partition check sketch.yaml --model "$model" --memory 2MB --json "${brief[@]}"
expect_json out
expect_match out '"legal": true, "fits": false, "problems": \[\{"level": "memory"'

# Programs, ranks, numbers and peaks that are wrong.
broken() { # sed expression, regex
    sed -E "$1" plan.yaml >broken.yaml
    expect_exit 2 smp-partition check broken.yaml --model "$model" "${brief[@]}"
    expect_match out "illegal: .*$2"
}
broken 's/F0\.0(.*)B0\.0/B0.0\1F0.0/' 'B0\.0'
broken 's/ O"/"/' 'O'
broken 's/(peak_bytes: \[)[0-9]+/\11/' 'peak_bytes of rank 0: got 1, expected [0-9]+'
broken 's/rank: 1/rank: 0/' 'rank 0 holds more than 1 stage'
broken 's/chunks: 1/chunks: 3/' 'got 2 stages, expected pipeline \* chunks = 2 \* 3'
broken 's/fingerprint: "[0-9a-f]{4}/fingerprint: "0000/' 'fingerprint'
broken 's/^schedule: .*/schedule: sideways/' "got 'sideways', expected one of simple \(gpipe\), interleaved"
printf 'smp: 1\ncluster: {name: c}\nstages: [{ops: [wte]}]\n' >broken.yaml
expect_bad 'broken\.yaml:2:' smp-partition check broken.yaml --model "$model"

# Not a plan at all, and wrong usage.
expect_bad 'absent\.yaml' smp-partition check absent.yaml
expect_bad 'good\.yaml:' smp-partition check good.yaml
expect_bad 'expected one' smp-partition check
expect_bad '--fix: not an option of smp-partition check' smp-partition check plan.yaml --fix plan.yaml
expect_bad '--model: not an option' smp-partition "$model" --model "$model"
finish
