/* Operators on tags instead of numbers, and a plain evaluation of a graph with them: what a memory
 * plan must reproduce. A result is a hash of all that the operator reads; adding is a hash that
 * does not tell a + b from b + a, as floats do not, but (a + b) + c from a + (b + c). */
#ifndef SMP_TESTS_SCHEDULE_SYMBOLIC_H
#define SMP_TESTS_SCHEDULE_SYMBOLIC_H

#include "tests/schedule/fixture.h"

static inline uint64_t mix(uint64_t a, uint64_t b)
{
    return smp_random_mix(a * 0x9e3779b97f4a7c15u + smp_random_mix(b));
}

static inline uint64_t digest(uint64_t hash, const uint64_t *words, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        hash = mix(hash, words[i]);
    return hash;
}

static inline void fill(uint64_t *words, int64_t n, uint64_t hash)
{
    for (int64_t i = 0; i < n; i++)
        words[i] = mix(hash, (uint64_t)i);
}

static inline uint64_t sum_of(uint64_t a, uint64_t b)
{
    return a < b ? mix(a + 1, b) : mix(b + 1, a);
}

static inline void add(uint64_t *sum, const uint64_t *words, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] = sum_of(sum[i], words[i]);
}

static inline int64_t words_of(int64_t bytes)
{
    return (bytes + 3) / 4;
}

/* One evaluation of an op's parts on whatever memory the caller names; NULL: not given. */
typedef struct symbolic_call {
    const smp_graph *graph;
    int32_t op;
    int64_t batch;
    const uint64_t *in[3];
    uint64_t *out[FIXTURE_OUT], *aux, *workspace, *din[3];
    const uint64_t *dout[FIXTURE_OUT], *plus;
} symbolic_call;

static inline int64_t tensor_words(const smp_graph *graph, int32_t tensor, int64_t batch)
{
    return words_of(smp_tensor_bytes(graph, tensor, batch));
}

static inline void symbolic_forward(const symbolic_call *c)
{
    const smp_op *op = &c->graph->op[c->op];
    smp_op_needs needs;
    smp_op_needs_get(c->graph, op, c->batch, &needs);
    uint64_t hash = (uint64_t)c->op;
    /* Scratch and saved values first: writing them must spoil no input. */
    if (needs.workspace_bytes > 0)
        fill(c->workspace, words_of(needs.workspace_bytes), 0xbad);
    for (int32_t i = 0; i < op->n_in; i++)
        hash = digest(hash, c->in[i], tensor_words(c->graph, op->in[i], c->batch));
    if (needs.aux_bytes > 0 && !needs.aux_of_backward)
        fill(c->aux, words_of(needs.aux_bytes * c->batch), mix(hash, 1));
    for (int32_t k = 0; k < op->n_out; k++)
        fill(c->out[k], tensor_words(c->graph, op->out + k, c->batch), mix(hash, 2 + (uint64_t)k));
}

static inline smp_op_needs symbolic_begin(const symbolic_call *c)
{
    smp_op_needs needs;
    smp_op_needs_get(c->graph, &c->graph->op[c->op], c->batch, &needs);
    if (needs.workspace_bytes > 0)
        fill(c->workspace, words_of(needs.workspace_bytes), 0xbad);
    return needs;
}

static inline uint64_t symbolic_douts(const symbolic_call *c)
{
    const smp_op *op = &c->graph->op[c->op];
    uint64_t hash = (uint64_t)c->op;
    for (int32_t k = 0; k < op->n_out; k++)
        hash = digest(hash, c->dout[k], tensor_words(c->graph, op->out + k, c->batch));
    return hash;
}

/* Gives the digest of what the weight gradients of an op read. */
static inline uint64_t symbolic_weight(const symbolic_call *c)
{
    const smp_op *op = &c->graph->op[c->op];
    smp_op_needs needs = symbolic_begin(c);
    uint64_t hash = symbolic_douts(c);
    for (int32_t i = 0; i < op->n_in; i++)
        if (needs.weight_grad_in >> i & 1)
            hash = digest(hash, c->in[i], tensor_words(c->graph, op->in[i], c->batch));
    if (needs.weight_grad_aux)
        hash = digest(hash, c->aux, words_of(needs.aux_bytes * c->batch));
    return hash;
}

