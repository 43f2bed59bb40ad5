#!/usr/bin/env bash
# Broken model files: exit 2, one message that begins with file:line:column, nothing written, fast.
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
limit_s=10

write_good_model good.yaml
expect_exit 0 smp-partition good.yaml -n 1 -o good-plan.yaml

# expect_place LINE REGEX: smp-partition refuses bad.yaml at that line ('' for any) with that text.
expect_place() {
    expect_bad "(^|[ /])bad\.yaml:${1:-[0-9]+}:[0-9]+: .*$2" smp-partition bad.yaml -n 1 -o plan.yaml
}

# broken SED-EXPRESSION LINE REGEX: the good model, edited.
broken() {
    sed -E "$1" good.yaml >bad.yaml
    expect_equal "edit '$1' changed something" "$(cmp -s good.yaml bad.yaml && echo no || echo yes)" yes
    expect_place "$2" "$3"
}

# Keys and types.
broken '2s/name/nmae/' 2 'nmae.*name'
broken '9s/features/featurs/' 9 'featurs.*features'
broken '9s/linear/linaer/' 9 'linaer.*linear'
broken '5s/dtype/dtyp/' 5 'dtyp.*dtype'
broken '1s/1/2/' 1 '2'
broken '1d' '' 'smp'
broken '2s/good/[good]/' 2 'name'
broken '5s/int32/int31/' 5 'int31'
broken '5s/\[T\]/T/' 5 'shape'
broken '5s/\[T\]/[[T]]/' 5 'shape'
broken '9s/features: 128/features: [128]/' 9 'features'
broken '9s/, features: 128//' 9 'features'
broken '9s/name: head/name: [head]/' 9 'name'
broken '9s/name: head/name: wte/' 9 'wte'
broken '9s/in: x, /in: x, in: x, /' 9 'in'
broken '7,10d' '' 'ops'
broken '11s/.*/mode: sideways/' 11 'sideways'
broken '9s/128\}/128, stage: -1}/' 9 'stage'
broken '9s/128\}/128, group: [a]}/' 9 'group'
broken '9s/128\}/128, bias: perhaps}/' 9 'bias'
broken '9s/128\}/128, cost: {forward_us: -1}}/' 9 'forward_us'
broken '9s/128\}/128, cost: {forwards_us: 1}}/' 9 'forwards_us'
broken '9s/128\}/128, cost: {stash_bytes: -1}}/' 9 'stash_bytes'
for bytes in weight stash output; do # known from shapes: the planner would not use them, nor could the executor
    broken "9s/128\}/128, cost: {forward_us: 1, ${bytes}_bytes: 7}}/" 9 "op 'head' .*${bytes}_bytes.*shapes"
done
broken '9s/.*/  - {op: opaque, name: head, in: x, out: y, shape: [T, 128], cost: {forward_us: 1, output_bytes: 7}}/' 9 \
    'output_bytes.*shape'

# Tensors, shapes, order.
broken '9s/in: x/in: xx/' 9 'xx'
broken '9s/in: x/in: y/' 9 'y' # its own output: a cycle
broken '8s/in: tokens/in: y/' 8 'y' # a later one: a cycle
broken '9s/in: x/in: tokens/' 9 'tokens|float|int32'
broken '9s/in: x/in: [x, x]/' 9 'head'
broken '11s/: loss/: gain/' 11 'gain'
broken '11s/: loss/: x/' 11 'x'
broken '9a\  - {op: add, name: sum, in: [x, y], out: y}' 10 '8, 16|8, 128|shape'
broken '9s/\}/, weight: nothing.weight}/' 9 'nothing'
broken '9s/features: 128/features: 64, weight: wte.weight/' 9 'weight'

# Sizes and expressions.
broken '5s/T\]/-8]/' 5 '-8'
broken '5s/T\]/0]/' 5 '0'
broken '9s/128\}/-128}/' 9 '-128'
broken '9s/128\}/1 \/ (d - 16)}/' 9 '[Dd]ivi.*zero|zero'
broken '3s/16/16 \/ 0/' 3 'zero'
broken '3s/16/9223372036854775807 + 1/' 3 'overflow|64 bits|large|range'
broken '3s/16/99999999999999999999/' 3 'overflow|64 bits|large|range'
broken '9s/128\}/4000000000 * 4000000000}/' 9 'overflow|64 bits|large|range'
broken '9s/128\}/9223372036854775807}/' 9 'overflow|64 bits|large|range|most|exceed|9223372036854775807'
broken '8s/128/1000000000000/' 8 'overflow|64 bits|large|range|most|exceed|1000000000000'
broken '3s/16/e/' 3 'e'
broken '3s/16/1 +/' 3 '1 \+|express'
broken '3s/16/((((1)/' 3 '\(|express'

# Repeats.
repeat() { # count-line regex
    {
        sed -n 1,8p good.yaml
        printf '%s\n' "$1" '    as: i' '    ops:' \
            '      - {op: linear, name: "h{i}", in: x, out: x, features: d}'
        sed -n '9,$p' good.yaml
    } >bad.yaml
    expect_place "$2" "$3"
}
repeat '  - repeat: 10000001' '[0-9]+' 'ten million|10000000|10,000,000'
repeat '  - repeat: 1000000000000000000' '[0-9]+' 'ten million|10000000|10,000,000'
repeat '  - repeat: -1' 9 '-1'
repeat '  - repeat: many' 9 'many'
cat >bad.yaml <<'MODEL'
smp: 1
name: nested
inputs: {x: {dtype: int32, shape: [4]}}
ops:
  - repeat: 100000
    as: i
    ops:
      - repeat: 100000
        as: j
        ops:
          - {op: embedding, name: "a{i}.{j}", in: x, out: y, rows: 2, features: 2}
MODEL
expect_place '[0-9]+' 'ten million|10000000|10,000,000'
broken '9s/name: head/name: "h{k}"/' 9 'k' # outside any repeat

# Files that are no models at all.
: >bad.yaml
expect_place '[0-9]+' .
printf 'smp: 1\nops: [' >bad.yaml
expect_place '[0-9]+' .
printf -- '- a\n- b\n' >bad.yaml
expect_place 1 .
printf 'smp: 1\nname: \001\002\n' >bad.yaml
expect_place '[0-9]+' .
printf 'smp: 1\nname: a\n\tops: b\n' >bad.yaml
expect_place '[0-9]+' .
head -c 5000 /dev/urandom >bad.yaml
expect_place '[0-9]+' .
awk 'BEGIN { printf "smp: 1\nname: "; for (i = 0; i < 100000; i++) printf "["; print "" }' >bad.yaml
expect_place '[0-9]+' .
{ # aliases that unfold to 10^9 nodes
    echo 'smp: 1'
    echo 'a0: &a0 [x, x, x, x, x, x, x, x, x, x]'
    for i in 1 2 3 4 5 6 7 8; do
        printf 'a%d: &a%d [' "$i" "$i"
        for _ in 1 2 3 4 5 6 7 8 9; do printf '*a%d, ' $((i - 1)); done
        printf '*a%d]\n' $((i - 1))
    done
} >bad.yaml
expect_place '[0-9]+' .
mkdir folder.yaml
expect_bad 'folder\.yaml' smp-partition folder.yaml -n 1 -o plan.yaml

# The other reader of models says the same.
broken_text=$(sed -E '9s/in: x/in: xx/' good.yaml)
echo "$broken_text" >bad.yaml
expect_bad 'bad\.yaml:9:[0-9]+: .*xx' smp-profile bad.yaml -o profile.yaml
finish
