/* Sharded states: neighbouring replicas, `shard` of them, form a group that holds one copy of what
 * is sharded, each a part. Groups are as alike as replicas without shards are. What is sharded is
 * told in the terms of ZeRO (Rajbhandari et al., SC 2020), groups smaller than all replicas in
 * those of MiCS (Zhang et al., VLDB 2022). */
#ifndef SMP_SCHEDULE_RULES_SHARD_H
#define SMP_SCHEDULE_RULES_SHARD_H

#include <stdbool.h>
#include <stdint.h>

#include "graph/base/status.h"

enum { SMP_SHARD_AUTO = -1, SMP_PREFETCH_AUTO = -1, SMP_PREFETCH_DEFAULT = 1, SMP_HOPS_AUTO = -1 };

typedef struct smp_sharding {
    int shard; /* replicas of a group; 0 or 1: nothing is sharded; a request: SMP_SHARD_AUTO */
    smp_shard_what what;
    int64_t bucket_bytes; /* see below; 0: one bucket; a request: SMP_BUCKET_AUTO */
    int node_replicas; /* neighbouring replicas, of one node, among which sums and gathers go first,
                          in two hops (see smp_hops_size); 0: in one; a request: SMP_HOPS_AUTO */
    int prefetch; /* sharded weights are gathered so many runs of a chunk's actions ahead of use; a
                     request: SMP_PREFETCH_AUTO */
    int gradient_wire;   /* SMP_WIRE_...; a request: SMP_DEFAULT */
    bool offload_states; /* those of the optimizer, or the rank's part of them, lie in host memory,
                            and the update runs there */
} smp_sharding;

static inline bool smp_wire_is_bf16(smp_sharding sharding)
{
    return sharding.gradient_wire == SMP_WIRE_BF16;
}

/* Weights of a stage that have one use each are reduced and gathered in buckets, as in PyTorch DDP
 * (Li et al., VLDB 2020): from the last weight to the first, as backwards finish them, a bucket
 * takes weights until it has bucket_bytes of gradients; the last one what is left. It is reduced
 * as soon as the last backward has added to all of it. Is a bucket with `bytes` full? */
enum { SMP_BUCKET_AUTO = -1, SMP_LEAST_BUCKET = 1 << 16 /* that is chosen */ };
static inline bool smp_bucket_is_full(smp_sharding sharding, int64_t bytes)
{
    return sharding.bucket_bytes > 0 && bytes >= sharding.bucket_bytes;
}

/* Does a job shard anything, and what? Without training there are only weights. */
static inline bool smp_shards(smp_sharding sharding, smp_shard_what what, bool training)
{
    return sharding.shard > 1 && sharding.what >= what && (training || what == SMP_SHARD_WEIGHTS);
}

/* Two hops are taken among so many neighbouring replicas: those of a shard group that a node does
 * not hold, and by sums over all replicas if these are no more; or else all. */
static inline int smp_hops_size(smp_sharding sharding, int ddp)
{
    return sharding.shard > sharding.node_replicas ? sharding.shard : ddp;
}

/* A request, with what a plan to keep says where it does not say. */
smp_sharding smp_sharding_keep(smp_sharding asked, smp_sharding kept);

const char *smp_shard_what_name(smp_shard_what what); /* "optimizer" */
/* SMP_ERR_INPUT naming the choices. */
smp_status smp_shard_what_read(const char *text, smp_shard_what *what);

/* Can `ddp` replicas form such groups? SMP_ERR_INPUT with the reason. */
smp_status smp_shard_check(int shard, int ddp);
/* Is a group one node of the tree in which replicas are added (schedule/plan/gradient_blocks.h)? */
bool smp_shard_is_node(int shard, int ddp);
/* The same of the replicas that sums go through first: 0, or between 1 and ddp. They, and groups of
 * which they are a part, are such nodes: a power of two, or all. */
smp_status smp_hops_check(smp_sharding sharding, int ddp);

#endif
