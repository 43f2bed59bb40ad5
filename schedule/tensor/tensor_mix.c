/* Groups of different sizes: where each stage begins, how large its group is and how its ops are
 * split, by costs alone; the planner then plans what is found. See the header. */
#include "schedule/tensor/tensor_mix.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/clock.h"
#include "graph/model/op.h"
#include "profile/costs.h"
#include "schedule/planner/space/session.h"

enum {
    MOST_CUTS = 48,
    MOST_DEVICES = 32, /* of a replica */
    MOST_OPS = 1 << 15
};
#define WORTH 0.97 /* of the time of the best where all stages have one option */

/* What the ops before a place take, of one option: by op of the whole graph. */
typedef struct sums {
    double *forward_us, *backward_us; /* [n_op + 1] */
    int64_t *weight_bytes, *stash_bytes;
    int64_t *most_bytes; /* [n_op] of an op alone, beside what is kept, */
    int64_t *stage_most; /* [n_cut][n_cut] and the most of those between two cuts */
} sums;

typedef struct mixer {
    const smp_search_request *base;
    const smp__tensor_option *option;
    int n_option;
    int64_t memory_bytes;
    smp_arena *arena;
    sums sum[SMP__TENSOR_OPTIONS];
    int64_t *crossing; /* [n_op + 1] bytes of a micro-batch between what is before and after */
    int32_t cut[MOST_CUTS + 2]; /* [n_cut] places where stages begin, and the end */
    int n_cut;
    int32_t *tied; /* [n_tied] ops that share a weight with another */
    int n_tied;
} mixer;

/* The best way to end a pipeline: the slowest of its stages, and its first one. */
typedef struct ending {
    double us; /* INFINITY: none */
    uint8_t next, option;
} ending;

/* A search for one number of replicas. */
typedef struct ends {
    int devices, stages; /* at most */
    int64_t microbatches;
    double samples; /* of a step, of all replicas */
    int only;       /* option, or -1: any */
    int tied;       /* that of stages with tied weights, likewise */
    ending *at;     /* [stages + 1][devices + 1][n_cut] */
} ends;

static smp_status open_sums(mixer *m, sums *s)
{
    const size_t n = (size_t)m->base->graph->n_op + 1;
    s->forward_us = SMP_ARENA_NEW(m->arena, double, n);
    s->backward_us = SMP_ARENA_NEW(m->arena, double, n);
    s->weight_bytes = SMP_ARENA_NEW(m->arena, int64_t, n);
    s->stash_bytes = SMP_ARENA_NEW(m->arena, int64_t, n);
    s->most_bytes = SMP_ARENA_NEW(m->arena, int64_t, n);
    return s->forward_us && s->backward_us && s->weight_bytes && s->stash_bytes && s->most_bytes
               ? SMP_OK
               : SMP_ERR_NO_MEMORY;
}

static int64_t kept_of(const smp_graph *graph, const smp_op *op)
{
    const int64_t each = smp_weight_element_bytes(graph, smp_planned_states(graph->training));
    int64_t bytes = 0;
    for (int32_t p = 0; p < op->n_param; p++)
        bytes += each * graph->param[op->param[p]].elements;
    return bytes;
}

/* What stands before an op of the model counts to it. */
static void add_costs(const smp_graph *whole, const smp_graph *graph, const smp_costs *costs,
                      sums *s)
{
    int32_t next = 0;
    for (int32_t o = 0; o < graph->n_op; o++) {
        const smp_op_cost *cost = &costs->op[o];
        const int32_t at = next < whole->n_op ? next : whole->n_op - 1;
        s->forward_us[at + 1] += cost->forward_us;
        s->backward_us[at + 1] += cost->backward_us;
        s->weight_bytes[at + 1] += kept_of(graph, &graph->op[o]);
        s->stash_bytes[at + 1] += cost->stash_bytes;
        const int64_t alone = cost->output_bytes + cost->workspace_bytes;
        s->most_bytes[at] = alone > s->most_bytes[at] ? alone : s->most_bytes[at];
        next += next < whole->n_op && strcmp(whole->op[next].name, graph->op[o].name) == 0;
    }
    for (int32_t i = 0; i < whole->n_op; i++) {
        s->forward_us[i + 1] += s->forward_us[i];
        s->backward_us[i + 1] += s->backward_us[i];
        s->weight_bytes[i + 1] += s->weight_bytes[i];
        s->stash_bytes[i + 1] += s->stash_bytes[i];
    }
}

