/* Random graphs, legal stages and programs for the tests of this layer. The graphs are made of an
 * invented operator kind whose needs are random functions of the op, so that layouts meet every
 * combination of what a backward pass may read. */
#ifndef SMP_TESTS_SCHEDULE_FIXTURE_H
#define SMP_TESTS_SCHEDULE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "graph/base/random.h"
#include "graph/model/op.h"
#include "schedule/memory/memory.h"

enum { FIXTURE_OUT = 3 };

typedef struct fixture_random {
    uint64_t state;
} fixture_random;

static inline int64_t fixture_below(fixture_random *random, int64_t n)
{
    random->state += 0x9e3779b97f4a7c15u;
    return (int64_t)(smp_random_mix(random->state) % (uint64_t)n);
}

static inline bool fixture_chance(fixture_random *random, int percent)
{
    return fixture_below(random, 100) < percent;
}

static inline smp_status fixture_kernel(const smp_op_call *call)
{
    (void)call;
    return SMP_OK;
}

/* Random, but the same for the same op of the same graph. */
static inline void fixture_needs(const smp_graph *graph, const smp_op *op, int64_t batch,
                                 smp_op_needs *needs)
{
    (void)batch;
    uint64_t bits = smp_random_mix(graph->fingerprint + (uint64_t)(op - graph->op));
    uint32_t all = (1u << op->n_in) - 1;
    needs->input_grad_in = (uint32_t)bits & all;
    needs->weight_grad_in = (uint32_t)(bits >> 8) & all;
    needs->input_grad_out = (bits >> 16 & 1) | ((bits >> 44 & 3) << 1 & ((1u << op->n_out) - 1));
    needs->aux_bytes = bits >> 17 & 1 ? (int64_t)(bits >> 18 & 63) + 1 : 0;
    needs->input_grad_aux = needs->aux_bytes > 0 && (bits >> 24 & 1);
    needs->weight_grad_aux = needs->aux_bytes > 0 && (bits >> 25 & 1);
    needs->workspace_bytes = bits >> 26 & 1 ? (int64_t)(bits >> 27 & 255) + 1 : 0;
    for (int32_t i = 0; i < op->n_in; i++)
        if (needs->weight_grad_aux && (bits >> 47 & 1) && graph->tensor[op->in[i]].needs_grad)
            needs->aux_of_backward = true;
    needs->input_grad_aux = needs->input_grad_aux && !needs->aux_of_backward;
    needs->input_grad_adds = op->n_in == 1 && !op->kind->work && (bits >> 49 & 1);
}

/* On CUDA, of ops in a row, some. */
static inline bool fixture_fuses(const smp_graph *graph, const smp_op *op, const smp_op *next)
{
    uint64_t bits = smp_random_mix(graph->fingerprint + (uint64_t)(op - graph->op));
    return next->in[0] == op->out && (bits >> 40 & 3) > 0;
}

static inline void fixture_exchanges(const smp_graph *graph, const smp_op *op, int64_t batch,
                                     smp_op_work *work);

static inline bool fixture_fuses_backward(const smp_graph *graph, const smp_op *op,
                                          const smp_op *before)
{
    smp_op_needs own, its;
    smp_op_needs_get(graph, op, 1, &own);
    smp_op_needs_get(graph, before, 1, &its);
    return !before->kind->work && !before->kind->passes_dout &&
           op->kind->work != fixture_exchanges && !own.aux_of_backward && !its.aux_of_backward;
}

static const smp_op_kind fixture_kind = {
    .name = "mix",
    .min_in = 1,
    .max_in = 3,
    .max_out = FIXTURE_OUT,
    .needs = {fixture_needs},
    .fuses = fixture_fuses,
    .fuses_backward = fixture_fuses_backward,
    .cpu = {.forward = fixture_kernel,
            .backward_input = fixture_kernel,
            .backward_weight = fixture_kernel},
};

