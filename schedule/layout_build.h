/* Shared by layout.c and layout_backward.c: a stage's layout while it is being built.
 *
 * A buffer in the work area is first a number of an interval list, carried in smp_ref.offset; once
 * the list is packed, smp__layout_resolve turns it into the offset. */
#ifndef SMP_SCHEDULE_LAYOUT_BUILD_H
#define SMP_SCHEDULE_LAYOUT_BUILD_H

#include "schedule/layout.h"

/* Buffers of the work area during one action; times are indices of calls or instructions. */
typedef struct smp__work {
    int64_t n;
    int64_t *bytes, *begin, *end, *offset; /* malloc'ed */
    size_t capacity[4];
} smp__work;

typedef struct smp__layout_build {
    const smp_graph *graph;
    const smp_flow *flow;
    const int64_t *stash_bytes; /* as passed to smp_layout_build */
    int stage;
    smp_arena *scratch;
    smp_layout *layout;
    smp_layout_call *call;
    smp_ref **din; /* [n_call] call[i].din, still to be filled */
    smp_border *border;
    smp_op_needs *needs; /* [n_call] */
    int32_t *made;       /* [n_call] OUT border of the output, or -1 */
    int32_t *local;      /* [n_tensor] value index + 1 of a tensor of this stage, or 0 */
    int32_t *border_of;  /* [n_transfer] border of a transfer of this stage (not OUT) */
    int32_t n_value;     /* outputs of calls, then received activations */
    smp_ref *value;      /* [n_value] */
    int32_t *last_read;  /* [n_value] last call that reads it going forward */
    bool *kept;          /* [n_value] read by the backward pass */
    int64_t stash;       /* bytes so far */
} smp__layout_build;

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

/* Fills instr, dout, din and the backward workspaces. Forward refs are complete. */
smp_status smp__layout_backward(smp__layout_build *build);

#endif