static smp_status sum_option(mixer *m, const smp__tensor_option *option, sums *s)
{
    const smp_search_request *r = m->base;
    const bool alone = option->tensor == 1;
    smp_graph *graph = NULL;
    smp_costs *costs = NULL;
    SMP_TRY(open_sums(m, s));
    if (!alone)
        SMP_TRY(smp_splitting_split(&option->splitting, 0, r->graph, &graph));
    smp_status status =
        smp_costs_build(alone ? r->graph : graph, alone ? r->cluster : option->groups, r->profile,
                        r->options.microbatch_size, &costs);
    if (status == SMP_OK)
        add_costs(r->graph, alone ? r->graph : graph, costs, s);
    smp_costs_destroy(costs);
    smp_graph_destroy(graph);
    return status;
}

/* A tensor crosses every place between its op and the last that reads it. */
static smp_status find_crossing(mixer *m)
{
    const smp_graph *g = m->base->graph;
    m->crossing = SMP_ARENA_NEW(m->arena, int64_t, (size_t)g->n_op + 1);
    if (!m->crossing)
        return SMP_ERR_NO_MEMORY;
    for (int32_t t = g->n_input; t < g->n_tensor; t++) {
        int32_t last = g->tensor[t].producer;
        for (int64_t i = g->consumer_begin[t]; i < g->consumer_begin[t + 1]; i++)
            last = g->consumer[i].op > last ? g->consumer[i].op : last;
        const int64_t bytes = smp_tensor_bytes(g, t, m->base->options.microbatch_size);
        m->crossing[g->tensor[t].producer + 1] += bytes;
        m->crossing[last + 1] -= bytes;
    }
    for (int32_t i = 1; i <= g->n_op; i++)
        m->crossing[i] += m->crossing[i - 1];
    return SMP_OK;
}

/* Before op i, of what is not kept together, no more crosses than at the places beside it. */
static bool is_narrow(const mixer *m, int32_t i)
{
    const smp_op *before = &m->base->graph->op[i - 1], *after = before + 1;
    return m->crossing[i] <= m->crossing[i - 1] && m->crossing[i] <= m->crossing[i + 1] &&
           (before->group < 0 || before->group != after->group);
}

/* All narrow places, or as many of them as there is room for, evenly by what is computed between.
 */
static void find_cuts(mixer *m)
{
    const int32_t n = m->base->graph->n_op;
    const double *us = m->sum[0].forward_us;
    int32_t narrow = 0;
    for (int32_t i = 1; i < n; i++)
        narrow += is_narrow(m, i);
    m->cut[m->n_cut++] = 0;
    for (int32_t i = 1; i < n && m->n_cut <= MOST_CUTS; i++) {
        const double due_us = us[n] * m->n_cut / (MOST_CUTS + 1);
        if (is_narrow(m, i) && (narrow <= MOST_CUTS || us[i] >= due_us))
            m->cut[m->n_cut++] = i;
    }
    m->cut[m->n_cut++] = n;
}

static smp_status find_most(mixer *m, sums *s)
{
    s->stage_most = SMP_ARENA_NEW(m->arena, int64_t, (size_t)m->n_cut * (size_t)m->n_cut);
    if (!s->stage_most)
        return SMP_ERR_NO_MEMORY;
    for (int a = 0; a + 1 < m->n_cut; a++) {
        int64_t most = 0;
        for (int b = a + 1; b < m->n_cut; b++) {
            for (int32_t i = m->cut[b - 1]; i < m->cut[b]; i++)
                most = s->most_bytes[i] > most ? s->most_bytes[i] : most;
            s->stage_most[a * m->n_cut + b] = most;
        }
    }
    return SMP_OK;
}

