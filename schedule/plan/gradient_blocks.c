/* Blocks of gradients; see the header. */
#include "schedule/plan/gradient_blocks.h"

#include <stdbool.h>
#include <stdio.h>

/* Has each replica one node of the tree? */
static bool makes_nodes(int blocks, int ddp)
{
    const int own = blocks / ddp;
    return blocks % ddp == 0 && (ddp == 1 || (own & (own - 1)) == 0);
}

/* " 1, 3, 6, 12" from the lowest on; the last is `blocks` itself. Returns the buffer. */
static const char *possible_ddp(char *buffer, size_t size, int blocks)
{
    size_t used = 0;
    for (int ddp = 1; ddp <= blocks && used < size; ddp++)
        if (makes_nodes(blocks, ddp))
            used += (size_t)snprintf(buffer + used, size - used, "%s %d", used > 0 ? "," : "", ddp);
    return buffer;
}

smp_status smp_gradient_blocks_check(int blocks, int ddp, int microbatches)
{
    const int own = blocks / ddp;
    char possible[256] = "";
    if (blocks < 1 || !makes_nodes(blocks, ddp))
        return smp_fail(SMP_ERR_INPUT,
                        "gradient_blocks: got %d for %d replicas, expected 1, 2, 4, 8 ... times "
                        "their number%s%s",
                        blocks, ddp, blocks < 1 ? "" : "; so many blocks go with ddp",
                        possible_ddp(possible, sizeof possible, blocks));
    if (microbatches % own != 0)
        return smp_fail(SMP_ERR_INPUT,
                        "gradient_blocks: %d replicas have %d blocks each, expected a divisor of "
                        "their %d micro-batches",
                        ddp, own, microbatches);
    return SMP_OK;
}

int smp_gradient_levels(int blocks_of_replica)
{
    int levels = 0;
    while (levels < 30 && 1 << levels < blocks_of_replica)
        levels++;
    return levels;
}
