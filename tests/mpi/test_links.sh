#!/usr/bin/env bash
# smp-profile --links on one machine: what is written, and that it is not silent.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
write_good_model good.yaml

expect_exit 0 mpirun -n 3 smp-profile good.yaml --links --link-time 0.5 -o three.yaml
expect_match three.yaml '^  intra_node:'
expect_no_match three.yaml 'inter_node'
expect_exit 0 smp-partition good.yaml -n 2 --stages 2 --profile three.yaml -o plan.yaml
expect_exit 0 smp-profile good.yaml --links --link-time 0.3 -o two.yaml # starts two ranks
expect_match two.yaml '^  intra_node:'
# The link to host memory, no faster than it is; a file stands for it as well, one rank is enough.
rate_of_host() {
    sed -n '/^  host:/,$s/^    bytes_per_s: //p' "$1"
}
expect_match two.yaml '^  host:'
for to in '' '--offload-to .'; do
    # shellcheck disable=SC2086
    SMP_THROTTLE_HOST=1e8 expect_exit 0 mpirun -n 1 smp-profile good.yaml --links --link-time 0.3 $to -o one.yaml
    expect_no_match one.yaml 'intra_node'
    rate=$(rate_of_host one.yaml)
    awk -v rate="$rate" 'BEGIN { exit !(rate > 1e6 && rate < 1.05e8) }' || fail "host: $rate bytes/s"
done
expect_exit 0 mpirun -n 2 smp-profile good.yaml -o none.yaml
expect_no_match none.yaml '^links'

# Into a file, too, something is said where it takes long: here seconds of operators that differ.
{
    printf 'smp: 1\nname: many\ninputs:\n  h: {dtype: float32, shape: [1]}\n  t: {dtype: float32, shape: [1000]}\nops:\n'
    for width in $(seq 1000); do
        echo "  - {op: linear, name: fc$width, in: h, out: h, features: $width}"
    done
    printf '  - {op: mse, name: loss, in: [h, t], out: loss}\nloss: loss\n'
} >many.yaml
command_line='smp-profile many.yaml'
rm -f err # of the run before, which may have had something to say
smp-profile many.yaml -o many-profile.yaml >out 2>err </dev/null &
measuring=$!
wait_for 50 test -s err || fail "silent for 50 seconds"
kill -KILL "$measuring" 2>/dev/null || true
wait "$measuring" 2>/dev/null || true
expect_match err '^smp-profile: operators: [0-9]+ of [0-9]+ measured$'

for seconds in 0 -1 soon nan 1e300; do
    expect_bad '--link-time' smp-profile good.yaml --links --link-time "$seconds"
done
finish