static smp_status find_tied(mixer *m)
{
    const smp_graph *g = m->base->graph;
    m->tied = SMP_ARENA_NEW(m->arena, int32_t, (size_t)g->n_use);
    if (!m->tied)
        return SMP_ERR_NO_MEMORY;
    for (int32_t p = 0; p < g->n_param; p++)
        for (int32_t u = g->param[p].use_begin;
             g->param[p].use_end - g->param[p].use_begin > 1 && u < g->param[p].use_end; u++)
            m->tied[m->n_tied++] = g->use[u].op;
    return SMP_OK;
}

static bool has_tied(const mixer *m, int32_t begin, int32_t end)
{
    bool has = false;
    for (int i = 0; i < m->n_tied && !has; i++)
        has = begin <= m->tied[i] && m->tied[i] < end;
    return has;
}

/* Microseconds of a micro-batch on a stage of cuts a to b with so many stages behind it; INFINITY
 * where it does not fit. */
static double stage_us(const mixer *m, const sums *s, int a, int b, int64_t live)
{
    const int32_t begin = m->cut[a], end = m->cut[b];
    const double forward_us = s->forward_us[end] - s->forward_us[begin];
    const double us = forward_us + s->backward_us[end] - s->backward_us[begin];
    const int64_t stash = s->stash_bytes[end] - s->stash_bytes[begin];
    const int64_t borders = m->crossing[begin] + m->crossing[end];
    const int64_t base = s->weight_bytes[end] - s->weight_bytes[begin] +
                         2 * s->stage_most[a * m->n_cut + b] + live * borders;
    if (base + live * stash <= m->memory_bytes)
        return us;
    return m->base->graph->training && base + stash <= m->memory_bytes ? us + forward_us : INFINITY;
}

/* Do the devices of a stage lie on one node, `used` of its replica's being behind them? */
static bool on_one_node(const mixer *m, const ends *e, int used, int tensor)
{
    const int per_node = m->base->cluster->devices_per_node, first = e->devices - used - tensor;
    return first / per_node == (first + tensor - 1) / per_node;
}

static ending *ending_at(const mixer *m, const ends *e, int stages, int used, int cut)
{
    return &e->at[((int64_t)stages * (e->devices + 1) + used) * m->n_cut + cut];
}

/* One more stage before all endings of `stages` stages, from cut a to b with an option. */
static void extend(const mixer *m, ends *e, int stages, int a, int b, int option)
{
    const int tensor = m->option[option].tensor;
    const int64_t live = stages + 1 < e->microbatches ? stages + 1 : e->microbatches;
    if (e->tied >= 0 && option != e->tied && has_tied(m, m->cut[a], m->cut[b]))
        return;
    const double us = stage_us(m, &m->sum[option], a, b, m->base->graph->training ? live : 1);
    if (!(us < INFINITY))
        return;
    for (int used = stages; used + tensor <= e->devices; used++) {
        const double after_us = ending_at(m, e, stages, used, b)->us;
        const double slowest_us = after_us > us ? after_us : us;
        ending *to = ending_at(m, e, stages + 1, used + tensor, a);
        if (slowest_us < to->us && on_one_node(m, e, used, tensor))
            *to = (ending){slowest_us, (uint8_t)b, (uint8_t)option};
    }
}

