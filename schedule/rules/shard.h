/* Sharded states: neighbouring replicas, `shard` of them, form a group that holds one copy of what
 * is sharded, each a part. Groups are as alike as replicas without shards are. What is sharded is
 * told in the terms of ZeRO (Rajbhandari et al., SC 2020), groups smaller than all replicas in
 * those of MiCS (Zhang et al., VLDB 2022). */
#ifndef SMP_SCHEDULE_RULES_SHARD_H
#define SMP_SCHEDULE_RULES_SHARD_H

#include <stdbool.h>

#include "graph/base/status.h"

/* Each what the one before it shards, and more. */
typedef enum smp_shard_what {
    SMP_SHARD_OPTIMIZER, /* states of the optimizer: ZeRO 1 */
    SMP_SHARD_GRADIENTS, /* ZeRO 2 */
    SMP_SHARD_WEIGHTS    /* ZeRO 3 */
} smp_shard_what;

enum { SMP_SHARD_AUTO = -1 };

typedef struct smp_sharding {
    int shard; /* replicas of a group; 0 or 1: nothing is sharded; a request: SMP_SHARD_AUTO */
    smp_shard_what what;
} smp_sharding;

/* Does a job shard anything, and what? Without training there are only weights. */
static inline bool smp_shards(smp_sharding sharding, smp_shard_what what, bool training)
{
    return sharding.shard > 1 && sharding.what >= what && (training || what == SMP_SHARD_WEIGHTS);
}

const char *smp_shard_what_name(smp_shard_what what); /* "optimizer" */
/* SMP_ERR_INPUT naming the choices. */
smp_status smp_shard_what_read(const char *text, smp_shard_what *what);

/* Can `ddp` replicas form such groups? SMP_ERR_INPUT with the reason. Groups are nodes of the tree
 * in which replicas are added (schedule/plan/gradient_blocks.h): a power of two, or all. */
smp_status smp_shard_check(int shard, int ddp);

#endif
