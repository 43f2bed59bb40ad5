#!/usr/bin/env bash
# A job on two hosts, one of which goes with its memory while a rank is killed: the other one has what is gone on
# from, which travelled over the network beside the steps.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
# shellcheck source=two_hosts.sh
source "$tests_dir/mpi/two_hosts.sh"
write_text text.txt 60000
sed 's/^let: .*/let: {T: 16, d: 32, heads: 4, layers: 2, vocab: 256}/' "$SMP_EXAMPLES/gpt-tiny.yaml" >tiny.yaml
expect_exit 0 smp-partition tiny.yaml -n 4 --stages 4 --ddp 1 --microbatches 4 --microbatch-size 1 --gradient-blocks 2 \
    --pipeline interleaved --chunks 1 "${brief[@]}" -o line.yaml

# Each host has a folder of its own. The file `fault` says what befalls rank 3.
cat >rank <<END
#!/bin/sh
if [ -f fault ] && [ "\$OMPI_COMM_WORLD_RANK" = 3 ]; then
    export LD_PRELOAD=$SMP_BIN_DIR/make_fault.so FAULT="\$(cat fault)" FAULT_LOG=$PWD/fault.log
fi
exec smp-run line.yaml --data text.txt --json --checksum --lr 0.003 --seed 5 --steps 10 --checkpoint saved \
    --keep-every 1 --keep-in $PWD/keep-\$(hostname) "\$@"
END
chmod +x rank

on_hosts 2 "$PWD/rank"
losses out >whole.loss
grep -o '"weights": "[0-9a-f]*"' out | sort -u >whole.weights
expect_equal "what is left" "$(ls -d keep-* 2>/dev/null)" ""
for lost in h1 h2; do
    rm -rf saved keep-* fault.log
    echo "3 MPI_Iallreduce 75 kill 0" >fault
    expect_exit() { run "${@:2}"; } # it is to fail
    on_hosts 2 "$PWD/rank"
    losses out >life.loss
    last=$(tail -n 1 life.loss | cut -d' ' -f1)
    expect_equal "a fault" "$([ -s fault.log ] && [ "$last" -gt 1 ] && echo made)" made
    rm -rf fault "keep-$lost"
    on_hosts 2 "$PWD/rank" --resume=auto
    expect_equal "exit code without $lost" "$status" 0
    expect_match err "^smp-run: resumed from memory, step ($((last - 1))|$last) of "
    losses out >>life.loss
    sort -n -u life.loss >once.loss
    expect_equal "losses without $lost" "$(cmp once.loss whole.loss && echo same)" same
    expect_equal "weights without $lost" "$(grep -o '"weights": "[0-9a-f]*"' out | sort -u)" "$(cat whole.weights)"
done
finish
