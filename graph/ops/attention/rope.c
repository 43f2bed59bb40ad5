/* rope: rotary position embedding (Su et al., "RoFormer", 2021) of x [T, heads * w]. At position t
 * the pair i of a head, (u, v), is turned by the angle t * base^(-2 i / w):
 *   (u cos - v sin, v cos + u sin).
 * Its elements are i and i + w / 2, as in Hugging Face's LLaMA, or, `interleaved`, 2 i and 2 i + 1,
 * as in the paper, GPT-J and Meta's own weights. The gradient is turned back. With `rotated` the
 * heads after so many pass as they are: the values of a packed q | k | v. `scaling` changes angles
 * (smp__rope_frequency).
 *
 * One turn (`prepare`) is made of sums, products and quotients in double, since a library's cos may
 * round differently on another machine; the turn of position t + 1 is that of t and one more, whose
 * error grows to t * 1e-16: nothing to a float. So no table of T * w values lies outside of the
 * memory plan. O(B * T * heads * w). */
#include "graph/ops/collective/collective.h"
#include "graph/ops/attention/rope.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/math/vector.h"

static const char *const SCALINGS[] = {"none", "linear", "llama3", "yarn", "longrope", NULL};

static const smp_attr_desc ATTRS[] = {
    [SMP__ROPE_HEADS] = {"heads", SMP_ATTR_INT, true, 0, 1, INT32_MAX, NULL},
    [SMP__ROPE_BASE] = {"base", SMP_ATTR_FLOAT, false, 10000, 1, 1e12, NULL},
    [SMP__ROPE_ROTATED] = {"rotated", SMP_ATTR_INT, false, 0, 1, INT32_MAX, NULL}, /* 0: all */
    [SMP__ROPE_INTERLEAVED] = {"interleaved", SMP_ATTR_BOOL, false, 0, 0, 1, NULL},
    [SMP__ROPE_DEVICES] = {"devices", SMP_ATTR_INT, false, 1, 1, SMP__MOST_DEVICES, NULL},
    [SMP__ROPE_AXIS] = {"axis", SMP_ATTR_INT, false, 0, 0, 1, NULL},
    [SMP__ROPE_BLOCKS] = {"blocks", SMP_ATTR_INT, false, 1, 1, SMP_SPLIT_BLOCKS, NULL},
    [SMP__ROPE_SCALING] = {"scaling", SMP_ATTR_CHOICE, false, SMP__ROPE_PLAIN, 0, 0, SCALINGS},
    [SMP__ROPE_FACTOR] = {"factor", SMP_ATTR_FLOAT, false, 1, 1, 1e6, NULL},
    [SMP__ROPE_ORIGINAL] = {"original_positions", SMP_ATTR_INT, false, 0, 0, INT32_MAX, NULL},
    [SMP__ROPE_LOW] = {"low_freq_factor", SMP_ATTR_FLOAT, false, 1, 0, 1e6, NULL},
    [SMP__ROPE_HIGH] = {"high_freq_factor", SMP_ATTR_FLOAT, false, 4, 0, 1e6, NULL},
    [SMP__ROPE_SLOW] = {"beta_slow", SMP_ATTR_FLOAT, false, 1, 1e-6, 1e6, NULL},
    [SMP__ROPE_FAST] = {"beta_fast", SMP_ATTR_FLOAT, false, 32, 1e-6, 1e6, NULL},
    [SMP__ROPE_MAGNITUDE] = {"attention_factor", SMP_ATTR_FLOAT, false, 0, 0, 1e6,
                             NULL}, /* 0: of the factor */
    [SMP__ROPE_FACTORS] = {"factors", SMP_ATTR_FLOAT_LIST, false, 0, 1e-6, 1e6, NULL},
    {0},
};

/* Rows of heads * 2 * pairs values, of which the first rotated * 2 * pairs are turned. */
typedef struct layout {
    int64_t runs;     /* of positions that are neighbours in the whole */
    int64_t begin[2]; /* the first position of each */
    int64_t positions, columns, pairs, rotated;
    bool interleaved;
} layout;

