/* What the operators' cases are written with (case_<op>.c beside this file: a generator of random
 * small models around one op, named "op", that makes "y" from "a", "b", ..., and the naive
 * reference it is compared with), and the table of them.
 *
 * References are in double precision, written from the definitions, one element at a time, and
 * share nothing with graph/ops/. Integer inputs are passed as doubles. An operator without such a
 * file is compared with itself: its gradients with finite differences of its own forward, on its
 * sample. */
#ifndef SMP_TESTS_GRAPH_OPS_OP_CASES_H
#define SMP_TESTS_GRAPH_OPS_OP_CASES_H

#include "graph/ops/op_list.h"
#include "tests/graph/ops/op_harness.h"

typedef struct reference_call {
    const smp_graph *graph;
    const smp_op *op;
    int64_t batch;
    const double *const *in;
    const double *const *param;
    double *out; /* several outputs one behind the other */
    smp_op_step step;
} reference_call;

typedef void (*reference_function)(const reference_call *call);

/* Arithmetic of a call, counted one element at a time from the definitions: a sum, a product and a
 * comparison are one, a function such as exp or a random number is REF_FUNCTION. */
typedef struct reference_flops {
    double forward, backward_input, backward_weight;
} reference_flops;

enum { REF_FUNCTION = 20 };

typedef struct model_text {
    char yaml[4096];
    int64_t batch;
    double magnitude; /* float inputs lie in [-magnitude, magnitude] */
} model_text;

/* A model for a GPU: larger than a launch has threads (on the emulator's small device), several
 * tiles and blocks, 16-byte rows and rows that are nearly that, large values. */
typedef struct large_case {
    int64_t batch;
    double magnitude;
    const char *inputs; /* "a: float32 [3, 4]; b: int32 [2]" */
    const char *op;     /* attributes and inputs; "in: a" if it does not say */
} large_case;

typedef struct op_case {
    void (*make)(model_text *m, uint64_t *rng, int round); /* NULL: the kind's sample */
    reference_function reference;                          /* NULL: its own forward */
    reference_flops (*flops)(const reference_call *c);     /* NULL: none, it moves values */
    double tolerance; /* relative to the largest value of a tensor */
    bool exact;       /* CUDA gives the bits of the CPU, rounded to bf16 where the target is: it
                         rounds once, and adds in the same order */
    bool multiplies;  /* matrices, which TF32 makes less exact */
    /* The magnitude to which errors of an input's gradient are relative, at least. NULL: 1. */
    double (*gradient_scale)(const reference_call *c, const float *dout, int slot);
    /* What element i of a running statistic, weight `slot`, is changed by. NULL: it has none. */
    double (*running)(const reference_call *c, int slot, int64_t i);
    bool mixes_samples; /* batched outputs of a sample depend on the others of the micro-batch */
    const large_case *large; /* ends with {0}; NULL: none */
    const smp_op_kind *kind; /* set by op_case_of */
} op_case;

/* OP_CASE(relu) = {.make = ..., ...}; in case_relu.c, which need not be there. */
#define OP_CASE(name) const op_case smp__case_##name
#define SMP__DECLARE_CASE(name) extern OP_CASE(name) __attribute__((weak));
#define PLUGIN_OPS(X) X(snake) /* of examples/plugin/, where a test loads them */
SMP__OPS(SMP__DECLARE_CASE, SMP__DECLARE_CASE)
PLUGIN_OPS(SMP__DECLARE_CASE)
#undef SMP__DECLARE_CASE

static inline const smp_tensor *ref_in(const reference_call *c, int slot)
{
    return &c->graph->tensor[c->op->in[slot]];
}

static inline int64_t ref_count(const reference_call *c, int slot)
{
    return ref_in(c, slot)->elements * (ref_in(c, slot)->batched ? c->batch : 1);
}

static inline int64_t ref_last(const reference_call *c, int slot)
{
    const smp_shape *shape = &ref_in(c, slot)->shape;
    return shape->dim[shape->n_dim - 1];
}

static inline const smp_attr_value *ref_attr(const reference_call *c, const char *name)
{
    int index = smp_op_attr_index(c->op->kind, name);
    if (index < 0)
        abort();
    return &c->op->attr[index];
}

static inline void ref_copy(const reference_call *c)
{
    for (int64_t i = 0; i < ref_count(c, 0); i++)
        c->out[i] = c->in[0][i];
}

/* Alike for every element of input 0. */
static inline reference_flops ref_flops_each(const reference_call *c, double forward,
                                             double backward_input, double backward_weight)
{
    const double n = (double)ref_count(c, 0);
    return (reference_flops){forward * n, backward_input * n, backward_weight * n};
}

