/* The memory planner: one arena per rank, a place for every buffer of a step before the first step.
 *
 * Times are positions in the rank's program. Stash blocks live from F, or I, to B, I or W (see
 * smp_block). A receive is posted one compute action ahead of its `<`: before the last compute
 * action that stands before it. A send to the next stage (gradients: the previous stage) is waited
 * for before the second compute action after its `>`, at the latest before O (or the end); its
 * buffer lives until then. A send that jumps over stages is waited for later, since its receiver
 * may be far behind and only get there with this rank's help: activations before this stage's
 * backward of the same micro-batch (inference: at the end), gradients before O. Two chunks of one
 * rank share the border buffer between them. Weights, gradients and optimizer state live for
 * ever.
 *
 * Host area: a block that travels (S, L; schedule/rules/program.h) is on the device from F until
 * its store must be complete, and from L to its last read; between S and B or I it has a place in
 * the rank's host area, where the optimizer's states may be too. What does not travel stays in one
 * buffer. */
#ifndef SMP_SCHEDULE_MEMORY_MEMORY_H
#define SMP_SCHEDULE_MEMORY_MEMORY_H

#include "schedule/memory/layout.h"
#include "schedule/plan/plan.h"

/* From one micro-batch's loss to the next: the places of an arena are multiples of it. */
enum { SMP_LOSS_SLOT_BYTES = 64 };

/* Parts of regions begin at whole pieces of a weight, and squares of gradients are summed by piece:
 * so no sum goes across two parts. As many as SMP_SQUARE_PIECE of a device. */
enum { SMP_PIECE_ELEMENTS = 1 << 14 };

/* A weight held by a rank. */
typedef struct smp_memory_param {
    int32_t param;
    int32_t region; /* where its values, states and gradient lie */
    int64_t at;     /* element of the region at which it begins */
    int32_t chunk;  /* lowest chunk of this rank that holds it */
    bool elsewhere; /* other ranks hold it too */
    bool owner;     /* holds the weight's first use (counts it in norms, saves it) */
} smp_memory_param;

/* Weights side by side: a bucket of those of a chunk with one use each (schedule/rules/shard.h), or
 * one weight with several. Element e of an array that is whole lies at its offset + 4 e; of one of
 * which a rank has its part alone, that of member p of the shard group, at its offset +
 * 4 (at[p] + e - cut[p]): the parts of a chunk's regions stand side by side too. */
typedef struct smp_memory_region {
    int32_t chunk;    /* lowest chunk of this rank that uses it */
    int32_t param;    /* index in smp_memory_rank.param of the one with several uses; -1 */
    int64_t elements; /* with padding */
    int64_t in_chunk; /* element of the chunk's accumulators at which its own begin; -1: several */
    const int64_t *cut; /* [shard + 1] part p: elements cut[p] .. cut[p + 1] - 1 */
    const int64_t *at;  /* [shard] */
    int64_t weight;     /* offset of the values; in_host: in the host area, of the part alone */
    int64_t weight16;   /* offset of their whole copy in 16 bits; -1 unless the target is that, or
                           where weights are sharded: after what is gathered */
    bool in_host; /* all that the device has of them is `weight16`. Of a chunk, the first regions */
    int64_t state[2]; /* offsets of the part of the optimizer's states, or -1; in bf16 where the
                         target says so: 2 for 4 in the above; offloaded: in the host area */
    int64_t grad;     /* of the summed gradient; -1 without training */
    bool part_grad;   /* `grad`: the part alone */
    bool idle;        /* of frozen weights without gradient and states (smp_param): the last of its
                         chunk's, after all that has accumulators, or a weight with several uses */
} smp_memory_region;

/* A gradient accumulator: of a local use, in the bucket of its chunk, or the buffer for a remote
 * use of a tied weight. */
typedef struct smp_memory_use {
    int32_t use;    /* index in graph->use */
    int32_t param;  /* index in smp_memory_rank.param */
    int32_t stage;  /* where the use lies */
    int32_t chunk;  /* of this rank; -1: remote */
    int64_t offset; /* remote: in the arena; else in the bucket of the chunk */
} smp_memory_use;

/* The accumulators of one chunk side by side: those of its regions, in the order of these, then
 * those of weights with several uses. */
typedef struct smp_memory_bucket {
    int64_t offset;   /* -1 without training */
    int64_t elements; /* floats, padded to a multiple of 16 * ddp */
    int64_t level;    /* offset of [levels][elements]: sums of earlier blocks of gradients */
    bool shared;      /* has accumulators of weights with several uses */
    bool lives;       /* only from the chunk's first backward to A.c, or O if it is shared */
} smp_memory_bucket;

/* A message of one micro-batch that starts (receive posted) or must be complete (send) at a
 * position of the program. Before an action, first sends are waited for, then receives posted: a
 * receive may reuse the buffer of the send. */
typedef struct smp_memory_message {
    int32_t transfer;
    int32_t microbatch;
} smp_memory_message;

/* A store to be complete before an action: of what a micro-batch of a chunk keeps. */
typedef struct smp_memory_store {
    int32_t chunk;
    int32_t microbatch;
} smp_memory_store;

