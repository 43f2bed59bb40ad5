/* The options that a program begins with. */
#include "exec/optimizer/optimizer.h"
#include "smp.h"

smp_options smp_options_default(void)
{
    return (smp_options){.size = sizeof(smp_options),
                         .planning = {.tensor = SMP_DEFAULT,
                                      .tensor_overlap = SMP_DEFAULT,
                                      .shard_what = SMP_DEFAULT,
                                      .prefetch = SMP_DEFAULT,
                                      .node_replicas = SMP_DEFAULT,
                                      .bucket_bytes = SMP_DEFAULT,
                                      .gradient_wire = SMP_DEFAULT,
                                      .recompute = SMP_RECOMPUTE_AUTO,
                                      .offload = SMP_OFFLOAD_AUTO,
                                      .offload_states = SMP_OFFLOAD_AUTO,
                                      .effort = SMP_EFFORT_NORMAL,
                                      .seed = 1},
                         .optimizer = smp_optimizer_default(),
                         .runtime = {.seed = 1,
                                     .timeout_s = 120.0,
                                     .timeout_start_s = -1.0,
                                     .timeout_save_s = -1.0,
                                     .max_skipped = 10,
                                     .keep_checkpoints = 2}};
}