static inline void ref_softmax_row(const double *x, double *y, int64_t n)
{
    double max = x[0], sum = 0;
    for (int64_t i = 1; i < n; i++)
        max = fmax(max, x[i]);
    for (int64_t i = 0; i < n; i++)
        sum += y[i] = exp(x[i] - max);
    for (int64_t i = 0; i < n; i++)
        y[i] /= sum;
}

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

static inline void make_eltwise(model_text *m, uint64_t *rng, int round, const char *op)
{
    char shape[64];
    model_input(m, "a", "float32", random_shape(shape, rng, round % 4, 9));
    model_write(m, "ops:\n  - {%s, name: op, in: a, out: y}\n", op);
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

/* The case of kinds()[index]. */
static inline op_case op_case_at(int index)
{
#define ENTRY(name) {#name, &smp__case_##name},
    static const struct {
        const char *kind;
        const op_case *in_file;
    } cases[] = {SMP__OPS(ENTRY, ENTRY) PLUGIN_OPS(ENTRY)};
#undef ENTRY
    const smp_op_kind *kind = smp_op_kinds()[index];
    op_case c = {.tolerance = 1e-2};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (cases[i].in_file && strcmp(cases[i].kind, kind->name) == 0)
            c = *cases[i].in_file;
    c.kind = kind;
    return c;
}

static inline op_case op_case_of(const char *kind)
{
    for (int i = 0; smp_op_kinds()[i]; i++)
        if (strcmp(smp_op_kinds()[i]->name, kind) == 0)
            return op_case_at(i);
    fail_msg("no operator '%s'", kind);
    return (op_case){0};
}

/* A start for random numbers that depends on what else is listed as little as the models do. */
static inline uint64_t op_case_seed(const op_case *c, uint64_t round)
{
    uint64_t seed = round;
    for (const char *p = c->kind->name; *p; p++)
        seed = smp_random_mix(seed + (unsigned char)*p);
    return seed;
}

static inline void op_case_begin(const op_case *c, uint64_t round, model_text *m, uint64_t *rng)
{
    *rng = op_case_seed(c, round);
    *m = (model_text){.batch = random_int(rng, 1, 3), .magnitude = 2};
    model_write(m, "smp: 1\nname: test\n");
}

/* The model of one round: the same for the same kind and round. */
static inline void op_case_model(const op_case *c, int round, model_text *m, uint64_t *rng)
{
    op_case_begin(c, (uint64_t)round, m, rng);
    model_write(m, "%s", c->make ? "inputs:\n" : c->kind->sample);
    if (c->make)
        c->make(m, rng, round);
}

static inline void large_case_model(const op_case *of, const large_case *c, model_text *m,
                                    uint64_t *rng)
{
    op_case_begin(of, 77, m, rng);
    m->batch = c->batch;
    m->magnitude = c->magnitude;
    model_write(m, "inputs:\n");
    for (const char *p = c->inputs; *p; p += strspn(p, "; ")) {
        char name[8], dtype[16], shape[48];
        int used = 0;
        assert_int_equal(sscanf(p, "%7[a-z]: %15s %47[^]]%n", name, dtype, shape, &used), 3);
        model_input(m, name, dtype, strcat(shape, "]"));
        p += used + 1;
    }
    model_write(m, "ops:\n  - {op: %s, name: op%s%s%s%s}\n", of->kind->name,
                strstr(c->op, "out: ") ? "" : ", out: y", strstr(c->op, "in: ") ? "" : ", in: a",
                *c->op ? ", " : "", c->op);
}

/* Tests of the operators that run: one for each check and operator, so that whatever fails says
 * which operator it is. */
enum { OP_TESTS_MAX = 1024 };

typedef struct op_tests {
    struct CMUnitTest test[OP_TESTS_MAX];
    char name[OP_TESTS_MAX][96];
    op_case of[OP_TESTS_MAX]; /* *state of a check */
    size_t n;
} op_tests;

static inline void op_tests_add(op_tests *t, smp_backend backend, const char *what,
                                CMUnitTestFunction check)
{
    for (int i = 0; smp_op_kinds()[i]; i++) {
        if (!smp_op_kind_runs(smp_op_kinds()[i], backend) || t->n == OP_TESTS_MAX)
            continue;
        t->of[t->n] = op_case_at(i);
        snprintf(t->name[t->n], sizeof t->name[0], "%s: %s", smp_op_kinds()[i]->name, what);
        t->test[t->n] = (struct CMUnitTest){t->name[t->n], check, NULL, NULL, &t->of[t->n]};
        t->n++;
    }
}

static inline int op_tests_run(const char *group, const op_tests *t, CMFixtureFunction setup,
                               CMFixtureFunction teardown)
{
    return _cmocka_run_group_tests(group, t->test, t->n, setup, teardown);
}

#endif
