/* Random partitioning problems for the tests of this layer, made from model texts of opaque ops;
 * and a second, slow opinion on what an assignment costs. */
#ifndef SMP_TESTS_PARTITION_PROBLEM_FIXTURE_H
#define SMP_TESTS_PARTITION_PROBLEM_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/random.h"
#include "graph/base/text.h"
#include "partition/problem/recompute_price.h"
#include "partition/solve/partitioner.h"

enum { FIXTURE_MAX_STAGES = 64, FIXTURE_MAX_DEVICES = 64 };

typedef struct fixture_random {
    uint64_t state;
} fixture_random;

static inline int fixture_below(fixture_random *random, int n)
{
    random->state += 0x9e3779b97f4a7c15u;
    return (int)(smp_random_mix(random->state) % (uint64_t)n);
}

static inline bool fixture_chance(fixture_random *random, int percent)
{
    return fixture_below(random, 100) < percent;
}

typedef struct fixture {
    smp_graph *graph;
    smp_costs *costs;
    smp_cluster cluster;
    smp_device_spec device_spec[FIXTURE_MAX_DEVICES];
    smp_problem problem;
    int stage_rank[FIXTURE_MAX_STAGES];
    int device[FIXTURE_MAX_DEVICES]; /* [replicas * pipeline] */
    double live[FIXTURE_MAX_STAGES];
    int64_t limit[FIXTURE_MAX_STAGES];
} fixture;

/* Everything fits, all devices and links are alike, transfers add to compute. */
static inline void fixture_cluster(fixture *f, int devices, int per_node, double bytes_per_s)
{
    f->cluster = (smp_cluster){.name = "fixture",
                               .nodes = (devices + per_node - 1) / per_node,
                               .devices_per_node = per_node,
                               .device = f->device_spec,
                               .intra_node = {.bytes_per_s = bytes_per_s},
                               .inter_node = {.bytes_per_s = bytes_per_s}};
    for (int d = 0; d < f->cluster.nodes * per_node; d++)
        f->device_spec[d] = (smp_device_spec){.name = "device",
                                              .memory_bytes = INT64_MAX / 4,
                                              .flops_fp32 = 1e12,
                                              .bytes_per_s = 1e12};
}

/* Reads the model and plans it on `pipeline` ranks with `chunks` stages each. */
static inline void fixture_open(fixture *f, const char *model, int pipeline, int chunks)
{
    int n_stage = pipeline * chunks;
    if (smp_graph_parse("model.yaml", model, strlen(model), &f->graph) != SMP_OK)
        fail_msg("%s\n%s", smp_last_error(), model);
    if (smp_costs_build(f->graph, &f->cluster, NULL, 1, &f->costs) != SMP_OK)
        fail_msg("%s\n%s", smp_last_error(), model);
    for (int s = 0; s < n_stage; s++) {
        f->stage_rank[s] = s % pipeline;
        f->live[s] = 1.0;
        f->limit[s] = INT64_MAX / 8;
    }
    for (int r = 0; r < pipeline; r++)
        f->device[r] = r;
    f->problem = (smp_problem){.graph = f->graph,
                               .costs = f->costs,
                               .cluster = &f->cluster,
                               .n_stage = n_stage,
                               .pipeline = pipeline,
                               .stage_rank = f->stage_rank,
                               .device = f->device,
                               .state_factor = f->graph->training ? 4.0 : 1.0,
                               .live = f->live,
                               .memory_limit = f->limit};
}

/* Further replicas of the pipeline, on devices at random. */
static inline void fixture_replicate(fixture_random *random, fixture *f, int replicas)
{
    int p = f->problem.pipeline;
    assert_true(replicas * p <= FIXTURE_MAX_DEVICES);
    for (int i = p; i < replicas * p; i++)
        f->device[i] = fixture_below(random, f->cluster.nodes * f->cluster.devices_per_node);
    f->problem.n_replica = replicas;
}

static inline void fixture_close(fixture *f)
{
    smp_costs_destroy(f->costs);
    smp_graph_destroy(f->graph);
    f->costs = NULL;
    f->graph = NULL;
}

typedef struct fixture_shape {
    int n_op;
    int stages;         /* pins are below; 0: no pins */
    int groups;         /* 0: no groups */
    int pin_percent;    /* of ops */
    int group_percent;  /* of ops */
    int skip_percent;   /* chance of each further input */
    int source_percent; /* ops without inputs */
    bool training;
    bool zero_costs;  /* some ops cost nothing, some tensors are empty */
    int free_percent; /* of ops that cost nothing, with zero_costs; 0: 15 */
} fixture_shape;

