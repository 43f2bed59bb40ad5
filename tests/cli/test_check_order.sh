#!/usr/bin/env bash
# examples/check_order.py, which knows nothing of ours, and `smp-partition check` judge orders of every rule, and the
# same with two actions exchanged: what it refuses, ours refuses (which also looks at memory and at tensors).
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

order=$SMP_SOURCE_DIR/examples/check_order.py
model=$SMP_EXAMPLES/gpt-tiny.yaml # its stages are a chain
for case in simple:1 interleaved:1 interleaved:2 zero-bubble:1 breadth-first:2 auto:1; do
    rule=${case%:*} chunks=${case#*:}
    expect_exit 0 smp-partition "$model" -n 2 --stages 2 --chunks "$chunks" --microbatches 4 --schedule "$rule" \
        -o "$case.yaml" "${brief[@]}" --export "json:$case.json" --export "torch-csv:$case.csv"
    for file in "$case.json" "$case.csv"; do
        expect_exit 0 python3 "$order" "$file"
        expect_match out "^$((2 * chunks)) stages on 2 ranks, [0-9]+ actions on rank 0: right; a step takes "
    done
done

cat >exchange.py <<'EOF'
"""exchange.py PLAN.json PLAN.yaml SEED: both again, as x.json and x.yaml, with two neighbouring actions exchanged."""
import json, random, sys
plan, text = json.load(open(sys.argv[1])), open(sys.argv[2]).read()
draw = random.Random(int(sys.argv[3]))
rank = draw.randrange(len(plan["programs"]))
before = plan["programs"][rank]
words = before.split()
i = draw.randrange(len(words) - 1)
words[i:i + 2] = words[i + 1], words[i]
plan["programs"][rank] = " ".join(words)
assert before in text
json.dump(plan, open("x.json", "w"))
open("x.yaml", "w").write(text.replace(before, plan["programs"][rank], 1))
EOF
refused=0 taken=0
for seed in $(seq 1 "${SMP_TEST_LONG:+2}6"); do
    for case in interleaved:2 zero-bubble:1; do
        python3 exchange.py "$case.json" "$case.yaml" "$seed"
        run smp-partition check x.yaml "${brief[@]}"
        ours=$status
        run python3 "$order" x.json
        [ "$status" -eq 0 ] && taken=$((taken + 1)) || refused=$((refused + 1))
        [ "$status" -eq 0 ] || expect_equal "what the checker refuses, ours does: seed $seed of $case" "$((ours != 0))" 1
    done
done
echo "of orders with two actions exchanged, $refused were refused, $taken taken"

bad() { # bad MESSAGE FILE SED: the file with that change is refused, with the message
    sed "$3" "$2" >"bad.${2##*.}"
    run python3 "$order" "bad.${2##*.}"
    expect_equal "exit code of $3" "$status" 1
    expect_match err "$1"
}
bad 'stage 0: forwards .*expected 0 to' simple:1.csv '1s/0F1,//'
bad 'stage 1: not one backward of each micro-batch' simple:1.csv 's/1B2,/1B1,/'
bad 'stage 0: weight gradients .* are not in micro-batch order' simple:1.csv 's/0B0,0B1/0B1,0B0/'
bad 'they wait for ever: rank 0 at .*, rank 1 at ' interleaved:1.csv '2s/1F0,1B0/1B0,1F0/'
bad 'they wait for ever: .*rank 1 at <F0 of stage 1' interleaved:1.json 's/F0\.0 >F0\.0/F0.0/'
bad 'they wait for ever: .*rank 1 at F0 of stage 1' interleaved:1.json 's/<F0\.0 F0\.0/F0.0 <F0.0/'
bad 'stage 1: receives <F of \[1, 2, 3\], expected each once' interleaved:1.json 's/<F0\.0 F0\.0/F0.0/'
bad 'rank 0: a step ends with R of each chunk and O' interleaved:1.json 's/ R\.0 O/ R.0/'
bad 'stage 1 lies on rank 0 and on rank 1' simple:1.csv '1s/0F1/1F1/'
finish
