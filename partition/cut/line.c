/* Preparing an order for cutting: neighbours of every position in flat arrays, so that growing an
 * interval by one unit at either end touches a few consecutive entries. O(n + uses). */
#include "partition/cut/line.h"

static smp_status list_reads(smp__line *line, const int32_t *position, smp_arena *scratch)
{
    const smp__units *units = line->units;
    int64_t *latest =
        SMP_ARENA_NEW(scratch, int64_t, (size_t)units->n_net); /* entry of line->read */
    int32_t *latest_position = SMP_ARENA_NEW(scratch, int32_t, (size_t)units->n_net);
    line->read_begin = SMP_ARENA_NEW(line->arena, int64_t, (size_t)line->n + 1);
    line->read = SMP_ARENA_NEW(line->arena, smp__read, (size_t)units->in_begin[units->n]);
    line->make_begin = SMP_ARENA_NEW(line->arena, int64_t, (size_t)line->n + 1);
    line->make = SMP_ARENA_NEW(line->arena, smp__make, (size_t)units->n_net);
    int32_t *first = SMP_ARENA_NEW(scratch, int32_t, (size_t)units->n_net);
    if (!latest || !latest_position || !line->read_begin || !line->read || !line->make_begin ||
        !line->make || !first)
        return SMP_ERR_NO_MEMORY;
    for (int32_t net = 0; net < units->n_net; net++)
        latest_position[net] = -1;
    int64_t n = 0, made = 0;
    for (int32_t i = 0; i < line->n; i++) {
        int32_t u = line->unit[i];
        for (int64_t e = units->in_begin[u]; e < units->in_begin[u + 1]; e++) {
            int32_t net = units->in_net[e];
            int32_t previous = latest_position[net];
            line->read[n] = (smp__read){net, position[units->net_unit[net]], previous, line->n};
            if (previous < 0)
                first[net] = i;
            else
                line->read[latest[net]].next = i;
            latest[net] = n++;
            latest_position[net] = i;
        }
        line->read_begin[i + 1] = n;
    }
    for (int32_t i = 0; i < line->n; i++) {
        int32_t u = line->unit[i];
        for (int64_t o = units->out_begin[u]; o < units->out_begin[u + 1]; o++) {
            int32_t net = units->out_net[o];
            line->make[made++] = (smp__make){net, first[net], latest_position[net]};
        }
        line->make_begin[i + 1] = made;
    }
    return SMP_OK;
}

static smp_status list_holds(smp__line *line, smp_arena *scratch)
{
    const smp__units *units = line->units;
    if (units->n_share == 0 || !line->memory_binds)
        return SMP_OK;
    int64_t *latest = SMP_ARENA_NEW(scratch, int64_t, (size_t)units->n_share);
    int32_t *latest_position = SMP_ARENA_NEW(scratch, int32_t, (size_t)units->n_share);
    line->hold_begin = SMP_ARENA_NEW(line->arena, int64_t, (size_t)line->n + 1);
    line->hold = SMP_ARENA_NEW(line->arena, smp__hold, (size_t)units->hold_begin[units->n]);
    if (!latest || !latest_position || !line->hold_begin || !line->hold)
        return SMP_ERR_NO_MEMORY;
    for (int32_t share = 0; share < units->n_share; share++) {
        latest[share] = -1;
        latest_position[share] = -1;
    }
    int64_t n = 0;
    for (int32_t i = 0; i < line->n; i++) {
        int32_t u = line->unit[i];
        for (int64_t h = units->hold_begin[u]; h < units->hold_begin[u + 1]; h++) {
            int32_t share = units->hold_share[h];
            line->hold[n] = (smp__hold){share, latest_position[share], line->n};
            if (latest[share] >= 0)
                line->hold[latest[share]].next = i;
            latest[share] = n++;
            latest_position[share] = i;
        }
        line->hold_begin[i + 1] = n;
    }
    return SMP_OK;
}