/* Writes din from all that it depends on, and aux, if it is to leave that. */
static inline void symbolic_input(const symbolic_call *c)
{
    const smp_op *op = &c->graph->op[c->op];
    bool wanted = false;
    for (int32_t i = 0; i < op->n_in; i++)
        wanted |= c->din[i] != NULL;
    if (!wanted)
        return;
    smp_op_needs needs = symbolic_begin(c);
    uint64_t hash = symbolic_douts(c);
    for (int32_t i = 0; i < op->n_in; i++)
        if (needs.input_grad_in >> i & 1)
            hash = digest(hash, c->in[i], tensor_words(c->graph, op->in[i], c->batch));
    if (needs.input_grad_aux)
        hash = digest(hash, c->aux, words_of(needs.aux_bytes * c->batch));
    for (int32_t k = 0; k < op->n_out; k++)
        if (needs.input_grad_out >> k & 1)
            hash = digest(hash, c->out[k], tensor_words(c->graph, op->out + k, c->batch));
    if (needs.aux_of_backward && c->aux) /* not there where no weight is trained */
        fill(c->aux, words_of(needs.aux_bytes * c->batch), mix(hash, 77));
    for (int32_t i = 0; i < op->n_in; i++) {
        const int64_t n = tensor_words(c->graph, op->in[i], c->batch);
        hash = op->kind->passes_dout ? hash : mix(hash, (uint64_t)i);
        for (int64_t e = 0; c->din[i] && e < n; e++) {
            const uint64_t own = op->kind->passes_dout ? c->dout[0][e] : mix(hash, (uint64_t)e);
            c->din[i][e] = c->plus ? sum_of(c->plus[e], own) : own;
        }
    }
}

typedef struct plain {
    const smp_graph *graph;
    int64_t batch;
    int microbatches;
    uint64_t **use;    /* [n_use] accumulators */
    uint64_t *loss;    /* [microbatches] digests */
    uint64_t ***input; /* [microbatches][n_input] */
} plain;

static inline uint64_t *new_words(int64_t n)
{
    uint64_t *words = calloc((size_t)n + 1, sizeof *words);
    assert_non_null(words);
    return words;
}

static inline void plain_microbatch(plain *p, int m, const bool *backward)
{
    const smp_graph *g = p->graph;
    uint64_t **value = calloc((size_t)g->n_tensor, sizeof *value);
    uint64_t **grad = calloc((size_t)g->n_tensor, sizeof *grad);
    uint64_t **aux = calloc((size_t)g->n_op, sizeof *aux);
    uint64_t *workspace = new_words(64);
    for (int32_t t = 0; t < g->n_tensor; t++)
        value[t] = t < g->n_input ? p->input[m][t] : new_words(tensor_words(g, t, p->batch));
    for (int32_t u = 0; u < g->n_op; u++) {
        symbolic_call c = {.graph = g,
                           .op = u,
                           .batch = p->batch,
                           .aux = aux[u] = new_words(64 * p->batch),
                           .workspace = workspace};
        for (int32_t k = 0; k < g->op[u].n_out; k++)
            c.out[k] = value[g->op[u].out + k];
        for (int32_t i = 0; i < g->op[u].n_in; i++)
            c.in[i] = value[g->op[u].in[i]];
        symbolic_forward(&c);
    }
    p->loss[m] = value[g->loss][0];
    for (int32_t u = g->n_op - 1; u >= 0; u--) {
        const smp_op *op = &g->op[u];
        if (!backward[u])
            continue;
        uint64_t seed = 42;
        symbolic_call c = {
            .graph = g, .op = u, .batch = p->batch, .aux = aux[u], .workspace = workspace};
        bool some = false;
        for (int32_t k = 0; k < op->n_out; k++) {
            int32_t t = op->out + k;
            some |= t == g->loss || grad[t];
            if (!grad[t]) /* an output that adds nothing to the loss */
                grad[t] = new_words(tensor_words(g, t, p->batch));
            c.out[k] = value[t];
            c.dout[k] = t == g->loss ? &seed : grad[t];
        }
        assert_true(some);
        for (int32_t i = 0; i < op->n_in; i++) {
            c.in[i] = value[op->in[i]];
            if (smp_flow_contributes(g, backward, u, i))
                c.din[i] = new_words(tensor_words(g, op->in[i], p->batch));
        }
        symbolic_input(&c);
        uint64_t weight = op->n_param > 0 ? symbolic_weight(&c) : 0;
        for (int32_t i = 0; i < op->n_param; i++) {
            uint64_t added[50];
            fill(added, g->param[op->param[i]].elements, mix(weight, (uint64_t)i));
            add(p->use[op->use[i]], added, g->param[op->param[i]].elements);
        }
        for (int32_t i = 0; i < op->n_in; i++) {
            if (!c.din[i])
                continue;
            if (!grad[op->in[i]]) {
                grad[op->in[i]] = c.din[i];
                continue;
            }
            add(grad[op->in[i]], c.din[i], tensor_words(g, op->in[i], p->batch));
            free(c.din[i]);
        }
    }
    for (int32_t t = 0; t < g->n_tensor; t++) {
        if (t >= g->n_input)
            free(value[t]);
        free(grad[t]);
    }
    for (int32_t u = 0; u < g->n_op; u++)
        free(aux[u]);
    free(value);
    free(grad);
    free(aux);
    free(workspace);
}

#endif