static layout layout_of(const smp_graph *graph, const smp_op *op)
{
    const smp_shape *shape = &smp__in(graph, op, 0)->shape;
    int64_t heads = op->attr[SMP__ROPE_HEADS].i, rotated = op->attr[SMP__ROPE_ROTATED].i;
    const bool part = op->attr[SMP__ROPE_DEVICES].i > 1 && op->attr[SMP__ROPE_AXIS].i == 0;
    const int64_t runs = part ? op->attr[SMP__ROPE_BLOCKS].i : 1, run = shape->dim[0] / runs;
    const int64_t device = part ? graph->device : 0,
                  devices = part ? op->attr[SMP__ROPE_DEVICES].i : 1;
    return (layout){
        .runs = runs,
        .begin = {smp_split_part(runs, devices, 0, device) * run,
                  smp_split_part(runs, devices, 1, device) * run},
        .positions = shape->dim[0],
        .columns = shape->dim[1],
        .pairs = shape->dim[1] / heads / 2,
        .rotated = rotated > 0 ? rotated : heads,
        .interleaved = op->attr[SMP__ROPE_INTERLEAVED].i,
    };
}

/* Of yarn: the pair that makes so many turns in the original positions. */
static double pair_of(double turns, double positions, double base, int64_t width)
{
    return (double)width * log(positions / (turns * 6.283185307179586)) / (2 * log(base));
}

smp__rope_scaling smp__rope_scaling_of(const smp_attr_value *attr, int64_t width)
{
    const double original = (double)attr[SMP__ROPE_ORIGINAL].i;
    smp__rope_scaling s = {.kind = (smp__rope_kind)attr[SMP__ROPE_SCALING].i,
                           .factor = attr[SMP__ROPE_FACTOR].f,
                           .original = original,
                           .slow = attr[SMP__ROPE_LOW].f,
                           .fast = attr[SMP__ROPE_HIGH].f,
                           .magnitude = 1};
    if (s.kind == SMP__ROPE_YARN) {
        const double base = attr[SMP__ROPE_BASE].f, given = attr[SMP__ROPE_MAGNITUDE].f;
        s.fast = fmax(floor(pair_of(attr[SMP__ROPE_FAST].f, original, base, width)), 0);
        s.slow =
            fmin(ceil(pair_of(attr[SMP__ROPE_SLOW].f, original, base, width)), (double)width - 1);
        s.slow = s.slow == s.fast ? s.fast + 0.001 : s.slow;
        s.magnitude = given > 0 ? given : s.factor > 1 ? 0.1 * log(s.factor) + 1 : 1;
    }
    if (s.kind == SMP__ROPE_LONG) {
        const double given = attr[SMP__ROPE_MAGNITUDE].f;
        s.magnitude = given > 0 ? given : 1;
        memcpy(s.by_pair, attr[SMP__ROPE_FACTORS].floats.items,
               (size_t)attr[SMP__ROPE_FACTORS].floats.count * sizeof *s.by_pair);
    }
    return s;
}

static smp_status check_scaling(const smp_infer *infer, int64_t pairs)
{
    const smp_attr_value *attr = infer->attr;
    const int64_t kind = attr[SMP__ROPE_SCALING].i, factors = attr[SMP__ROPE_FACTORS].floats.count;
    const int64_t original = attr[SMP__ROPE_ORIGINAL].i;
    if (factors != (kind == SMP__ROPE_LONG ? pairs : 0) || factors > SMP__ROPE_MOST_FACTORS)
        return smp_infer_fail(infer,
                              "factors: got %lld, expected one for each of %lld pairs, at most %d, "
                              "with scaling: longrope alone",
                              (long long)factors, (long long)pairs, SMP__ROPE_MOST_FACTORS);
    if (kind == SMP__ROPE_PLAIN && attr[SMP__ROPE_FACTOR].f != 1)
        return smp_infer_fail(infer, "factor: %g, but no scaling: expected linear, llama3 or yarn",
                              attr[SMP__ROPE_FACTOR].f);
    if (kind == SMP__ROPE_PLAIN && original > 0 && infer->in[0]->shape.dim[0] > original)
        return smp_infer_fail(infer,
                              "original_positions: %lld, but there are %lld, and no scaling for "
                              "more than those (transformers' `dynamic` has another base there)",
                              (long long)original, (long long)infer->in[0]->shape.dim[0]);
    if ((kind == SMP__ROPE_LLAMA3 || kind == SMP__ROPE_YARN) && attr[SMP__ROPE_ORIGINAL].i == 0)
        return smp_infer_fail(infer, "scaling: %s: expected original_positions", SCALINGS[kind]);
    if (kind == SMP__ROPE_LLAMA3 && !(attr[SMP__ROPE_HIGH].f > attr[SMP__ROPE_LOW].f))
        return smp_infer_fail(infer, "high_freq_factor: %g, expected more than low_freq_factor, %g",
                              attr[SMP__ROPE_HIGH].f, attr[SMP__ROPE_LOW].f);
    if (kind == SMP__ROPE_YARN && !(attr[SMP__ROPE_FAST].f > attr[SMP__ROPE_SLOW].f))
        return smp_infer_fail(infer, "beta_fast: %g, expected more than beta_slow, %g",
                              attr[SMP__ROPE_FAST].f, attr[SMP__ROPE_SLOW].f);
    return SMP_OK;
}

