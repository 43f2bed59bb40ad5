#!/usr/bin/env bash
# smp-run --elastic: its options, and what it refuses before anything runs.
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
write_good_model model.yaml

expect_exit 0 smp-run --elastic --help
for option in -n --wait --horizon --failures-allowed --beat-limit --keep-every --keep-in --keep-for --hosts --agent --launcher --events \
    --global-batch --profile --effort --stages --lr --checkpoint --config; do
    expect_match out "^  $option([^-a-z]|\$)"
done
expect_no_match out '^  --(predict|resume-best|rows|explain|sweep)'
expect_match out '^  --tensor T' # the planner's
expect_equal "lines of over 100 columns" "$(grep -cE '^.{101}' out || true)" 0

elastic=(smp-run --elastic model.yaml --data text.txt)
expect_bad '^smp-run: --elastic needs -n MIN:MAX devices$' "${elastic[@]}" --checkpoint run
expect_bad '^smp-run: --elastic needs --checkpoint DIR$' "${elastic[@]}" -n 1:2
for devices in 0 0:2 3:2 2: :2 two 1:2:3 1:9999; do
    expect_bad "^smp-run: -n: got '$devices', expected MIN:MAX devices" "${elastic[@]}" --checkpoint run -n "$devices"
done
expect_bad 'absent\.yaml' smp-run --elastic absent.yaml -n 2 --checkpoint run --data text.txt
expect_bad "^smp-run: --predict: unknown option" "${elastic[@]}" -n 2 --checkpoint run --predict p.npy
expect_bad "^smp-run: --resume-best: unknown option|ambiguous" "${elastic[@]}" -n 2 --checkpoint run --resume-best
expect_bad '^smp-run: no --data' smp-run --elastic model.yaml -n 2 --checkpoint run
expect_bad "^smp-run: --tensor: got 'x', expected a whole number" "${elastic[@]}" -n 2 --checkpoint run --tensor x
expect_bad '^smp-run: absent: cannot' "${elastic[@]}" -n 2 --checkpoint run --hosts absent
printf 'elsewhere slots=2\n' >hosts
expect_bad 'hosts: this host is not among the 1 named' "${elastic[@]}" -n 2 --checkpoint run --hosts hosts
printf 'localhost slots=none\n' >hosts
expect_bad "hosts:1: got 'slots=none', expected slots=N" "${elastic[@]}" -n 2 --checkpoint run --hosts hosts
expect_bad "^smp-run: --agent: got 'ssh', expected {host} among its words" "${elastic[@]}" -n 2 --checkpoint run --agent ssh
expect_bad '^smp-run: --elastic-agent is for smp-run --elastic' smp-run --elastic-agent keep 5
OMPI_COMM_WORLD_RANK=0 expect_bad '^smp-run: --elastic starts mpirun itself' "${elastic[@]}" -n 2 --checkpoint run
# What another run has left is gone on with only if that is asked for.
mkdir -p saved kept log
touch saved/checkpoint-0000000004.smp kept/checkpoint-0000000004.smp log/events.out.tfevents.1.smp
expect_bad 'saved: holds a checkpoint already, and no elastic\.yaml: continue it with --resume' \
    "${elastic[@]}" -n 2 --checkpoint saved --keep-in "$PWD/none"
expect_bad 'kept: holds the state of a run that was not ended' "${elastic[@]}" -n 2 --checkpoint run --keep-in "$PWD/kept"
# So it is on another host, here one whose folder has another name; and what it has stays there.
printf 'localhost slots=1\nh2 slots=1\n' >hosts
# shellcheck disable=SC2016 # for the shell that it writes
printf 'exec /bin/sh -c "$(printf %%s "$2" | sed "s:/none:/$1:g")"\n' >shell
printf '1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20\n' >text.txt
mkdir -m 700 h2
touch h2/place-0
ln h2/place-0 h2/checkpoint-0000000004.smp
for attempt in first second; do
    expect_exit 2 "${elastic[@]}" -n 2 \
        --global-batch 2 --checkpoint again --keep-in "$PWD/none" --hosts hosts --agent '/bin/sh shell {host}'
    expect_match err 'none: on another host it holds the state of a run that was not ended'
    expect_equal "the state on h2, $attempt" "$(ls h2)" $'checkpoint-0000000004.smp\nplace-0'