/* Of inputs as large as the output. */
static const smp_op_kind fixture_passes = {
    .name = "pass",
    .min_in = 1,
    .max_in = 3,
    .passes_dout = true,
    .fuses = fixture_fuses,
    .pairs_alike = true,
    .cpu = {.forward = fixture_kernel, .backward_weight = fixture_kernel},
};

static inline void fixture_exchanges(const smp_graph *graph, const smp_op *op, int64_t batch,
                                     smp_op_work *work)
{
    (void)graph, (void)op, (void)batch;
    work->backward_input_exchange = (smp_op_exchange){1, 4, 0};
}

static inline void fixture_multiplies(const smp_graph *graph, const smp_op *op, int64_t batch,
                                      smp_op_work *work)
{
    (void)graph, (void)op, (void)batch;
    work->kind = SMP_OP_PRODUCT;
}

/* The same of an op that exchanges in the middle, of one that does nothing else, and of one whose
 * weight gradient may run beside it. */
#define FIXTURE_KIND(f, b)                                                                         \
    {                                                                                              \
        .name = "mix", .min_in = 1, .max_in = 3, .max_out = FIXTURE_OUT, .needs = {fixture_needs}, \
        .fuses = fixture_fuses, .fuses_backward = fixture_fuses_backward, .work = (f), .cpu = {    \
            .forward = fixture_kernel,                                                             \
            .backward_input = fixture_kernel,                                                      \
            .backward_weight = fixture_kernel,                                                     \
            .backward_input_begin = (b),                                                           \
            .backward_input_end = (b)                                                              \
        }                                                                                          \
    }
static const smp_op_kind fixture_call = FIXTURE_KIND(fixture_exchanges, NULL);
static const smp_op_kind fixture_halves = FIXTURE_KIND(fixture_exchanges, fixture_kernel);
static const smp_op_kind fixture_product = FIXTURE_KIND(fixture_multiplies, NULL);

typedef struct fixture_graph {
    smp_graph graph;
    smp_arena *arena;
} fixture_graph;

/* needs_grad, consumers and uses from ops and tensors. */
static inline void fixture_finish(fixture_graph *f, smp_tensor *tensor, smp_op *op,
                                  smp_param *param)
{
    smp_graph *g = &f->graph;
    bool *up = SMP_ARENA_NEW(f->arena, bool, (size_t)g->n_tensor);
    bool *down = SMP_ARENA_NEW(f->arena, bool, (size_t)g->n_tensor);
    int64_t *begin = SMP_ARENA_NEW(f->arena, int64_t, (size_t)g->n_tensor + 2);
    int64_t n_edge = 0;
    int32_t n_use = 0;
    for (int32_t u = 0; u < g->n_op; u++) {
        bool weights = op[u].n_param > 0;
        for (int32_t i = 0; i < op[u].n_in; i++, n_edge++) {
            weights |= up[op[u].in[i]];
            begin[op[u].in[i] + 2]++;
        }
        for (int32_t k = 0; k < op[u].n_out; k++)
            up[op[u].out + k] = weights;
        n_use += op[u].n_param;
    }
    for (int32_t t = 2; t <= g->n_tensor; t++)
        begin[t] += begin[t - 1];
    if (g->loss >= 0)
        down[g->loss] = true;
    for (int32_t u = g->n_op - 1; u >= 0; u--)
        for (int32_t i = 0; i < op[u].n_in; i++)
            for (int32_t k = 0; k < op[u].n_out; k++)
                down[op[u].in[i]] |= down[op[u].out + k];
    for (int32_t t = 0; t < g->n_tensor; t++)
        tensor[t].needs_grad = g->training && up[t] && (g->loss < 0 || down[t]);
    smp_consumer *consumer = SMP_ARENA_NEW(f->arena, smp_consumer, (size_t)n_edge);
    for (int32_t u = 0; u < g->n_op; u++)
        for (int32_t i = 0; i < op[u].n_in; i++)
            consumer[begin[op[u].in[i] + 1]++] = (smp_consumer){u, i};
    smp_use *use = SMP_ARENA_NEW(f->arena, smp_use, (size_t)n_use);
    for (int32_t p = 0; p < g->n_param; p++) {
        param[p].use_begin = g->n_use;
        for (int32_t u = 0; u < g->n_op; u++)
            for (int32_t i = 0; i < op[u].n_param; i++)
                if (op[u].param[i] == p) {
                    ((int32_t *)op[u].use)[i] = g->n_use;
                    use[g->n_use++] = (smp_use){p, u, i};
                }
        param[p].use_end = g->n_use;
    }
    g->consumer_begin = begin;
    g->consumer = consumer;
    g->use = use;
}

