#!/usr/bin/env bash
# Operators of a user's own: the example is compiled as it says, planned, measured, trained on one
# and two ranks with the same bits, and continued under another plan; what is wrong with a plugin is
# one message. On a GPU it is planned, not run.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
write_text text.txt 20000
cp "$SMP_EXAMPLES"/plugin/snake.* .

# The command that the file names, plus where smp.h lies and what every warning is.
compile=$(sed -nE 's/^ \*   (cc .*)$/\1/p' snake.c)
expect_equal "the example's command" "${compile%% -*}" cc
expect_exit 0 bash -c "$compile -I'$SMP_SOURCE_DIR' -Wall -Wextra -Werror"
[ -f snake.so ] || fail "no snake.so"

plan() { # file stages option...
    expect_exit 0 smp-partition snake.yaml --plugin snake.so -n "$2" --stages "$2" --microbatches 4 \
        --microbatch-size 2 -o "$1" "${@:3}"
}
train() { # name ranks plan option...
    expect_exit 0 mpirun -n "$2" smp-run "$3" --plugin snake.so --data text.txt --json --checksum \
        --lr 0.01 "${@:4}"
    losses out >"$1.loss"
    sed -nE 's/.*"weights": "([0-9a-f]+)".*/\1/p' out >"$1.weights"
}
same() { # name name
    expect_equal "$1 against $2: losses" "$(cmp "$1.loss" "$2.loss" && echo same)" same
    expect_equal "$1 against $2: weights" "$(cat "$1.weights")" "$(cat "$2.weights")"
}
plan one.yaml 1
plan two.yaml 2
plan redone.yaml 2 --recompute all --pipeline zero-bubble
train one 1 one.yaml --steps 12
expect_equal "different losses" "$(sort -u one.loss | wc -l | tr -d ' ')" 12
expect_equal "a weight hash" "$(wc -w <one.weights | tr -d ' ')" 1
train two 2 two.yaml --steps 12
same two one
train redone 2 redone.yaml --steps 12
same redone one

# A checkpoint of one plan, continued under another.
train first 1 one.yaml --steps 7 --checkpoint saved
train rest 2 redone.yaml --steps 12 --checkpoint saved --resume
cat first.loss rest.loss >both.loss
cp rest.weights both.weights
same both one

# Measured, and planned with what was measured.
expect_exit 0 smp-profile snake.yaml --plugin ./snake.so --microbatch-size 2 -o profile.yaml
expect_match profile.yaml 'name: "snake", forward_us: [0-9]'
plan measured.yaml 2 --profile profile.yaml
expect_exit 0 smp-partition check two.yaml --plugin snake.so --effort quick
mkdir elsewhere
(cd elsewhere && run smp-partition check ../two.yaml --plugin ../snake.so --effort quick && exit "$status") ||
    fail "from another folder"

# Its gradients are those of what it computes; those of a copy with one element wrong are not, nor are
# those of a copy that does not add up its weight's.
expect_exit 0 smp-profile snake.yaml --plugin ./snake.so --check-gradients
expect_match out "snake +weight 'snake.alpha' +[0-9.e-]+  right\$"
expect_match out 'gradients that are wrong: 0$'
spoil() { # name, from, to
    sed "s/$2/$3/" snake.c >"$1.c"
    expect_equal "$1: lines changed" "$(diff snake.c "$1.c" | grep -c '^>')" 1
    expect_exit 0 cc -O2 -shared -fPIC -I"$SMP_SOURCE_DIR" "$1.c" -o "$1.so" -lm
    expect_exit 1 smp-profile snake.yaml --plugin "./$1.so" --check-gradients
    expect_match err 'snake.yaml: 1 gradients are wrong$'
}
spoil element 'dx\[i\] = dy\[i\]' 'dx[i] = (i == 77 ? 2 : 1) * dy[i]'
expect_match out "snake +input 0 '[a-z]+' .*WRONG\$"
expect_match out '^  element 77 is [-0-9.]+, by differences of forward [-0-9.]+$'
spoil written 'weight_grad\[0\]\[f\] +=' 'weight_grad[0][f] ='
expect_match out "snake +weight '[a-z0-9.]+' .*WRONG\$"
expect_match out 'is not added to what its accumulator holds'
expect_exit 2 smp-profile snake.yaml --plugin ./snake.so --check-gradients -o profile.yaml
expect_exit 2 smp-profile "$SMP_EXAMPLES/mlp.yaml" --check-gradients --dtype bf16

# On a GPU: planned, not run.
expect_exit 0 smp-partition snake.yaml --plugin snake.so --device cuda -n 1 -o gpu.yaml \
    --cluster "$SMP_EXAMPLES/cluster-h200.yaml"
expect_exit 2 smp-profile snake.yaml --plugin snake.so --device cuda
expect_one_message "op 'snake' \(snake\): it can be planned, not run: no CUDA kernel for 'snake'"

# A function that fails ends the job, by one message that says where.
sed 's/^static smp_status backward_weight.*$/&\n{\n    return smp_op_fail(call->node, "no luck at sample %d", (int)call->batch);\n}\nsmp_status unused(const smp_custom_call *call);\nsmp_status unused(const smp_custom_call *call)/' \
    snake.c >unlucky.c
expect_exit 0 cc -shared -fPIC -I"$SMP_SOURCE_DIR" unlucky.c -o unlucky.so -lm
expect_exit 2 mpirun -n 2 smp-run two.yaml --plugin unlucky.so --data text.txt
expect_equal "messages" "$(grep -c "snake.yaml:10:5: op 'snake' (snake): no luck at sample 2" err)" 1

# Without it, or with another file.
expect_bad "snake.yaml:10:10: unknown op 'snake'.*--plugin FILE" smp-partition snake.yaml -n 1
expect_bad "snake.yaml:10:10: unknown op 'snake'.*--plugin FILE" smp-profile snake.yaml
expect_bad "snake.yaml:10:10: unknown op 'snake'.*--plugin FILE" smp-run one.yaml --data text.txt
expect_exit 2 mpirun -n 2 smp-run two.yaml --data text.txt
expect_equal "messages" "$(grep -c "unknown op 'snake'" err)" 1
expect_exit 2 mpirun -n 2 smp-run two.yaml --data text.txt --plugin absent.so
expect_equal "messages" "$(grep -c "plugin 'absent.so' cannot be loaded: .*No such file" err)" 1
expect_bad "plugin 'absent.so' cannot be loaded" smp-profile snake.yaml --plugin absent.so
expect_bad "plugin 'text.txt' cannot be loaded" smp-partition snake.yaml --plugin text.txt
expect_bad "plugin 'absent.so' cannot be loaded" smp-partition check two.yaml --plugin snake.so --plugin absent.so
expect_bad "plugin: got an empty name" smp-run one.yaml --data text.txt --plugin ''
sed 's/frequency: 2/frequency: 200/' snake.yaml >wrong.yaml
expect_bad "wrong.yaml:10:[0-9]+: op 'snake': frequency: got '200', expected a number from 0.01 to 100" \
    smp-partition wrong.yaml --plugin snake.so -n 1
echo 'smp_status other(void);' | sed '1i #include <smp.h>' >other.c
cc -shared -fPIC -I"$SMP_SOURCE_DIR" other.c -o other.so
expect_bad "plugin 'other.so': expected a function smp_plugin_register" smp-run one.yaml --data text.txt \
    --plugin other.so
finish
