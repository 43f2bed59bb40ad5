#!/usr/bin/env bash
# Every model of examples/ is planned with a cluster it fits on: a verified plan, a stated gap.
# Every cluster file is used. With memory out of the way, what the planner finds is never worse than
# cutting by layers or by parameters, as one would by hand. A search may take a twentieth of a second, in the
# long run ten.
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
limit_s=40
search_s=0.05
[ -z "${SMP_TEST_LONG-}" ] || search_s=10

# Models, options; a new example needs a line here. What is fixed keeps the test short.
cases() {
    cat <<'CASES'
linear       --cluster cluster-laptop
mlp          --cluster cluster-mixed
branches     --cluster cluster-laptop
gpt-tiny     --cluster cluster-laptop
gpt-small    --cluster cluster-laptop
llama-tiny   --cluster cluster-laptop
moe-tiny     --cluster cluster-laptop
bert-small   --cluster cluster-laptop
t5-small     --cluster cluster-laptop
vit-digits   --cluster cluster-laptop
resnet-small --cluster cluster-laptop --microbatch-size 32
resnet-18    --cluster cluster-laptop --microbatch-size 32 --microbatches 8
resnet-50    --cluster cluster-a100 -n 8 --stages 8 --microbatch-size 32 --microbatches 16
vit-class    --cluster cluster-laptop --microbatch-size 32
vit-b16      --cluster cluster-a100 -n 4 --microbatch-size 32
bert-large   --cluster cluster-a100 -n 8
inception    --cluster cluster-v100 -n 8 --stages 8 --chunks 1 --microbatch-size 32 --microbatches 16
t5-11b       --cluster cluster-a100 --stages 8 --microbatches 16
gpt2-30b     --cluster cluster-h100 --stages 16 --microbatches 8
gpt2-30b     --cluster cluster-a100-40g-16 -n 128 --device cuda --precision bf16 --stages 32 --chunks 1 --microbatches 32 --pipeline 1f1b
gpt2-30b     --cluster cluster-a100-40g-32 -n 256 --device cuda --precision bf16 --stages 32 --chunks 1 --microbatches 32 --pipeline 1f1b
gpt2-10b     --cluster cluster-v100-32g -n 8 --device cuda --precision fp16 --stages 8 --chunks 1 --microbatches 16 --pipeline 1f1b
gpt2-124m    --cluster cluster-h200 -n 1 --device cuda --precision bf16 --microbatch-size 32 --microbatches 4
gpt2-774m    --cluster cluster-h200 -n 2 --device cuda --precision bf16 --microbatch-size 8 --microbatches 4
gpt2-30b-stage --cluster cluster-h200 -n 1 --device cuda --precision bf16 --microbatch-size 2 --microbatches 2
llama3-8b    --cluster cluster-h100 -n 8 --stages 8 --device cuda --precision bf16 --chunks 1 --microbatches 32
llama3-70b   --cluster cluster-h100 -n 64 --stages 32 --device cuda --precision bf16 --chunks 1 --microbatches 64 --pipeline 1f1b
mixtral-like --cluster cluster-h100 -n 32 --stages 32 --device cuda --precision bf16 --chunks 1 --microbatches 64 --pipeline 1f1b
maskrcnn-fpn --cluster cluster-a100 -n 4 --microbatch-size 2 --microbatches 8
unet-sd      --cluster cluster-a100 -n 8 --device cuda --precision bf16 --microbatch-size 4 --microbatches 16
gpt-175b     --cluster cluster-h200 --stages 64 --microbatches 16 --chunks 1
gpt-530b     --cluster cluster-a100-3k -n 280 --tensor 8 --stages 35 --device cuda --precision bf16 --microbatches 70 --chunks 1 --pipeline 1f1b
bert-large   --cluster cluster-a100-16k -n 8
bert-large   --cluster cluster-a100-1k -n 8
CASES
    [ -z "${SMP_TEST_LONG-}" ] || cat <<'CASES'
gpt-175b     --cluster cluster-a100-16k --stages 128 --microbatches 16 --chunks 1
gpt-175b     --cluster cluster-a100-1k -n 96 --tensor 8 --stages 12 --device cuda --precision bf16 --microbatches 48 --chunks 1 --pipeline 1f1b
CASES
}

