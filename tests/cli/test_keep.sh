#!/usr/bin/env bash
# Planning under conditions: parts of an old plan, places where stages may begin, pins that contradict
# each other, a limit of time; and models whose costs are odd.
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
model=$SMP_EXAMPLES/gpt-tiny.yaml

# stage_of OP FILE: the stage that a plan puts an op in.
stage_of() {
    sed -nE "s/^  - \{stage: ([0-9]+), .*ops: \[(.*, )?\"?${1//./\\.}\"?[],].*/\1/p" "$2"
}

# first_ops FILE: the first op of every stage.
first_ops() {
    sed -nE 's/^  - \{stage: [0-9]+, .*ops: \["?([^],"]*)"?[],].*/\1/p' "$1" | tr '\n' ' '
}

# --fix: what the sketch names stays, the rest moves.
cat >sketch.yaml <<'PLAN'
smp: 1
stages:
  - {ops: [wte, wpe, h0.ln_1]}
  - {ops: ["h1.mlp.*"]}
  - {stage: 2, ops: [h3.ln_1]}
PLAN
expect_exit 0 smp-partition "$model" --fix sketch.yaml --microbatches 4 --effort quick -o fixed.yaml
expect_match fixed.yaml 'pipeline: 3, .*chunks: 1'
expect_equal "h0.ln_1" "$(stage_of h0.ln_1 fixed.yaml)" 0
expect_equal "h1.mlp.fc" "$(stage_of h1.mlp.fc fixed.yaml)" 1
expect_equal "h3.ln_1" "$(stage_of h3.ln_1 fixed.yaml)" 2
expect_exit 0 smp-partition "$model" --fix sketch.yaml:0,2 --stages 4 --microbatches 4 --effort quick -o fixed.yaml
expect_match fixed.yaml 'pipeline: 4'
expect_equal "h3.ln_1" "$(stage_of h3.ln_1 fixed.yaml)" 2
# A bound on what waits for weight gradients is named of schedules that take one.
expect_exit 0 smp-partition "$model" -n 2 --stages 2 --chunks 1 --microbatches 4 --weight-lag 1 --effort quick --explain
expect_match out 'zero-bubble, lag 1'
expect_no_match out '(simple|interleaved|breadth-first)[^ ]*, lag'
expect_exit 0 smp-partition "$model" -n 2 --stages 2 --chunks 1 --microbatches 4 --pipeline interleaved --weight-lag 1 \
    --effort quick --explain
expect_no_match out 'lag 1|micro-batches to come'
# A whole plan fixed is that plan.
expect_exit 0 smp-partition "$model" -n 2 --stages 2 --chunks 2 --microbatches 4 --pipeline interleaved --effort quick -o whole.yaml
expect_exit 0 smp-partition "$model" --fix whole.yaml --effort quick -o same.yaml
expect_equal "stages of a fixed plan" "$(grep -c . <(diff <(grep '{stage:' whole.yaml) <(grep '{stage:' same.yaml)) || true)" 0
expect_match same.yaml 'chunks: 2'
expect_match same.yaml 'microbatches: 4'
expect_match same.yaml '^schedule: interleaved'
sed 's/h0\.ln_1/h0.ln_11/' sketch.yaml >bad.yaml
expect_bad "bad\.yaml:3:.*h0\.ln_11.*nearest is 'h0\.ln_1'" smp-partition "$model" --fix bad.yaml
expect_bad 'stage 7 is not in the plan' smp-partition "$model" --fix sketch.yaml:0,7
expect_bad "got stages '2-'" smp-partition "$model" --fix sketch.yaml:2-
printf 'smp: 1\nstages:\n  - {ops: [wte, wpe]}\n  - {ops: ["w*"]}\n' >bad.yaml
expect_bad "op 'wte' lies in stage 0 and in stage 1" smp-partition "$model" --fix bad.yaml

# What the file says and cannot be is an error at its place there.
bad_fix() { # EXIT REGEX SKETCH-TEXT OPTION...: the sketch, as bad.yaml
    local code=$1 regex=$2
    printf 'smp: 1\n%b' "$3" >bad.yaml
    shift 3
    expect_exit "$code" smp-partition "$model" --fix bad.yaml --effort quick "$@"
    expect_one_message "$regex"
}
two='stages:\n  - {ops: [wte]}\n  - {ops: [h1.ln_1]}\n'
bad_fix 3 "op 'wte' \(fixed to stage 1, bad\.yaml:4:12\)" 'stages:\n  - {ops: [lm_head]}\n  - {ops: [wte]}\n'
bad_fix 3 "op 'h0\.ln_1' \(fixed to stage 1, bad\.yaml:4:12\) and op 'h1\.ln_1' \(fixed to stage 0, bad\.yaml:3:12\)" \
    'stages:\n  - {ops: [h1.ln_1]}\n  - {ops: [h0.ln_1]}\n'
bad_fix 2 "bad\.yaml:5:12: op 'lm_head' is pinned to stage 2" "$two  - {ops: [lm_head]}\n" --stages 2 --chunks 1
bad_fix 2 "bad\.yaml:2:11: schedule: got 'nosuch', expected one of" "schedule: nosuch\n$two"
bad_fix 2 'bad\.yaml:3:3: stages: got 2, expected a divisor' "$two" -n 3
bad_fix 2 'smp-partition: stages: got 7, expected a divisor' "$two" -n 4 --stages 7 # not the file's
bad_fix 2 'bad\.yaml:2:11: 2 stages \* 3 replicas' "parallel: {ddp: 3}\n$two" -n 4
bad_fix 2 'bad\.yaml:2:11: the plan needs 6 devices' "parallel: {ddp: 3}\n$two" --cluster "$SMP_EXAMPLES/cluster-laptop.yaml"
expect_exit 0 smp-partition "$model" -n 1 --microbatches 4 --effort quick -o alone.yaml
for more in '-n 4' '--ddp 4' '--stages 2 --ddp 2' '--tensor 4'; do
    # shellcheck disable=SC2086 # words
    expect_bad '^smp-partition: 4 devices are needed, the cluster of alone\.yaml has 1: give --cluster FILE$' \
        smp-partition "$model" --fix alone.yaml $more
