#!/usr/bin/env bash
# Plans for large clusters: the default command against an expert's degrees and against more effort.
# Per row the samples a second of
#   default   smp-partition MODEL --cluster CLUSTER -n DEVICES --global-batch N
#             --device cuda --precision bf16
#   expert    the same with the degrees below pinned
#   high      the same with --effort high (with --high: a minute or two for each row)
# with the processor time of the default command. Fails where the default is slower than the better of the
# others by more than 3 %, or where with four busy processes beside it (--busy) it makes other bytes.
#
#   tests/bench/bench_scale.sh [--bin FOLDER] [--only PATTERN] [--high] [--busy] [--effort NAME]
#
# Standard output: a line "scale key=value..." per run, then the table in Markdown.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(cd "$here/../.." && pwd)
examples=$top/examples
bin=$top/build/bin
only=
high=
busy=
effort=normal
while [ $# -gt 0 ]; do
    case "$1" in
    --bin) bin=${2:?--bin FOLDER} && shift ;;
    --only) only=${2:?--only PATTERN} && shift ;;
    --effort) effort=${2:?--effort NAME} && shift ;;
    --high) high=1 ;;
    --busy) busy=1 ;;
    *)
        sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
        exit 2
        ;;
    esac
    shift
done
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Models and clusters that no example has.
sed -e 's/^name: .*/name: llama3-405b/' \
    -e 's/^let: .*/let: {T: 8192, d: 16384, heads: 128, kv_heads: 8, hidden: 53248, layers: 126, vocab: 128256}/' \
    "$examples/llama3-70b.yaml" >"$scratch/llama3-405b.yaml" # Grattafiori et al. 2024, table 3
sed -e 's/^name: .*/name: gpt-1t/' -e 's/^let: .*/let: {T: 2048, d: 25600, heads: 160, layers: 128, vocab: 51200}/' \
    "$examples/gpt-530b.yaml" >"$scratch/gpt-1t.yaml" # Narayanan et al. 2021, table 1
for nodes in 128 2048; do
    sed -e "s/^name: .*/name: h100-${nodes}x8/" -e "s/^nodes: .*/nodes: $nodes/" "$examples/cluster-h100.yaml" \
        >"$scratch/cluster-h100-$nodes.yaml"
done

# model cluster devices global-batch | an expert's degrees | from
rows() {
    cat <<'ROWS'
llama3-8b cluster-h100 8 64 | --tensor 1 --stages 1 --ddp 8 --shard 8 --shard-what weights | torchtitan's FSDP (Liang et al. 2024, table 1)
llama3-70b cluster-h100 64 512 | --tensor 8 --stages 4 --ddp 2 --chunks 4 | Megatron-LM's rule: tensor in a node, then stages, then replicas
llama3-70b cluster-h100-128 1024 1024 | --tensor 8 --stages 4 --ddp 32 --chunks 4 | the same
mixtral-like cluster-h100 64 512 | --tensor 1 --stages 4 --ddp 16 --chunks 8 | NeMo's recipe for Mixtral 8x7B, without expert parallelism
mixtral-like cluster-h100-128 512 1024 | --tensor 1 --stages 4 --ddp 128 --chunks 8 | the same
t5-11b cluster-h100 64 1920 | --tensor 4 --stages 1 --ddp 16 | NeMo's T5 of 11 billion
unet-sd cluster-h100-128 256 2048 | --tensor 1 --stages 1 --ddp 256 | replicas alone (Rombach et al. 2022)
gpt-175b cluster-a100-1k 1024 1536 | --tensor 8 --stages 8 --ddp 16 --chunks 3 | Narayanan et al. 2021, section 5.1
gpt-530b cluster-a100-3k 2240 2240 | --tensor 8 --stages 35 --ddp 8 --chunks 3 | Narayanan et al. 2021, table 1
gpt-1t cluster-a100-3k 3072 3072 | --tensor 8 --stages 64 --ddp 6 --chunks 2 | Narayanan et al. 2021, table 1
llama3-405b cluster-h100-2048 16384 2048 | --tensor 8 --stages 16 --ddp 128 --chunks 8 | Grattafiori et al. 2024, table 4
ROWS
}

find_file() { # name: in the examples, or written here
    if [ -e "$scratch/$1.yaml" ]; then echo "$scratch/$1.yaml"; else echo "$examples/$1.yaml"; fi
}

plan() { # name option...: sets rate (empty: no plan), shape and seconds
    local name=$1
    shift
    local TIMEFORMAT=%U
    seconds=$({ time "$bin/smp-partition" "$@" --device cuda --precision bf16 -o "$scratch/$name.yaml" \
        >"$scratch/$name.out" 2>"$scratch/$name.err" || true; } 2>&1)
    rate=$(sed -n 's/^predicted: .* \([0-9.]*\) samples.s.*/\1/p' "$scratch/$name.out")
    shape=$(sed -n 's/^.* devices\{0,1\} = \(.*\)$/\1/p' "$scratch/$name.out")
    echo "scale model=$model devices=$devices run=$name samples_per_s=${rate:--} processor_s=$seconds shape=\"$shape\""
    [ -n "$rate" ] || sed 's/^/  /' "$scratch/$name.err" | head -2 >&2
}

failures=0
{
    echo "| model, devices, batch | default | samples/s | processor s | expert's | high | ratio to the better | from |"
    echo "|---|---|---|---|---|---|---|---|"
} >"$scratch/table"
while IFS='|' read -r row expert from; do
    read -r model cluster devices batch <<<"$row"
    case "$model $devices" in *$only*) ;; *) continue ;; esac
    common=("$(find_file "$model")" --cluster "$(find_file "$cluster")" -n "$devices" --global-batch "$batch")
    plan default "${common[@]}" --effort "$effort"
    rate_default=$rate shape_default=$shape seconds_default=$seconds
    cp "$scratch/default.yaml" "$scratch/idle.yaml"
    # shellcheck disable=SC2086
    plan expert "${common[@]}" $expert
    rate_expert=$rate rate_high=-
    if [ -n "$high" ]; then
        plan high "${common[@]}" --effort high
        rate_high=$rate
    fi
    if [ -n "$busy" ]; then
        pids=()
        for _ in 1 2 3 4; do
            (while :; do :; done) &
            pids+=($!)
        done
        plan default "${common[@]}" --effort "$effort"
        kill "${pids[@]}"
        wait "${pids[@]}" 2>/dev/null || true
        cmp "$scratch/idle.yaml" "$scratch/default.yaml" || failures=$((failures + 1))
    fi
    ratio=$(awk -v d="${rate_default:-0}" -v e="${rate_expert:-0}" -v h="${rate_high:-0}" \
        'BEGIN { b = e + 0 > h + 0 ? e + 0 : h + 0; printf "%.3f", (b > 0 ? d / b : 9.999) }')
    awk -v r="$ratio" 'BEGIN { exit !(r < 0.97) }' && failures=$((failures + 1))
    echo "| $model, $devices, batch $batch | $shape_default | ${rate_default:--} | $seconds_default | ${rate_expert:--} | ${rate_high:--} | $ratio |$from |" \
        >>"$scratch/table"
done < <(rows)
echo
cat "$scratch/table"
exit $((failures > 0))
