/* Blocks of gradients; see the header. */
#include "schedule/plan/gradient_blocks.h"

static bool is_power_of_two(int n)
{
    return (n & (n - 1)) == 0;
}

int smp_gradient_share(int blocks, int ddp)
{
    return blocks / ddp + (blocks % ddp != 0);
}

int smp_gradient_begin(int blocks, int ddp, int replica)
{
    const int more = blocks % ddp;
    return blocks / ddp * replica + (replica < more ? replica : more);
}

int64_t smp_gradient_microbatches(int blocks, int ddp, int microbatches)
{
    return blocks % ddp == 0 ? (int64_t)microbatches * ddp
                             : (int64_t)microbatches / smp_gradient_share(blocks, ddp) * blocks;
}

smp_status smp_gradient_blocks_check(int blocks, int ddp, int microbatches)
{
    if (blocks < ddp)
        return smp_fail(SMP_ERR_INPUT,
                        "gradient_blocks: got %d for %d replicas, expected at least as many",
                        blocks, ddp);
    if (microbatches % smp_gradient_share(blocks, ddp) != 0)
        return smp_fail(SMP_ERR_INPUT,
                        "gradient_blocks: %d replicas have %s%d blocks each, expected a divisor of "
                        "their %d micro-batches",
                        ddp, blocks % ddp != 0 ? "up to " : "", smp_gradient_share(blocks, ddp),
                        microbatches);
    return SMP_OK;
}

const smp_op *smp_joint_op(const smp_graph *graph)
{
    for (int32_t i = 0; i < graph->n_op; i++) {
        smp_op_needs needs;
        smp_op_needs_get(graph, &graph->op[i], 1, &needs);
        if (needs.forward_joint > 0 || needs.input_grad_joint > 0)
            return &graph->op[i];
    }
    return NULL;
}

smp_status smp_gradient_joint_check(int blocks, int ddp, const smp_graph *graph)
{
    const smp_op *op = graph->training && blocks % ddp != 0 ? smp_joint_op(graph) : NULL;
    return !op ? SMP_OK
               : smp_fail(SMP_ERR_INPUT,
                          "gradient_blocks: got %d for %d replicas, over which op '%s' adds up, "
                          "expected a multiple of their number",
                          blocks, ddp, op->name);
}

bool smp_gradient_is_node(int blocks, int ddp)
{
    return ddp == 1 || (blocks % ddp == 0 && is_power_of_two(blocks / ddp));
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

int smp_gradient_most_nodes(int blocks, int ddp, int group)
{
    smp_gradient_node node[SMP_MAX_GRADIENT_NODES];
    int most = 1;
    if (group == ddp || (blocks % ddp == 0 && is_power_of_two(blocks / ddp * group)))
        return 1;
    for (int first = 0; first < ddp; first += group) {
        const int n = smp_gradient_nodes(blocks, smp_gradient_begin(blocks, ddp, first),
                                         smp_gradient_begin(blocks, ddp, first + group), node);
        most = n > most ? n : most;
    }
    return most;
}

/* Nodes that wait at once, at most, while the blocks are added. */
static int most_waiting(int blocks, int ddp)
{
    smp_gradient_node node[SMP_MAX_GRADIENT_NODES];
    int most = 0;
    for (int replica = 0; replica < ddp; replica++) {
        const int end = smp_gradient_begin(blocks, ddp, replica + 1);
        int n = 0;
        for (int i = smp_gradient_begin(blocks, ddp, replica); i < end; i++) {
            most = n > most ? n : most;
            n = smp_gradient_append(blocks, node, n, (smp_gradient_node){i, i + 1});
        }
    }
    return most;
}

int smp_gradient_levels(int blocks, int ddp, int shard)
{
    int levels = 0;
    if (smp_gradient_is_node(blocks, ddp))
        while (2 << levels <= blocks / ddp)
            levels++;
    else
        levels = most_waiting(blocks, ddp);
    /* What is sent in the end, but for the last, has waited before it. */
    const int left = smp_gradient_most_nodes(blocks, ddp, shard > 1 ? shard : 1) - 1;
    return levels > left ? levels : left;
}
