/* Stores and loads; see the header. A pass over the compute actions says which pairs travel, a
 * second one writes the program. No two loads stand before one action, since each is the same
 * number of actions ahead of its use. */
#include "schedule/lower/offload_actions.h"

#include <stdlib.h>

int64_t smp_offload_stored_by(const smp_program *program, int64_t store, int horizon)
{
    int64_t left = horizon;
    for (int64_t i = store + 1; i < program->n; i++) {
        const smp_action_kind kind = program->action[i].kind;
        if (kind == SMP_ACTION_OPTIMIZE || (smp_action_is_compute(kind) && left-- == 0))
            return i;
    }
    return program->n;
}

typedef struct insertion {
    const smp_schedule_shape *shape;
    const int *stage_of_chunk;
    const smp_program *from;
    smp_program to;
    int64_t *forward; /* [chunks * microbatches] number of F among compute actions; -1: it stays */
    int64_t *load;    /* [compute actions] pair to load right before it; -1: none */
} insertion;

static int64_t pair_of(const insertion *in, const smp_action *action)
{
    return (int64_t)action->chunk * in->shape->microbatches + action->microbatch;
}

static void find_loads(insertion *in)
{
    const int64_t horizon = in->shape->offloading.horizon;
    int64_t k = 0;
    for (int64_t i = 0; i < in->from->n; i++) {
        const smp_action *action = &in->from->action[i];
        if (!smp_action_is_compute(action->kind))
            continue;
        in->load[k] = -1;
        if (smp_offloads(&in->shape->offloading, in->stage_of_chunk[action->chunk])) {
            int64_t *forward = &in->forward[pair_of(in, action)];
            if (action->kind == SMP_ACTION_F)
                *forward = k;
            else if (action->kind != SMP_ACTION_W && k - *forward < 2 * horizon + 2)
                *forward = -1;
            else if (action->kind != SMP_ACTION_W)
                in->load[k - horizon] = pair_of(in, action);
        }
        k++;
    }
}

static smp_status open(insertion *in)
{
    const size_t n = (size_t)in->from->n;
    const size_t n_pair = (size_t)in->shape->chunks * (size_t)in->shape->microbatches;
    in->load = malloc((n + 1) * sizeof *in->load);
    in->forward = malloc((n_pair + 1) * sizeof *in->forward);
    if (!in->load || !in->forward)
        return smp_fail_memory((n + n_pair) * sizeof *in->load);
    for (size_t i = 0; i < n_pair; i++)
        in->forward[i] = -1;
    find_loads(in);
    return SMP_OK;
}

static smp_status write(insertion *in)
{
    const int microbatches = in->shape->microbatches;
    int64_t k = 0; /* of the next compute action */
    for (int64_t i = 0; i < in->from->n; i++) {
        const smp_action *action = &in->from->action[i];
        const bool compute = smp_action_is_compute(action->kind);
        const int64_t load = compute ? in->load[k++] : -1;
        if (load >= 0)
            SMP_TRY(smp_program_push(&in->to, SMP_ACTION_LOAD, (int)(load % microbatches),
                                     (int)(load / microbatches)));
        SMP_TRY(smp_program_push(&in->to, action->kind, action->microbatch, action->chunk));
        if (action->kind == SMP_ACTION_F && in->forward[pair_of(in, action)] >= 0)
            SMP_TRY(smp_program_push(&in->to, SMP_ACTION_STORE, action->microbatch, action->chunk));
    }
    return SMP_OK;
}

smp_status smp_offload_actions(const smp_schedule_shape *shape, const int *stage_of_chunk,
                               smp_program *program)
{
    if (!shape->training || !shape->offloading.stage)
        return SMP_OK;
    insertion in = {.shape = shape, .stage_of_chunk = stage_of_chunk, .from = program};
    smp_status status = open(&in);
    if (status == SMP_OK)
        status = write(&in);
    free(in.load);
    free(in.forward);
    if (status == SMP_OK) {
        smp_program_free(program);
        *program = in.to;
    } else {
        smp_program_free(&in.to);
    }
    return status;
}
