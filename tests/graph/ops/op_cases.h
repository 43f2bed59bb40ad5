/* For every operator kind with kernels: a generator of random small models around one op named
 * "op", and the naive reference it is compared with. */
#ifndef SMP_TESTS_GRAPH_OPS_OP_CASES_H
#define SMP_TESTS_GRAPH_OPS_OP_CASES_H

#include "tests/graph/ops/op_harness.h"
#include "tests/graph/ops/op_reference.h"

typedef struct model_text {
    char yaml[4096];
    int64_t batch;
    double magnitude; /* float inputs lie in [-magnitude, magnitude] */
} model_text;

typedef struct op_case {
    const char *kind;
    void (*make)(model_text *m, uint64_t *rng, int round);
    reference_function reference;
    double tolerance; /* relative to the largest value of a tensor */
} op_case;

static inline void model_write(model_text *m, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static inline void model_write(model_text *m, const char *format, ...)
{
    size_t used = strlen(m->yaml);
    va_list args;
    va_start(args, format);
    int n = vsnprintf(m->yaml + used, sizeof m->yaml - used, format, args);
    va_end(args);
    assert_true(n >= 0 && used + (size_t)n < sizeof m->yaml);
}

/* "[3, 5]" of `n` random dimensions. */
static inline const char *random_shape(char text[64], uint64_t *rng, int n, int64_t max)
{
    strcpy(text, "[");
    for (int i = 0; i < n; i++)
        snprintf(text + strlen(text), 64 - strlen(text), "%s%d", i > 0 ? ", " : "",
                 (int)random_int(rng, 1, max));
    return strcat(text, "]");
}

static inline void model_input(model_text *m, const char *name, const char *dtype,
                               const char *shape)
{
    model_write(m, "  %s: {dtype: %s, shape: %s}\n", name, dtype, shape);
}

static inline void make_embedding(model_text *m, uint64_t *rng, int round)
{
    char shape[64];
    model_input(m, "a", "int32", random_shape(shape, rng, round % 3, 6));
    model_write(m, "ops:\n  - {op: embedding, name: op, in: a, out: y, rows: %d, features: %d}\n",
                (int)random_int(rng, 1, 9), (int)random_int(rng, 1, 40));
}

static inline void make_position_embedding(model_text *m, uint64_t *rng, int round)
{
    char shape[64];
    (void)round;
    model_input(m, "a", "float32", random_shape(shape, rng, 2, 20));
    model_write(m, "ops:\n  - {op: position_embedding, name: op, in: a, out: y}\n");
}

static inline void make_linear(model_text *m, uint64_t *rng, int round)
{
    char shape[64];
    int features = (int)random_int(rng, 1, round % 8 == 7 ? 300 : 40);
    if (round % 4 == 3) { /* tied to an embedding's table */
        int d = (int)random_int(rng, 1, 20);
        snprintf(shape, sizeof shape, "[%d, %d]", (int)random_int(rng, 1, 7), d);
        model_input(m, "a", "float32", shape);
        model_input(m, "b", "int32", "[2]");
        model_write(m,
                    "ops:\n  - {op: embedding, name: wte, in: b, out: e, rows: %d, features: %d}\n"
                    "  - {op: linear, name: op, in: a, out: y, features: %d, bias: %s, "
                    "weight: wte.weight}\n",
                    features, d, features, round % 8 == 3 ? "true" : "false");
        return;
    }
    model_input(m, "a", "float32", random_shape(shape, rng, 1 + round % 3, 12));
    model_write(m, "ops:\n  - {op: linear, name: op, in: a, out: y, features: %d, bias: %s}\n",
                features, round % 2 == 0 ? "true" : "false");
}

static inline void make_layernorm(model_text *m, uint64_t *rng, int round)
{
    char shape[64];
    int columns = round % 8 == 0 ? 1 : (int)random_int(rng, 3, round % 8 == 7 ? 600 : 50);
    snprintf(shape, sizeof shape, "[%d, %d]", (int)random_int(rng, 1, 7), columns);
    model_input(m, "a", "float32", shape);
    model_write(m, "ops:\n  - {op: layernorm, name: op, in: a, out: y%s}\n",
                round % 2 == 0 ? "" : ", eps: 0.01");
}

static inline void make_eltwise(model_text *m, uint64_t *rng, int round, const char *op)
{
    char shape[64];
    model_input(m, "a", "float32", random_shape(shape, rng, round % 4, 9));
    model_write(m, "ops:\n  - {%s, name: op, in: a, out: y}\n", op);
}

static inline void make_gelu(model_text *m, uint64_t *rng, int round)
{
    static const char *const ops[] = {"op: gelu", "op: gelu, approximate: tanh",
                                      "op: gelu, approximate: erf", "op: gelu, approximate: none"};
    m->magnitude = round % 2 == 0 ? 2 : 6;
    make_eltwise(m, rng, round, ops[round % 4]);
}

static inline void make_relu(model_text *m, uint64_t *rng, int round)
{
    make_eltwise(m, rng, round, "op: relu");
}

static inline void make_tanh(model_text *m, uint64_t *rng, int round)
{
    make_eltwise(m, rng, round, "op: tanh");
}

static inline void make_dropout(model_text *m, uint64_t *rng, int round)
{
    static const char *const ops[] = {"op: dropout, p: 0.1", "op: dropout, p: 0.5",
                                      "op: dropout, p: 0", "op: dropout, p: 0.75"};
    make_eltwise(m, rng, round, ops[random_int(rng, 0, 3)]);
}

static inline void make_flatten(model_text *m, uint64_t *rng, int round)
{
    make_eltwise(m, rng, round, "op: flatten");
}

static inline void make_softmax(model_text *m, uint64_t *rng, int round)
{
    char shape[64];
    m->magnitude = round % 3 == 2 ? 1e4 : 3;
    model_input(m, "a", "float32",
                random_shape(shape, rng, 1 + round % 3, round % 4 == 0 ? 70 : 9));
    model_write(m, "ops:\n  - {op: softmax, name: op, in: a, out: y}\n");
}

static inline void make_attention(model_text *m, uint64_t *rng, int round)
{
    bool is_long = round % 8 == 7, causal = round % 2 == 1; /* long: several blocks of queries */
    int heads = (int)random_int(rng, 1, is_long ? 2 : 4);
    int d = heads * (int)random_int(rng, 1, is_long ? 4 : 9);
    int queries = (int)random_int(rng, is_long ? 129 : 1, is_long ? 140 : 20);
    int keys = causal ? queries : (int)random_int(rng, 1, 20);
    char shape[64];
    m->batch = is_long ? 1 : m->batch;
    m->magnitude = round % 5 == 4 ? 10 : 1.5;
    if (round % 4 < 2 || is_long) {
        snprintf(shape, sizeof shape, "[%d, %d]", queries, 3 * d);
        model_input(m, "a", "float32", shape);
        model_write(m,
                    "ops:\n  - {op: attention, name: op, in: a, out: y, heads: %d, causal: %s}\n",
                    heads, causal ? "true" : "false");
        return;
    }
    snprintf(shape, sizeof shape, "[%d, %d]", queries, d);
    model_input(m, "a", "float32", shape);
    snprintf(shape, sizeof shape, "[%d, %d]", keys, d);
    model_input(m, "b", "float32", shape);
    model_input(m, "c", "float32", shape);
    model_write(m,
                "ops:\n  - {op: attention, name: op, in: [a, b, c], out: y, heads: %d, "
                "causal: %s}\n",
                heads, causal ? "true" : "false");
}

static inline void make_pair(model_text *m, uint64_t *rng, int round, const char *op)
{
    char shape[64];
    random_shape(shape, rng, round % 4, 9);
    model_input(m, "a", "float32", shape);
    model_input(m, "b", "float32", shape);
    model_write(m, "ops:\n  - {op: %s, name: op, in: %s, out: y}\n", op,
                round % 5 == 4 ? "[a, a]" : "[a, b]");
}

static inline void make_add(model_text *m, uint64_t *rng, int round)
{
    make_pair(m, rng, round, "add");
}

static inline void make_mul(model_text *m, uint64_t *rng, int round)
{
    make_pair(m, rng, round, "mul");
}

static inline void make_mse(model_text *m, uint64_t *rng, int round)
{
    make_pair(m, rng, round, "mse");
}

static inline void make_reshape(model_text *m, uint64_t *rng, int round)
{
    int a = (int)random_int(rng, 1, 6), b = (int)random_int(rng, 1, 6);
    char shape[64];
    snprintf(shape, sizeof shape, "[%d, %d, 2]", a, b);
    model_input(m, "a", "float32", shape);
    static const char *const shapes[] = {"[-1]", "[2, -1]", "[%d, -1, 1]", "[2, %d, %d]"};
    char to[64];
    snprintf(to, sizeof to, shapes[round % 4], b, a);
    model_write(m, "ops:\n  - {op: reshape, name: op, in: a, out: y, shape: %s}\n", to);
}

static inline void make_concat(model_text *m, uint64_t *rng, int round)
{
    int n_in = (int)random_int(rng, 2, 4), n_dim = 1 + round % 3, dim[3];
    int axis = (int)random_int(rng, -n_dim, n_dim - 1);
    for (int d = 0; d < n_dim; d++)
        dim[d] = (int)random_int(rng, 1, 7);
    for (int i = 0; i < n_in; i++) {
        char shape[64] = "[", name[2] = {(char)('a' + i), 0};
        dim[axis < 0 ? axis + n_dim : axis] = (int)random_int(rng, 1, 7);
        for (int d = 0; d < n_dim; d++)
            snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%d", d ? ", " : "",
                     dim[d]);
        model_input(m, name, "float32", strcat(shape, "]"));
    }
    static const char *const inputs[] = {"[a, b]", "[a, b, c]", "[a, b, c, d]"};
    model_write(m, "ops:\n  - {op: concat, name: op, in: %s, out: y", inputs[n_in - 2]);
    if (axis == -1)
        model_write(m, "}\n");
    else
        model_write(m, ", axis: %d}\n", axis);
}

