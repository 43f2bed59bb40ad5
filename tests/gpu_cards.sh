# The part of gpu.sh for several cards, which reads this file: what only NCCL between cards can tell, on 2, 4
# and 8 of them, each rank with a card of its own; a line of the page for each check. Where there are fewer
# the page says so. Dry: emulated cards, on which the checks must hold, too; figures mean nothing.
# shellcheck shell=bash
# shellcheck disable=SC2154 # variables of gpu.sh
# shellcheck disable=SC2317 # functions are called through `part`

cards_here() {
    if [ -n "$dry" ]; then
        echo 4
    elif [ -n "${CUDA_VISIBLE_DEVICES-}" ]; then
        tr , '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c .
    else
        nvidia-smi -L | grep -c '^GPU'
    fi
}

# The one that a process takes as number N of those that it sees.
card() { # N
    local cards
    IFS=, read -ra cards <<<"${CUDA_VISIBLE_DEVICES-}"
    echo "${cards[$1]:-$1}"
}

# Of the quickstart's model with heads for eight cards, a plan on N of them; false: not on so many.
cards_plan() { # N SHAPE
    local n=$1 words microbatches=2
    [ "$2" != pipeline ] || microbatches=$n
    case $2 in
    pipeline) words=(--stages "$n" --ddp 1 --chunks 2 --pipeline interleaved) ;;
    replicas) words=(--stages 1 --ddp "$n" --chunks 1 --pipeline simple) ;;
    tensor) words=(--stages 1 --ddp 1 --tensor "$n" --chunks 1 --pipeline simple "${megatron[@]}") ;;
    shards) words=(--stages 1 --ddp "$n" --shard "$n" --shard-what weights --chunks 4 --pipeline breadth-first
        --bucket-bytes 256KiB) ;;
    mixed) words=(--stages $((n / 4)) --ddp 2 --tensor 2 --chunks 1 --pipeline interleaved "${megatron[@]}") ;;
    esac
    smp-partition cards.yaml --cluster "$top/examples/cluster-h200.yaml" -n "$n" --device cuda \
        --microbatches "$microbatches" --microbatch-size 2 "${words[@]}" -o cards.plan.yaml
}

# Losses of the steps and weights of the replicas go to NAME.got. The transport must be that one.
cards_train() { # N NAME TRANSPORT
    timeout -k 10 300 mpirun -n "$1" smp-run cards.plan.yaml --device cuda --data book.txt \
        --steps "$equal_steps" --lr 3e-3 --json --checksum >"$2.out" 2>"$2.err"
    local code=$?
    cat "$2.err"
    grep -oE '"(loss|weights)": *"?[-+0-9a-f.]+' "$2.out" >"$2.got"
    [ "$code" = 0 ] && grep -q "transport $3\b" "$2.err" && grep -q weights "$2.got"
}

# Staged: too few queues for NCCL's streams.
bits_of() { # N SHAPE
    cards_plan "$1" "$2" && cards_train "$1" nccl nccl &&
        CUDA_DEVICE_MAX_CONNECTIONS=1 cards_train "$1" staged staged && cmp nccl.got staged.got
}

queues_of() { # N
    local i
    for ((i = 0; i < $1; i++)); do
        CUDA_VISIBLE_DEVICES=$(card "$i") unit_gpu test_cuda_queues || return 1
    done
}

# A kernel that is loaded while another waits for a rank can hang: in some order of the ranks. The emulator
# refuses all of that.
loaded() { # N SHAPE LAZY|EAGER
    local lazy=0 time times=$((dry ? 1 : 20))
    [ "$3" != LAZY ] || lazy=1
    cards_plan "$1" "$2" || return 1
    for ((time = 0; time < times; time++)); do
        CUDA_MODULE_LOADING=$3 SMP_EMULATE_LAZY=$lazy cards_train "$1" "$3" nccl || return 1
        [ "$time" -gt 0 ] || cp "$3.got" first.got
        cmp "$3.got" first.got || return 1
    done
}

# A rank that is stopped, is killed, or fails in a step, once each.
faults_of() { # N
    SMP_BIN_DIR=$(dirname "$(command -v smp-run)") python3 "$top/tests/faults/run_trials.py" --gpus "$1" \
        --trials 3 --jobs 1
}

sums_of() { # N
    local sizes=(65536 1048576 16777216 268435456)
    [ -z "$dry" ] || sizes=(--times 1 65536 300000)
    mpirun -n "$1" bench_sums "${sizes[@]}" >sums.json || return 1
    cat sums.json
    cp sums.json "$folder/sums-$1.json"
}

