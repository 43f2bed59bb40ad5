/* rope: random and large models (one pair and many, of neighbours and of halves, long sequences,
 * other bases, scalings, heads that pass as in a packed q | k | v); the naive reference. */
#include "graph/ops/attention/rope.h"
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
    const bool longer = round % 7 == 6 && columns / heads / 2 <= SMP__ROPE_MOST_FACTORS;
    model_input(m, "a", "float32", shape);
    model_write(m, "ops:\n  - {op: rope, name: op, in: a, out: y, heads: %d%s", heads,
                round % 3 == 2 ? ", base: 500" : "");
    if (round % 4 == 1)
        model_write(m, ", rotated: %d", (int)random_int(rng, 1, heads));
    if (round % 5 > 2)
        model_write(m, ", interleaved: true");
    for (int i = 0; longer && i < columns / heads / 2; i++)
        model_write(m, "%s%.6g", i > 0 ? ", " : ", scaling: longrope, factors: [",
                    random_unit(rng) * 3 + 0.5);
    if (longer)
        model_write(m, "]%s", round % 2 == 0 ? ", attention_factor: 1.2" : "");
    else if (round % 6 == 3)
        model_write(m, ", scaling: linear, factor: 2.5");
    else if (round % 6 == 4)
        model_write(m, ", scaling: llama3, factor: 8, original_positions: %d, low_freq_factor: 1.5",
                    (int)random_int(rng, 8, 4000));
    else if (round % 6 == 5)
        model_write(m, ", scaling: yarn, factor: %d, original_positions: %d, beta_fast: 9",
                    (int)random_int(rng, 1, 16), (int)random_int(rng, 8, 4000));
    model_write(m, "}\n");
}

/* As the papers and transformers write them, by wave lengths and by ramps. */
static double frequency(const reference_call *c, int64_t pair, int64_t width, double *magnitude)
{
    const double base = ref_attr(c, "base")->f, factor = ref_attr(c, "factor")->f;
    const double plain = pow(base, -2.0 * (double)pair / (double)width), pi = acos(-1);
    const double original = (double)ref_attr(c, "original_positions")->i;
    const int64_t kind = ref_attr(c, "scaling")->i;
    if (kind == SMP__ROPE_LONG) {
        const double given = ref_attr(c, "attention_factor")->f;
        *magnitude = given > 0 ? given : 1;
        return plain / ref_attr(c, "factors")->floats.items[pair];
    }
    if (kind == SMP__ROPE_LINEAR)
        return plain / factor;
    if (kind == SMP__ROPE_LLAMA3) {
        const double low = ref_attr(c, "low_freq_factor")->f;
        const double high = ref_attr(c, "high_freq_factor")->f, wave = 2 * pi / plain;
        if (wave < original / high)
            return plain;
        if (wave > original / low)
            return plain / factor;
        const double smooth = (original / wave - low) / (high - low);
        return (1 - smooth) * plain / factor + smooth * plain;
    }
    if (kind == SMP__ROPE_YARN) {
        const double slow = ref_attr(c, "beta_slow")->f, fast = ref_attr(c, "beta_fast")->f;
        const double per = (double)width / (2 * log(base));
        const double begin = fmax(floor(per * log(original / (fast * 2 * pi))), 0);
        double end = fmin(ceil(per * log(original / (slow * 2 * pi))), (double)width - 1);
        end += begin == end ? 0.001 : 0;
        const double ramp = fmin(fmax(((double)pair - begin) / (end - begin), 0), 1);
        *magnitude = factor > 1 ? 0.1 * log(factor) + 1 : 1;
        return plain / factor * ramp + plain * (1 - ramp);
    }
    return plain;
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
                double magnitude = 1;
                double angle = (double)(row % positions) * frequency(c, i, width, &magnitude);
                double cosine = magnitude * cos(angle), sine = magnitude * sin(angle);
                bool interleaved = ref_attr(c, "interleaved")->i != 0;
                int64_t first = row * ref_last(c, 0) + h * width + (interleaved ? 2 * i : i);
                int64_t second = interleaved ? first + 1 : first + width / 2;
                double u = c->in[0][first], v = c->in[0][second];
                c->out[first] = u * cosine - v * sine;
                c->out[second] = v * cosine + u * sine;
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
    {1, 2, "a: float32 [301, 192]", "heads: 3, scaling: yarn, factor: 4, original_positions: 64"},
    {0},
};

OP_CASE(rope) = {
    .make = make, .reference = reference, .flops = flops, .tolerance = 1e-6, .large = LARGE};
