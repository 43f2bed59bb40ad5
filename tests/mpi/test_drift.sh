#!/usr/bin/env bash
# One float of one replica changes in memory: the job ends with the replica and the weight, nothing is
# saved of it, and what was saved before goes on to the bits of a job in which nothing changed.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
write_text text.txt 20000
cp "$SMP_EXAMPLES"/plugin/snake.* .
# Two micro-batches a step: the first call of step 6 is the eleventh.
awk '/^static smp_status forward/ { inside = 1 }
    { print }
    inside && /alpha = call->weight/ {
        print "    static int calls;"
        print "    const char *rank = getenv(\"OMPI_COMM_WORLD_RANK\"), *bad = getenv(\"BAD_RANK\");"
        print "    if (++calls == 11 && rank && bad && *rank == *bad)"
        print "        ((float *)alpha)[3] += 1e-3f;"
        inside = 0
    }' snake.c | sed 's/#include <math.h>/&\n#include <stdlib.h>/' >drifting.c
cc -O2 -shared -fPIC -I"$SMP_SOURCE_DIR" drifting.c -o snake.so -lm

plan() { # file devices option...
    expect_exit 0 smp-partition snake.yaml --plugin ./snake.so -n "$2" --stages 1 --ddp "$2" --microbatches 2 \
        --microbatch-size 1 --shard 1 -o "$1" "${@:3}"
}
plan two.yaml 2
plan three.yaml 3
plan shards.yaml 2 --shard 2 --shard-what optimizer
common=(--plugin ./snake.so --data text.txt --json --checksum --lr 0.01)
weight=$(sed -nE 's/.*op: snake, name: "?([a-z0-9{}.]+)"?.*/\1/p' snake.yaml | head -n 1)

# Found before the save behind step 6, of two replicas and of three.
drifts() { # plan ranks regex option...
    expect_exit 1 mpirun -n "$2" env BAD_RANK=1 smp-run "$1" "${common[@]}" "${@:4}"
    expect_equal "messages" "$(grep -c '^smp-run: ' err)" 1
    expect_match err "^smp-run: rank 0: $3"
    expect_no_match out '"weights"'
}
drifts two.yaml 2 "replicas 0, 1 differ in weight '$weight.alpha' or its optimizer states after step 6: which one" \
    --steps 20 --checkpoint saved --save-every 2
expect_equal "files" "$(checkpoints saved)" "2.smp 4.smp "
drifts three.yaml 3 "replica 1 differs from most others in weight '$weight.alpha' or its optimizer states after step 6\$" \
    --steps 20 --checkpoint three --save-every 3
expect_equal "files of three" "$(checkpoints three)" "3.smp "

# Without a save: after so many steps, or at the end.
drifts two.yaml 2 'replicas 0, 1 .* after step 8:' --steps 20 --check-replicas 4
drifts two.yaml 2 'replicas 0, 1 .* after step 9:' --steps 9

# What was saved before is good.
expect_exit 0 mpirun -n 2 smp-run two.yaml "${common[@]}" --steps 9 --checkpoint saved --resume
tail -n 2 out >resumed
expect_exit 0 mpirun -n 2 smp-run two.yaml "${common[@]}" --steps 9
expect_equal "weights" "$(cat resumed)" "$(tail -n 2 out)"

# Computed again from step 4, which says who was wrong, also of two; the job has the bits of one in which
# nothing changed, and its checkpoints are good.
for bad in 0 1; do
    rm -rf saved
    expect_exit 0 mpirun -n 2 env BAD_RANK=$bad smp-run two.yaml "${common[@]}" --steps 9 --checkpoint saved \
        --save-every 4 --check-replicas 3 --on-drift replay
    expect_match err "^smp-run: .*replicas 0, 1 differ .* after step 6: .*; computed again from step 4: replica $bad was wrong, and the others had its gradients; 2 steps, "
    expect_equal "weights after replica $bad" "$(tail -n 2 out)" "$(cat resumed)"
    expect_equal "steps printed" "$(losses out | wc -l)" 9
    expect_equal "files after replica $bad" "$(checkpoints saved)" "8.smp 9.smp "
done
drifts two.yaml 2 'replicas 0, 1 .* after step 6:' --steps 9 --checkpoint none --check-replicas 3 --on-drift replay

# What stands once, in shards, has no other to be compared with.
expect_exit 0 mpirun -n 2 smp-run shards.yaml "${common[@]}" --steps 4 --check-replicas 1
finish