/* n_op ops, the last one making the loss, its last output. Some have up to max_out outputs. */
static inline void fixture_graph_make(fixture_graph *f, uint64_t seed, int32_t n_op, bool training,
                                      int max_out)
{
    fixture_random random = {seed};
    *f = (fixture_graph){.arena = smp_arena_create()};
    smp_graph *g = &f->graph;
    *g = (smp_graph){.name = "random",
                     .path = "random.yaml",
                     .training = training,
                     .n_input = 2,
                     .n_tensor = 2,
                     .n_op = n_op,
                     .fingerprint = seed};
    smp_op *op = SMP_ARENA_NEW(f->arena, smp_op, (size_t)n_op);
    for (int32_t u = 0; u < n_op; u++) {
        uint64_t bits = smp_random_mix(seed * 31 + (uint64_t)u);
        op[u].n_out = bits % 3 == 0 ? 1 + (int32_t)(bits >> 8 & 255) % max_out : 1;
        op[u].out = g->n_tensor;
        g->n_tensor += op[u].n_out;
    }
    g->loss = g->n_tensor - 1;
    smp_tensor *tensor = SMP_ARENA_NEW(f->arena, smp_tensor, (size_t)g->n_tensor);
    smp_param *param = SMP_ARENA_NEW(f->arena, smp_param, (size_t)(2 * n_op));
    for (int32_t t = 0; t < g->n_tensor; t++) {
        int64_t elements = t == g->loss ? 1 : 1 + fixture_below(&random, 40);
        tensor[t] = (smp_tensor){.name = smp_arena_printf(f->arena, "t%d", t),
                                 .batched = t != g->loss,
                                 .known = true,
                                 .shape = {1, {elements}},
                                 .elements = elements,
                                 .producer = -1};
    }
    for (int32_t u = 0; u < n_op; u++) {
        int32_t n_in = 1 + (int32_t)fixture_below(&random, 3), *in, *held;
        int32_t n_param = fixture_chance(&random, 40) ? 1 + (int32_t)fixture_below(&random, 2) : 0;
        op[u] = (smp_op){.kind = &fixture_kind,
                         .name = smp_arena_printf(f->arena, "op%d", u),
                         .in = in = SMP_ARENA_NEW(f->arena, int32_t, (size_t)n_in),
                         .param = held = SMP_ARENA_NEW(f->arena, int32_t, (size_t)n_param),
                         .use = SMP_ARENA_NEW(f->arena, int32_t, (size_t)n_param),
                         .n_in = n_in,
                         .n_param = n_param,
                         .n_out = op[u].n_out,
                         .out = op[u].out,
                         .pin = -1,
                         .group = -1};
        for (int32_t i = 0; i < n_in; i++) {
            int64_t window = fixture_chance(&random, 70) && u > 2 ? 3 : op[u].out;
            in[i] = (int32_t)(op[u].out - 1 - fixture_below(&random, window));
        }
        for (int32_t k = 0; k < op[u].n_out; k++)
            tensor[op[u].out + k].producer = u;
        if (u + 1 < n_op && op[u].n_out == 1 && smp_random_mix(seed * 37 + (uint64_t)u) % 4 == 0) {
            const int64_t elements = tensor[in[0]].elements;
            op[u].kind = &fixture_passes;
            tensor[op[u].out].elements = tensor[op[u].out].shape.dim[0] = elements;
            for (int32_t i = 1; i < n_in; i++)
                while (tensor[in[i]].elements != elements) /* the input that comes last is in[0] */
                    in[i] = in[i] > in[0] ? in[i] - 1 : in[0];
        }
        for (int32_t i = 0; i < n_param; i++) {
            if (g->n_param > 0 && fixture_chance(&random, 30)) {
                held[i] = (int32_t)fixture_below(&random, g->n_param);
                continue;
            }
            int64_t elements = 1 + fixture_below(&random, 50);
            held[i] = g->n_param;
            param[g->n_param++] = (smp_param){.name = smp_arena_printf(f->arena, "op%d.w%d", u, i),
                                              .shape = {1, {elements}},
                                              .elements = elements};
        }
    }
    g->tensor = tensor;
    g->op = op;
    g->param = param;
    fixture_finish(f, tensor, op, param);
}

