/* Models of one op in addition to those of tests/graph/ops/op_cases.h: larger than a launch has threads
 * (on the emulator's small device), several tiles and blocks, 16-byte rows and rows that are nearly
 * that, large values. And how close the kernels of a kind must be. */
#ifndef SMP_TESTS_TEST_CUDA_OPS_CASES_H
#define SMP_TESTS_TEST_CUDA_OPS_CASES_H

#include "tests/graph/ops/op_cases.h"

/* Kinds that must give the bits of the CPU's kernel, rounded to bf16 where the target is: they
 * round once, and add in the same order. */
static const char *const EXACT[] = {
    "add",     "mul",    "relu",     "dropout",   "flatten",
    "reshape", "concat", "patchify", "embedding", "position_embedding"};

typedef struct large_case {
    const char *kind;
    int64_t batch;
    double magnitude;
    const char *inputs; /* "a: float32 [3, 4]; b: int32 [2]" */
    const char *op;     /* attributes and inputs; "in: a" if it does not say */
} large_case;

static const large_case LARGE[] = {
    {"add", 1, 1e4, "a: float32 [40003]; b: float32 [40003]", "in: [a, b]"},
    {"add", 2, 1e-4, "a: float32 [64, 32]; b: float32 [64, 32]", "in: [a, b]"},
    {"mul", 1, 1e4, "a: float32 [40003]; b: float32 [40003]", "in: [a, b]"},
    {"relu", 3, 1e4, "a: float32 [13331]", ""},
    {"tanh", 3, 20, "a: float32 [13331]", ""},
    {"gelu", 3, 1e4, "a: float32 [13331]", ""},
    {"gelu", 3, 1e4, "a: float32 [1331]", "approximate: erf"},
    {"dropout", 1, 1e4, "a: float32 [40003]", "p: 0.3"},
    {"dropout", 2, 2, "a: float32 [2048]", "p: 0.9"},
    {"flatten", 2, 2, "a: float32 [129, 33]", ""},
    {"reshape", 2, 2, "a: float32 [129, 34]", "shape: [2, -1]"},
    {"concat", 2, 2, "a: float32 [50, 64]; b: float32 [50, 32]; c: float32 [50, 128]",
     "in: [a, b, c]"},
    {"concat", 2, 2, "a: float32 [90, 65]; b: float32 [90, 66]", "in: [a, b]"},
    {"concat", 2, 2, "a: float32 [200, 66]; b: float32 [10, 66]", "in: [a, b], axis: 0"},
    {"concat", 2, 2, "a: int32 [9, 8]; b: int32 [9, 5]", "in: [a, b]"},
    {"patchify", 2, 2, "a: float32 [3, 32, 48]", "patch: 16"},
    {"patchify", 2, 2, "a: float32 [3, 70, 84]", "patch: 14"},
    {"mean_pool", 2, 1e4, "a: float32 [100, 200]", ""},
    {"mean_pool", 40, 2, "a: float32 [5, 33]", ""},
    {"position_embedding", 5, 2, "a: float32 [70, 512]", ""},
    {"position_embedding", 5, 1e4, "a: float32 [129, 33]", ""},
    {"embedding", 2, 2, "a: int32 [700]", "rows: 300, features: 64"},
    {"embedding", 2, 2, "a: int32 [700]", "rows: 4, features: 300"},
    {"embedding", 3, 2, "a: int32 [600]", "rows: 70000, features: 5"},
    {"embedding", 1, 2, "a: int32 [33]", "rows: 1, features: 1032"},
    {"linear", 2, 2, "a: float32 [33, 72]", "features: 96"},
    {"linear", 3, 1e4, "a: float32 [45, 65]", "features: 131"},
    {"linear", 1, 2, "a: float32 [7, 256]", "features: 512, bias: false"},
    {"layernorm", 2, 2, "a: float32 [9, 768]", ""},
    {"layernorm", 1, 1e4, "a: float32 [5, 1027]", ""},
    {"layernorm", 3, 2, "a: float32 [101, 64]", ""},
    {"layernorm", 1, 2, "a: float32 [2, 8192]", ""},
    {"softmax", 2, 10, "a: float32 [7, 1000]", ""},
    {"softmax", 1, 1e4, "a: float32 [3, 5003]", ""},
    {"attention", 2, 1.5, "a: float32 [130, 384]", "heads: 2, causal: true"},
    {"attention", 1, 3, "a: float32 [70, 240]", "heads: 1, causal: false"},
    {"attention", 1, 3, "a: float32 [65, 384]", "heads: 1, causal: true"},
    {"attention", 1, 1.5, "a: float32 [40, 96]; b: float32 [75, 96]; c: float32 [75, 96]",
     "in: [a, b, c], heads: 3, causal: false"},
    {"cross_entropy", 2, 10, "a: float32 [9, 5003]; b: int32 [9]", "in: [a, b]"},
    {"cross_entropy", 1, 1e4, "a: float32 [300, 64]; b: int32 [300]", "in: [a, b]"},
    {"mse", 2, 100, "a: float32 [20011]; b: float32 [20011]", "in: [a, b]"},
};

