#!/usr/bin/env bash
# Training by groups of devices that compute every op together. With one splitting and one number of gradient
# blocks the steps give the same losses and weights to the last bit for every pipeline, ddp, shard degree, schedule
# and whatever is recomputed; evaluations, short batches and dropout give what one device gives, to 1e-5; bf16 what
# it gives there. SMP_TEST_LONG: 20 steps of a larger model, and all of these with all.
# shellcheck source=training.sh
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"
write_models

# Devices that compute side by side, however many cores are here: stages are worth it.
cat >cluster.yaml <<'END'
smp: 1
name: eight
nodes: 1
devices_per_node: 8
device: {name: cpu, memory: 2GB, compute: {fp32: 100GFLOP/s, bf16: 200GFLOP/s}, bandwidth: 20GB/s}
links:
  intra_node: {bandwidth: 10GB/s, latency_us: 3}
  inter_node: {bandwidth: 10GB/s, latency_us: 3}
overlap: true
END

# Rules of a model's ops, behind `--split`; all else is whole. Megatron-LM's pattern, and with positions split
# where that does not split anything; a table's rows that are also the last product's columns.
rules() { # name
    local rule
    split=(--cluster cluster.yaml --tensor "${2:-2}" --split '*:whole')
    case $1 in
    megatron) set -- 'h*.attn.qkv:columns/3' 'h*.attn:packed heads' 'h*.proj:rows' 'h*.mlp.fc:columns' 'h*.gelu:elements@1' ;;
    sequence) set -- 'h*.attn.qkv:columns/3' 'h*.attn:packed heads' 'h*.proj:rows' 'h*.mlp.fc:columns' 'h*.gelu:elements@1' \
        wte:rows wpe:positions 'h*.ln_?:positions@0' 'h*.res_?:elements@0' ln_f:positions@0 lm_head:columns loss:classes ;;
    rings) set -- 'h*.attn.qkv:ring columns/3' 'h*.attn:packed heads' 'h*.attn.proj:ring rows' \
        'h*.mlp.fc:ring columns' 'h*.gelu:elements@1' 'h*.mlp.proj:ring rows' wte:rows wpe:positions \
        'h*.ln_?:positions@0' 'h*.res_?:elements@0' ln_f:positions@0 'lm_head:ring columns' loss:classes ;;
    residual) set -- a:columns '*.norm:channels' '*.relu:elements@0' b:rows head:columns loss:classes ;;
    ties) set -- wte:rows mix:rows again:rows act:elements@1 head:columns loss:classes ;;
    esac
    for rule in "$@"; do split+=(--split "$rule"); done
}

# together MODEL NAME RULES STAGES:DDP:SHARD:WHAT:SCHEDULE:CHUNKS:RECOMPUTE...: 4 micro-batches of 2 in 4 blocks.
together() {
    local model=$1 name=$2 stages ddp shard what schedule chunks redo way
    rules "$3"
    shift 3
    plan one.yaml "$model" 2 1 1 simple 1 4 2 none --gradient-blocks 4 "${split[@]}"
    grep '^  - {op: ' one.yaml >one.split
    expect_equal "$name: ops are split" "$([ "$(wc -l <one.split)" -ge 6 ] && echo some)" some
    train one.yaml 2 "$name"
    for way in "$@"; do
        IFS=: read -r stages ddp shard what schedule chunks redo <<<"$way"
        plan other.yaml "$model" $((2 * stages * ddp)) "$stages" "$ddp" "$schedule" "$chunks" \
            $((4 / ddp)) 2 "$redo" --gradient-blocks 4 --shard "$shard" --shard-what "$what" "${split[@]}"
        expect_equal "$name $way: the splitting" "$(grep '^  - {op: ' other.yaml | cmp - one.split && echo same)" same
        if [ "$stages" = 2 ] && [ "$name" != ties ]; then # which has too little to do
            expect_equal "$name $way: ranks with much to do" "$(sed -nE 's/^  - \{stage: .*forward_us: ([0-9]+).*/\1/p' other.yaml |
                awk '{ us[NR % 2] += $1 } END { print (us[0] > us[1] / 4) + (us[1] > us[0] / 4) }')" 2
        fi
        train other.yaml $((2 * stages * ddp)) other
        expect_equal "$name $way: replicas" "$(wc -l <other.weights | tr -d ' ')" "$ddp"
        sort -u -o other.weights other.weights
        same other "$name"
    done
}

gpt=$SMP_EXAMPLES/gpt-tiny.yaml
if [ -n "${SMP_TEST_LONG-}" ]; then
    ways=()
    for at in 1:simple:1 1:zero-bubble:1 1:breadth-first:2 2:1f1b:1 2:interleaved:2 2:zero-bubble:1; do
        for ddp in 1 2; do
            for what in none optimizer weights; do
                for redo in none all; do
                    shard=2
                    if [ "$what" != none ] && [ "$ddp" = 1 ]; then continue; fi
                    [ "$what" != none ] || shard=1
                    ways+=("${at%%:*}:$ddp:$shard:${what/none/optimizer}:${at#*:}:$redo")
                done
            done
        done
    done
    limit_s=300
    for model in "$gpt:sequence" "$gpt:rings" "$gpt:megatron" residual.yaml:residual ties.yaml:ties; do
        together "${model%:*}" "${model#*:}" "${model#*:}" "${ways[@]}"
    done