typedef struct smp_memory_rank {
    int rank;
    int64_t arena_bytes;        /* what the executor reserves; the plan's peak_bytes with AdamW */
    int64_t bound_bytes;        /* lifetime lower bound: the most that is alive at one action */
    int64_t fixed_bytes;        /* what lives for ever: the lower end of the arena */
    const int64_t *alive_bytes; /* [program n] at each action, the fixed part included */
    int32_t n_param, n_use;
    const smp_memory_param *param; /* by rising param */
    const smp_memory_use *use;     /* by rising use; none of idle weights */
    int32_t n_region;
    const smp_memory_region *region; /* of chunk 0 in the order in which they are reduced, of chunk
                                        1 ..., then those of single weights */
    const int32_t *chunk_region;     /* [chunks + 1] those of chunk c: [c] .. [c + 1] - 1; one at
                                        least that is not idle */
    bool part_weight; /* `weight`, of all regions: the part alone; none is in the host area */
    const smp_memory_bucket *bucket; /* [chunks] */
    /* Where weights are sharded: element of what chunk c gathers at which a region begins, at c *
     * n_region + region; -1: it does not need it. In 16 bits the copy lies after all of that. */
    const int64_t *gathered;
    const int64_t *gathered_elements; /* [chunks] */
    const int64_t *gather; /* [program n] offset of what G.c at this position gathers; -1 */
    int64_t loss;          /* offset of [microbatches] loss slots; -1: no loss here */
    int64_t work;          /* offset of the work area */
    const int64_t *stash[SMP_N_BLOCK]; /* [chunks * microbatches] offset of the block, or -1 */
    const int32_t *border_begin; /* [chunks + 1] into borders of all chunks, in layout order */
    const int64_t *border;     /* [border_begin[chunks] * microbatches]: offset of border b (counted
                                  over chunks), micro-batch m at b * microbatches + m */
    const int64_t *post_begin; /* [program n + 1] into post: receives to post before the action */
    const smp_memory_message *post;
    const int64_t *wait_begin; /* [program n + 2] into wait: sends to complete before the action;
                                  the last entry: after the last action */
    const smp_memory_message *wait;
    int64_t host_bytes;          /* the host area: a multiple of 64 */
    const int64_t *host_at;      /* [chunks * microbatches] offset in it of what travels, or -1 */
    const int64_t *stored_begin; /* [program n + 1] into stored: stores to complete before the
                                    action, before its receives are posted */
    const smp_memory_store *stored;
    smp_arena *arena;
} smp_memory_rank;

typedef struct smp_memory_input {
    const smp_graph *graph;
    const smp_flow *flow;
    const smp_program *program;      /* of this rank */
    const int *stage_of_chunk;       /* [chunks] */
    const int *stage_rank;           /* [flow->n_stage] */
    const smp_layout *const *layout; /* [chunks], split where smp_layout_is_split says so */
    int rank, chunks, microbatches, ddp;
    smp_sharding sharding;
    int blocks;           /* of gradients, of all replicas (schedule/plan/gradient_blocks.h) */
    int optimizer_states; /* 0 when not training */
    int horizon;          /* of loads and stores (schedule/rules/offload.h); 0: there are none */
} smp_memory_input;

/* Has a job weights whose fp32 values lie beside their states, in the host area
 * (smp_weights_in_host)? Does a use of a weight leave it there: is it trained, and is what the use
 * reads rounded? */
bool smp_memory_host_weights(const smp_graph *graph, smp_sharding sharding);
bool smp_memory_use_is_in_host(const smp_graph *graph, int32_t use);

/* Bytes that a rank keeps for ever on its device for each element of a weight, in the mean over its
 * shard group. */
double smp_memory_state_bytes(const smp_graph *graph, smp_sharding sharding);
/* The same of a weight that may lie in the host area, in a job that has such; else as above. */
double smp_memory_host_bytes(const smp_graph *graph, smp_sharding sharding);
/* The same of an idle weight, which has neither gradient nor states. */
double smp_memory_idle_bytes(const smp_graph *graph, smp_sharding sharding);

/* Behind the last region of a chunk that has accumulators. */
static inline int32_t smp_memory_summed_end(const smp_memory_rank *memory, int chunk)
{
    const int32_t end = memory->chunk_region[chunk + 1];
    return end - memory->region[end - 1].idle;
}

/* Offset in the arena of an accumulator. */
static inline int64_t smp_memory_use_at(const smp_memory_rank *memory, const smp_memory_use *use)
{
    return use->chunk < 0 ? use->offset : memory->bucket[use->chunk].offset + use->offset;
}

/* Everything that lives for ever stands first, in an order that does not depend on the program:
 * with other things equal, weights and loss slots have the same offsets under every program. A
 * program without backward actions is fine (stash and borders then die at the forward). The loss is
 * never a border: no op reads it. SMP_ERR_INPUT if the program lacks an action that the flow
 * needs. */
smp_status smp_memory_plan(const smp_memory_input *input, smp_memory_rank **out);
void smp_memory_destroy(smp_memory_rank *memory); /* accepts NULL */

/* Lays out the stages of a plan's rank and plans its memory. layout: [plan->chunks] NULLs, filled
 * with the caller's layouts, also where it fails; NULL: they are only measured, and
 * SMP_ERR_INPUT where a stage's offload_bytes are others (a job may be for another target). */
smp_status smp_memory_plan_rank(const smp_plan *plan, const smp_graph *graph, const smp_flow *flow,
                                int rank, int optimizer_states, smp_layout **layout,
                                smp_memory_rank **out);

/* Of a plan's rank only the weights and their regions: `param`, `region`, `chunk_region`, with what
 * is said of all of them. O(params + uses), however long the program is. */
smp_status smp_memory_plan_weights(const smp_plan *plan, const smp_graph *graph,
                                   const smp_flow *flow, int rank, int optimizer_states,
                                   smp_memory_rank **out);

/* What the rank's arena and its host area take, for the optimizer states that plans make room
 * for. */
smp_status smp_memory_peak(const smp_plan *plan, const smp_graph *graph, const smp_flow *flow,
                           int rank, int64_t *peak_bytes, int64_t *host_bytes);

#endif