static inline bool is_exact(const char *kind)
{
    for (size_t i = 0; i < sizeof EXACT / sizeof *EXACT; i++)
        if (strcmp(EXACT[i], kind) == 0)
            return true;
    return false;
}

/* Of a value, relative to the largest of its tensor. */
static inline double device_tolerance(const char *kind, smp_precision precision)
{
    bool multiplies = strcmp(kind, "linear") == 0 || strcmp(kind, "attention") == 0;
    if (precision == SMP_PRECISION_BF16)
        return 1e-2;
    return precision == SMP_PRECISION_TF32 && multiplies ? 2e-3 : 1e-5;
}

/* The largest sum of magnitudes behind an element of gradient `part` (0: q, 1: k, 2: v) of an
 * attention. Where softmax is sharp its gradient is a small difference, and errors are relative to
 * what it is a difference of. */
static inline double attention_summands(const reference_call *c, const float *dout, int part)
{
    bool packed = c->op->n_in == 1, causal = ref_attr(c, "causal")->i;
    int64_t queries = ref_in(c, 0)->shape.dim[0];
    int64_t keys = ref_in(c, packed ? 0 : 1)->shape.dim[0];
    int64_t d = packed ? ref_last(c, 0) / 3 : ref_last(c, 0);
    int64_t heads = ref_attr(c, "heads")->i, width = d / heads, rows = part == 0 ? queries : keys;
    double *p = calloc((size_t)(2 * keys), sizeof *p), *dp = p + keys, largest_sum = 0;
    double *sums = calloc((size_t)(c->batch * rows * d), sizeof *sums);
    assert_true(p && sums);
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t q = 0; q < queries; q++) {
                int64_t n = causal ? q + 1 : keys;
                const float *dy = dout + (b * queries + q) * d;
                double mean = 0;
                for (int64_t k = 0; k < n; k++) {
                    p[k] = dp[k] = 0;
                    for (int64_t i = h * width; i < (h + 1) * width; i++) {
                        p[k] += ref_qkv(c, 0, b, q, i) * ref_qkv(c, 1, b, k, i);
                        dp[k] += fabs((double)dy[i] * ref_qkv(c, 2, b, k, i));
                    }
                    p[k] /= sqrt((double)width);
                }
                ref_softmax_row(p, p, n);
                for (int64_t k = 0; k < n; k++)
                    mean += p[k] * dp[k];
                for (int64_t k = 0; k < n; k++)
                    for (int64_t i = h * width; i < (h + 1) * width; i++) {
                        double ds = p[k] * (dp[k] + mean) / sqrt((double)width);
                        double *sum = &sums[(b * rows + (part == 0 ? q : k)) * d + i];
                        *sum += part == 0   ? ds * fabs(ref_qkv(c, 1, b, k, i))
                                : part == 1 ? ds * fabs(ref_qkv(c, 0, b, q, i))
                                            : p[k] * fabs((double)dy[i]);
                        largest_sum = fmax(largest_sum, *sum);
                    }
            }
    free(p);
    free(sums);
    return largest_sum;
}

/* The magnitude to which errors of an input's gradient are relative, at least. */
static inline double input_gradient_scale(const reference_call *c, const float *dout, int slot)
{
    double scale = 1;
    if (strcmp(c->op->kind->name, "attention") != 0)
        return scale;
    for (int part = 0; part < 3; part++)
        if (c->op->n_in == 1 || part == slot)
            scale = fmax(scale, attention_summands(c, dout, part));
    return scale;
}

static inline void large_case_model(const large_case *c, uint64_t seed, model_text *m,
                                    uint64_t *rng)
{
    *rng = smp_random_mix(seed + 77);
    *m = (model_text){.batch = c->batch, .magnitude = c->magnitude};
    model_write(m, "smp: 1\nname: test\ninputs:\n");
    for (const char *p = c->inputs; *p; p += strspn(p, "; ")) {
        char name[8], dtype[16], shape[48];
        int used = 0;
        assert_int_equal(sscanf(p, "%7[a-z]: %15s %47[^]]%n", name, dtype, shape, &used), 3);
        model_input(m, name, dtype, strcat(shape, "]"));
        p += used + 1;
    }
    model_write(m, "ops:\n  - {op: %s, name: op, out: y%s%s%s}\n", c->kind,
                strstr(c->op, "in: ") ? "" : ", in: a", *c->op ? ", " : "", c->op);
}

/* Ops that may follow another and be fused with it; each reads y. */
static const char *const FOLLOWERS[] = {
    "op: gelu",      "op: gelu, approximate: erf", "op: relu", "op: tanh", "op: softmax",
    "op: layernorm", "op: dropout, p: 0.5",
};

#endif