done
expect_exit 0 smp-partition "$model" --fix alone.yaml --ddp 4 --cluster "$SMP_EXAMPLES/cluster-laptop.yaml" --effort quick
bad_fix 2 'bad\.yaml:2:11: devices: got' "parallel: {ddp: 1000000}\n$two"
bad_fix 2 'bad\.yaml:2:8: batch: microbatches: got 1000000000' "batch: {microbatches: 1000000000}\n$two"
bad_fix 3 'bad\.yaml:3:3: 71 pipeline ranks need as many ops' 'stages:\n  - {stage: 70, ops: [wte]}\n'
bad_fix 3 'bad\.yaml:2:11: 50 chunks' "parallel: {chunks: 50}\n$two" -n 1
expect_exit 0 smp-partition "$model" --fix sketch.yaml --pipeline simple --microbatches 4 --effort quick

write_good_model good.yaml
sed -E '8s/\}/, stage: 1}/' good.yaml >pinned.yaml
printf 'smp: 1\nstages:\n  - {ops: [wte]}\n  - {ops: [head]}\n' >bad.yaml
expect_bad "op 'wte' lies in stage 0, the model pins it to stage 1 \(pinned\.yaml:8:5\)" \
    smp-partition pinned.yaml --fix bad.yaml

# --cut-at: stages begin where they may.
expect_exit 0 smp-partition "$model" -n 4 --stages 4 --chunks 1 --cut-at 'h*.ln_1' --effort quick -o cut.yaml
for op in $(first_ops cut.yaml); do
    expect_match <(echo "$op") '^(wte|h[0-3]\.ln_1)$'
done
expect_exit 0 smp-partition "$model" -n 2 --stages 2 --chunks 1 --cut-at h1.res_1 --effort quick -o cut.yaml
expect_equal "stages begin" "$(first_ops cut.yaml)" 'wte h1.res_1 '
expect_exit 3 smp-partition "$model" -n 4 --stages 4 --chunks 1 --cut-at h1.res_1,h2.res_1 -o refused.yaml
expect_match err '4 stages need as many parts, the model has 3 parts'
expect_bad "--cut-at: no op of model 'gpt-tiny' matches 'h\*\.ln_11', nearest is 'h0\.ln_1'" \
    smp-partition "$model" -n 2 --cut-at 'h*.ln_11'

# Contradictions are named with their places, and nothing else is.
sed -E '8s/\}/, stage: 1}/; 10s/\}/, stage: 0}/' good.yaml >pinned.yaml
sed -i '11i\  - {op: opaque, name: more, in: tokens, out: z, cost: {forward_us: 1, output_bytes: 4}}' pinned.yaml
expect_exit 3 smp-partition pinned.yaml -n 2 --stages 2 --chunks 1 -o refused.yaml
expect_match err "pinned\.yaml:(8|10):5"
expect_match err "earlier stage than what it reads, because of op 'wte' \(stage: 1, .*pinned\.yaml:8:5\) and op 'loss' \(stage: 0, .*pinned\.yaml:10:5\)"
expect_equal "refused.yaml written" "$(ls refused.yaml 2>/dev/null || true)" ''

# A limit of time: a plan all the same, with an honest gap.
bash "$tests_dir/bench/transformer.sh" 2000 >large.yaml
expect_exit 0 smp-partition large.yaml -n 8 --stages 8 --memory 1TB --time-limit 0.001 -o hasty.yaml
expect_match hasty.yaml 'gap: [0-9]'
expect_exit 0 smp-partition check hasty.yaml --memory 1TB --effort quick
expect_match out 'the plan is legal and fits'
for limit in 0 -1 soon nan inf; do
    expect_bad '--time-limit' smp-partition "$model" --time-limit "$limit"
done
expect_exit 0 smp-partition good.yaml -n 2 --effort full

# Odd costs.
chain() { # forward_us of each of four ops
    printf 'smp: 1\nname: odd\nops:\n'
    local i=0 in=
    for us in "$@"; do
        echo "  - {op: opaque, name: n$i, out: t$i$in, cost: {forward_us: $us, backward_us: $us, output_bytes: 8}}"
        in=", in: t$i"
        i=$((i + 1))
    done
}
chain 0 0 0 0 >odd.yaml
expect_exit 0 smp-partition odd.yaml -n 2 --stages 2 --json
expect_json out
expect_no_match out 'nan|inf'
chain 1e300 1e300 1 1e-300 >odd.yaml
run smp-partition odd.yaml -n 2 --stages 2 --json
expect_equal "huge costs end" "$([ "$status" -eq 0 ] || [ "$status" -eq 2 ] || [ "$status" -eq 3 ] && echo yes)" yes
expect_no_match out 'nan|inf'
for us in -1 .nan .inf -.inf 1e999 x; do
    chain 1 "$us" 1 >odd.yaml
    expect_bad 'odd\.yaml:5:[0-9]+: .*forward_us' smp-partition odd.yaml -n 2 --stages 2
done
chain 5 >odd.yaml
expect_exit 0 smp-partition odd.yaml -n 1
expect_match out 'gap 0\.0 %'
expect_exit 3 smp-partition odd.yaml -n 2 --stages 2 --ddp 1
expect_match err 'as many ops: the model has 1'
finish
