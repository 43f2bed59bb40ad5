#!/usr/bin/env bash
# smp-run --predict: a tensor of all samples as a .npy file, the same under every plan, from a checkpoint of training too.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
sed 's/layers: 4,/layers: 2,/' "$SMP_EXAMPLES/gpt-tiny.yaml" >model.yaml
{ cat model.yaml && echo 'mode: inference'; } >infer.yaml
write_text text.txt 20000
head -c $((11 * 64 + 1)) text.txt >few.txt # 11 windows

plan() { # file model devices stages ddp chunks microbatches [option...]
    expect_exit 0 smp-partition "$2" -n "$3" --stages "$4" --ddp "$5" --pipeline "$([ "$6" = 1 ] && echo simple ||
        echo interleaved)" --chunks "$6" --microbatches "$7" --microbatch-size 2 -o "$1" "${@:8}"
}
plan one.yaml model.yaml 1 1 1 1 4
plan two.yaml model.yaml 2 2 1 2 4
plan four.yaml model.yaml 4 2 2 1 2
plan tensor.yaml model.yaml 2 1 1 1 4 --tensor 2
plan infer.plan infer.yaml 2 2 1 1 4

expect_exit 0 mpirun -n 1 smp-run one.yaml --data text.txt --steps 3 --checkpoint trained
predict() { # plan ranks out [option...]
    expect_exit 0 mpirun -n "$2" smp-run "$1" --checkpoint trained --resume --steps 0 --predict "$3" --predict-data few.txt "${@:4}"
}
predict one.yaml 1 one.npy
predict two.yaml 2 two.npy
predict four.yaml 4 four.npy
predict infer.plan 2 infer.npy
for name in two four infer; do
    expect_equal "$name: logits" "$(cmp one.npy $name.npy && echo same)" same
done
predict tensor.yaml 2 tensor.npy
predict one.yaml 1 hidden.npy --tensor h1.mlp.gelu
predict four.yaml 4 hidden4.npy --tensor h1.mlp.gelu
expect_equal "activations" "$(cmp hidden.npy hidden4.npy && echo same)" same

# Stacks and means take whole micro-batches: 11 samples are none.
run mpirun -n 1 smp-run one.yaml --checkpoint trained --resume --steps 0 --predict x.npy --predict-data few.txt \
    --predict-reduce mean
expect_equal "exit code of a mean of 11 samples" "$status" 2
expect_match err "11 samples are no whole micro-batches of 2"
expect_equal "no file" "$(ls x.npy 2>/dev/null)" ""
head -c $((10 * 64 + 1)) text.txt >few.txt
for form in concat stack mean; do
    predict two.yaml 2 $form.npy --tensor h0.ln_1 --predict-reduce $form
done

python3 - <<'END' || fail "the files"
import ast, array

def read(path):
    data = open(path, "rb").read()
    assert data[:8] == b"\x93NUMPY\x01\x00", path
    end = 10 + int.from_bytes(data[8:10], "little")
    head = ast.literal_eval(data[10:end].decode())
    assert end % 64 == 0 and head["descr"] == "<f4" and not head["fortran_order"], head
    values = array.array("f", data[end:])
    n = 1
    for d in head["shape"]:
        n *= d
    assert n == len(values), (path, head, len(values))
    return head["shape"], values

shape, one = read("one.npy")
assert shape == (11, 64, 256), shape
_, split = read("tensor.npy")
assert max(abs(a - b) for a, b in zip(one, split)) < 1e-4
assert max(one) - min(one) > 0.1
assert read("hidden.npy")[0] == (11, 64, 512)
shape, concat = read("concat.npy")
assert shape == (10, 64, 128), shape
shape, stack = read("stack.npy")
assert shape == (5, 2, 64, 128) and stack == concat, shape
shape, mean = read("mean.npy")
n = 2 * 64 * 128
assert shape == (2, 64, 128), shape
for i in range(0, n, 97):
    assert abs(mean[i] - sum(concat[m * n + i] for m in range(5)) / 5) < 1e-6
END

# Before the first step.
refused() { # text option...
    run mpirun -n 2 smp-run two.yaml --data text.txt --steps 1 "${@:2}"
    expect_equal "${*:2}: exit code" "$status" 2
    expect_match err "$1"
    expect_equal "${*:2}: steps" "$(grep -c '^step' out)" 0
}
refused "no operator or tensor 'lm_haed'; did you mean 'lm_head'?" --predict x.npy --tensor lm_haed
refused "expected concat, stack or mean" --predict x.npy --predict-reduce sum
refused "need --predict FILE.npy" --tensor lm_head
refused "cannot write the prediction" --predict nowhere/x.npy
finish
