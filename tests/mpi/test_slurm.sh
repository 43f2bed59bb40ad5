#!/usr/bin/env bash
# An elastic job under Slurm itself: slurmctld, and slurmd on two hosts of one machine (faults/fake_hosts.py). A node loses
# power: the job, which has --no-kill, goes on with the other one, and the losses are those of a run that nothing happened to.
# Needs root and Debian's slurm-wlm; skipped without.
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

steps=150
sed 's/^let: .*/let: {T: 32, d: 64, heads: 4, layers: 2, vocab: 256}/' "$SMP_EXAMPLES/gpt-tiny.yaml" >model.yaml
cat "$SMP_EXAMPLES"/*.yaml >text
cat >job.sh <<END
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --no-kill --output=job.txt
smp-run --elastic model.yaml -n 1:2 --global-batch 16 --microbatch-size 2 --effort quick --data text --steps $steps \\
    --log-every 1 --json --checkpoint run --keep-in /dev/shm/keep --beat-limit 2 --events events.jsonl >rows.txt
echo "exit code \$?"
END
on h1 sbatch job.sh >/dev/null
has_begun() { grep -qs '"step": 20,' rows.txt; }
wait_for 40 has_begun || { cat job.txt; fail 'the job does not train'; }
python3 "$hosts" kill "$PWD" h2
is_over() { grep -qs '^exit code' job.txt; }
wait_for 60 is_over || fail 'the job does not end'
expect_match job.txt '^exit code 0$'
expect_match job.txt 'host h2 was lost after step [0-9]+; plan for 1 device.*going on from memory.*lost [01] step'
expect_match events.jsonl '"event": "start".*"slots": \["h1:0", "h2:0"\]'

expect_exit 0 mpirun -n 2 smp-run run/plan-1.yaml --data text --steps $steps --log-every 1 --json
losses() { sed -nE 's/^\{"step": ([0-9]+), "loss": ([^,]+),.*/\1 \2/p' "$1"; }
expect_equal losses "$(losses rows.txt)" "$(losses out)"
finish