static smp_status sum_compute(smp__line *line)
{
    const smp__units *units = line->units;
    const smp_problem *problem = line->problem;
    bool training = problem->graph->training;
    bool always = training && problem->recompute == SMP_RECOMPUTE_ALL;
    line->before_us = SMP_ARENA_NEW(line->arena, double, (size_t)line->n + 1);
    if (!line->before_us)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < line->n; i++) {
        int32_t u = line->unit[i];
        line->before_us[i + 1] =
            line->before_us[i] + units->compute_us[u] + (always ? units->forward_us[u] : 0.0);
    }
    if (!training || problem->recompute != SMP_RECOMPUTE_AUTO || !units->memory_binds)
        return SMP_OK;
    line->forward_us = SMP_ARENA_NEW(line->arena, double, (size_t)line->n + 1);
    if (!line->forward_us)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < line->n; i++)
        line->forward_us[i + 1] = line->forward_us[i] + units->forward_us[line->unit[i]];
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

double smp__line_least_head(const smp__line *line, smp__link link, int32_t lo, int32_t hi)
{
    return least_in(line->head_us[link], line->head_block_us[link], lo, hi);
}

double smp__line_least_tail(const smp__line *line, smp__link link, int32_t lo, int32_t hi)
{
    return least_in(line->tail_us[link], line->tail_block_us[link], lo, hi);
}

/* Only where transfers add to compute, and only for links that some border has. */
static smp_status sum_ends(smp__line *line)
{
    const smp__units *units = line->units;
    int32_t n = line->n;
    bool used[SMP__N_LINK] = {false};
    for (int k = 0; k < line->n_stage && !line->problem->cluster->overlap; k++)
        used[line->in_link[k]] = used[line->out_link[k]] = true;
    for (int link = 0; link < SMP__N_LINK; link++) {
        if (!used[link] || link == SMP__LINK_SAME)
            continue;
        double *head = line->head_us[link] = SMP_ARENA_NEW(line->arena, double, (size_t)n + 1);
        double *tail = line->tail_us[link] = SMP_ARENA_NEW(line->arena, double, (size_t)n + 1);
        if (!head || !tail)
            return SMP_ERR_NO_MEMORY;
        for (int32_t i = 0; i < n; i++) {
            for (int64_t e = line->read_begin[i]; e < line->read_begin[i + 1]; e++)
                head[i] += units->net_us[link][line->read[e].net];
            for (int64_t e = line->make_begin[i]; e < line->make_begin[i + 1]; e++)
                tail[i + 1] += units->net_us[link][line->make[e].net];
        }
        line->head_block_us[link] = least_of_blocks(line->arena, head, n + 1);
        line->tail_block_us[link] = least_of_blocks(line->arena, tail, n + 1);
        if (!line->head_block_us[link] || !line->tail_block_us[link])
            return SMP_ERR_NO_MEMORY;
    }
    return SMP_OK;
}

static smp_status describe_stages(smp__line *line)
{
    const smp_problem *problem = line->problem;
    size_t n_stage = (size_t)line->n_stage;
    line->slowdown = SMP_ARENA_NEW(line->arena, double, n_stage);
    line->in_link = SMP_ARENA_NEW(line->arena, smp__link, n_stage);
    line->out_link = SMP_ARENA_NEW(line->arena, smp__link, n_stage);
    if (!line->slowdown || !line->in_link || !line->out_link)
        return SMP_ERR_NO_MEMORY;
    for (int k = 0; k < line->n_stage; k++) {
        int rank = problem->stage_rank[k];
        line->slowdown[k] = smp_problem_slowdown(problem, problem->device[rank]);
        line->in_link[k] = line->out_link[k] = SMP__LINK_SAME;
        if (k > 0)
            line->in_link[k] = smp__link_between(problem, problem->stage_rank[k - 1], rank);
        if (k + 1 < line->n_stage)
            line->out_link[k] = smp__link_between(problem, rank, problem->stage_rank[k + 1]);
    }
    return SMP_OK;
}

