#!/usr/bin/env bash
# The links of two hosts: network namespaces with a link of 200 Mbit/s between them, and mpirun across it.
# Skipped where there are no rights to make them. Open MPI takes host names for machines, so each has a
# UTS namespace too; an agent stands in for ssh.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
a=smp$$a b=smp$$b

remove_hosts() {
    ip netns del "$a" 2>/dev/null || true
    ip netns del "$b" 2>/dev/null || true
    ip link del "v$a" 2>/dev/null || true
}
trap 'remove_hosts; cleanup' EXIT

make_hosts() {
    ip netns add "$a" && ip netns add "$b" && ip link add "v$a" type veth peer name "v$b" || return
    local host number=1
    for host in "$a" "$b"; do
        ip link set "v$host" netns "$host" && ip -n "$host" addr add "10.77.0.$number/24" dev "v$host" &&
            ip -n "$host" link set "v$host" up && ip -n "$host" link set lo up &&
            ip netns exec "$host" tc qdisc add dev "v$host" root tbf rate 200mbit burst 128k latency 400ms &&
            ip netns exec "$host" unshare --uts hostname "$host" || return
        number=$((number + 1))
    done
}
make_hosts 2>refused || {
    echo "no two hosts can be made here: $(head -n 1 refused)"
    exit 77
}

cat >agent <<AGENT
#!/bin/sh
case \$1 in 10.77.0.1) host=$a ;; *) host=$b ;; esac
shift
exec ip netns exec \$host unshare --uts /bin/sh -c "hostname \$host; \$*"
AGENT
chmod +x agent
unset "${!OMPI_MCA_@}" # those of one machine

# on_hosts SLOTS COMMAND...: as many ranks on each, the first ones on a.
on_hosts() {
    local slots=$1
    shift
    printf '10.77.0.%d slots=%d\n' 1 "$slots" 2 "$slots" >hosts
    limit_s=100 expect_exit 0 ip netns exec "$a" unshare --uts /bin/sh -c "hostname $a; exec \"\$@\"" sh \
        mpirun --mca plm_rsh_agent "$PWD/agent" --mca btl self,vader,tcp --mca btl_tcp_if_include 10.77.0.0/24 \
        --mca oob_tcp_if_include 10.77.0.0/24 --mca mpi_yield_when_idle 1 --bind-to none --oversubscribe \
        --hostfile hosts -n $((2 * slots)) -x PATH "$@"
}

# rate_of KEY FILE: bytes per second of a link.
rate_of() {
    sed -nE "/^  $1:/,/points/s/^    bytes_per_s: ([0-9]+).*/\1/p" "$2"
}

write_good_model good.yaml
seconds=$SECONDS
on_hosts 2 smp-profile good.yaml --links --link-time 6 -o both.yaml
expect_equal "kept its time" "$([ $((SECONDS - seconds)) -lt 60 ] && echo yes)" yes
expect_match both.yaml '^  intra_node:'
inside=$(rate_of intra_node both.yaml) between=$(rate_of inter_node both.yaml)
# 25 MB/s, and what the bucket lets through at once in messages that are not long
expect_equal "between hosts: $between B/s" "$([ "${between:-0}" -gt 1000000 ] && [ "$between" -lt 60000000 ] && echo right)" right
expect_equal "inside one: $inside B/s" "$([ "${inside:-0}" -gt "$((2 * between))" ] && echo faster)" faster
expect_exit 0 smp-partition good.yaml -n 2 --stages 2 --profile both.yaml -o plan.yaml
on_hosts 1 smp-profile good.yaml --links --link-time 2 -o one.yaml
expect_match one.yaml '^  inter_node:'
expect_no_match one.yaml 'intra_node'
finish
