/* Blocks of gradients; see the header. */
#include "schedule/plan/gradient_blocks.h"

#include <stdio.h>

static bool is_power_of_two(int n)
{
    return (n & (n - 1)) == 0;
}

/* " 1, 3, 6, 12" from the lowest on; the last is `blocks` itself. Returns the buffer. */
static const char *possible_ddp(char *buffer, size_t size, int blocks)
{
    size_t used = 0;
    for (int ddp = 1; ddp <= blocks && used < size; ddp++)
        if (blocks % ddp == 0)
            used += (size_t)snprintf(buffer + used, size - used, "%s %d", used > 0 ? "," : "", ddp);
    return buffer;
}

smp_status smp_gradient_blocks_check(int blocks, int ddp, int microbatches)
{
    const int own = blocks / ddp;
    char possible[256] = "";
    if (blocks < 1 || blocks % ddp != 0)
        return smp_fail(SMP_ERR_INPUT,
                        "gradient_blocks: got %d for %d replicas, expected a multiple of their "
                        "number%s%s",
                        blocks, ddp, blocks < 1 ? "" : "; so many blocks go with ddp",
                        possible_ddp(possible, sizeof possible, blocks));
    if (microbatches % own != 0)
        return smp_fail(SMP_ERR_INPUT,
                        "gradient_blocks: %d replicas have %d blocks each, expected a divisor of "
                        "their %d micro-batches",
                        ddp, own, microbatches);
    return SMP_OK;
}

bool smp_gradient_is_node(int blocks, int ddp)
{
    return ddp == 1 || is_power_of_two(blocks / ddp);
}

smp_status smp_gradient_hops_check(int blocks, int ddp, int node_replicas)
{
    if (node_replicas == 0 || smp_gradient_is_node(blocks, ddp))
        return SMP_OK;
    return smp_fail(SMP_ERR_INPUT,
                    "gradient_blocks: got %d for %d replicas whose sums go in two hops "
                    "(node_replicas %d), expected 1, 2, 4, 8 ... times their number",
                    blocks, ddp, node_replicas);
}

/* Are neighbours the two children of one node? The left child is whole, the right one may have
 * gone up as it is. */
static bool is_pair(int blocks, smp_gradient_node left, smp_gradient_node right)
{
    const int width = left.end - left.begin;
    const int end = left.end < blocks - width ? left.end + width : blocks;
    return is_power_of_two(width) && left.begin % (2 * width) == 0 && right.end == end;
}

int smp_gradient_append(int blocks, smp_gradient_node *node, int n, smp_gradient_node next)
{
    for (; n > 0 && is_pair(blocks, node[n - 1], next); n--)
        next.begin = node[n - 1].begin;
    node[n] = next;
    return n + 1;
}

int smp_gradient_nodes(int blocks, int begin, int end, smp_gradient_node *node)
{
    int n = 0;
    while (begin < end) {
        int width = 1;
        while (begin % (2 * width) == 0 &&
               (2 * width <= end - begin || (end == blocks && width < end - begin)))
            width *= 2;
        const int next = width < end - begin ? begin + width : end;
        node[n++] = (smp_gradient_node){begin, next};
        begin = next;
    }
    return n;
}

int smp_gradient_most_nodes(int blocks, int own)
{
    smp_gradient_node node[SMP_MAX_GRADIENT_NODES];
    int most = 1;
    for (int begin = 0; begin < blocks && own < blocks && !is_power_of_two(own); begin += own) {
        const int n = smp_gradient_nodes(blocks, begin, begin + own, node);
        most = n > most ? n : most;
    }
    return most;
}

/* Nodes that wait at once, at most, while the blocks are added. */
static int most_waiting(int blocks, int own)
{
    smp_gradient_node node[SMP_MAX_GRADIENT_NODES];
    int most = 0, n = 0;
    for (int i = 0; i < blocks; i++) {
        n = i % own == 0 ? 0 : n;
        most = n > most ? n : most;
        n = smp_gradient_append(blocks, node, n, (smp_gradient_node){i, i + 1});
    }
    return most;
}

int smp_gradient_levels(int blocks, int ddp, int shard)
{
    const int own = blocks / ddp;
    int levels = 0;
    if (smp_gradient_is_node(blocks, ddp))
        while (2 << levels <= own)
            levels++;
    else
        levels = most_waiting(blocks, own);
    /* What is sent in the end, but for the last, has waited before it. */
    const int left = smp_gradient_most_nodes(blocks, own * (shard > 1 ? shard : 1)) - 1;
    return levels > left ? levels : left;
}