/* Border k must stand after all units that end before stage k and before all that begin in it or
 * later, and leave a unit to every stage. */
static smp_status bound_borders(smp__line *line)
{
    const smp__units *units = line->units;
    int K = line->n_stage;
    line->border_lo = SMP_ARENA_NEW(line->arena, int32_t, (size_t)K + 1);
    line->border_hi = SMP_ARENA_NEW(line->arena, int32_t, (size_t)K + 1);
    if (!line->border_lo || !line->border_hi)
        return SMP_ERR_NO_MEMORY;
    for (int k = 0; k <= K; k++)
        line->border_hi[k] = line->n;
    for (int32_t i = 0; i < line->n && units->has_pin; i++) {
        int32_t u = line->unit[i];
        if (units->hi[u] + 1 < K)
            line->border_lo[units->hi[u] + 1] = i + 1;
        if (units->lo[u] > 0 && line->border_hi[units->lo[u]] > i)
            line->border_hi[units->lo[u]] = i;
    }
    line->border_hi[0] = 0;
    line->border_lo[K] = line->n;
    for (int k = 1; k <= K; k++) {
        if (line->border_lo[k] <= line->border_lo[k - 1])
            line->border_lo[k] = line->border_lo[k - 1] + 1;
    }
    for (int k = K - 1; k >= 0; k--) {
        if (line->border_hi[k] >= line->border_hi[k + 1])
            line->border_hi[k] = line->border_hi[k + 1] - 1;
    }
    line->feasible = true;
    for (int k = 0; k <= K; k++)
        line->feasible &= line->border_lo[k] <= line->border_hi[k];
    return SMP_OK;
}

smp_status smp__line_build(const smp_problem *problem, const smp__units *units,
                           const int32_t *order, smp__line **out)
{
    smp_status status = SMP_ERR_NO_MEMORY;
    smp_arena *arena = smp_arena_create(), *scratch = smp_arena_create();
    smp__line *line = arena && scratch ? SMP_ARENA_NEW(arena, smp__line, 1) : NULL;
    if (!line)
        goto done;
    *line = (smp__line){.problem = problem,
                        .units = units,
                        .n = units->n,
                        .n_stage = problem->n_stage,
                        .memory_binds = units->memory_binds,
                        .fill = 1.0,
                        .arena = arena};
    int32_t *position = SMP_ARENA_NEW(scratch, int32_t, (size_t)units->n);
    line->unit = SMP_ARENA_NEW(arena, int32_t, (size_t)units->n);
    if (!position || !line->unit)
        goto done;
    for (int32_t i = 0; i < units->n; i++) {
        line->unit[i] = order[i];
        position[order[i]] = i;
    }
    status = list_reads(line, position, scratch);
    if (status == SMP_OK)
        status = list_holds(line, scratch);
    if (status == SMP_OK)
        status = describe_stages(line);
    if (status == SMP_OK)
        status = sum_compute(line);
    if (status == SMP_OK)
        status = sum_ends(line);
    if (status == SMP_OK)
        status = bound_borders(line);
done:
    smp_arena_destroy(scratch);
    if (status == SMP_OK)
        *out = line;
    else
        smp_arena_destroy(arena);
    return status;
}

void smp__line_destroy(smp__line *line)
{
    if (line)
        smp_arena_destroy(line->arena);
}

/* Bytes of a net at a border: none between stages of one rank. */
static inline double border_bytes(const smp__units *units, smp__link link, int32_t net)
{
    return link == SMP__LINK_SAME ? 0.0 : (double)units->net_bytes[net];
}

static inline int64_t first_hold(const smp__line *line, int32_t i)
{
    return line->hold_begin ? line->hold_begin[i] : 0;
}