/* Fills in the table; the work is that of its comparisons. */
static void find_endings(const mixer *m, ends *e)
{
    const int64_t n = (int64_t)(e->stages + 1) * (e->devices + 1) * m->n_cut;
    for (int64_t i = 0; i < n; i++)
        e->at[i].us = INFINITY;
    ending_at(m, e, 0, 0, m->n_cut - 1)->us = 0.0;
    for (int stages = 0; stages < e->stages; stages++) {
        const int last = stages == 0 ? m->n_cut - 1 : m->n_cut - 2;
        for (int b = stages == 0 ? last : 1; b <= last; b++)
            for (int a = 0; a < b; a++)
                for (int o = 0; o < m->n_option; o++)
                    if (e->only < 0 || e->only == o)
                        extend(m, e, stages, a, b, o);
    }
    smp_work_count(SMP_WORK_COMPARE, (double)n * m->n_cut * (e->only < 0 ? m->n_option : 1) / 2.0);
}

/* Per sample, of the best whole pipeline; *stages: how many it has, 0: none fits. */
static double best_pipeline(const mixer *m, const ends *e, int *stages)
{
    double best = INFINITY;
    *stages = 0;
    for (int k = 1; k <= e->stages; k++) {
        const double us =
            (double)(e->microbatches + k - 1) * ending_at(m, e, k, e->devices, 0)->us / e->samples;
        if (us < best) {
            best = us;
            *stages = k;
        }
    }
    return best;
}

static bool differs(const mixer *m, const ends *e, int stages)
{
    const ending *at = ending_at(m, e, stages, e->devices, 0);
    const int first = at->option;
    bool other = false;
    for (int used = e->devices; stages > 0 && !other;) {
        other = at->option != first;
        used -= m->option[at->option].tensor;
        stages--;
        if (stages > 0)
            at = ending_at(m, e, stages, used, at->next);
    }
    return other;
}

/* The splitting: of each op the choice of its stage's option. */
static smp_status join_splittings(const mixer *m, const int *option, smp__tensor_mix *mix)
{
    const smp_graph *g = m->base->graph;
    smp_split_entry *entry = SMP_ARENA_NEW(m->arena, smp_split_entry, (size_t)g->n_op);
    smp_split_fewer *fewer = SMP_ARENA_NEW(m->arena, smp_split_fewer, (size_t)g->n_op);
    int32_t next[SMP__TENSOR_OPTIONS] = {0}, n = 0, n_fewer = 0;
    int most = 1;
    if (!entry || !fewer)
        return SMP_ERR_NO_MEMORY;
    for (int k = 0; k < mix->stages; k++) {
        const int tensor = m->option[option[k]].tensor;
        most = tensor > most ? tensor : most;
        mix->least = mix->least == 0 || tensor < mix->least ? tensor : mix->least;
        mix->splitting.overlap |= tensor > 1 && m->option[option[k]].splitting.overlap;
    }
    for (int32_t o = 0; o < g->n_op; o++) {
        const int own = option[mix->stage[o]];
        for (int k = 0; k < m->n_option; k++) { /* entries are in op order */
            const smp_splitting *s = &m->option[k].splitting;
            if (next[k] == s->n_entry || strcmp(s->entry[next[k]].op, g->op[o].name) != 0)
                continue;
            if (k == own)
                entry[n++] = s->entry[next[k]];
            next[k]++;
        }
        if (m->option[own].tensor < most)
            fewer[n_fewer++] = (smp_split_fewer){g->op[o].name, m->option[own].tensor};
    }
    mix->splitting.devices = most;
    mix->splitting.entry = entry;
    mix->splitting.n_entry = n;
    mix->splitting.fewer = fewer;
    mix->splitting.n_fewer = n_fewer;
    return SMP_OK;
}