static smp_status infer(smp_infer *infer)
{
    SMP_TRY(smp_infer_dims(infer, 0, 2, 2));
    SMP_TRY(smp__infer_like_input(infer));
    int64_t columns = infer->in[0]->shape.dim[1], heads = infer->attr[SMP__ROPE_HEADS].i;
    if (columns % heads != 0 || columns / heads % 2 != 0)
        return smp_infer_fail(infer,
                              "heads: %lld of %lld features: expected heads of an even number",
                              (long long)heads, (long long)columns);
    SMP_TRY(check_scaling(infer, columns / heads / 2));
    if (infer->attr[SMP__ROPE_ROTATED].i > heads)
        return smp_infer_fail(infer, "rotated: %lld, but there are %lld heads",
                              (long long)infer->attr[SMP__ROPE_ROTATED].i, (long long)heads);
    return SMP_OK;
}

/* The turn of the position at hand, (pairs): in double, which goes on from position to position,
 * and in float, which is applied. */
static void needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    (void)batch;
    int64_t pairs = layout_of(graph, op).pairs;
    *needs = (smp_op_needs){
        .workspace_bytes = pairs * 2 * (int64_t)(sizeof(double) + sizeof(float)),
    };
}

/* A GPU's threads compute the turns they apply. */
static void cuda_needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    (void)graph, (void)op, (void)batch;
    *needs = (smp_op_needs){0};
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    layout at = layout_of(graph, op);
    double each = 6.0 * (double)(at.pairs * at.rotated) / (double)at.columns;
    smp__work_elementwise(graph, op, batch, each, each, work);
}

/* base^(-1 / n), by halving an interval. */
static double root_of_inverse(double base, int64_t n)
{
    double low = 0, high = 1;
    for (int step = 0; step < 100; step++) {
        double middle = (low + high) / 2, power = base;
        for (int64_t i = 0; i < n; i++)
            power *= middle;
        if (power < 1)
            low = middle;
        else
            high = middle;
    }
    return high;
}

/* Cosine and sine of an angle in [0, 1] by their series; what is left out is less than 1 / 21!. */
static void turn_of(double angle, double *cosine, double *sine)
{
    double term[4] = {1, 0, 0, 0}, power = 1; /* sums over the terms 0, 1, 2, 3 modulo 4 */
    for (int k = 1; k <= 20; k++) {
        power *= angle / k;
        term[k % 4] += power;
    }
    *cosine = term[0] - term[2];
    *sine = term[1] - term[3];
}

/* State: the turn from one position to the next, (2, pairs): cosines, sines. */
static smp_status prepare(const smp_graph *graph, const smp_op *op, int64_t batch, void *device,
                          void **state)
{
    (void)batch, (void)device;
    int64_t pairs = layout_of(graph, op).pairs;
    double *turn = malloc((size_t)(2 * pairs) * sizeof *turn);
    if (!turn)
        return smp_fail_memory((size_t)(2 * pairs) * sizeof *turn);
    const smp__rope_scaling scaling = smp__rope_scaling_of(op->attr, 2 * pairs);
    double ratio = root_of_inverse(op->attr[SMP__ROPE_BASE].f, pairs), angle = 1;
    for (int64_t i = 0; i < pairs; i++, angle *= ratio)
        turn_of(smp__rope_frequency(&scaling, angle, i), &turn[i], &turn[pairs + i]);
    *state = turn;
    return SMP_OK;
}

/* The next position's turn: at += step; and as floats, times `magnitude`. All (2, pairs). */
SMP_VECTOR static void advance(double *restrict at, const double *restrict step,
                               float *restrict turn, double magnitude, int64_t pairs)
{
    for (int64_t i = 0; i < pairs; i++) {
        double cosine = at[i] * step[i] - at[pairs + i] * step[pairs + i];
        double sine = at[pairs + i] * step[i] + at[i] * step[pairs + i];
        at[i] = cosine;
        at[pairs + i] = sine;
        turn[i] = (float)(cosine * magnitude);
        turn[pairs + i] = (float)(sine * magnitude);
    }
}

/* One head, by the angles (direction 1) or back (-1). The elements of a pair are `apart`, pairs
 * `next`. */
static inline void turn_head(float *restrict y, const float *restrict x, const float *restrict turn,
                             float direction, int64_t pairs, int64_t apart, int64_t next)
{
    for (int64_t i = 0; i < pairs; i++) {
        float cosine = turn[i], sine = turn[pairs + i] * direction;
        float u = x[i * next], v = x[i * next + apart];
        y[i * next] = u * cosine - v * sine;
        y[i * next + apart] = v * cosine + u * sine;
    }
}

