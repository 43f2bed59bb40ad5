/* Preparing an order for cutting: neighbours of every position in flat arrays, so that growing an
 * interval by one unit at either end touches a few consecutive entries. O(n + uses). */
#include "partition/cut/sequence.h"

static smp_status list_reads(smp__sequence *sequence, const int32_t *position, smp_arena *scratch)
{
    const smp__units *units = sequence->units;
    int64_t *latest =
        SMP_ARENA_NEW(scratch, int64_t, (size_t)units->n_net); /* entry of sequence->read */
    int32_t *latest_position = SMP_ARENA_NEW(scratch, int32_t, (size_t)units->n_net);
    sequence->read_begin = SMP_ARENA_NEW(sequence->arena, int64_t, (size_t)sequence->n + 1);
    sequence->read = SMP_ARENA_NEW(sequence->arena, smp__read, (size_t)units->in_begin[units->n]);
    sequence->make_begin = SMP_ARENA_NEW(sequence->arena, int64_t, (size_t)sequence->n + 1);
    sequence->make = SMP_ARENA_NEW(sequence->arena, smp__make, (size_t)units->n_net);
    int32_t *first = SMP_ARENA_NEW(scratch, int32_t, (size_t)units->n_net);
    if (!latest || !latest_position || !sequence->read_begin || !sequence->read ||
        !sequence->make_begin || !sequence->make || !first)
        return SMP_ERR_NO_MEMORY;
    for (int32_t net = 0; net < units->n_net; net++)
        latest_position[net] = -1;
    int64_t n = 0, made = 0;
    for (int32_t i = 0; i < sequence->n; i++) {
        int32_t u = sequence->unit[i];
        for (int64_t e = units->in_begin[u]; e < units->in_begin[u + 1]; e++) {
            int32_t net = units->in_net[e];
            int32_t previous = latest_position[net];
            sequence->read[n] =
                (smp__read){net, position[units->net_unit[net]], previous, sequence->n};
            if (previous < 0)
                first[net] = i;
            else
                sequence->read[latest[net]].next = i;
            latest[net] = n++;
            latest_position[net] = i;
        }
        sequence->read_begin[i + 1] = n;
    }
    for (int32_t i = 0; i < sequence->n; i++) {
        int32_t u = sequence->unit[i];
        for (int64_t o = units->out_begin[u]; o < units->out_begin[u + 1]; o++) {
            int32_t net = units->out_net[o];
            sequence->make[made++] = (smp__make){net, first[net], latest_position[net]};
        }
        sequence->make_begin[i + 1] = made;
    }
    return SMP_OK;
}

static smp_status list_holds(smp__sequence *sequence, smp_arena *scratch)
{
    const smp__units *units = sequence->units;
    if (units->n_share == 0 || !sequence->memory_binds)
        return SMP_OK;
    int64_t *latest = SMP_ARENA_NEW(scratch, int64_t, (size_t)units->n_share);
    int32_t *latest_position = SMP_ARENA_NEW(scratch, int32_t, (size_t)units->n_share);
    sequence->hold_begin = SMP_ARENA_NEW(sequence->arena, int64_t, (size_t)sequence->n + 1);
    sequence->hold = SMP_ARENA_NEW(sequence->arena, smp__hold, (size_t)units->hold_begin[units->n]);
    if (!latest || !latest_position || !sequence->hold_begin || !sequence->hold)
        return SMP_ERR_NO_MEMORY;
    for (int32_t share = 0; share < units->n_share; share++) {
        latest[share] = -1;
        latest_position[share] = -1;
    }
    int64_t n = 0;
    for (int32_t i = 0; i < sequence->n; i++) {
        int32_t u = sequence->unit[i];
        for (int64_t h = units->hold_begin[u]; h < units->hold_begin[u + 1]; h++) {
            int32_t share = units->hold_share[h];
            sequence->hold[n] = (smp__hold){share, latest_position[share], sequence->n};
            if (latest[share] >= 0)
                sequence->hold[latest[share]].next = i;
            latest[share] = n++;
            latest_position[share] = i;
        }
        sequence->hold_begin[i + 1] = n;
    }
    return SMP_OK;
}

