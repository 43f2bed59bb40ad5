#!/usr/bin/env bash
# Weight gradients beside the exchanges of a group: the same bits as without, whatever else a plan says, also on a
# slow network (SMP_THROTTLE), where shorter steps are predicted with Megatron-LM's pattern and with its sequence
# parallelism. That they are shorter, by half of what is predicted, is asked for with SMP_TEST_LONG alone, which wants
# an idle machine; what hides in a call of a group is tested in test_op_group.c, what runs beside it in test_overlap.c.
# shellcheck source=training.sh
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"
write_models

rules() { # name
    local rule
    split=(--tensor 2 --split '*:whole')
    case $1 in
    residual) set -- a:columns '*.norm:channels' '*.relu:elements@0' b:rows head:columns loss:classes ;;
    ties) set -- wte:rows mix:rows again:rows act:elements@1 head:columns loss:classes ;;
    *)
        set -- "$1" 'h*.attn.qkv:columns/3' 'h*.attn:packed heads' 'h*.proj:rows' 'h*.mlp.fc:columns' \
            'h*.gelu:elements@1'
        [ "$1" = megatron ] || set -- "$@" 'h*.ln_?:positions@0' 'h*.res_?:elements@0' ln_f:positions@0
        shift
        ;;
    esac
    for rule in "$@"; do split+=(--split "$rule"); done
}

# both MODEL RULES STAGES SCHEDULE CHUNKS RECOMPUTE: with and without
both() {
    local model=$1 overlap
    rules "$2"
    for overlap in no yes; do
        plan "$overlap.yaml" "$model" $((2 * $3)) "$3" 1 "$4" "$5" 4 2 "$6" --tensor-overlap "$overlap" "${split[@]}"
        train "$overlap.yaml" $((2 * $3)) "$overlap"
    done
    expect_equal "$2: said by the plan" "$(grep -c 'tensor_overlap: true' no.yaml yes.yaml | tr '\n' ' ')" \
        "no.yaml:0 yes.yaml:1 "
    same yes no
}
gpt=$SMP_EXAMPLES/gpt-tiny.yaml
steps=8
[ -n "${SMP_TEST_LONG-}" ] || {
    sed 's/^let: .*/let: {T: 32, d: 32, heads: 4, layers: 2, vocab: 256}/' "$gpt" >small.yaml
    gpt=small.yaml
    steps=4
}
both "$gpt" megatron 1 simple 1 none
both "$gpt" sequence 2 interleaved 2 all
both "$gpt" sequence 1 zero-bubble 1 none
both ties.yaml ties 2 1f1b 1 none
both residual.yaml residual 1 simple 1 all

plan auto.yaml "$SMP_EXAMPLES/gpt-tiny.yaml" 2 1 1 simple 1 4 2 none --tensor 2
expect_equal "cores move the data" "$(grep -c tensor_overlap auto.yaml)" 0

rate=60000000
steps=$([ -n "${SMP_TEST_LONG-}" ] && echo 10 || echo 2)
"$tests_dir/bench/transformer.sh" 40 | sed -E \
    "s/^let:.*/let: {T: 64, d: 256, heads: 4, layers: 4, vocab: 256}/" >gpt.yaml
cat >cluster.yaml <<END
smp: 1
name: two devices on a slow network
nodes: 1
devices_per_node: 2
device: {name: core, memory: 4GB, compute: {fp32: 50GFLOP/s}, bandwidth: 10GB/s}
links:
  intra_node: {bandwidth: ${rate}B/s, latency_us: 1}
END

costs=() share=0.05
if [ -n "${SMP_TEST_LONG-}" ]; then # times are compared: what this machine's cores take
    expect_exit 0 mpirun -n 2 smp-profile gpt.yaml --microbatch-size 4 -o costs.yaml
    costs=(--profile costs.yaml) share=0.02
fi

least() { # file...: step_us; whatever else runs on the machine only adds to it
    sed -nE 's/.*"step_us": ?([0-9.]+).*/\1/p' "$@" | sort -n | head -n 1
}

predicted() { # plan
    sed -nE 's/.*step_us: ([0-9.]+).*/\1/p' "$1" | head -n 1
}

# faster RULES: with SMP_TEST_LONG the shortest of up to six runs of each counts.
faster() {
    local again overlap
    rules "$1"
    for overlap in no yes; do
        plan "$1.$overlap.yaml" gpt.yaml 2 1 1 simple 1 4 4 none "${costs[@]}" --cluster cluster.yaml \
            --tensor-overlap "$overlap" "${split[@]}"
    done
    plan "$1.auto.yaml" gpt.yaml 2 1 1 simple 1 4 4 none "${costs[@]}" --cluster cluster.yaml "${split[@]}"
    expect_exit 0 smp-partition gpt.yaml -n 2 --stages 1 --ddp 1 --pipeline simple --microbatches 4 --microbatch-size 4 \
        --recompute none "${costs[@]}" --cluster cluster.yaml --explain -o "$1.auto.yaml" "${split[@]}"
    expect_match out "^overlap: of [0-9.]+ ms in which groups exchange gradients, per micro-batch, weight gradients hide [0-9.]+ ms"
    expect_equal "$1: where it hides something" "$(cmp "$1.auto.yaml" "$1.yes.yaml" && echo same)" same
    expect_equal "$1: predicted to save some" "$(awk -v from="$(predicted "$1.no.yaml")" \
        -v to="$(predicted "$1.yes.yaml")" -v share="$share" 'BEGIN { print (from - to > share * to) }')" 1
    for again in 1 2 3 4 5 6; do
        for overlap in no yes; do
            SMP_THROTTLE=$rate train "$1.$overlap.yaml" 2 "$1.$overlap.$again"
        done
        same "$1.yes.$again" "$1.no.$again"
        awk -v slow="$(least "$1".no.*.json)" -v fast="$(least "$1".yes.*.json)" \
            -v from="$(predicted "$1.no.yaml")" -v to="$(predicted "$1.yes.yaml")" -v name="$1" 'BEGIN {
                printf "%s: %.0f to %.0f us, predicted %.0f to %.0f\n", name, slow, fast, from, to
                exit !(slow - fast > 0.5 * (from - to)) }' && return
        [ -n "${SMP_TEST_LONG-}" ] || return 0
    done
    fail "$1: too little of what was predicted"
}
faster megatron
faster sequence
finish
