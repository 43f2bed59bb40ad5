/* Blocks of gradients; see the header. */
#include "schedule/plan/gradient_blocks.h"

smp_status smp_gradient_blocks_check(int blocks, int ddp, int microbatches)
{
    const int own = blocks / ddp;
    if (blocks < 1 || blocks % ddp != 0 || (ddp > 1 && (own & (own - 1)) != 0))
        return smp_fail(SMP_ERR_INPUT,
                        "gradient_blocks: got %d, expected 1, 2, 4, 8 ... times the number of "
                        "replicas (ddp), %d",
                        blocks, ddp);
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
