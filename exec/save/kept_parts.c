/* Bytes of states by the plan; see the header. Ranges of weights are found as checkpoint_part.c
 * finds them, for all ranks of a machine together: ranks that share in writing what they all have
 * write all of it. */
#include "exec/save/kept_parts.h"

#include <stdlib.h>

#include "exec/checkpoint/checkpoint_file.h"
#include "exec/save/regroup.h"

/* The file, and what is needed of the plan. */
typedef struct layout {
    const smp_plan *plan;
    const smp_graph *graph, *whole;
    smp__checkpoint_header says;
    int64_t *values_at, *hashes_at; /* [whole->n_param] of the first array, in the same memory */
    smp_memory_rank **memory;       /* [pipeline] weights alone */
    int shard, members;             /* replicas, and ranks, that have one copy together */
} layout;

static smp_status find_offsets(layout *l)
{
    const size_t n = (size_t)l->whole->n_param;
    smp_text head = {0};
    SMP_TRY(smp__checkpoint_head(l->whole, &l->says, "a checkpoint", &head));
    l->says.at = (int64_t)head.length;
    smp_text_free(&head);
    if (!(l->values_at = malloc(2 * n * sizeof *l->values_at + 1)))
        return smp_fail_memory(2 * n * sizeof *l->values_at);
    l->hashes_at = l->values_at + n;
    for (int32_t i = 0; i < l->whole->n_param; i++) {
        l->values_at[i] = l->says.at + smp__checkpoint_values_at(l->whole, i, l->says.states, 0);
        l->hashes_at[i] = l->says.at + smp__checkpoint_hashes_at(l->whole, i, l->says.states, 0);
    }
    return SMP_OK;
}

static smp_status find_weights(layout *l)
{
    const smp_plan *plan = l->plan;
    int32_t *stage_of_op = NULL;
    smp_flow *flow = NULL;
    if (!(l->memory = calloc((size_t)plan->pipeline, sizeof *l->memory)))
        return smp_fail_memory((size_t)plan->pipeline * sizeof *l->memory);
    SMP_TRY(smp_plan_bind(plan, l->graph, &stage_of_op));
    smp_status status =
        smp_flow_build(l->graph, stage_of_op, plan->n_stage, plan->microbatch_size, &flow);
    for (int rank = 0; rank < plan->pipeline && status == SMP_OK; rank++)
        status =
            smp_memory_plan_weights(plan, l->graph, flow, rank, l->says.states, &l->memory[rank]);
    smp_flow_destroy(flow);
    free(stage_of_op);
    return status;
}

static void close_layout(layout *l)
{
    for (int rank = 0; l->memory && rank < l->plan->pipeline; rank++)
        smp_memory_destroy(l->memory[rank]);
    free(l->memory);
    free(l->values_at);
}

static smp_status add_range(const layout *l, int32_t param, int k, smp__range range,
                            smp__spans *out)
{
    const int64_t elements = l->whole->param[param].elements;
    return smp__checkpoint_add_range(l->values_at[param] + 4 * k * elements,
                                     l->hashes_at[param] + (int64_t)sizeof(uint64_t) * k *
                                                               smp__checkpoint_pieces(elements),
                                     range.begin, range.end, out);
}

/* The head, and the program's own state: every machine has it. */
static smp_status add_common(const layout *l, smp__spans *out)
{
    SMP_TRY(smp__spans_add(out, 0, l->says.at + SMP__CHECKPOINT_HEADER_BYTES));
    return smp__checkpoint_add_own(&l->says, l->whole, out);
}

/* Where a rank stands, and whether all ranks of its copy are on its machine. */
typedef struct seat {
    int pipeline, replica, index, machine;
    bool together;
} seat;

/* Weight `i` of the rank: what it loads, and what it or others of its machine write. */
static smp_status add_weight(const layout *l, const seat *at, int32_t i, smp__kept_part *out)
{
    const smp_memory_rank *m = l->memory[at->pipeline];
    const smp_memory_region *region = &m->region[m->param[i].region];
    const smp_param *param = &l->graph->param[m->param[i].param];
    const int member = at->replica % l->shard * (l->members / l->shard) + at->index;
    const bool split = param->part.spread.way == SMP_SPLIT;
    const smp__range whole = {0, smp__runs_whole(param)};
    const smp__range own =
        split ? smp__deal(whole.end, (member + (int64_t)i) % l->members, l->members)
              : smp__part_of(m, i, param->elements, at->replica % l->shard);
    const smp__range values = split || m->part_weight || region->in_host ? own : whole;
    const smp__range written = split && at->together ? whole : own;
    for (int k = 0; k <= l->says.states; k++) {
        if (k == 0 || !region->idle)
            SMP_TRY(add_range(l, param->number, k, k == 0 ? values : own, &out->reads));
        if (m->param[i].owner)
            SMP_TRY(add_range(l, param->number, k, written, &out->keeps));
    }
    SMP_TRY(smp__checkpoint_add_kept(&l->says, l->whole, param->number, &out->reads));
    if (m->param[i].owner && written.begin == 0 && written.end > 0)
        SMP_TRY(smp__checkpoint_add_kept(&l->says, l->whole, param->number, &out->keeps));
    return SMP_OK;
}