static smp_status sum_compute(smp__sequence *sequence)
{
    const smp__units *units = sequence->units;
    const smp_problem *problem = sequence->problem;
    bool training = problem->graph->training;
    bool always = smp_problem_recomputes_all(problem);
    sequence->before_us = SMP_ARENA_NEW(sequence->arena, double, (size_t)sequence->n + 1);
    if (!sequence->before_us)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < sequence->n; i++) {
        int32_t u = sequence->unit[i];
        sequence->before_us[i + 1] =
            sequence->before_us[i] + units->compute_us[u] + (always ? units->forward_us[u] : 0.0);
    }
    if (!training || problem->recompute != SMP_RECOMPUTE_AUTO || !units->memory_binds)
        return SMP_OK;
    sequence->forward_us = SMP_ARENA_NEW(sequence->arena, double, (size_t)sequence->n + 1);
    if (!sequence->forward_us)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < sequence->n; i++)
        sequence->forward_us[i + 1] =
            sequence->forward_us[i] + units->forward_us[sequence->unit[i]];
    return SMP_OK;
}

static double *least_of_blocks(smp_arena *arena, const double *values, int32_t n)
{
    double *least = SMP_ARENA_NEW(arena, double, (size_t)n / SMP__BLOCK + 1);
    for (int32_t i = 0; least && i < n; i++) {
        double *block = &least[i / SMP__BLOCK];
        if (i % SMP__BLOCK == 0 || values[i] < *block)
            *block = values[i];
    }
    return least;
}

static double least_in(const double *values, const double *block, int32_t lo, int32_t hi)
{
    double least = INFINITY;
    if (!values)
        return 0.0;
    for (int32_t i = lo; i <= hi;) {
        if (i % SMP__BLOCK == 0 && i + SMP__BLOCK - 1 <= hi) {
            least = block[i / SMP__BLOCK] < least ? block[i / SMP__BLOCK] : least;
            i += SMP__BLOCK;
        } else {
            least = values[i] < least ? values[i] : least;
            i++;
        }
    }
    return least;
}

double smp__sequence_least_head(const smp__sequence *sequence, smp__link link, int32_t lo,
                                int32_t hi)
{
    return least_in(sequence->head_us[link], sequence->head_block_us[link], lo, hi);
}

double smp__sequence_least_tail(const smp__sequence *sequence, smp__link link, int32_t lo,
                                int32_t hi)
{
    return least_in(sequence->tail_us[link], sequence->tail_block_us[link], lo, hi);
}

/* Only where transfers add to compute, and only for links that some border has. */
static smp_status sum_ends(smp__sequence *sequence)
{
    const smp__units *units = sequence->units;
    int32_t n = sequence->n;
    bool used[SMP__N_LINK] = {false};
    for (int k = 0; k < sequence->n_stage && !sequence->problem->cluster->overlap; k++)
        used[sequence->in_link[k]] = used[sequence->out_link[k]] = true;
    for (int link = 0; link < SMP__N_LINK; link++) {
        if (!used[link] || link == SMP__LINK_SAME)
            continue;
        double *head = sequence->head_us[link] =
            SMP_ARENA_NEW(sequence->arena, double, (size_t)n + 1);
        double *tail = sequence->tail_us[link] =
            SMP_ARENA_NEW(sequence->arena, double, (size_t)n + 1);
        if (!head || !tail)
            return SMP_ERR_NO_MEMORY;
        for (int32_t i = 0; i < n; i++) {
            for (int64_t e = sequence->read_begin[i]; e < sequence->read_begin[i + 1]; e++)
                head[i] += units->net_us[link][sequence->read[e].net];
            for (int64_t e = sequence->make_begin[i]; e < sequence->make_begin[i + 1]; e++)
                tail[i + 1] += units->net_us[link][sequence->make[e].net];
        }
        sequence->head_block_us[link] = least_of_blocks(sequence->arena, head, n + 1);
        sequence->tail_block_us[link] = least_of_blocks(sequence->arena, tail, n + 1);
        if (!sequence->head_block_us[link] || !sequence->tail_block_us[link])
            return SMP_ERR_NO_MEMORY;
    }
    return SMP_OK;
}

static smp_status describe_stages(smp__sequence *sequence)
{
    const smp_problem *problem = sequence->problem;
    size_t n_stage = (size_t)sequence->n_stage;
    sequence->slowdown = SMP_ARENA_NEW(sequence->arena, double, n_stage);
    sequence->in_link = SMP_ARENA_NEW(sequence->arena, smp__link, n_stage);
    sequence->out_link = SMP_ARENA_NEW(sequence->arena, smp__link, n_stage);
    if (!sequence->slowdown || !sequence->in_link || !sequence->out_link)
        return SMP_ERR_NO_MEMORY;
    for (int k = 0; k < sequence->n_stage; k++) {
        int rank = problem->stage_rank[k];
        sequence->slowdown[k] = smp_problem_stage_slowdown(problem, k);
        sequence->in_link[k] = sequence->out_link[k] = SMP__LINK_SAME;
        if (k > 0)
            sequence->in_link[k] = smp__farthest_link(problem, problem->stage_rank[k - 1], rank);
        if (k + 1 < sequence->n_stage)
            sequence->out_link[k] = smp__farthest_link(problem, rank, problem->stage_rank[k + 1]);
    }
    return SMP_OK;
}