/* The stages of the best pipeline. */
static smp_status take_pipeline(const mixer *m, const ends *e, int stages, smp__tensor_mix *mix)
{
    int *begin = SMP_ARENA_NEW(m->arena, int, (size_t)stages + 1);
    int *option = SMP_ARENA_NEW(m->arena, int, (size_t)stages);
    int32_t *stage = SMP_ARENA_NEW(m->arena, int32_t, (size_t)m->base->graph->n_op);
    if (!begin || !option || !stage)
        return SMP_ERR_NO_MEMORY;
    for (int k = 0, cut = 0; k < stages; k++) {
        const ending *at = ending_at(m, e, stages - k, e->devices - begin[k], cut);
        option[k] = at->option;
        begin[k + 1] = begin[k] + m->option[at->option].tensor;
        for (int32_t o = m->cut[cut]; o < m->cut[at->next]; o++)
            stage[o] = k;
        cut = at->next;
    }
    mix->stages = stages;
    mix->rank_begin = begin;
    mix->stage = stage;
    return join_splittings(m, option, mix);
}

/* Keeps the best of each number of replicas, in order. */
static void insert(smp__tensor_mix mix, smp__tensor_mix out[SMP__TENSOR_MIXES], int *n)
{
    int at = *n;
    for (; at > 0 && mix.sample_us < out[at - 1].sample_us; at--)
        if (at < SMP__TENSOR_MIXES)
            out[at] = out[at - 1];
    if (at < SMP__TENSOR_MIXES)
        out[at] = mix;
    *n += *n < SMP__TENSOR_MIXES;
}

/* Groups of one replica must lie alike in all. */
static bool suits(const mixer *m, int ddp)
{
    const smp_plan_options *o = &m->base->options;
    const int devices = o->devices / ddp, per_node = m->base->cluster->devices_per_node;
    const int64_t samples = smp__least_batch_of(m->base, o->microbatch_size, ddp).samples;
    return o->devices % ddp == 0 && devices >= 2 && devices <= MOST_DEVICES &&
           (devices % per_node == 0 || per_node % devices == 0 || ddp == 1) &&
           (o->ddp == 0 || o->ddp == ddp) &&
           (o->global_batch == 0 || o->global_batch % samples == 0);
}

static ends begin_ends(const mixer *m, int ddp, smp_arena *scratch)
{
    const smp_plan_options *o = &m->base->options;
    const smp__least_batch least = smp__least_batch_of(m->base, o->microbatch_size, ddp);
    ends e = {.devices = o->devices / ddp, .only = -1, .tied = -1};
    e.stages = e.devices < m->n_cut - 1 ? e.devices : m->n_cut - 1;
    e.microbatches = o->global_batch > 0   ? o->global_batch / least.samples * least.microbatches
                     : o->microbatches > 0 ? o->microbatches
                                           : 4 * (int64_t)e.stages;
    e.samples = (double)e.microbatches / least.microbatches * (double)least.samples;
    e.at = SMP_ARENA_NEW(scratch, ending,
                         (size_t)(e.stages + 1) * (size_t)(e.devices + 1) * (size_t)m->n_cut);
    return e;
}

/* *alike_us: the best where all stages have one option. */
static smp_status mix_replicas(mixer *m, int ddp, double *alike_us, smp__tensor_mix *best)
{
    smp_arena *scratch = smp_arena_create();
    if (!scratch)
        return SMP_ERR_NO_MEMORY;
    ends e = begin_ends(m, ddp, scratch);
    smp_status status = e.at ? SMP_OK : SMP_ERR_NO_MEMORY;
    int stages;
    for (e.only = 0; status == SMP_OK && e.only < m->n_option; e.only++) {
        find_endings(m, &e);
        *alike_us = fmin(*alike_us, best_pipeline(m, &e, &stages));
    }
    e.only = -1;
    for (int o = 0; status == SMP_OK && o < (m->n_tied > 0 ? m->n_option : 1); o++) {
        e.tied = m->n_tied > 0 ? o : -1;
        find_endings(m, &e);
        const double us = best_pipeline(m, &e, &stages);
        if (us >= best->sample_us || stages == 0 || !differs(m, &e, stages))
            continue;
        *best = (smp__tensor_mix){.ddp = ddp, .sample_us = us};
        status = take_pipeline(m, &e, stages, best);
    }
    smp_arena_destroy(scratch);
    return status;
}