/* Some ops exchange, and weight gradients run beside that. */
static inline void fixture_overlap(fixture_graph *f, fixture_random *random)
{
    smp_op *op = (smp_op *)f->graph.op;
    f->graph.overlap = true;
    for (int32_t u = 0; u < f->graph.n_op; u++) {
        if (op[u].n_param > 0 && fixture_chance(random, 80))
            op[u].kind = &fixture_product;
        else if (op[u].n_param == 0 && fixture_chance(random, 50))
            op[u].kind = fixture_chance(random, 85) ? &fixture_halves : &fixture_call;
    }
}

/* All tensors but the loss are equally large. */
static inline void fixture_level(fixture_graph *f)
{
    smp_tensor *tensor = (smp_tensor *)f->graph.tensor;
    for (int32_t t = 0; t < f->graph.n_tensor; t++)
        if (t != f->graph.loss)
            tensor[t].elements = tensor[t].shape.dim[0] = 20;
}

static inline void fixture_graph_free(fixture_graph *f)
{
    smp_arena_destroy(f->arena);
}

/* Legal stages: at least those of the inputs; now and then later ones, so that file order and stage
 * order disagree. */
static inline void fixture_stages(const smp_graph *g, fixture_random *random, int n_stage,
                                  int32_t *stage)
{
    for (int32_t u = 0; u < g->n_op; u++) {
        int32_t least = 0;
        for (int32_t i = 0; i < g->op[u].n_in; i++) {
            int32_t producer = g->tensor[g->op[u].in[i]].producer;
            if (producer >= 0 && stage[producer] > least)
                least = stage[producer];
        }
        int32_t fair = (int32_t)((int64_t)u * n_stage / g->n_op);
        stage[u] = fixture_chance(random, 60) && fair > least ? fair : least;
        if (fixture_chance(random, 10))
            stage[u] += (int32_t)fixture_below(random, 2);
        if (stage[u] >= n_stage)
            stage[u] = n_stage - 1;
    }
}

/* One of the schedules that can run the shape. */
static inline const smp_schedule_kind *fixture_schedule(fixture_random *random,
                                                        const smp_schedule_shape *shape)
{
    const smp_schedule_kind *kind;
    int n = 0;
    while (smp_schedules()[n])
        n++;
    do
        kind = smp_schedules()[fixture_below(random, n)];
    while (smp_schedule_check(kind, shape));
    return kind;
}

static inline bool fixture_moves(const smp_flow *flow, const int *stage_rank, int stage,
                                 smp_transfer_kind kind, bool out)
{
    const int32_t *begin = out ? flow->out_begin : flow->in_begin;
    const int32_t *list = out ? flow->out_list : flow->in_list;
    for (int32_t i = begin[stage]; i < begin[stage + 1]; i++) {
        const smp_transfer *t = &flow->transfer[list[i]];
        if (t->kind == kind && stage_rank[t->from_stage] != stage_rank[t->to_stage])
            return true;
    }
    return false;
}

