/* rope: random and large models (one pair and many, of neighbours and of halves, long sequences,
 * other bases, heads that pass as in a packed q | k | v); the naive reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    char shape[64];
    bool is_long = round % 8 == 7;
    int heads = (int)random_int(rng, 1, is_long ? 2 : 6);
    int columns = heads * 2 * (int)random_int(rng, 1, is_long ? 3 : 40);
    m->batch = is_long ? 1 : m->batch;
    snprintf(shape, sizeof shape, "[%d, %d]", (int)random_int(rng, 1, is_long ? 3000 : 30),
             columns);
    model_input(m, "a", "float32", shape);
    model_write(m, "ops:\n  - {op: rope, name: op, in: a, out: y, heads: %d%s", heads,
                round % 3 == 2 ? ", base: 500" : "");
    if (round % 4 == 1)
        model_write(m, ", rotated: %d", (int)random_int(rng, 1, heads));
    if (round % 5 > 2)
        model_write(m, ", interleaved: true");
    model_write(m, "}\n");
}

static int64_t rotated_heads(const reference_call *c)
{
    int64_t rotated = ref_attr(c, "rotated")->i;
    return rotated > 0 ? rotated : ref_attr(c, "heads")->i;
}

static void reference(const reference_call *c)
{
    int64_t positions = ref_in(c, 0)->shape.dim[0];
    int64_t width = ref_last(c, 0) / ref_attr(c, "heads")->i;
    ref_copy(c);
    for (int64_t row = 0; row < c->batch * positions; row++)
        for (int64_t h = 0; h < rotated_heads(c); h++)
            for (int64_t i = 0; i < width / 2; i++) {
                double exponent = -2.0 * (double)i / (double)width;
                double angle = (double)(row % positions) * pow(ref_attr(c, "base")->f, exponent);
                bool interleaved = ref_attr(c, "interleaved")->i != 0;
                int64_t first = row * ref_last(c, 0) + h * width + (interleaved ? 2 * i : i);
                int64_t second = interleaved ? first + 1 : first + width / 2;
                double u = c->in[0][first], v = c->in[0][second];
                c->out[first] = u * cos(angle) - v * sin(angle);
                c->out[second] = v * cos(angle) + u * sin(angle);
            }
}

/* Two products and a sum of a value that is turned, both ways; sines are the same in every step. */
static reference_flops flops(const reference_call *c)
{
    double share = (double)rotated_heads(c) / (double)ref_attr(c, "heads")->i;
    return ref_flops_each(c, 3 * share, 3 * share, 0);
}

static const large_case LARGE[] = {
    {2, 2, "a: float32 [301, 192]", "heads: 3"},
    {1, 1e4, "a: float32 [2000, 24]", "heads: 3, rotated: 2"},
    {2, 2, "a: float32 [301, 192]", "heads: 3, interleaved: true"},
    {0},
};

OP_CASE(rope) = {
    .make = make, .reference = reference, .flops = flops, .tolerance = 1e-6, .large = LARGE};