# A row for each size; what was not measured is "-".
print_sums() {
    local line key cells
    say
    say '| bytes | of replicas: us, host us, GB/s | in operators: us, host us, GB/s | NCCL: us, host us, GB/s | NCCL / ours, of replicas |'
    say '|---|---|---|---|---|'
    while IFS= read -r line; do
        printf '%s\n' "$line" >line.json
        cells="| $(json bytes line.json) |"
        for key in replicas operators nccl; do
            cells+=" $(known "${key}_us"), $(known "${key}_host_us"), $(known "${key}_gb_s") |"
        done
        say "$cells $(number %.2f "$(known nccl_us nan) / $(known replicas_us nan)") |"
    done <sums.json
    say
}

known() { # KEY [OTHERWISE]: of line.json
    local value
    value=$(json "$1" line.json)
    printf '%s' "${value:-${2:--}}"
}

# What the host spends in calls of CUDA that enqueue something, as nsys sees it; without those that open a job.
nsys_of() { # N
    local kind times=50 warm=3
    : >nsys.txt
    for kind in replicas operators nccl; do
        nsys profile -o "$folder/sums-$1-$kind" --force-overwrite true -t cuda,nvtx -s none \
            mpirun -n "$1" bench_sums --times $times --only "$kind" 1048576 || return 1
        nsys stats --force-export true --report cuda_api_sum --format csv "$folder/sums-$1-$kind.nsys-rep" |
            awk -F, -v kind="$kind" -v sums=$(($1 * (times + warm))) '
                $NF ~ /Launch|MemcpyAsync|EventRecord|StreamWaitEvent/ { ns += $2; calls += $3 }
                END { if (!calls) exit 1
                    printf "- nsys, 1 MiB, %s: %.1f calls and %.1f us of the host a sum\n", kind, calls / sums, ns / sums / 1000 }' \
                    >>nsys.txt || return 1
    done
}

# The most that is in use of a card, in MiB, once a second, until the file `training` is gone.
watch_memory() {
    while [ -e training ]; do
        nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits
        sleep 1
    done
}

# Trains a plan; sets rate (samples/s), error (predicted over measured), used (MiB of a card), libraries (bytes):
# from a run of its own, since stamps around operators cost time.
scale_run() { # N PLAN
    local watch='' steps=$((dry ? 8 : 15))
    rate=nan error=nan used=nan libraries=nan
    touch training
    [ -n "$dry" ] || {
        watch_memory >memory.txt &
        watch=$!
    }
    timeout -k 10 1200 mpirun -n "$1" smp-run "$2" --device cuda --data book.txt --steps "$steps" --json \
        >scale.json
    local code=$?
    rm training
    [ -z "$watch" ] || wait "$watch"
    [ "$code" = 0 ] || return 1
    rate=$(tail -n +6 scale.json | sed -n 's/.*"samples_per_s": *\([-0-9.e+]*\).*/\1/p' | median)
    error=$(number %.3f "$(json predicted_us scale.json) / $(tail -n +6 scale.json |
        sed -n 's/.*"step_us": *\([-0-9.e+]*\).*/\1/p' | median)")
    [ -n "$dry" ] || used=$(sort -n memory.txt | tail -n 1)
    timeout -k 10 1200 mpirun -n "$1" smp-run "$2" --device cuda --data book.txt --steps 3 \
        --profile-out scale.run.yaml || return 1
    libraries=$(sed -n 's/^libraries: *//p' scale.run.yaml)
}

