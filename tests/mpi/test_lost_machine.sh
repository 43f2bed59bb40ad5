#!/usr/bin/env bash
# A job whose ranks are said to be on several machines, each with a folder for states in memory: one goes, with its
# memory, while a rank is killed; the job goes on, elsewhere, with the bits of a run that nobody disturbed.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
write_text text.txt 60000
sed 's/^let: .*/let: {T: 16, d: 32, heads: 4, layers: 2, vocab: 256}/' "$SMP_EXAMPLES/gpt-tiny.yaml" >tiny.yaml
common=(--data text.txt --json --checksum --lr 0.003 --warmup 3 --decay-steps 30 --clip 1 --seed 5 --steps 12)

plan() { # name devices stages ddp
    expect_exit 0 smp-partition tiny.yaml -n "$2" --stages "$3" --ddp "$4" --microbatches $((4 / $4)) \
        --microbatch-size 1 --gradient-blocks 2 --pipeline interleaved --chunks 1 "${brief[@]}" -o "$1.yaml"
}

weights() {
    sed -nE 's/.*"weights": "([0-9a-f]+)".*/\1/p' out | sort -u
}

# on PLAN MACHINES PRELOAD OPTION...: a rank for each digit, which keeps its state in keep-DIGIT.
on() {
    local plan=$1 machines=$2 preload=$3 i line=(mpirun)
    for ((i = 0; i < ${#machines}; i++)); do
        [ "$i" -eq 0 ] || line+=(:)
        line+=(-n 1 env FAKE_MACHINES="$machines" LD_PRELOAD="$SMP_BIN_DIR/fake_machines.so$preload" FAULT="${fault-}"
            FAULT_LOG="$PWD/fault.log" smp-run "$plan.yaml" "${common[@]}" --checkpoint saved --keep-every 1
            --keep-in "$PWD/keep-${machines:i:1}" "${@:4}")
    done
    run "${line[@]}"
}

begin() { # plan machines call: until rank 3 is killed
    rm -rf saved keep-* fault.log
    fault="3 MPI_Iallreduce $3 kill 0" on "$1" "$2" ":$SMP_BIN_DIR/make_fault.so"
    checks=$((checks + 1))
    if [ "$status" -eq 0 ] || [ ! -s fault.log ]; then
        fail "$1 $2: no fault"
    fi
    losses out >life.loss
    last=$(losses out | tail -n 1 | cut -d' ' -f1)
}

end() { # plan machines: at most one step that was done is lost
    fault="" on "$1" "$2" "" --resume=auto
    checks=$((checks + 1))
    resumed=$(sed -nE 's/^smp-run: resumed from memory, step ([0-9]+) of .*/\1/p' err)
    if [ "$status" -ne 0 ] || [ "${resumed:-0}" -lt $((last - 1)) ] || [ "${resumed:-0}" -eq 0 ]; then
        fail "$1 $2: step $last was done, resumed after step '$resumed', exit code $status: $(tail -n 3 err)"
    fi
    losses out >>life.loss
    sort -n -u life.loss >once.loss
    expect_equal "$1 $2: losses" "$(cmp once.loss whole.loss && echo same)" same
    expect_equal "$1 $2: weights" "$(weights)" "$(cat whole.weights)"
    expect_equal "$1 $2: what is left" "$(for ((i = 0; i < ${#2}; i++)); do ls -d "keep-${2:i:1}"; done 2>/dev/null)" ""
}

plan one 1 1 1
plan line 4 4 1
plan both 4 2 2
plan two 2 2 1
expect_exit 0 mpirun -n 1 smp-run one.yaml "${common[@]}"
losses out >whole.loss
weights >whole.weights
expect_equal "steps" "$(wc -l <whole.loss | tr -d ' ')" 12

begin line 0011 75
rm -rf keep-1
end line 0022
begin both 0011 90
rm -rf keep-0
end two 21 # rank 0 has nothing in memory

# Of neighbours that are lost the disk has the state; where nothing is saved a job that may begins anew.
begin line 0123 75
rm -rf keep-1 keep-2
fault="" on line 0453 "" --resume=auto
expect_equal "nothing whole is left" "$status $(grep -c 'resumed' err)" "0 0"
expect_equal "weights from the beginning" "$(weights)" "$(cat whole.weights)"
finish