done
# Where nothing is kept, what another run has kept is no state of this one, which begins with the weights it is given.
printf '#!/bin/sh\nprintf "%%s\\n" "$@" >launched\nexit 2\n' >launcher
chmod +x launcher
for from in weights=given resume=auto; do
    expect_exit 2 "${elastic[@]}" -n 1 --global-batch 2 --checkpoint "$from" --keep-every 0 --keep-in "$PWD/kept" \
        --launcher "$PWD/launcher" "--$from" --share-gpus
    expect_match launched '^--share-gpus$'
    expect_equal "begun with" "$(grep -oE '^--(weights|resume|keep-every|keep-in)=[a-z]*' launched || true)" "--$from"
    rm -f launched
done
expect_bad 'log: holds the log of another run' "${elastic[@]}" -n 2 --checkpoint run --keep-every 0 \
    --keep-in "$PWD/kept" --log log --launcher "$PWD/launcher"
# A launcher that says that a rank was killed, before any has beaten, and does not end.
printf '#!/bin/sh\n[ -e hung ] && exit 2\ntouch hung\necho "mpirun noticed that process rank 0 with PID 0 on node a exited on signal 9 (Killed)." >&2\nexec sleep 100\n' >launcher
limit_s=30 expect_exit 2 "${elastic[@]}" -n 1 --global-batch 2 --checkpoint hangs --keep-in "$PWD/none" --launcher "$PWD/launcher"
expect_match err '^smp-run: 1 failure, '
# A host where ranks cannot be prepared is lost; the job goes on without it.
# shellcheck disable=SC2016
printf '[ -e h2-was ] && exit 1\ntouch h2-was\n/bin/sh -c "$(printf %%s "$2" | sed "s:/none:/there:g")" | sed -u "s/^ready \\([0-9]*\\) .*/failed \\1 no room/"\n' >shell
expect_exit 0 "${elastic[@]}" -n 1:2 --global-batch 2 --steps 3 --checkpoint alone --keep-in "$PWD/none" --keep-for 0 \
    --hosts hosts --agent '/bin/sh shell {host}' --json
expect_equal "host h2 is lost" "$(grep -c '^smp-run: host h2 is lost: no room$' err)" 1
expect_equal rows "$(losses out | cut -d ' ' -f 1 | tr '\n' ' ')" '1 2 3 '
# One supervisor for each DIR. The lock of a host that was lost runs out; it is renewed by a job that lives.
held() { printf 'SMP lock 1\nhost elsewhere\nboot b\nspace s\npid 7\nstart 7\njob 0123456789abcdef\n' >one/.elastic-lock && touch -d "-$1 seconds" one/.elastic-lock; }
begin() { # in the background
    rm -f err
    command_line="${elastic[*]} --checkpoint one"
    "${elastic[@]}" -n 2 --global-batch 2 --checkpoint one --keep-in "$PWD/none" --wait 20 >out 2>err &
}
ends() { # CODE
    local code=0
    wait $! || code=$?
    expect_equal "exit code" "$code" "$1"
}
mkdir one
printf '0\n' >one/devices
held 40
begin
wait_for 10 grep -qs 'waits for a lock to run out: .*/one: another job saves there: process 7 on host elsewhere' err || fail 'does not wait'
kill -HUP $!
ends 4
expect_match err 'signal 1 ends the wait'
begin
wait_for 10 grep -qs 'waits for a lock to run out' err || fail 'does not wait'
held 0
ends 2
held 61
begin
wait_for 10 grep -qs 'waiting for more' err || fail 'does not wait for devices'
expect_bad 'one: another job saves there: process [0-9]+ on host .* holds \.elastic-lock; choose' \
    "${elastic[@]}" -n 2 --global-batch 2 --checkpoint one --keep-in "$PWD/none"
kill -TERM $!
ends 4
expect_equal "locks" "$(find one -name '.*')" ''
expect_bad 'log: holds the log of another run' "${elastic[@]}" -n 2 --checkpoint run --keep-in "$PWD/none" --log log
printf 'smp: 1\nplan: plan.yaml\nelastic: true\n' >job.yaml
program=(smp-run --elastic model.yaml -n 2 --checkpoint run)
expect_bad '^smp-run: --: expected a program' "${program[@]}" --
expect_bad '^smp-run: \./absent: cannot be run' "${program[@]}" -- ./absent
expect_bad '^smp-run: --lr: is for smp-run as a rank; the ranks are ./train' "${program[@]}" --lr 0.1 -- ./train --lr 0.1
expect_bad '^smp-run: --elastic: expected on the command line' smp-run --config job.yaml --data text.txt
finish
