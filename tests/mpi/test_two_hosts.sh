#!/usr/bin/env bash
# The links of two hosts, measured.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
# shellcheck source=two_hosts.sh
source "$tests_dir/mpi/two_hosts.sh"

# rate_of KEY FILE: bytes per second of a link.
rate_of() {
    sed -nE "/^  $1:/,/points/s/^    bytes_per_s: ([0-9]+).*/\1/p" "$2"
}

write_good_model good.yaml
seconds=$SECONDS
on_hosts 2 smp-profile good.yaml --links --link-time 2 -o both.yaml
expect_equal "kept its time" "$([ $((SECONDS - seconds)) -lt 60 ] && echo yes)" yes
expect_match both.yaml '^  intra_node:'
inside=$(rate_of intra_node both.yaml) between=$(rate_of inter_node both.yaml)
# 25 MB/s, and what the bucket lets through at once in messages that are not long
expect_equal "between hosts: $between B/s" "$([ "${between:-0}" -gt 1000000 ] && [ "$between" -lt 60000000 ] && echo right)" right
expect_equal "inside one: $inside B/s" "$([ "${inside:-0}" -gt "$((2 * between))" ] && echo faster)" faster
expect_exit 0 smp-partition good.yaml -n 2 --stages 2 --profile both.yaml -o plan.yaml
on_hosts 1 smp-profile good.yaml --links --link-time 1 -o one.yaml
expect_match one.yaml '^  inter_node:'
expect_no_match one.yaml 'intra_node'
finish
