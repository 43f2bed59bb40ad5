/* Rings of replicas, and exchanges over shared adapters; see the header. */
#include "schedule/simulate/simulate_rings.h"

#include <math.h>

#include "schedule/plan/gradient_blocks.h"

smp__ring smp__ring_of_all(const smp_simulation_input *input)
{
    return (smp__ring){1, input->ddp};
}

smp__ring smp__ring_of_group(const smp_simulation_input *input)
{
    return (smp__ring){1, input->sharding.shard > 1 ? input->sharding.shard : 1};
}

smp__ring smp__ring_across(const smp_simulation_input *input)
{
    const int shard = smp__ring_of_group(input).size;
    return (smp__ring){shard, input->ddp / shard};
}

static int device_of(const smp_simulation_input *input, int rank, int replica)
{
    return input->device[(int64_t)replica * input->pipeline + rank];
}

static int node_of(const smp_simulation_input *input, int rank, int replica)
{
    return device_of(input, rank, replica) / input->cluster->devices_per_node;
}

double smp__ring_message_us(const smp_simulation_input *input, int rank, smp__ring of,
                            int64_t bytes)
{
    const int block = of.stride * of.size;
    bool some[2] = {false}; /* inside a node, between nodes */
    for (int i = 0; i < input->ddp; i++) {
        const int next = i - i % block + (i % block + of.stride) % block;
        some[node_of(input, rank, i) != node_of(input, rank, next)] = true;
    }
    const double inside_us = some[0] ? smp_link_us(&input->cluster->intra_node, bytes) : 0.0;
    return some[1] ? fmax(inside_us, smp_link_us(&input->cluster->inter_node, bytes)) : inside_us;
}

/* How many of `n` replicas, `stride` apart from `first` on, have the rank on the node. */
static int count_on_node(const smp_simulation_input *input, int rank, int node, int first,
                         int stride, int n)
{
    const int per_node = input->cluster->devices_per_node;
    const unsigned from = (unsigned)node * (unsigned)per_node;
    int on = 0;
    for (int k = 0; k < n; k++)
        on += (unsigned)device_of(input, rank, first + k * stride) - from < (unsigned)per_node;
    return on;
}

/* The slowest member's messages to all others. Those to other nodes wait for each other: all ranks
 * of the node send at once through its adapters. O(ddp) for each member whose node is not that of
 * the one before. */
static double exchange_us(const smp_simulation_input *input, int rank, smp__ring of, int64_t bytes)
{
    const smp_cluster *cluster = input->cluster;
    const double inside_us = smp_link_us(&cluster->intra_node, bytes),
                 between_us = smp_link_us(&cluster->inter_node, bytes);
    const int block = of.stride * of.size;
    double slowest_us = 0.0;
    for (int i = 0; i < input->ddp; i++) {
        const int node = node_of(input, rank, i), first = i - i % block + i % of.stride;
        if (i != first && node_of(input, rank, i - of.stride) == node)
            continue;
        const int all = count_on_node(input, rank, node, 0, 1, input->ddp),
                  near = count_on_node(input, rank, node, first, of.stride, of.size) - 1;
        const double shared = fmax(1.0, (double)all / cluster->adapters_per_node);
        slowest_us =
            fmax(slowest_us, near * inside_us + (of.size - 1 - near) * shared * between_us);
    }
    return slowest_us;
}

static double one_hop_us(const smp_simulation_input *input, int rank, smp__ring of, int turns,
                         int64_t bytes)
{
    if (of.size == 1 || bytes <= 0)
        return 0.0;
    const int64_t part = bytes / of.size + (bytes % of.size != 0);
    if (input->cluster->adapters_per_node > 0)
        return turns * exchange_us(input, rank, of, part);
    return turns * (of.size - 1) * smp__ring_message_us(input, rank, of, part);
}

/* First the replicas of each node, then between nodes with the part that each has. */
static double two_hops_us(const smp_simulation_input *input, int rank, smp__ring of, int near,
                          int turns, int64_t bytes)
{
    const smp__ring inside = {1, near}, between = {near, of.size / near};
    return one_hop_us(input, rank, inside, turns, bytes) +
           one_hop_us(input, rank, between, turns, bytes / near + (bytes % near != 0));
}

double smp__ring_turns_us(const smp_simulation_input *input, int rank, smp__ring of, int turns,
                          int64_t bytes)
{
    const int near = input->sharding.node_replicas;
    return near > 1 && of.stride == 1 && of.size == smp_hops_size(input->sharding, input->ddp)
               ? two_hops_us(input, rank, of, near, turns, bytes)
               : one_hop_us(input, rank, of, turns, bytes);
}

