#!/usr/bin/env bash
# Planning a transformer of ten thousand ops stays fast. The limit is loose (a loaded machine, one
# core); tests/bench/bench_partition.sh measures.
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

bash "$tests_dir/bench/transformer.sh" 10000 >large.yaml
limit_s=40
expect_exit 0 smp-partition large.yaml -n 8 --stages 8 --microbatches 16 --memory 1TB -o plan.yaml
expect_equal "programs" "$(grep -cE '^ *- *"?[<>FBIWRO]' plan.yaml)" 8
finish
