#!/usr/bin/env bash
# A job that is resumed with another global batch goes on in the data where it was. With a learning
# rate of 0 the loss of a step tells which samples it took.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
model=tiny.yaml
sed 's/layers: 4/layers: 1/' "$SMP_EXAMPLES/gpt-tiny.yaml" >$model
for m in 4 8; do
    expect_exit 0 smp-partition "$model" -n 1 --stages 1 --microbatches "$m" --microbatch-size 1 -o "$m.yaml"
done
expect_exit 0 smp-partition "$model" -n 2 --stages 1 --ddp 2 --microbatches 2 --microbatch-size 1 \
    -o replicas.yaml

pass=(--drop-last)
train() { # plan ranks name options...
    local plan=$1 ranks=$2 name=$3
    shift 3
    expect_exit 0 mpirun -n "$ranks" smp-run "$plan" --data text.txt --lr 0 --json "${pass[@]}" "$@"
    losses out >"$name.loss"
}

# loss NAME STEP
loss() {
    sed -nE "s/^$2 //p" "$1.loss"
}

# Windows of 64 bytes. Without its last batch a pass of 43 samples is 5 batches of 8 or 10 of 4; of one of 47 batches of 4
# take 4 samples more.
for samples in 43 47; do
    write_text text.txt $((64 * samples + 1))
    train 4.yaml 1 four --steps 24
    train 8.yaml 1 eight --steps 12
    expect_equal "different losses" "$(cut -d' ' -f2 four.loss eight.loss | sort -u | wc -l | tr -d ' ')" 36

    rm -rf saved
    train 8.yaml 1 first --steps 5 --checkpoint saved
    train 4.yaml 1 next --steps 8 --checkpoint saved --resume --resume-changed
    expect_equal "$samples samples: 40 taken by eights" "$(loss next 6)" "$(loss four 11)"
    expect_equal "$samples samples: the step after" "$(loss next 7)" "$(loss four 12)"

    rm -rf saved
    train 4.yaml 1 first --steps 6 --checkpoint saved
    train 8.yaml 1 next --steps 10 --checkpoint saved --resume --resume-changed
    expect_equal "$samples samples: 24 taken by fours" "$(loss next 7)" "$(loss eight 4)"
    expect_equal "$samples samples: the next pass" "$(loss next 9)" "$(loss eight 6)"
    # 2 of 5 batches of the next pass, in halves of replicas: losses agree to rounding.
    train replicas.yaml 2 next --steps 11 --checkpoint saved --resume --resume-changed
    expect_equal "$samples samples: replicas" "$(loss next 11 | cut -c1-6)" \
        "$(loss four $((samples == 43 ? 15 : 16)) | cut -c1-6)"
done

# With its last batch a pass of 43 samples is 5 batches of 8 and one of 3, or 10 of 4 and one of 3.
pass=()
write_text text.txt $((64 * 43 + 1))
train 4.yaml 1 four --steps 22
train 8.yaml 1 eight --steps 12
expect_equal "the last batch of a pass" "$(loss eight 6)" "$(loss four 11)"
for steps in 5 6; do
    rm -rf saved
    train 8.yaml 1 first --steps "$steps" --checkpoint saved
    train 4.yaml 1 next --steps 12 --checkpoint saved --resume --resume-changed
    expect_equal "$steps eights, then fours" "$(loss next 7) $(loss next 8)" \
        "$(loss four 12) $(loss four 13)"
    rm -rf saved
    train 8.yaml 1 first --steps "$steps" --checkpoint saved
    train 8.yaml 1 next --steps 12 --checkpoint saved --resume --resume-changed
    expect_equal "$steps eights, then eights" "$(cat next.loss)" "$(tail -n +$((steps + 1)) eight.loss)"
done
finish
