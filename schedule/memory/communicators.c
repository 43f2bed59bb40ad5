/* What NCCL's communicators take, term by term. Allocations are multiples of 2 MiB. */
#include "schedule/memory/communicators.h"

#include <stdio.h>

#include "graph/base/text.h"

static const int64_t MIB = 1 << 20;

/* In MiB. Buffers of a pair on a channel, of one direction: 4 for large messages, 0.5 and 4.7 for
 * two kinds of small ones, on the side that receives; 2 for counters on the other. On an A100 the 4
 * lie where it is sent from, which comes to no more. All peers on other machines share 2 for each
 * direction. */
enum {
    ITSELF = 8,   /* what a kernel knows of a communicator, of its ranks, of multicast */
    CHANNEL = 8,  /* its peers twice, its ring, its peers in multicast */
    ONE_WAY = 10, /* of a pair and a channel: this device receives */
    BOTH_WAYS = 12,
    AWAY = 4,   /* of a channel, where there are members on other machines */
    RELAYED = 2 /* of a channel: what another device of this machine sends to others through here */
};

int64_t smp_communicator_bytes(const smp_communicators *of)
{
    const int groups = of->shard > 1 && of->shard < of->replicas;
    const int hops = of->near > 1 ? of->near * of->far : 0; /* ranks whose sums have no other */
    const int own_hops = of->shard == of->replicas || of->near != of->shard; /* else the groups' */
    /* Replicas on this machine: each has all devices of a tensor group there. */
    const int node = of->node > of->tensor ? of->node / of->tensor : 1;
    const struct {
        int64_t times;
        int members, here, channels, pair;
    } row[] = {
        {of->lanes, 2, 2, SMP_LANE_CHANNELS, ONE_WAY},
        {hops != of->replicas, of->replicas, node, SMP_SUM_CHANNELS, BOTH_WAYS},
        {groups && (hops != of->shard || !own_hops), of->shard, node, SMP_SUM_CHANNELS, BOTH_WAYS},
        {groups, of->replicas / of->shard, node, SMP_SUM_CHANNELS, BOTH_WAYS},
        {own_hops, of->near, node, SMP_SUM_CHANNELS, BOTH_WAYS},
        {own_hops, of->far, node, SMP_SUM_CHANNELS, BOTH_WAYS},
        {1, of->tensor, of->node, SMP_SUM_CHANNELS, BOTH_WAYS}};
    int64_t mib = 0;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const int others = row[i].members - 1;
        const bool away = row[i].members > row[i].here;
        const int64_t pairs = away ? row[i].here - 1 : others;
        const int64_t apart = away ? AWAY + (of->node - 1) * RELAYED : 0;
        if (others > 0)
            mib +=
                row[i].times * (ITSELF + row[i].channels * (CHANNEL + pairs * row[i].pair + apart));
    }
    return mib * MIB + ((of->replicas > 1) + (of->tensor > 1)) * (int64_t)SMP_SUM_PIECE_BYTES;
}

const char *smp_beside_communicators(char buffer[SMP_BESIDE_CHARS], int64_t bytes)
{
    char size[32];
    buffer[0] = '\0';
    if (bytes > 0)
        snprintf(buffer, SMP_BESIDE_CHARS, " beside %s of communicators",
                 smp_format_bytes(size, sizeof size, bytes));
    return buffer;
}