/* Border k must stand after all units that end before stage k and before all that begin in it or
 * later, and leave a unit to every stage. */
static smp_status bound_borders(smp__sequence *sequence)
{
    const smp__units *units = sequence->units;
    int K = sequence->n_stage;
    sequence->border_lo = SMP_ARENA_NEW(sequence->arena, int32_t, (size_t)K + 1);
    sequence->border_hi = SMP_ARENA_NEW(sequence->arena, int32_t, (size_t)K + 1);
    if (!sequence->border_lo || !sequence->border_hi)
        return SMP_ERR_NO_MEMORY;
    for (int k = 0; k <= K; k++)
        sequence->border_hi[k] = sequence->n;
    for (int32_t i = 0; i < sequence->n && units->has_pin; i++) {
        int32_t u = sequence->unit[i];
        if (units->hi[u] + 1 < K)
            sequence->border_lo[units->hi[u] + 1] = i + 1;
        if (units->lo[u] > 0 && sequence->border_hi[units->lo[u]] > i)
            sequence->border_hi[units->lo[u]] = i;
    }
    sequence->border_hi[0] = 0;
    sequence->border_lo[K] = sequence->n;
    for (int k = 1; k <= K; k++) {
        if (sequence->border_lo[k] <= sequence->border_lo[k - 1])
            sequence->border_lo[k] = sequence->border_lo[k - 1] + 1;
    }
    for (int k = K - 1; k >= 0; k--) {
        if (sequence->border_hi[k] >= sequence->border_hi[k + 1])
            sequence->border_hi[k] = sequence->border_hi[k + 1] - 1;
    }
    sequence->feasible = true;
    for (int k = 0; k <= K; k++)
        sequence->feasible &= sequence->border_lo[k] <= sequence->border_hi[k];
    return SMP_OK;
}

smp_status smp__sequence_build(const smp_problem *problem, const smp__units *units,
                               const int32_t *order, smp__sequence **out)
{
    smp_status status = SMP_ERR_NO_MEMORY;
    smp_arena *arena = smp_arena_create(), *scratch = smp_arena_create();
    smp__sequence *sequence = arena && scratch ? SMP_ARENA_NEW(arena, smp__sequence, 1) : NULL;
    if (!sequence)
        goto done;
    *sequence = (smp__sequence){.problem = problem,
                                .units = units,
                                .n = units->n,
                                .n_stage = problem->n_stage,
                                .memory_binds = units->memory_binds,
                                .limit_share = 1.0,
                                .arena = arena};
    int32_t *position = SMP_ARENA_NEW(scratch, int32_t, (size_t)units->n);
    sequence->unit = SMP_ARENA_NEW(arena, int32_t, (size_t)units->n);
    if (!position || !sequence->unit)
        goto done;
    for (int32_t i = 0; i < units->n; i++) {
        sequence->unit[i] = order[i];
        position[order[i]] = i;
    }
    status = list_reads(sequence, position, scratch);
    if (status == SMP_OK)
        status = list_holds(sequence, scratch);
    if (status == SMP_OK)
        status = describe_stages(sequence);
    if (status == SMP_OK)
        status = sum_compute(sequence);
    if (status == SMP_OK)
        status = sum_ends(sequence);
    if (status == SMP_OK)
        status = bound_borders(sequence);
done:
    smp_arena_destroy(scratch);
    if (status == SMP_OK)
        *out = sequence;
    else
        smp_arena_destroy(arena);
    return status;
}

void smp__sequence_destroy(smp__sequence *sequence)
{
    if (sequence)
        smp_arena_destroy(sequence->arena);
}

/* Bytes of a net at a border: none between stages of one rank. */
static inline double border_bytes(const smp__units *units, smp__link link, int32_t net)
{
    return link == SMP__LINK_SAME ? 0.0 : (double)units->net_bytes[net];
}