/* All that stage s reads from other stages in this pass has been made. */
static inline bool fixture_ready(const smp_flow *flow, int s, smp_transfer_kind kind,
                                 const bool *done)
{
    for (int32_t i = flow->in_begin[s]; i < flow->in_begin[s + 1]; i++) {
        const smp_transfer *t = &flow->transfer[flow->in_list[i]];
        if (t->kind == kind && !done[t->from_stage])
            return false;
    }
    return true;
}

/* Programs [pipeline] from one random order of the compute actions in which every action comes
 * after those that it needs. stage s is on rank s mod pipeline as chunk s / pipeline. */
static inline void fixture_programs(const smp_flow *flow, fixture_random *random, int pipeline,
                                    int chunks, int microbatches, bool training,
                                    const int *stage_rank, smp_program *program)
{
    int n_stage = pipeline * chunks, left = n_stage * microbatches * (training ? 2 : 1);
    bool *forward = calloc((size_t)(n_stage * microbatches), sizeof(bool));
    bool *backward = calloc((size_t)(n_stage * microbatches), sizeof(bool));
    int *chunk_left = calloc((size_t)n_stage, sizeof(int));
    for (int s = 0; s < n_stage; s++)
        chunk_left[s] = microbatches;
    while (left > 0) {
        int s = (int)fixture_below(random, n_stage), m = (int)fixture_below(random, microbatches);
        bool back = training && fixture_chance(random, 60);
        bool *done = &(back ? backward : forward)[m * n_stage];
        if (done[s] || (back && !forward[m * n_stage + s]) ||
            (back && m > 0 && !backward[(m - 1) * n_stage + s]) ||
            !fixture_ready(flow, s, back ? SMP_TRANSFER_B : SMP_TRANSFER_F, done))
            continue;
        smp_program *p = &program[stage_rank[s]];
        smp_transfer_kind kind = back ? SMP_TRANSFER_B : SMP_TRANSFER_F;
        int c = s / pipeline;
        if (fixture_moves(flow, stage_rank, s, kind, false))
            assert_int_equal(
                SMP_OK, smp_program_push(p, back ? SMP_ACTION_RECV_B : SMP_ACTION_RECV_F, m, c));
        assert_int_equal(SMP_OK, smp_program_push(p, back ? SMP_ACTION_B : SMP_ACTION_F, m, c));
        if (fixture_moves(flow, stage_rank, s, kind, true))
            assert_int_equal(
                SMP_OK, smp_program_push(p, back ? SMP_ACTION_SEND_B : SMP_ACTION_SEND_F, m, c));
        done[s] = true;
        left--;
        if (back && --chunk_left[s] == 0)
            assert_int_equal(SMP_OK, smp_program_push(p, SMP_ACTION_REDUCE, -1, c));
    }
    for (int r = 0; training && r < pipeline; r++)
        assert_int_equal(SMP_OK, smp_program_push(&program[r], SMP_ACTION_OPTIMIZE, -1, -1));
    free(forward);
    free(backward);
    free(chunk_left);
}

/* Plans a rank's memory. layout: [n_stage]; the input lacks its chunks' stages and layouts, the
 * stages being dealt out in turn. */
static inline smp_status fixture_memory(smp_memory_input input, int pipeline,
                                        smp_layout *const *layout, smp_memory_rank **out)
{
    enum { MAX_CHUNKS = 4 };
    const smp_layout *of_chunk[MAX_CHUNKS];
    int stage[MAX_CHUNKS];
    assert_true(input.chunks <= MAX_CHUNKS);
    for (int c = 0; c < input.chunks; c++) {
        stage[c] = c * pipeline + input.rank;
        of_chunk[c] = layout[stage[c]];
    }
    input.stage_of_chunk = stage;
    input.layout = of_chunk;
    return smp_memory_plan(&input, out);
}

#endif