static int64_t on_wire(const smp_simulation_input *input, int64_t bytes)
{
    return smp_wire_is_bf16(input->sharding) ? bytes / 2 + bytes % 2 : bytes;
}

/* Arrays that a member of a ring sends to be added up. */
static int terms_of(const smp_simulation_input *input, smp__ring of)
{
    const int blocks = input->gradient_blocks;
    return blocks > 0 ? smp_gradient_most_nodes(blocks, input->ddp, of.stride) : 1;
}

bool smp__cores_move(const smp_cluster *cluster)
{
    return cluster->nodes == 1 && cluster->cores_per_node > 0;
}

/* What a member's core reads and writes of a part while it adds it up
 * (exec/transport/reduce_blocks.c): its own terms and the sum are copied, those of the others
 * received and added; and what it then gathers. All of it lies in memory: a step touches everything
 * else in between. */
static double traffic_us(const smp_simulation_input *input, smp__ring of, int turns, int64_t bytes)
{
    const double part = (double)bytes / of.size, others = of.size - 1;
    const double moved = 4 + 5 * others + (turns > 1 ? 2 * others : 0);
    const double bytes_per_s = input->cluster->device[0].bytes_per_s;
    return of.size > 1 && bytes_per_s > 0 ? 1e6 * moved * part / bytes_per_s : 0;
}

double smp__ring_sum_us(const smp_simulation_input *input, int rank, smp__ring of, int turns,
                        int64_t bytes)
{
    const double us =
        smp__ring_turns_us(input, rank, of, turns + terms_of(input, of) - 1, on_wire(input, bytes));
    return smp__cores_move(input->cluster) ? fmax(us, traffic_us(input, of, turns, bytes)) : us;
}

double smp__sim_ring_us(const smp_simulation_input *input, int rank, int64_t bytes)
{
    return smp__ring_sum_us(input, rank, smp__ring_of_all(input), 2, bytes);
}

double smp__sim_first_ring_us(const smp_simulation_input *input, int rank, int64_t bytes)
{
    return input->sharding.shard > 1
               ? smp__ring_sum_us(input, rank, smp__ring_of_group(input), 1, bytes)
               : smp__sim_ring_us(input, rank, bytes);
}

/* What sums and gathers take with the hops of a choice; each is affine in its bytes. */
typedef struct hops_price {
    double large_us, small_us, tied_us;
} hops_price;

static hops_price price_hops(const smp_simulation_input *input, int rank, int near,
                             int64_t weight_bytes, int64_t tied_bytes)
{
    smp_simulation_input with = *input;
    with.sharding.node_replicas = near;
    const smp__ring first =
        input->sharding.shard > 1 ? smp__ring_of_group(input) : smp__ring_of_all(input);
    return (hops_price){smp__ring_turns_us(&with, rank, first, 2, weight_bytes),
                        smp__ring_turns_us(&with, rank, first, 2, 1),
                        smp__sim_ring_us(&with, rank, tied_bytes)};
}

static bool is_no_dearer(hops_price a, hops_price b)
{
    return a.large_us <= b.large_us && a.small_us <= b.small_us && a.tied_us <= b.tied_us;
}

int smp_node_replicas(const smp_simulation_input *input, int rank, int64_t weight_bytes,
                      int64_t tied_bytes, int choice[SMP_HOPS_CHOICES])
{
    hops_price price[SMP_HOPS_CHOICES];
    const bool any =
        input->cluster->nodes > 1 && (input->sharding.shard > 1 || input->graph->training) &&
        smp_shard_is_node(input->sharding.shard, input->ddp) &&
        (input->gradient_blocks == 0 || smp_gradient_is_node(input->gradient_blocks, input->ddp));
    int n = 1;
    choice[0] = 0;
    price[0] = price_hops(input, rank, 0, weight_bytes, tied_bytes);
    for (int near = 2; any && near < input->ddp && input->ddp % near == 0; near *= 2) {
        const hops_price p = price_hops(input, rank, near, weight_bytes, tied_bytes);
        bool needed = true;
        int kept = 0;
        for (int i = 0; i < n && needed; i++)
            needed = !is_no_dearer(price[i], p);
        for (int i = 0; i < n && needed; i++)
            if (!is_no_dearer(p, price[i])) {
                price[kept] = price[i];
                choice[kept++] = choice[i];
            }
        if (needed) {
            price[kept] = p;
            choice[kept] = near;
            n = kept + 1;
        }
    }
    return n;
}
