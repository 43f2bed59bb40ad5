# Sourced by tests that run on two hosts: network namespaces with a link of 200 Mbit/s between them, and
# mpirun across it. Skipped where there are no rights to make them. Open MPI takes host names for
# machines, so each has a UTS namespace too; an agent stands in for ssh.
# shellcheck shell=bash
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