/* A sample, if no device ever waits. */
static double ideal_us(const mixer *m)
{
    const int32_t n = m->base->graph->n_op;
    double least_us = INFINITY;
    for (int o = 0; o < m->n_option; o++)
        least_us = fmin(least_us,
                        (m->sum[o].forward_us[n] + m->sum[o].backward_us[n]) * m->option[o].tensor);
    return least_us / ((double)m->base->options.devices * (double)m->base->options.microbatch_size);
}

static smp_status mix_all(mixer *m, smp__tensor_mix out[SMP__TENSOR_MIXES], int *n)
{
    double alike_us = INFINITY;
    int kept = 0;
    for (int ddp = 1; ddp <= m->base->options.devices; ddp++) {
        smp__tensor_mix best = {.sample_us = INFINITY};
        if (!suits(m, ddp))
            continue;
        SMP_TRY(mix_replicas(m, ddp, &alike_us, &best));
        if (best.stages > 0)
            insert(best, out, n);
    }
    while (kept < *n && out[kept].sample_us < WORTH * alike_us)
        kept++;
    *n = kept;
    return SMP_OK;
}

smp_status smp__tensor_mixes(const smp_search_request *base, const smp__tensor_option *option,
                             int n_option, double memory_share, double best_us, smp_arena *arena,
                             smp__tensor_mix out[SMP__TENSOR_MIXES], int *n)
{
    const smp_plan_options *o = &base->options;
    const int64_t bytes =
        o->memory_bytes > 0 ? o->memory_bytes : base->cluster->device[0].memory_bytes;
    mixer m = {.base = base,
               .option = option,
               .n_option = n_option,
               .memory_bytes = (int64_t)(memory_share * (double)bytes),
               .arena = arena};
    *n = 0;
    if (base->graph->n_op > MOST_OPS || base->graph->n_op < 2 || n_option < 2)
        return SMP_OK;
    for (int i = 0; i < n_option; i++)
        SMP_TRY(sum_option(&m, &option[i], &m.sum[i]));
    if (ideal_us(&m) >= WORTH * best_us)
        return SMP_OK;
    SMP_TRY(find_crossing(&m));
    SMP_TRY(find_tied(&m));
    find_cuts(&m);
    for (int i = 0; i < n_option; i++)
        SMP_TRY(find_most(&m, &m.sum[i]));
    return mix_all(&m, out, n);
}

/* Is the stage one of groups as large as an op between those of the model is for? */
static bool suits_stage(const int *rank_begin, int ranks, int32_t stage, int64_t devices)
{
    const int rank = stage < 0 ? 0 : stage % ranks;
    return stage >= 0 && rank_begin[rank + 1] - rank_begin[rank] == devices;
}

void smp_tensor_pin_between(const smp_graph *graph, const int *rank_begin, int ranks, int32_t *pin)
{
    for (int32_t o = graph->n_op - 1; o >= 0; o--) {
        const smp_op *op = &graph->op[o];
        const int at = smp_op_attr_index(op->kind, "devices");
        if (at < 0 || smp_graph_find_op(smp_graph_whole(graph), op->name) >= 0 ||
            suits_stage(rank_begin, ranks, pin[o], op->attr[at].i))
            continue;
        pin[o] = -1;
        for (int64_t i = graph->consumer_begin[op->out]; i < graph->consumer_begin[op->out + 1];
             i++) {
            const int32_t stage = pin[graph->consumer[i].op];
            if (suits_stage(rank_begin, ranks, stage, op->attr[at].i) &&
                (pin[o] < 0 || stage < pin[o]))
                pin[o] = stage;
        }
    }
    for (int32_t o = 0; o < graph->n_op; o++) {
        const smp_op *op = &graph->op[o];
        const int32_t producer = op->n_in > 0 ? graph->tensor[op->in[0]].producer : -1;
        if (pin[o] < 0 && producer >= 0)
            pin[o] = pin[producer];
    }
}
