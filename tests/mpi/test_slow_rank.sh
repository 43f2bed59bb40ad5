#!/usr/bin/env bash
# A replica that falls behind is named while the job runs, and once more when it has recovered; the table
# at the end says that the others waited for it.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
write_text text.txt 20000
expect_exit 0 smp-partition "$SMP_EXAMPLES/gpt-tiny.yaml" -n 2 --stages 1 --ddp 2 --microbatches 8 \
    --microbatch-size 1 -o plan.yaml
mpirun -n 2 smp-run plan.yaml --data text.txt --steps 80 --log log.csv --log-every 1 >out 2>err </dev/null &
job=$!
said() {
    grep -qE "$1" out
}
wait_for 30 said '^step 1 ' || fail "no step within 30 seconds"
for stat in /proc/[0-9]*/stat; do
    read -r pid _ _ parent _ 2>/dev/null <"$stat" || continue
    if [ "$parent" = "$job" ] && grep -qzx OMPI_COMM_WORLD_RANK=1 "/proc/$pid/environ"; then
        slow=$pid
    fi
done

# It runs for a small part of the time until it is named.
slow_line='^step [0-9]+  rank 1 \(replica 1, pipeline rank 0\) is slow since ten steps: its work takes [0-9.]+ times'
until said "$slow_line" || said '^step 45 '; do
    kill -STOP "$slow"
    sleep 0.05
    kill -CONT "$slow"
    sleep 0.005
done
status=0
wait "$job" || status=$?
expect_equal "exit code" "$status" 0
expect_match out "$slow_line"
expect_equal "times that it is named" "$(grep -cE 'rank 1 .*is slow' out)" 1
expect_match out '^step [0-9]+  rank 1 \(replica 1, pipeline rank 0\) has recovered: '
expect_match out '^ +0 .* replica 1 *$'
finish