static inline void add_unit(const smp__units *units, int32_t u, smp__held *held)
{
    held->weight += (double)units->weight_bytes[u];
    held->stash += (double)units->stash_bytes[u];
    if ((double)units->workspace_bytes[u] > held->workspace)
        held->workspace = (double)units->workspace_bytes[u];
}

/* The bytes of push_left and push_right: as their times, net by net. */
static void push_left_bytes(const smp__line *line, int k, smp__held *held, int32_t i, int32_t j)
{
    const smp__units *units = line->units;
    smp__link in = line->in_link[k], out = line->out_link[k];
    for (int64_t e = line->read_begin[i]; e < line->read_begin[i + 1]; e++) {
        if (line->read[e].next >= j)
            held->in += border_bytes(units, in, line->read[e].net);
    }
    for (int64_t e = line->make_begin[i]; e < line->make_begin[i + 1]; e++) {
        if (line->make[e].last >= j)
            held->out += border_bytes(units, out, line->make[e].net);
        if (line->make[e].first < j)
            held->in -= border_bytes(units, in, line->make[e].net);
    }
    for (int64_t e = first_hold(line, i); e < first_hold(line, i + 1); e++) {
        if (line->hold[e].next >= j)
            held->weight += (double)units->share_bytes[line->hold[e].share];
    }
    add_unit(units, line->unit[i], held);
}

static void push_right_bytes(const smp__line *line, int k, smp__held *held, int32_t i, int32_t j)
{
    const smp__units *units = line->units;
    smp__link in = line->in_link[k], out = line->out_link[k];
    for (int64_t e = line->read_begin[j]; e < line->read_begin[j + 1]; e++) {
        const smp__read *read = &line->read[e];
        if (read->producer >= i) {
            if (read->next == line->n)
                held->out -= border_bytes(units, out, read->net);
        } else if (read->previous < i) {
            held->in += border_bytes(units, in, read->net);
        }
    }
    for (int64_t e = line->make_begin[j]; e < line->make_begin[j + 1]; e++)
        held->out += border_bytes(units, out, line->make[e].net);
    for (int64_t e = first_hold(line, j); e < first_hold(line, j + 1); e++) {
        if (line->hold[e].previous < i)
            held->weight += (double)units->share_bytes[line->hold[e].share];
    }
    add_unit(units, line->unit[j], held);
}

void smp__interval_push_left(const smp__line *line, int k, smp__interval *interval, int32_t i,
                             int32_t j)
{
    const double *in_us = line->units->net_us[line->in_link[k]];
    const double *out_us = line->units->net_us[line->out_link[k]];
    for (int64_t e = line->read_begin[i]; e < line->read_begin[i + 1]; e++) {
        if (line->read[e].next >= j)
            interval->in_us += in_us[line->read[e].net];
    }
    for (int64_t e = line->make_begin[i]; e < line->make_begin[i + 1]; e++) {
        if (line->make[e].last >= j)
            interval->out_us += out_us[line->make[e].net];
        if (line->make[e].first < j)
            interval->in_us -= in_us[line->make[e].net];
    }
    if (line->memory_binds)
        push_left_bytes(line, k, &interval->held, i, j);
}

void smp__interval_push_right(const smp__line *line, int k, smp__interval *interval, int32_t i,
                              int32_t j)
{
    const double *in_us = line->units->net_us[line->in_link[k]];
    const double *out_us = line->units->net_us[line->out_link[k]];
    for (int64_t e = line->read_begin[j]; e < line->read_begin[j + 1]; e++) {
        const smp__read *read = &line->read[e];
        if (read->producer >= i) {
            if (read->next == line->n)
                interval->out_us -= out_us[read->net];
        } else if (read->previous < i) {
            interval->in_us += in_us[read->net];
        }
    }
    for (int64_t e = line->make_begin[j]; e < line->make_begin[j + 1]; e++)
        interval->out_us += out_us[line->make[e].net];
    if (line->memory_binds)
        push_right_bytes(line, k, &interval->held, i, j);
}