static void find_seats(const layout *l, const int *machine, seat *seats)
{
    const int ranks = smp_plan_processes(l->plan);
    for (int rank = 0; rank < ranks; rank++) {
        seat *at = &seats[rank];
        at->machine = machine[rank];
        smp_plan_place(l->plan, rank, &at->replica, &at->pipeline, &at->index);
    }
    for (int rank = 0; rank < ranks; rank++) {
        int together = 0;
        for (int other = 0; other < ranks && l->members > l->shard; other++)
            together += seats[other].machine == seats[rank].machine &&
                        seats[other].pipeline == seats[rank].pipeline &&
                        seats[other].replica / l->shard == seats[rank].replica / l->shard;
        seats[rank].together = together == l->members;
    }
}

static smp_status add_ranks(const layout *l, const int *machine, smp__kept_part *out)
{
    const int ranks = smp_plan_processes(l->plan);
    seat *seats = calloc((size_t)ranks, sizeof *seats);
    smp_status status = seats ? SMP_OK : smp_fail_memory((size_t)ranks * sizeof *seats);
    if (seats)
        find_seats(l, machine, seats);
    for (int rank = 0; rank < ranks && status == SMP_OK; rank++) {
        smp__kept_part *part = &out[machine[rank]];
        status = add_common(l, &part->reads);
        if (status == SMP_OK)
            status = add_common(l, &part->keeps);
        for (int32_t i = 0; i < l->memory[seats[rank].pipeline]->n_param && status == SMP_OK; i++)
            status = add_weight(l, &seats[rank], i, part);
    }
    free(seats);
    return status;
}

/* Machines stand in a ring: what one alone has the next one has, too. */
static smp_status lend(smp__kept_part *parts, int n)
{
    smp__spans *written = calloc((size_t)n, sizeof *written), alone = {0};
    smp_status status = written ? SMP_OK : smp_fail_memory((size_t)n * sizeof *written);
    for (int i = 0; i < n && written; i++) {
        written[i] = parts[i].keeps;
        parts[i].keeps = (smp__spans){0};
    }
    for (int i = 0; i < n && status == SMP_OK; i++) {
        if (n > 1)
            status = smp__spans_alone(written, n, (i + n - 1) % n, &alone);
        if (status == SMP_OK)
            status = smp__spans_both(&written[i], &alone, &parts[i].keeps);
    }
    for (int i = 0; i < n && written; i++)
        smp__spans_free(&written[i]);
    smp__spans_free(&alone);
    free(written);
    return status;
}

smp_status smp__kept_parts(const smp_plan *plan, const smp_graph *graph, int states, bool keeps,
                           int64_t own_bytes, const int *machine, int n, smp__kept_part *out)
{
    layout l = {.plan = plan,
                .graph = graph,
                .whole = smp_graph_whole(graph),
                .says = {.states = states, .keeps = keeps, .own_bytes = own_bytes},
                .shard = plan->sharding.shard,
                .members = plan->sharding.shard * smp_plan_tensor(plan)};
    for (int i = 0; i < n; i++)
        out[i] = (smp__kept_part){0};
    if (plan->rank_begin)
        return smp_fail(SMP_ERR_INPUT, "what groups of several sizes keep is not known");
    smp_status status = find_offsets(&l);
    if (status == SMP_OK)
        status = find_weights(&l);
    if (status == SMP_OK)
        status = add_ranks(&l, machine, out);
    close_layout(&l);
    for (int i = 0; i < n; i++) {
        smp__spans_join(&out[i].keeps);
        smp__spans_join(&out[i].reads);
    }
    return status == SMP_OK ? lend(out, n) : status;
}

void smp__kept_parts_free(smp__kept_part *parts, int n)
{
    for (int i = 0; i < n; i++) {
        smp__spans_free(&parts[i].keeps);
        smp__spans_free(&parts[i].reads);
    }
}
