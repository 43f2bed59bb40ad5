/* Preparing an order for cutting: neighbours of every position in flat arrays, so that growing an
 * interval by one unit at either end touches a few consecutive entries. O(n + uses). */
#include "partition/line.h"

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

static smp_status sum_ends(smp__line *line)
{
    const smp__units *units = line->units;
    line->before_us = SMP_ARENA_NEW(line->arena, double, (size_t)line->n + 1);
    if (!line->before_us)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < line->n; i++)
        line->before_us[i + 1] = line->before_us[i] + units->compute_us[line->unit[i]];
    for (int link = 0; link < SMP__N_LINK; link++) {
        line->head_us[link] = SMP_ARENA_NEW(line->arena, double, (size_t)line->n + 1);
        line->tail_us[link] = SMP_ARENA_NEW(line->arena, double, (size_t)line->n + 1);
        if (!line->head_us[link] || !line->tail_us[link])
            return SMP_ERR_NO_MEMORY;
        for (int32_t i = 0; i < line->n && link != SMP__LINK_SAME; i++) {
            for (int64_t e = line->read_begin[i]; e < line->read_begin[i + 1]; e++)
                line->head_us[link][i] += units->net_us[link][line->read[e].net];
            for (int64_t e = line->make_begin[i]; e < line->make_begin[i + 1]; e++)
                line->tail_us[link][i + 1] += units->net_us[link][line->make[e].net];
        }
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
        line->slowdown[k] = smp_device_slowdown(problem->cluster, problem->device[rank]);
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
        status = sum_ends(line);
    if (status == SMP_OK)
        status = describe_stages(line);
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

void smp__interval_push_left(const smp__line *line, int k, smp__interval *interval, int32_t i,
                             int32_t j)
{
    const smp__units *units = line->units;
    const double *in_us = units->net_us[line->in_link[k]];
    const double *out_us = units->net_us[line->out_link[k]];
    int32_t u = line->unit[i];
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
    interval->weight_bytes += (double)units->weight_bytes[u];
    for (int64_t e = line->hold_begin[i]; e < line->hold_begin[i + 1]; e++) {
        if (line->hold[e].next >= j)
            interval->weight_bytes += (double)units->share_bytes[line->hold[e].share];
    }
    interval->stash_bytes += (double)units->stash_bytes[u];
    if ((double)units->workspace_bytes[u] > interval->workspace_bytes)
        interval->workspace_bytes = (double)units->workspace_bytes[u];
}

void smp__interval_push_right(const smp__line *line, int k, smp__interval *interval, int32_t i,
                              int32_t j)
{
    const smp__units *units = line->units;
    const double *in_us = units->net_us[line->in_link[k]];
    const double *out_us = units->net_us[line->out_link[k]];
    int32_t u = line->unit[j];
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
    interval->weight_bytes += (double)units->weight_bytes[u];
    for (int64_t e = line->hold_begin[j]; e < line->hold_begin[j + 1]; e++) {
        if (line->hold[e].previous < i)
            interval->weight_bytes += (double)units->share_bytes[line->hold[e].share];
    }
    interval->stash_bytes += (double)units->stash_bytes[u];
    if ((double)units->workspace_bytes[u] > interval->workspace_bytes)
        interval->workspace_bytes = (double)units->workspace_bytes[u];
}