static inline int64_t first_hold(const smp__sequence *sequence, int32_t i)
{
    return sequence->hold_begin ? sequence->hold_begin[i] : 0;
}

static inline void add_unit(const smp__units *units, int32_t u, smp__holdings *held)
{
    held->weight += (double)units->weight_bytes[u];
    held->stash += (double)units->stash_bytes[u];
    if ((double)units->workspace_bytes[u] > held->workspace)
        held->workspace = (double)units->workspace_bytes[u];
}

/* The bytes of push_left and push_right: as their times, net by net. */
static void push_left_bytes(const smp__sequence *sequence, int k, smp__holdings *held, int32_t i,
                            int32_t j)
{
    const smp__units *units = sequence->units;
    smp__link in = sequence->in_link[k], out = sequence->out_link[k];
    for (int64_t e = sequence->read_begin[i]; e < sequence->read_begin[i + 1]; e++) {
        if (sequence->read[e].next >= j)
            held->in += border_bytes(units, in, sequence->read[e].net);
    }
    for (int64_t e = sequence->make_begin[i]; e < sequence->make_begin[i + 1]; e++) {
        if (sequence->make[e].last >= j)
            held->out += border_bytes(units, out, sequence->make[e].net);
        if (sequence->make[e].first < j)
            held->in -= border_bytes(units, in, sequence->make[e].net);
    }
    for (int64_t e = first_hold(sequence, i); e < first_hold(sequence, i + 1); e++) {
        if (sequence->hold[e].next >= j)
            held->weight += (double)units->share_bytes[sequence->hold[e].share];
    }
    add_unit(units, sequence->unit[i], held);
}

static void push_right_bytes(const smp__sequence *sequence, int k, smp__holdings *held, int32_t i,
                             int32_t j)
{
    const smp__units *units = sequence->units;
    smp__link in = sequence->in_link[k], out = sequence->out_link[k];
    for (int64_t e = sequence->read_begin[j]; e < sequence->read_begin[j + 1]; e++) {
        const smp__read *read = &sequence->read[e];
        if (read->producer >= i) {
            if (read->next == sequence->n)
                held->out -= border_bytes(units, out, read->net);
        } else if (read->previous < i) {
            held->in += border_bytes(units, in, read->net);
        }
    }
    for (int64_t e = sequence->make_begin[j]; e < sequence->make_begin[j + 1]; e++)
        held->out += border_bytes(units, out, sequence->make[e].net);
    for (int64_t e = first_hold(sequence, j); e < first_hold(sequence, j + 1); e++) {
        if (sequence->hold[e].previous < i)
            held->weight += (double)units->share_bytes[sequence->hold[e].share];
    }
    add_unit(units, sequence->unit[j], held);
}

void smp__interval_push_left(const smp__sequence *sequence, int k, smp__interval *interval,
                             int32_t i, int32_t j)
{
    const double *in_us = sequence->units->net_us[sequence->in_link[k]];
    const double *out_us = sequence->units->net_us[sequence->out_link[k]];
    for (int64_t e = sequence->read_begin[i]; e < sequence->read_begin[i + 1]; e++) {
        if (sequence->read[e].next >= j)
            interval->in_us += in_us[sequence->read[e].net];
    }
    for (int64_t e = sequence->make_begin[i]; e < sequence->make_begin[i + 1]; e++) {
        if (sequence->make[e].last >= j)
            interval->out_us += out_us[sequence->make[e].net];
        if (sequence->make[e].first < j)
            interval->in_us -= in_us[sequence->make[e].net];
    }
    if (sequence->memory_binds)
        push_left_bytes(sequence, k, &interval->held, i, j);
}

void smp__interval_push_right(const smp__sequence *sequence, int k, smp__interval *interval,
                              int32_t i, int32_t j)
{
    const double *in_us = sequence->units->net_us[sequence->in_link[k]];
    const double *out_us = sequence->units->net_us[sequence->out_link[k]];
    for (int64_t e = sequence->read_begin[j]; e < sequence->read_begin[j + 1]; e++) {
        const smp__read *read = &sequence->read[e];
        if (read->producer >= i) {
            if (read->next == sequence->n)
                interval->out_us -= out_us[read->net];
        } else if (read->previous < i) {
            interval->in_us += in_us[read->net];
        }
    }
    for (int64_t e = sequence->make_begin[j]; e < sequence->make_begin[j + 1]; e++)
        interval->out_us += out_us[sequence->make[e].net];
    if (sequence->memory_binds)
        push_right_bytes(sequence, k, &interval->held, i, j);
}