/* A model of opaque ops; ops mostly read recent ones, as in real models. Malloc'ed. */
static inline char *fixture_model(fixture_random *random, const fixture_shape *shape)
{
    smp_text text = {0};
    smp_text_append(&text, "smp: 1\nname: random\nmode: %s\nops:\n",
                    shape->training ? "training" : "inference");
    for (int i = 0; i < shape->n_op; i++) {
        smp_text_append(&text, "  - {op: opaque, name: n%d, out: t%d", i, i);
        if (i > 0 && !fixture_chance(random, shape->source_percent)) {
            int back = fixture_chance(random, 75) ? 1 : 1 + fixture_below(random, i);
            smp_text_append(&text, ", in: [t%d", i - back);
            for (int k = 0; k < 3 && fixture_chance(random, shape->skip_percent); k++)
                smp_text_append(&text, ", t%d", fixture_below(random, i));
            smp_text_append(&text, "]");
        }
        if (shape->groups > 0 && fixture_chance(random, shape->group_percent))
            smp_text_append(&text, ", group: g%d", fixture_below(random, shape->groups));
        if (shape->stages > 0 && fixture_chance(random, shape->pin_percent))
            smp_text_append(&text, ", stage: %d", fixture_below(random, shape->stages));
        int free_percent = shape->free_percent ? shape->free_percent : 15;
        bool free_op = shape->zero_costs && fixture_chance(random, free_percent);
        smp_text_append(
            &text,
            ", cost: {forward_us: %d, backward_us: %d, weight_bytes: %d, stash_bytes: "
            "%d, output_bytes: %d}}\n",
            free_op ? 0 : 1 + fixture_below(random, 40), free_op ? 0 : fixture_below(random, 80),
            fixture_below(random, 1000), fixture_below(random, 1000),
            shape->zero_costs && fixture_chance(random, 15) ? 0 : 1 + fixture_below(random, 30));
    }
    assert_false(text.failed);
    return text.data;
}

/* A model of operators on small vectors, of which many have several outputs. Malloc'ed. */
static inline char *fixture_model_outputs(fixture_random *random, int n_op, bool training)
{
    enum { MAX_TENSORS = 256, MAX_PARTS = 3 };
    int width[MAX_TENSORS] = {12}, n = 1;
    smp_text text = {0};
    smp_text_append(&text,
                    "smp: 1\nname: random\nmode: %s\ninputs:\n"
                    "  x: {dtype: float32, shape: [12]}\nops:\n"
                    "  - {op: linear, name: n0, in: x, out: t0, features: 12}\n",
                    training ? "training" : "inference");
    for (int i = 1; i < n_op; i++) {
        int recent = n < 4 || fixture_chance(random, 30) ? n : 4;
        int from = n - 1 - fixture_below(random, recent), other = fixture_below(random, n);
        int parts = width[from] < MAX_PARTS ? 1 : 2 + fixture_below(random, MAX_PARTS - 1);
        assert_true(n + MAX_PARTS <= MAX_TENSORS);
        if (parts > 1 && fixture_chance(random, 60)) {
            smp_text_append(&text, "  - {op: split, name: n%d, in: t%d, out: [", i, from);
            for (int k = 0; k < parts; k++)
                smp_text_append(&text, "%st%d", k > 0 ? ", " : "", n + k);
            smp_text_append(&text, "], sizes: [");
            for (int k = 0, left = width[from]; k < parts; left -= width[n + k++]) {
                width[n + k] =
                    k + 1 < parts ? 1 + fixture_below(random, left - (parts - 1 - k)) : left;
                smp_text_append(&text, "%s%d", k > 0 ? ", " : "", width[n + k]);
            }
            smp_text_append(&text, "]}\n");
            n += parts;
            continue;
        }
        width[n] = fixture_chance(random, 50) ? 1 + fixture_below(random, 12) : 0;
        if (width[n] > 0)
            smp_text_append(&text, "  - {op: linear, name: n%d, in: t%d, out: t%d, features: %d}\n",
                            i, from, n, width[n]);
        else
            smp_text_append(&text, "  - {op: concat, name: n%d, in: [t%d, t%d], out: t%d}\n", i,
                            from, other, n);
        width[n] = width[n] > 0 ? width[n] : width[from] + width[other];
        n++;
    }
    assert_false(text.failed);
    return text.data;
}