else
    sed 's/^let: .*/let: {T: 32, d: 32, heads: 4, layers: 2, vocab: 256}/' "$gpt" >gpt.yaml
    gpt=gpt.yaml
    steps=5
    together "$gpt" gpt sequence 2:1:1:optimizer:interleaved:2:none 1:2:2:weights:breadth-first:2:all
    together "$gpt" rings rings 2:1:1:optimizer:zero-bubble:1:all
    together ties.yaml ties ties 2:2:2:weights:interleaved:2:none
    together residual.yaml residual residual 2:1:1:optimizer:1f1b:1:all 1:2:2:optimizer:simple:1:none
fi

# As one device does. The last batch of a pass over the text is short, and so is that of an evaluation; dropout
# draws by the position in the whole.
sed 's/^  - {op: layernorm, name: ln_f/  - {op: dropout, name: drop_f, in: x, out: x, p: 0.2}\n&/
    s/^      - {op: add, name: "h{i}.res_[12]".*\[x, \([am]\)\]/      - {op: dropout, name: "h{i}.drop_\1", in: \1, out: \1, p: 0.2}\n&/' \
    "$gpt" >dropout.yaml
expect_equal "kinds of dropout" "$(grep -c 'op: dropout' dropout.yaml)" 3
# texts LENGTH: of samples; 32 windows, in passes of 5 batches and 2 samples
texts() {
    head -c $((33 * $1 - 12)) text.txt >short.txt
    head -c $((14 * $1 + 4)) text.txt >held.txt
}
texts "$(sed -nE 's/^let: \{T: ([0-9]+).*/\1/p' "$gpt")"
steps=$([ -n "${SMP_TEST_LONG-}" ] && echo 9 || echo 7)
# alone NAME PLAN RANKS [OPTION...]: losses, of evaluations too, in NAME
alone() {
    expect_exit 0 mpirun -n "$3" smp-run "$2" --data short.txt --eval-data held.txt --eval-every 4 --steps "$steps" \
        --log-every 1 --json --lr 0.003 --seed 5 "${@:4}"
    sed -nE 's/.*"(loss|eval_loss|accuracy)": ?([^,}]*).*/\2/p' out >"$1"
    expect_equal "$1: losses and evaluations" "$(wc -l <"$1" | tr -d ' ')" $((steps + steps / 4 + 1))
}
close() { # name reference tolerance
    expect_equal "$1 against $2" "$(paste "$1" "$2" | awk -v most="$3" '{ d = ($1 - $2) / $2; n += d * d <= most * most }
        END { print n }')" "$(wc -l <"$2" | tr -d ' ')"
}
rules sequence
split+=(--split 'h*.drop_?:elements@0' --split drop_f:elements@0)
plan one.yaml dropout.yaml 1 1 1 simple 1 3 2
alone one one.yaml 1
sed 's/p: 0.2/p: 0/' dropout.yaml >kept.yaml
plan kept_plan.yaml kept.yaml 1 1 1 simple 1 3 2
alone kept kept_plan.yaml 1
expect_equal "dropout drops" "$(cmp -s one kept || echo differs)" differs
plan two.yaml dropout.yaml 4 2 1 1f1b 1 3 2 none "${split[@]}"
expect_match two.yaml 'op: h0.drop_a, as: "?elements@0'
alone two two.yaml 4
close two one 1e-5
split[3]=4
plan four.yaml dropout.yaml 4 1 1 simple 1 3 2 none "${split[@]}"
alone four four.yaml 4
close four one 1e-5

rules rings
split+=(--split 'h*.drop_?:elements@0' --split drop_f:elements@0)
for tensor in ${SMP_TEST_LONG:+2} 4; do
    split[3]=$tensor
    plan rings.yaml dropout.yaml "$tensor" 1 1 simple 1 3 2 none "${split[@]}"
    alone rings rings.yaml "$tensor"
    close rings one 1e-5
done

# As many processes as a plan has devices.
for n in 2 3; do
    expect_exit 2 mpirun -n "$n" smp-run two.yaml --data text.txt --steps 1
    expect_match err "two.yaml is a plan for 4 processes \\(pipeline 2 x ddp 1 x tensor 2\\), but $n were started: run it with mpirun -n 4"
    expect_equal "messages of smp-run" "$(grep -c 'smp-run: ' err)" 1
done

# In bf16, where the processor has it.
gpt=$SMP_EXAMPLES/gpt-tiny.yaml
texts 64
rules rings
plan rings16.yaml "$gpt" 2 1 1 simple 1 3 2 none "${split[@]}" --precision bf16
rules sequence
plan bf16.yaml "$gpt" 2 1 1 simple 1 3 2 none "${split[@]}" --precision bf16
run mpirun -n 2 smp-run bf16.yaml --data text.txt --steps 1
if grep -q 'this processor has neither' err; then
    echo "skipped: this processor has no bf16"
else
    plan fp32.yaml "$gpt" 1 1 1 simple 1 3 2
    alone fp32 fp32.yaml 1
    alone bf16 bf16.yaml 2
    close bf16 fp32 0.02
    alone rings16 rings16.yaml 2
    close rings16 fp32 0.02
    expect_equal "is in bf16" "$(cmp -s bf16 fp32 || echo differs)" differs
fi
finish
