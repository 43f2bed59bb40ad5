/* groupnorm: random and large models (one group, a group for each channel, channels of one value
 * and of many, whole packs and not); the naive reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    char shape[64];
    int groups = (int)random_int(rng, 1, 4), each = (int)random_int(rng, 1, 5);
    if (round % 4 == 0) /* channels of one value; more than one of them in a group */
        snprintf(shape, sizeof shape, "[%d]", groups * (each + 2));
    else if (round % 4 == 1)
        snprintf(shape, sizeof shape, "[%d, %d]", groups * each, (int)random_int(rng, 3, 300));
    else
        snprintf(shape, sizeof shape, "[%d, %d, %d]", groups * each, (int)random_int(rng, 1, 9),
                 round % 4 == 2 ? 8 : (int)random_int(rng, 3, 9));
    model_input(m, "a", "float32", shape);
    model_write(m, "ops:\n  - {op: groupnorm, name: op, in: a, out: y, groups: %d%s}\n", groups,
                round % 2 == 0 ? "" : ", eps: 0.01");
}

static void reference(const reference_call *c)
{
    int64_t all = ref_in(c, 0)->shape.dim[0], places = ref_in(c, 0)->elements / all;
    int64_t channels = all / ref_attr(c, "groups")->i, n = channels * places;
    double eps = ref_attr(c, "eps")->f;
    for (int64_t begin = 0; begin < ref_count(c, 0); begin += n) {
        const double *x = c->in[0] + begin;
        double mean = 0, variance = 0;
        for (int64_t i = 0; i < n; i++)
            mean += x[i] / (double)n;
        for (int64_t i = 0; i < n; i++)
            variance += (x[i] - mean) * (x[i] - mean) / (double)n;
        for (int64_t i = 0; i < n; i++) {
            int64_t channel = (begin + i) / places % all;
            c->out[begin + i] =
                (x[i] - mean) / sqrt(variance + eps) * c->param[0][channel] + c->param[1][channel];
        }
    }
}

/* As layernorm: mean, variance (3), normalised (2), scale, shift; x normalised (2), two sums and
 * their products (4), and four more; x normalised, a product and two sums. */
static reference_flops flops(const reference_call *c)
{
    return ref_flops_each(c, 8, 10, 5);
}

static const large_case LARGE[] = {
    {2, 2, "a: float32 [12, 24, 24]", "groups: 3"},
    {1, 1e4, "a: float32 [6, 5, 103]", "groups: 2"},
    {3, 2, "a: float32 [128]", "groups: 4"},
    {1, 2, "a: float32 [4, 40000]", "groups: 1"},
    {2, 2, "a: float32 [80, 9, 9]", "groups: 8"},
    {2, 2, "a: float32 [264, 5, 4]", "groups: 3"},
    {0},
};

OP_CASE(groupnorm) = {
    .make = make, .reference = reference, .flops = flops, .tolerance = 2e-5, .large = LARGE};
