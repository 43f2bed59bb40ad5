/* A second, slow opinion on the fastest pipeline: dynamic programming over all sets of ops that are
 * closed under predecessors, as bit masks, with loads counted op by op. Up to 20 ops, stages on
 * ranks of their own, all links alike. */
#ifndef SMP_TESTS_PARTITION_MASK_FIXTURE_H
#define SMP_TESTS_PARTITION_MASK_FIXTURE_H

#include "tests/partition/problem_fixture.h"

typedef struct mask_graph {
    int n;
    uint32_t reads[20];   /* ops whose tensors an op reads */
    uint32_t readers[20]; /* ops that read an op's tensor */
    int n_set;
    uint32_t *set; /* closed under predecessors, rising */
} mask_graph;

static inline bool mask_closed(const mask_graph *m, uint32_t set)
{
    for (int i = 0; i < m->n; i++) {
        if (set >> i & 1 && (m->reads[i] & ~set))
            return false;
    }
    return true;
}

/* False: more than max_sets. */
static inline bool mask_open(mask_graph *m, const fixture *f, int max_sets)
{
    const smp_graph *graph = f->graph;
    *m = (mask_graph){.n = graph->n_op, .set = malloc((size_t)max_sets * sizeof *m->set)};
    for (int i = 0; i < m->n; i++) {
        for (int32_t k = 0; k < graph->op[i].n_in; k++) {
            int32_t from = graph->tensor[graph->op[i].in[k]].producer;
            if (from < 0)
                continue;
            m->reads[i] |= 1u << from;
            m->readers[from] |= 1u << i;
        }
    }
    for (uint32_t set = 0; set < 1u << m->n; set++) {
        if (!mask_closed(m, set))
            continue;
        if (m->n_set == max_sets)
            return false;
        m->set[m->n_set++] = set;
    }
    return true;
}

static inline void mask_close(mask_graph *m)
{
    free(m->set);
}

/* Whether ops that belong together are all in the stage or all outside, and pins are respected. */
static inline bool mask_stage_legal(const fixture *f, uint32_t stage, int s)
{
    const smp_graph *graph = f->graph;
    for (int32_t i = 0; i < graph->n_op; i++) {
        bool in = stage >> i & 1;
        if (in && graph->op[i].pin >= 0 && graph->op[i].pin != s)
            return false;
        for (int32_t j = 0; j < i; j++) {
            if (graph->op[i].group >= 0 && graph->op[i].group == graph->op[j].group &&
                in != (stage >> j & 1))
                return false;
        }
    }
    for (int32_t p = 0; f->problem.tie_together && p < graph->n_param; p++) {
        int held = 0, uses = graph->param[p].use_end - graph->param[p].use_begin;
        for (int32_t u = graph->param[p].use_begin; u < graph->param[p].use_end; u++)
            held += stage >> graph->use[u].op & 1;
        if (held > 0 && held < uses)
            return false;
    }
    return true;
}

/* Load of stage s between two sets; INFINITY if it does not fit. */
static inline double mask_load(const fixture *f, const mask_graph *m, uint32_t before,
                               uint32_t stage, int s)
{
    const smp_graph *graph = f->graph;
    bool training = graph->training;
    double forward = 0, backward = 0, transfer = 0, weights = 0, stash = 0, workspace = 0;
    double received = 0, sent = 0;
    for (int i = 0; i < m->n; i++) {
        const smp_op_cost *cost = &f->costs->op[i];
        double bytes = (double)cost->output_bytes;
        double us =
            f->cluster.intra_node.latency_us + bytes / f->cluster.intra_node.bytes_per_s * 1e6;
        us *= training && graph->tensor[graph->op[i].out].needs_grad ? 2.0 : 1.0;
        if (before >> i & 1 && m->readers[i] & stage) {
            transfer += us;
            received += bytes;
        }
        if (!(stage >> i & 1))
            continue;
        if (m->readers[i] & ~stage) {
            transfer += us;
            sent += bytes;
        }
        forward += cost->forward_us;
        backward += cost->backward_us;
        stash += (double)cost->stash_bytes;
        workspace = fmax(workspace, (double)cost->workspace_bytes);
        if (graph->op[i].n_param == 0)
            weights += (double)cost->weight_bytes;
    }
    for (int32_t p = 0; p < graph->n_param; p++) {
        bool held = false;
        for (int32_t u = graph->param[p].use_begin; u < graph->param[p].use_end; u++)
            held |= stage >> graph->use[u].op & 1;
        weights += held ? 4.0 * (double)graph->param[p].elements : 0.0;
    }
    double fixed =
        f->problem.state_factor * weights + workspace + (training ? 2.0 : 1.0) * (received + sent);
    double kept = fixed + f->live[s] * stash, again = fixed + f->live[s] * received + stash;
    double share = fixture_share(f, s, kept, again);
    if ((share >= 1.0 ? again : share > 0.0 ? 0.0 : kept) > (double)f->limit[s])
        return INFINITY;
    double slowdown = f->device_spec[0].flops_fp32 / f->device_spec[f->device[s]].flops_fp32;
    double compute = (forward * (1.0 + fixture_recompute(f, share)) + backward) * slowdown;
    return f->cluster.overlap ? fmax(compute, transfer) : compute + transfer;
}

/* The fastest pipeline that fits; INFINITY if there is none. */
static inline double mask_best(const fixture *f, const mask_graph *m)
{
    size_t n = (size_t)m->n_set;
    double *best = malloc(n * sizeof *best), *next = malloc(n * sizeof *next);
    for (size_t i = 0; i < n; i++)
        best[i] = m->set[i] == 0 ? 0.0 : INFINITY;
    for (int s = 0; s < f->problem.n_stage; s++) {
        for (size_t j = 0; j < n; j++) {
            next[j] = INFINITY;
            for (size_t i = 0; i < j; i++) {
                uint32_t stage = m->set[j] & ~m->set[i];
                if (isinf(best[i]) || m->set[i] & ~m->set[j] || !mask_stage_legal(f, stage, s))
                    continue;
                next[j] = fmin(next[j], fmax(best[i], mask_load(f, m, m->set[i], stage, s)));
            }
        }
        memcpy(best, next, n * sizeof *best);
    }
    double result = best[n - 1];
    free(best);
    free(next);
    return result;
}

#endif