static inline void make_patchify(model_text *m, uint64_t *rng, int round)
{
    int patch = (int)random_int(rng, 1, 4);
    int height = patch * (int)random_int(rng, 1, 3), width = patch * (int)random_int(rng, 1, 4);
    char shape[64];
    if (round % 2 == 0)
        snprintf(shape, sizeof shape, "[%d, %d]", height, width);
    else
        snprintf(shape, sizeof shape, "[%d, %d, %d]", (int)random_int(rng, 1, 4), height, width);
    model_input(m, "a", "float32", shape);
    model_write(m, "ops:\n  - {op: patchify, name: op, in: a, out: y, patch: %d}\n", patch);
}

static inline void make_mean_pool(model_text *m, uint64_t *rng, int round)
{
    char shape[64];
    (void)round;
    model_input(m, "a", "float32", random_shape(shape, rng, 2, 30));
    model_write(m, "ops:\n  - {op: mean_pool, name: op, in: a, out: y}\n");
}

static inline void make_cross_entropy(model_text *m, uint64_t *rng, int round)
{
    char shape[64], logits[80];
    m->magnitude = round % 3 == 2 ? 1e4 : 3;
    random_shape(shape, rng, round % 3, 5);
    model_input(m, "b", "int32", shape);
    snprintf(logits, sizeof logits, "%.*s%s%d]", (int)strlen(shape) - 1, shape,
             round % 3 == 0 ? "" : ", ", (int)random_int(rng, 1, 60));
    model_input(m, "a", "float32", logits);
    model_write(m, "ops:\n  - {op: cross_entropy, name: op, in: [a, b], out: y}\n");
}