/* The heads of a row that are turned. */
SMP_VECTOR static void turn_row(float *y, const float *x, const float *turn, float direction,
                                const layout *at)
{
    for (int64_t h = 0; h < at->rotated; h++, x += 2 * at->pairs, y += 2 * at->pairs)
        if (at->interleaved)
            turn_head(y, x, turn, direction, at->pairs, 1, 2);
        else
            turn_head(y, x, turn, direction, at->pairs, at->pairs, 1);
}

/* From one position on to a later one. */
static void advance_to(int64_t position, int64_t *at, double *now, const double *step, float *turn,
                       double magnitude, int64_t pairs)
{
    for (; *at < position; ++*at)
        advance(now, step, turn, magnitude, pairs);
}

/* Every sample's row of a position, then the next position. x, y: (B, T, columns) */
static smp_status turn_all(const smp_op_call *call, const float *x, float *y, float direction)
{
    layout at = layout_of(call->graph, call->op);
    double *now = call->workspace;
    float *turn = (float *)(now + 2 * at.pairs);
    int64_t sample = at.positions * at.columns, turned = at.rotated * 2 * at.pairs;
    const double magnitude = smp__rope_scaling_of(call->op->attr, 2 * at.pairs).magnitude;
    for (int64_t i = 0; i < at.pairs; i++) {
        now[i] = 1;
        turn[i] = (float)magnitude;
        now[at.pairs + i] = turn[at.pairs + i] = 0;
    }
    const int64_t run = at.positions / at.runs;
    for (int64_t t = 0, position = 0; t < at.positions; t++) {
        advance_to(at.begin[t / run] + t % run, &position, now, call->state, turn, magnitude,
                   at.pairs);
        for (int64_t b = 0; b < call->batch; b++) {
            int64_t row = b * sample + t * at.columns;
            turn_row(y + row, x + row, turn, direction, &at);
            memcpy(y + row + turned, x + row + turned,
                   (size_t)(at.columns - turned) * sizeof(float));
        }
    }
    return SMP_OK;
}

static smp_status forward(const smp_op_call *call)
{
    return turn_all(call, call->in[0], call->out[0], 1);
}

static smp_status backward_input(const smp_op_call *call)
{
    return call->din[0] ? turn_all(call, call->dout[0], call->din[0], -1) : SMP_OK;
}

/* Whole heads on each device, and of packed q, k, v the same of each. */
static bool allows_heads(const smp_graph *graph, const smp_op *op, smp_split_choice choice,
                         int devices)
{
    (void)graph, (void)choice, (void)devices;
    return op->attr[SMP__ROPE_ROTATED].i == 0;
}

static bool allows_packed(const smp_graph *graph, const smp_op *op, smp_split_choice choice,
                          int devices)
{
    (void)graph, (void)choice;
    int64_t heads = op->attr[SMP__ROPE_HEADS].i;
    return heads % (3 * devices) == 0 && op->attr[SMP__ROPE_ROTATED].i == heads / 3 * 2;
}

static const smp_split_rule SPLITS[] = {
    {"heads", .in = {SMP_CELL_DIM1}, .out = SMP_CELL_DIM1, .divided = 1u << SMP__ROPE_HEADS,
     .allows = allows_heads},
    {"positions", .in = {SMP_CELL_DIM0}, .out = SMP_CELL_DIM0},
    {"zigzag", .in = {SMP_CELL_ZIGZAG}, .out = SMP_CELL_ZIGZAG},
    {"packed heads", .in = {SMP_CELL_QKV}, .out = SMP_CELL_QKV,
     .divided = 1u << SMP__ROPE_HEADS | 1u << SMP__ROPE_ROTATED, .allows = allows_packed},
    {0},
};

const smp_op_kind smp__op_rope = {
    .name = "rope",
    .summary = "rotary position embedding: turns the pairs of each head by their position",
    .sample = "inputs:\n"
              "  q: {dtype: float32, shape: [4, 12]}\n"
              "ops:\n"
              "  - {op: rope, name: op, in: q, out: y, heads: 3}\n",
    .min_in = 1,
    .max_in = 1,
    .attrs = ATTRS,
    .infer = infer,
    .needs = {[SMP_BACKEND_CPU] = needs, [SMP_BACKEND_CUDA] = cuda_needs},
    .work = work,
    .split = SPLITS,
    .cpu = {.prepare = prepare,
            .release = free,
            .forward = forward,
            .backward_input = backward_input},
};
