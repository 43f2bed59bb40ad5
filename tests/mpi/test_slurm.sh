#!/usr/bin/env bash
# Jobs under Slurm itself: slurmctld, and slurmd on two hosts of one machine (faults/fake_hosts.py). examples/slurm/train.sbatch
# trains on two nodes, is told to end, queued again, and goes on; an array of it trains two seeds; mpirun starts ranks in an
# allocation; and an elastic job, which has --no-kill, goes on with one node where the other one loses power. Losses are those
# of a run that nothing happened to. Needs root and Debian's slurm-wlm; skipped without.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
for program in slurmctld slurmd sbatch munged; do
    command -v $program >/dev/null || { echo "no $program"; exit 77; }
done
hosts=$tests_dir/faults/fake_hosts.py
own=/tmp # of each host
on() { python3 "$hosts" run "$PWD" "$@"; } # HOST COMMAND...
python3 "$hosts" up "$PWD" 2 || exit $?
trap 'python3 "$hosts" down "$scratch" || true; cleanup' EXIT

head -c 1024 /dev/urandom >munge.key
chmod 400 munge.key
export SLURM_CONF=$PWD/slurm.conf
cat >slurm.conf <<END
ClusterName=test
SlurmctldHost=h1
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$own/munge.socket
StateSaveLocation=$own/slurmctld
SlurmdSpoolDir=$own/slurmd
SlurmctldPidFile=$own/slurmctld.pid
SlurmdPidFile=$own/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdTimeout=5
KillWait=1
MpiDefault=pmix
SlurmdParameters=config_overrides
NodeName=h1 NodeAddr=10.77.0.1 CPUs=2
NodeName=h2 NodeAddr=10.77.0.2 CPUs=2
PartitionName=all Nodes=ALL Default=YES State=UP
END
begin() { # HOST COMMAND...
    on "$@" >"$1-$2.txt" 2>&1 &
}
for host in h1 h2; do
    begin $host munged --force --foreground --key-file="$PWD/munge.key" --socket=$own/munge.socket --pid-file=$own/munged.pid \
        --log-file=$own/munged.log --seed-file=$own/munge.seed
done
begin h1 slurmctld -D
begin h1 slurmd -D -N h1
begin h2 slurmd -D -N h2
are_idle() { on h1 sinfo -h -t idle -o %D 2>&1 | grep -qx 2; }
wait_for 20 are_idle || { cat ./*.txt; fail 'the nodes are not idle'; finish; }

sed 's/^let: .*/let: {T: 32, d: 64, heads: 4, layers: 2, vocab: 256}/' "$SMP_EXAMPLES/gpt-tiny.yaml" >model.yaml
cat "$SMP_EXAMPLES"/*.yaml >text
losses() { sed -nE 's/^\{"step": ([0-9]+), "loss": ([^,]+),.*/\1 \2/p' "$@"; }
steps=150
train=(--data text --steps $steps --log-every 1 --json)
batch=(--global-batch 16 --microbatch-size 2 --effort quick)
is_over() { ! on h1 squeue -h -j "$1" -o %i 2>&1 | grep -q .; } # JOB
submit() { on h1 sbatch --parsable "$@"; } # the number of the job
expect_exit 0 smp-partition model.yaml -n 4 "${batch[@]}" -o plan.yaml
expect_exit 0 mpirun -n 4 smp-run plan.yaml "${train[@]}"
losses out >undisturbed

same_losses() { # FILE EXPECTED WHAT
    losses "$1" >got
    expect_equal "losses of $3" "$(cmp got "$2" 2>&1)" ""
}
sbatch=$SMP_EXAMPLES/slurm/train.sbatch

job=$(submit --output=requeued.txt "$sbatch" model.yaml "${batch[@]}" -- "${train[@]}")
has_begun() { grep -qs '"step": 20,' requeued.txt; }
wait_for 30 has_begun || { cat requeued.txt; fail 'the job does not train'; }
on h1 scancel --signal=TERM "$job" # what --signal=TERM@60 sends
is_queued() { on h1 squeue -h -j "$job" -t PENDING -o %i | grep -q .; }
wait_for 30 is_queued || fail 'the job is not queued again'
on h1 scontrol update "JobId=$job" StartTime=now # Slurm waits two minutes
wait_for 60 is_over "$job" || fail 'the job does not end'
same_losses requeued.txt undisturbed 'a job that was ended and queued again'
expect_match requeued.txt 'ended by a signal: step [0-9]+ is saved'
expect_match requeued.txt 'resumed after step [0-9]+ of run-'
expect_equal 'plans of it' "$(grep -c '^predicted' requeued.txt)" 1

train=(--data text --steps 3 --log-every 1 --json)
job=$(submit --array=1-2 --nodes=1 --output=array-%a.txt "$sbatch" model.yaml "${batch[@]}" -- "${train[@]}")
wait_for 60 is_over "$job" || fail 'the array does not end'
expect_exit 0 smp-partition model.yaml -n 2 "${batch[@]}" -o two.yaml
for seed in 1 2; do
    expect_exit 0 mpirun -n 2 smp-run two.yaml --seed $seed "${train[@]}"
    losses out >seed
    same_losses array-$seed.txt seed "seed $seed of an array"
done
job=$(submit --nodes=2 --ntasks-per-node=1 --output=mpirun.txt --wrap "unset OMPI_MCA_plm; mpirun smp-run two.yaml --seed 2 ${train[*]}")
wait_for 60 is_over "$job" || fail 'mpirun does not end'
same_losses mpirun.txt seed 'mpirun in an allocation'

steps=600 # it is to be running still when the node is lost
cat >job.sh <<END
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --no-kill --output=job.txt
smp-run --elastic model.yaml -n 1:2 --global-batch 16 --microbatch-size 2 --effort quick --data text --steps $steps \\
    --log-every 1 --json --checkpoint run --keep-in /dev/shm/keep --beat-limit 2 --events events.jsonl >rows.txt
echo "exit code \$?"
END
submit job.sh >/dev/null
has_begun() { grep -qs '"step": 20,' rows.txt; }
wait_for 40 has_begun || { cat job.txt; fail 'the job does not train'; }
python3 "$hosts" kill "$PWD" h2
has_ended() { grep -qs '^exit code' job.txt; }
wait_for 60 has_ended || fail 'the job does not end'
expect_match job.txt '^exit code 0$'
expect_match job.txt 'host h2 was lost after step [0-9]+; plan for 1 device.*going on from memory.*lost [01] step'
expect_match events.jsonl '"event": "start".*"slots": \["h1:0", "h2:0"\]'

expect_exit 0 mpirun -n 2 smp-run run/plan-1.yaml --data text --steps $steps --log-every 1 --json
losses out >undisturbed
same_losses rows.txt undisturbed 'an elastic job'
finish