# As every row has as many samples a card, N cards are to be N times as fast. FSDP2 is its default: weights
# gathered for each block, forward and backward.
scale() { # N NAME SIZE M
    local n=$1 name=$2 size=$3 m=$4 how rate error used libraries peak_bytes planned nccl fsdp=nan words links=()
    local costs=(--profile "$2.profile.yaml")
    [ "$n" = 1 ] || links=(--links)
    if [ -n "$dry" ]; then # times of emulated kernels take minutes
        costs=(--cluster "$top/examples/cluster-h200.yaml")
    else
        mpirun -n "$n" smp-profile "$name.yaml" --device cuda --dtype bf16 --microbatch-size "$size" \
            "${links[@]}" -o "$name.profile.yaml" || return 1
    fi
    if [ -n "$torch" ] && "$python" -m torch.distributed.run --standalone --nproc-per-node "$n" \
        "$top/tests/bench/gpu_torch.py" "${network[@]}" --microbatch-size "$size" --microbatches "$m" --steps 10 \
        --data book.txt --fsdp >fsdp.json; then
        fsdp=$(json samples_per_s fsdp.json)
    fi
    for how in replicas planned shards; do
        case $how in
        planned) words=(--global-batch $((n * m * size))) ;;
        replicas) words=(--stages 1 --ddp "$n" --chunks 1 --microbatches "$m" --microbatch-size "$size") ;;
        shards) words=(--stages 1 --ddp "$n" --chunks 4 --microbatches "$m" --microbatch-size "$size" --shard "$n"
            --shard-what weights --pipeline breadth-first) ;;
        esac
        [ "$n$how" != 1shards ] || continue
        smp-partition "$name.yaml" -n "$n" --device cuda --precision bf16 "${costs[@]}" "${words[@]}" \
            -o scale.plan.yaml && scale_run "$n" scale.plan.yaml || return 1
        cp scale.plan.yaml "$folder/$name-$n-$how.plan.yaml"
        cp scale.json "$folder/$name-$n-$how.json"
        [ "$n$how" != 1replicas ] || echo "$rate" >"$name.alone"
        peak_bytes=$(tr -d '\n' <scale.plan.yaml | grep -o 'peak_bytes: *\[[^]]*' | grep -o '[0-9]*$\|[0-9]*,' |
            tr -d , | sort -n | tail -n 1)
        planned=$(sed -n 's/.*libraries: *\([0-9]*\).*/\1/p' scale.plan.yaml)
        nccl=$(sed -n 's/.*communicator_bytes: *\([0-9]*\).*/\1/p' scale.plan.yaml)
        scaling+=("| $name, $how | $n | $(number %.1f "$rate") |$(
            ) $(number %.3f "$rate / ($n * $(cat "$name.alone" 2>/dev/null || echo nan))") | $error |$(
            ) $(number %.1f "$fsdp") | $(number %.3f "$rate / $fsdp") |$(
            ) $(number %.2f "$peak_bytes / 2^30") + $(number %.2f "${planned:-nan} / 2^30") + $(number %.2f "${nccl:-0} / 2^30") |$(
            ) $(number %.2f "${libraries:-nan} / 2^30") | $(number %.2f "$used / 1024") |")
    done
}
scaling=('| model, plan | cards | samples/s | over cards x one | predicted / measured | FSDP2 | SMP / FSDP2 | planned: peak + libraries + communicators, GiB | libraries, measured | most used of a card, GiB |'
    '|---|---|---|---|---|---|---|---|---|---|')

scale_all() { # N
    # shellcheck disable=SC2034 # set by the two
    local length flops network
    gpt_model gpt2-774m 36 1280 20 1024 50304
    part "gpt2-774m on $1" scale "$1" gpt2-774m $((dry ? 1 : 8)) $((dry ? 2 : 8))
    llama_model llama-1b
    part "llama-1b on $1" scale "$1" llama-1b $((dry ? 1 : 4)) $((dry ? 2 : 8))
}

on() { # N
    local n=$1 shape shapes=(pipeline replicas tensor shards)
    say
    say "## $n cards"
    say
    if [ "$n" -lt 4 ]; then
        say '- mixed: needs 4 cards'
    else
        shapes+=(mixed)
    fi
    for shape in "${shapes[@]}"; do
        part "$shape on $n: bits of NCCL and of the host's memory" bits_of "$n" "$shape"
    done
    part "streams released in reverse order, on each of $n" queues_of "$n"
    for shape in LAZY EAGER; do
        part "kernels loaded, $shape, on $n" loaded "$n" "${shapes[-1]}" "$shape"
    done
    part "a rank of $n stopped, killed, failing in a step" faults_of "$n"
    part "sums on $n" sums_of "$n" && print_sums
    if ! command -v nsys >/dev/null; then
        say '- nsys: not here, no times of the host from it'
    elif part "nsys, sums on $n" nsys_of "$n"; then
        tee -a "$results" <nsys.txt
    fi
}

on_cards() {
    local here n
    here=$(cards_here)
    sed 's/^let: .*/let: {T: 64, d: 128, heads: 8, layers: 4, vocab: 256}/' "$top/examples/gpt-tiny.yaml" >cards.yaml
    [ -z "$dry" ] ||
        sed 's/^let: .*/let: {T: 8, d: 32, heads: 4, layers: 2, vocab: 256}/' "$top/examples/gpt-tiny.yaml" >cards.yaml
    [ -z "$dry" ] || equal_steps=2
    export SMP_EMULATE_DEVICES=$here SMP_EMULATE_MULTIPROCESSORS=132
    for n in 2 4 8; do
        if [ "$n" -le "$here" ]; then
            on "$n"
        else
            say "- on $n cards nothing was run: $here here"
        fi
    done
    say
    say '## Scaling'
    say
    [ -n "$torch" ] || say 'PyTorch with CUDA: not here, so no FSDP2.'
    for n in 1 2 4 8; do
        [ "$n" -gt "$here" ] || scale_all "$n"
    done
    say
    printf '%s\n' "${scaling[@]}" | tee -a "$results"
}
