/* Shared by layout.c and layout_backward.c: a stage's layout while it is being built.
 *
 * A buffer in the work area is first a number of an interval list, carried in smp_ref.offset; once
 * the list is packed, smp__layout_resolve turns it into the offset. */
#ifndef SMP_SCHEDULE_MEMORY_LAYOUT_BUILD_H
#define SMP_SCHEDULE_MEMORY_LAYOUT_BUILD_H

#include "schedule/memory/layout.h"

/* Buffers of the work area during one action; times are indices of calls or instructions. */
typedef struct smp__work {
    int64_t n;
    int64_t *bytes, *begin, *end, *offset; /* malloc'ed */
    size_t capacity[4];
    smp_memo *memo; /* of totals, where offsets are not wanted; NULL: none */
} smp__work;

/* What the two halves of an op's backward read: inputs and outputs as masks, aux. */
typedef struct smp__reads {
    uint32_t in, weight_in, out;
    bool aux, weight_aux;
} smp__reads;

typedef struct smp__layout_build {
    const smp_graph *graph;
    const smp_flow *flow;
    const bool *recompute; /* as passed to smp_layout_build; NULL unless the graph trains */
    const bool *offload;   /* likewise */
    int stage;
    bool split;
    smp_memo *memo; /* with measure: of packings; NULL: none */
    bool measure;   /* sizes are all that is wanted: addresses and instructions are not kept */
    smp_arena *scratch;
    smp_layout *layout;
    smp_layout_call *call;
    smp_ref **din; /* [n_call] call[i].din, still to be filled; one row for all that only measure */
    smp_border *border;
    smp_op_needs *needs; /* [n_call] */
    smp__reads *reads;   /* [n_call] */
    int32_t *made;       /* [n_value] OUT border of an output, or -1 */
    int32_t *maker;      /* [n_value] call that makes it; -1: received */
    int32_t *local;      /* [n_tensor] value index + 1 of a tensor of this stage, or 0 */
    int32_t *border_of;  /* [n_transfer] border of a transfer of this stage (not OUT) */
    int32_t n_value;     /* outputs of calls, then received activations */
    smp_ref *value;      /* [n_value] */
    smp_ref *back;       /* [n_value] where the backward finds it */
    int32_t *last_read;  /* [n_value] last call that reads it going forward */
    bool *need; /* [n_value] read by the backward action: by gradients, or to repeat a call */
    bool *need_weight; /* [n_value] read by weight gradients */
    bool *second;      /* [n_call] of a pair, see smp_layout_call.pair */
    bool *repeated;    /* [n_call] the backward action repeats it */
    int32_t *beside;   /* [n_call] call whose exchange its weight gradient runs beside, or -1 */
} smp__layout_build;

/* A build whose graph, flow, stage and what is wanted are set: its values, and who reads them. On
 * failure closed; else both its scratch and its layout are the caller's. */
smp_status smp__layout_open(smp__layout_build *build);
/* Which calls the backward action repeats under build->recompute, and what it needs for that. */
void smp__layout_find_repeated(smp__layout_build *build);
/* The first value that a call makes; it makes as many as its op has outputs. */
static inline int32_t smp__layout_first(const smp__layout_build *build, int32_t call)
{
    return build->local[build->graph->op[build->call[call].op].out] - 1;
}
static inline int32_t smp__layout_n_out(const smp__layout_build *build, int32_t call)
{
    return build->graph->op[build->call[call].op].n_out;
}
/* Does the backward action make the value again? */
static inline bool smp__layout_remade(const smp__layout_build *build, int32_t value)
{
    return build->maker[value] >= 0 && build->repeated[build->maker[value]];
}
/* Is a value made forward, or received, kept for the backward action? */
static inline bool smp__layout_stays(const smp__layout_build *build, int32_t value)
{
    return build->need[value] && !smp__layout_remade(build, value);
}

/* A new buffer alive at `time` only; *ref gets its number. */
smp_status smp__work_add(smp__work *work, int64_t bytes, int64_t time, smp_ref *ref);
static inline void smp__work_extend(smp__work *work, smp_ref ref, int64_t time)
{
    if (ref.space == SMP_SPACE_WORK && work->end[ref.offset] < time)
        work->end[ref.offset] = time;
}
smp_status smp__work_pack(smp__work *work, int64_t *total);
static inline void smp__layout_resolve(const smp__work *work, smp_ref *ref)
{
    if (ref->space == SMP_SPACE_WORK)
        ref->offset = work->offset[ref->offset];
}
void smp__work_free(smp__work *work);

static inline bool smp__reads_slot(uint32_t mask, int32_t slot)
{
    return slot < 32 && (mask >> slot & 1);
}

/* Where a tensor that an op of the stage reads is: a model input, or by `place` [n_value]. */
static inline smp_ref smp__layout_find(const smp__layout_build *build, const smp_ref *place,
                                       int32_t tensor)
{
    int32_t v = build->local[tensor] - 1;
    return v < 0 ? (smp_ref){.space = SMP_SPACE_INPUT, .index = tensor} : place[v];
}

/* Bytes saved by forward for backward; *kept: does the backward read them? An op without kernels
 * has all that it stashes here; what backward_input leaves to backward_weight is none of it. */
int64_t smp__layout_aux_bytes(const smp__layout_build *build, int32_t call, bool *kept);
/* Are they read by weight gradients? */
bool smp__layout_aux_weight(const smp__layout_build *build, int32_t call);
/* Is backward_weight to come after backward_input, which makes its aux? */
static inline bool smp__layout_input_first(const smp__layout_build *build, int32_t call)
{
    return build->needs[call].aux_of_backward && build->reads[call].weight_aux;
}
/* Is a pair repeated as a whole or not at all? call: its first. */
static inline bool smp__layout_tied(const smp__layout_build *build, int32_t call)
{
    return build->call[call].pair && !build->graph->op[build->call[call].op].kind->pairs_alike;
}
static inline bool smp__layout_tied_second(const smp__layout_build *build, int32_t call)
{
    return build->second[call] && smp__layout_tied(build, call - 1);
}
/* May a pair be one kernel when it is repeated? call: its first. */
static inline bool smp__layout_pair_again(const smp__layout_build *build, int32_t call)
{
    return build->call[call].pair && build->repeated[call] && build->repeated[call + 1];
}

/* Has the op weight gradients to make? */
bool smp__layout_weighs(const smp__layout_build *build, int32_t call);
/* Where the backward finds what the forward put there: a block that travels comes back as another.
 */
static inline smp_ref smp__layout_back(smp_ref ref)
{
    if (ref.space == SMP_SPACE_STASH && ref.index == SMP_BLOCK_AWAY)
        ref.index = SMP_BLOCK_BACK;
    return ref;
}
/* Room in a stash block. */
smp_status smp__layout_stash(smp__layout_build *build, smp_block block, int64_t bytes,
                             smp_ref *ref);

/* Fills instr, weight_instr and the addresses of backward calls. Forward refs are complete. */
smp_status smp__layout_backward(smp__layout_build *build);

#endif