while read -r model options; do
    # shellcheck disable=SC2086 # options are words
    set -- ${options/--cluster /--cluster $SMP_EXAMPLES/}
    set -- "$1" "$2.yaml" "${@:3}"
    started=$SECONDS
    expect_exit 0 smp-partition "$SMP_EXAMPLES/$model.yaml" "$@" --time-limit "$search_s" -o plan.yaml
    expect_match out '^bottleneck: .*proven lower bound .*gap [0-9.]+ %'
    expect_match plan.yaml 'gap: [0-9]'
    echo "$model: $(sed -nE 's/^bottleneck.*(gap.*)/\1/p' out), $((SECONDS - started)) s"
    # The largest plans take as long to check as to make.
    if [ -n "${SMP_TEST_LONG-}" ] || [ "$(wc -c <plan.yaml)" -lt 50000 ]; then
        expect_exit 0 smp-partition check plan.yaml --time-limit "$search_s"
    fi
done < <(cases)

for file in "$SMP_EXAMPLES"/*.yaml; do
    name=$(basename "$file" .yaml)
    expect_equal "lines for $name" "$([ "$(cases | grep -cE "(^| )$name( |\$)")" -gt 0 ] && echo some)" some
done

# Devices that are no CPU have a link to their host's memory: what does not fit on the cards travels.
for file in "$SMP_EXAMPLES"/cluster-*.yaml; do
    [ "$(basename "$file")" = cluster-laptop.yaml ] || expect_match "$file" '^  host: .bandwidth: [0-9]+GB/s'
done
expect_exit 0 smp-partition "$SMP_EXAMPLES/gpt2-30b.yaml" --cluster "$SMP_EXAMPLES/cluster-a100-40g-32.yaml" -n 256 \
    --device cuda --precision fp16 --stages 1 --chunks 48 --pipeline breadth-first --shard 128 --shard-what weights \
    --microbatch-size 6 --microbatches 1 --offload all --time-limit "$search_s" -o plan.yaml
expect_match out '^in host memory: stashes between forward and backward'

# Written out by its script.
expect_exit 0 bash "$SMP_EXAMPLES/inception.sh"
expect_equal "inception.yaml" "$(cmp out "$SMP_EXAMPLES/inception.yaml" && echo same)" same

# Arrays of what their headers say, the same ones every time.
expect_exit 0 bash "$SMP_EXAMPLES/random-images.sh" 4 1000 5 images
expect_exit 0 bash "$SMP_EXAMPLES/random-images.sh" 4 1000 5 again
expect_equal "random images" "$(cat images/images.npy images/labels.npy | wc -c)" $((128 + 5 * 3 * 4 * 4 + 128 + 5 * 4))
expect_equal "random images" "$(diff -r images again && echo same)" same
expect_equal "bytes of random labels above a thousand" \
    "$(tail -c 20 images/labels.npy | od -An -v -td4 | awk '{ for (i = 1; i <= NF; i++) n += $i > 999 } END { print n + 0 }')" 0

# Against the baselines.
bottleneck() { # model, stages, cluster, option...
    expect_exit 0 smp-partition "$SMP_EXAMPLES/$1.yaml" --stages "$2" -n "$2" \
        --cluster "$SMP_EXAMPLES/$3.yaml" --ddp 1 --chunks 1 --objective bottleneck --memory 1000TB \
        --microbatches 8 --json "${@:4}"
    sed -nE 's/.*"bottleneck_us": ([0-9.e+]+).*/\1/p' out >"$scratch/us"
}
while read -r model stages cluster; do
    bottleneck "$model" "$stages" "$cluster" # without a limit: it ends by its proof
    best=$(cat us)
    for baseline in equal-layers equal-parameters; do
        bottleneck "$model" "$stages" "$cluster" --partitioner "$baseline" --explain "${brief[@]}"
        expect_match out "\"solver\": \"$baseline\""
        expect_equal "$model: default ($best us) at most $baseline ($(cat us) us)" \
            "$(awk -v best="$best" -v other="$(cat us)" 'BEGIN { print (best > 0 && best <= other * 1.000001) }')" 1
    done
done < <([ -z "${SMP_TEST_LONG-}" ] || printf '%s\n' 't5-11b 16 cluster-a100' 'gpt2-30b 16 cluster-h100' 'vit-b16 5 cluster-a100'
    printf '%s\n' 'bert-large 8 cluster-a100' 'inception 6 cluster-v100')

# Gradients of every operator of those that are small against finite differences; in the long run of some
# that are larger.
models=(linear mlp branches gpt-tiny llama-tiny moe-tiny bert-small t5-small vit-digits vit-class resnet-small)
[ -z "${SMP_TEST_LONG-}" ] || models+=(gpt-small resnet-18 resnet-50 vit-b16)
for model in "${models[@]}"; do
    expect_exit 0 smp-profile "$SMP_EXAMPLES/$model.yaml" --check-gradients
    expect_match out 'gradients that are wrong: 0$'
    expect_no_match out 'lost in roundings'
done
finish