/* Whether an assignment is a pipeline that respects pins and groups. */
static inline bool fixture_legal(const fixture *f, const int32_t *stage)
{
    const smp_graph *graph = f->graph;
    bool used[FIXTURE_MAX_STAGES] = {false};
    for (int32_t i = 0; i < graph->n_op; i++) {
        if (stage[i] < 0 || stage[i] >= f->problem.n_stage)
            return false;
        used[stage[i]] = true;
        int32_t pin = smp_problem_pin(&f->problem, i);
        if (pin >= 0 && stage[i] != pin)
            return false;
        for (int32_t k = 0; k < graph->op[i].n_in; k++) {
            int32_t from = graph->tensor[graph->op[i].in[k]].producer;
            if (from >= 0 && stage[from] > stage[i])
                return false;
        }
        for (int32_t j = 0; j < i; j++) {
            if (graph->op[i].group >= 0 && graph->op[i].group == graph->op[j].group &&
                stage[i] != stage[j])
                return false;
            if (f->problem.together && f->problem.together[i] >= 0 &&
                f->problem.together[i] == f->problem.together[j] && stage[i] != stage[j])
                return false;
        }
    }
    for (int s = 0; s < f->problem.n_stage; s++) {
        if (!used[s])
            return false;
    }
    return true;
}

/* Of one sample: what the cost says or, of several outputs, the shape. */
static inline double fixture_bytes(const fixture *f, int32_t tensor)
{
    int32_t producer = f->graph->tensor[tensor].producer;
    return (double)(f->graph->op[producer].n_out == 1 ? f->costs->op[producer].output_bytes
                                                      : 4 * f->graph->tensor[tensor].elements);
}

static inline double fixture_link_us(const fixture *f, int replica, int rank_a, int rank_b,
                                     int32_t tensor)
{
    const int *device = &f->device[replica * f->problem.pipeline];
    if (rank_a == rank_b)
        return 0.0;
    int a = device[rank_a], b = device[rank_b];
    bool same_node = a / f->cluster.devices_per_node == b / f->cluster.devices_per_node;
    const smp_link_spec *link = same_node ? &f->cluster.intra_node : &f->cluster.inter_node;
    double us = link->latency_us + fixture_bytes(f, tensor) / link->bytes_per_s * 1e6;
    bool gradient = f->graph->training && f->graph->tensor[tensor].needs_grad;
    return gradient ? 2.0 * us : us;
}

/* Whether stage s holds a reader of a tensor. */
static inline bool fixture_reads(const fixture *f, const int32_t *stage, int32_t tensor, int s)
{
    for (int32_t i = 0; i < f->graph->n_op; i++) {
        for (int32_t k = 0; k < f->graph->op[i].n_in; k++) {
            if (stage[i] == s && f->graph->op[i].in[k] == tensor)
                return true;
        }
    }
    return false;
}

/* Transfers of stage s in a replica, asked of every tensor in turn. */
static inline double fixture_transfer_us(const fixture *f, const int32_t *stage, int replica, int s)
{
    double total = 0.0;
    for (int32_t t = f->graph->n_input; t < f->graph->n_tensor; t++) {
        int home = stage[f->graph->tensor[t].producer];
        if (home != s && fixture_reads(f, stage, t, s))
            total += fixture_link_us(f, replica, f->stage_rank[home], f->stage_rank[s], t);
        double sent = 0.0;
        for (int to = 0; home == s && to < f->problem.n_stage; to++) {
            if (to != s && fixture_reads(f, stage, t, to))
                sent =
                    fmax(sent, fixture_link_us(f, replica, f->stage_rank[s], f->stage_rank[to], t));
        }
        total += sent;
    }
    return total;
}

/* Bytes that stage s receives and sends per micro-batch, each tensor once; *received: in alone. */
static inline double fixture_border_bytes(const fixture *f, const int32_t *stage, int s,
                                          double *received)
{
    double in = 0.0, out = 0.0;
    for (int32_t t = f->graph->n_input; t < f->graph->n_tensor; t++) {
        int home = stage[f->graph->tensor[t].producer];
        bool sent = false;
        if (f->stage_rank[home] != f->stage_rank[s] && fixture_reads(f, stage, t, s))
            in += fixture_bytes(f, t);
        for (int to = 0; home == s && to < f->problem.n_stage; to++)
            sent |= f->stage_rank[to] != f->stage_rank[s] && fixture_reads(f, stage, t, to);
        out += sent ? fixture_bytes(f, t) : 0.0;
    }
    if (received)
        *received = in;
    return in + out;
}

/* Memory of stage s with its stashes kept, or recomputed. */
static inline double fixture_memory_of(const fixture *f, const int32_t *stage, int s, bool again)
{
    double weights = 0.0, stash = 0.0, workspace = 0.0, received;
    for (int32_t i = 0; i < f->graph->n_op; i++) {
        if (stage[i] != s)
            continue;
        stash += (double)f->costs->op[i].stash_bytes;
        workspace = fmax(workspace, (double)f->costs->op[i].workspace_bytes);
        if (f->graph->op[i].n_param == 0)
            weights += (double)f->costs->op[i].weight_bytes;
    }
    for (int32_t p = 0; p < f->graph->n_param; p++) {
        bool held = false;
        for (int32_t u = f->graph->param[p].use_begin; u < f->graph->param[p].use_end; u++)
            held |= stage[f->graph->use[u].op] == s;
        weights += held ? 4.0 * (double)f->graph->param[p].elements : 0.0;
    }
    double border = fixture_border_bytes(f, stage, s, &received);
    double kept = again ? f->live[s] * received + stash : f->live[s] * stash;
    return f->problem.state_factor * weights + kept + workspace +
           (f->graph->training ? 2.0 : 1.0) * border;
}