static const op_case OP_CASES[] = {
    {"embedding", make_embedding, ref_embedding, 2e-6},
    {"position_embedding", make_position_embedding, ref_position_embedding, 2e-6},
    {"linear", make_linear, ref_linear, 5e-6},
    {"layernorm", make_layernorm, ref_layernorm, 2e-5},
    {"gelu", make_gelu, ref_gelu, 1e-5},
    {"relu", make_relu, ref_relu, 1e-6},
    {"tanh", make_tanh, ref_tanh, 5e-6},
    {"softmax", make_softmax, ref_softmax, 1e-5},
    {"attention", make_attention, ref_attention, 2e-5},
    {"add", make_add, ref_add, 1e-6},
    {"mul", make_mul, ref_mul, 1e-6},
    {"dropout", make_dropout, ref_dropout, 1e-6},
    {"flatten", make_flatten, ref_copy, 1e-6},
    {"reshape", make_reshape, ref_copy, 1e-6},
    {"concat", make_concat, ref_concat, 1e-6},
    {"patchify", make_patchify, ref_patchify, 1e-6},
    {"mean_pool", make_mean_pool, ref_mean_pool, 2e-6},
    {"cross_entropy", make_cross_entropy, ref_cross_entropy, 1e-5},
    {"mse", make_mse, ref_mse, 2e-6},
};

static inline const op_case *op_case_find(const char *kind)
{
    for (size_t i = 0; i < sizeof OP_CASES / sizeof *OP_CASES; i++)
        if (strcmp(OP_CASES[i].kind, kind) == 0)
            return &OP_CASES[i];
    return NULL;
}

/* The model of one round: the same for the same kind and round. */
static inline void op_case_model(const op_case *c, int round, model_text *m, uint64_t *rng)
{
    *rng = smp_random_mix((uint64_t)(c - OP_CASES) * 1000 + (uint64_t)round);
    *m = (model_text){.batch = random_int(rng, 1, 3), .magnitude = 2};
    model_write(m, "smp: 1\nname: test\ninputs:\n");
    c->make(m, rng, round);
}

#endif