/* Share of its stash that a stage with these bytes makes again: as much as it takes to fit. */
static inline double fixture_share(const fixture *f, int s, double kept, double again)
{
    double limit = (double)f->limit[s];
    if (!f->graph->training || f->problem.recompute == SMP_RECOMPUTE_NONE)
        return 0.0;
    if (f->problem.recompute == SMP_RECOMPUTE_ALL)
        return 1.0;
    return kept <= limit || again >= kept ? 0.0 : fmin(1.0, (kept - limit) / (kept - again));
}

/* Times the forward that a stage runs once more. */
static inline double fixture_recompute(const fixture *f, double share)
{
    smp__price price;
    smp__price_make(&f->problem, &price);
    return smp__price_at(&price, share);
}

static inline double fixture_recomputes(const fixture *f, const int32_t *stage, int s)
{
    return fixture_share(f, s, fixture_memory_of(f, stage, s, false),
                         fixture_memory_of(f, stage, s, true));
}

static inline double fixture_memory(const fixture *f, const int32_t *stage, int s)
{
    double share = fixture_recomputes(f, stage, s);
    return share > 0.0 && share < 1.0 ? (double)f->limit[s]
                                      : fixture_memory_of(f, stage, s, share > 0.0);
}

/* How many times slower than device 0 the one of stage s is. */
static inline double fixture_slowdown(const fixture *f, int replica, int s)
{
    int device = f->device[replica * f->problem.pipeline + f->stage_rank[s]];
    return f->device_spec[0].flops_fp32 / f->device_spec[device].flops_fp32;
}

/* Stage s in one replica. */
static inline double fixture_load_us(const fixture *f, const int32_t *stage, int replica, int s)
{
    double compute = 0.0, transfer = fixture_transfer_us(f, stage, replica, s);
    double passes = 1.0 + fixture_recompute(f, fixture_recomputes(f, stage, s)); /* forward */
    for (int32_t i = 0; i < f->graph->n_op; i++)
        if (stage[i] == s)
            compute += (passes * f->costs->op[i].forward_us + f->costs->op[i].backward_us) *
                       fixture_slowdown(f, replica, s);
    return f->cluster.overlap ? fmax(compute, transfer) : compute + transfer;
}

/* The slowest rank of one replica. */
static inline double fixture_replica_us(const fixture *f, const int32_t *stage, int replica)
{
    double rank_us[FIXTURE_MAX_DEVICES] = {0.0}, slowest = 0.0;
    for (int s = 0; s < f->problem.n_stage; s++)
        rank_us[f->stage_rank[s]] += fixture_load_us(f, stage, replica, s);
    for (int r = 0; r < f->problem.pipeline; r++)
        slowest = fmax(slowest, rank_us[r]);
    return slowest;
}

/* The slowest rank of an assignment; *fits: memory of every stage. */
static inline double fixture_bottleneck(const fixture *f, const int32_t *stage, bool *fits)
{
    double slowest = 0.0;
    for (int replica = 0; replica < smp_problem_replicas(&f->problem); replica++)
        slowest = fmax(slowest, fixture_replica_us(f, stage, replica));
    *fits = true;
    for (int s = 0; s < f->problem.n_stage; s++)
        *fits = *fits && fixture_memory(f, stage, s) <= (double)f->limit[s];
    return slowest;
}

/* The best of all assignments: INFINITY if none is legal. */
static inline double fixture_brute_force(const fixture *f, double *best_that_fits)
{
    int32_t stage[32] = {0};
    double best = INFINITY;
    *best_that_fits = INFINITY;
    for (;;) {
        if (fixture_legal(f, stage)) {
            bool fits;
            double us = fixture_bottleneck(f, stage, &fits);
            best = fmin(best, us);
            if (fits)
                *best_that_fits = fmin(*best_that_fits, us);
        }
        int32_t i = 0;
        while (i < f->graph->n_op && ++stage[i] == f->problem.n_stage)
            stage[i++] = 0;
        if (i == f->graph->n_op)
            return best;
    }
}

static inline bool fixture_same(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fmax(1.0, fmax(fabs(a), fabs(b)));
}

static inline void assert_close(double a, double b)
{
    if (!fixture_same(a, b))
        fail_msg("got %.17g, expected %.17g", a, b);
}

#endif
