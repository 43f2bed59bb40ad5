/* attention in bf16: the blocks of attention.c, with products of bf16 by oneDNN, each of a block of
 * all samples of a chunk and all heads of k and v at once (one head for itself is too little work
 * for a call). Scores and what is summed up over blocks or over the heads that share keys, dK and
 * dV, are fp32 in the workspace; P, saved by forward, and dS are rounded. */
#include <stdlib.h>
#include <string.h>

#include "graph/math/half.h"
#include "graph/math/vector.h"
#include "graph/ops/attention/attention_rows.h"
#include "graph/ops/ops.h"

/* Scores of a chunk of samples, which should stay in the cache. */
#define CHUNK_BYTES ((int64_t)512 << 10)
enum { Q = SMP__Q, K = SMP__K, V = SMP__V, ALIGNMENT = 64 };
enum { SCORES, OUT, DP, DQ, DK, DV, PRODUCTS };

/* A block of queries and the keys that it may look at. */
typedef struct block {
    int64_t begin, rows, low, keys;
    smp_math_gemm16 *product[PRODUCTS];
} block;

typedef struct attention16 {
    smp__attention at;
    int64_t samples, group; /* of a chunk; heads of q for each of k and v */
    int64_t n_block;
    block *block;
} attention16;

/* The workspace: byte offsets. */
typedef struct places {
    int64_t scores, rounded, capped, row, bias, dk, dv, end;
} places;

static int64_t chunk_samples(const smp__attention *at, int64_t batch)
{
    const int64_t rows = smp__attention_block(at, 0);
    const int64_t bytes = at->kv_heads * rows * at->keys * (int64_t)sizeof(float);
    int64_t n = CHUNK_BYTES / bytes < batch ? CHUNK_BYTES / bytes : batch;
    while (n > 1 && batch % n != 0)
        n--;
    return n > 1 ? n : 1;
}

static int64_t take_bytes(int64_t *end, int64_t bytes)
{
    const int64_t at = *end;
    *end += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return at;
}

static places places_of(const smp__attention *at, int64_t batch)
{
    const int64_t n = chunk_samples(at, batch), rows = smp__attention_block(at, 0);
    const int64_t scores = n * at->kv_heads * rows * at->keys;
    const int64_t grads = n * at->kv_heads * at->keys * at->width;
    const int64_t distances = smp__attention_is_biased(at) ? at->queries + at->keys - 1 : 0;
    places p = {0};
    p.scores = take_bytes(&p.end, scores * 4);
    p.rounded = take_bytes(&p.end, scores * 2);
    p.capped = take_bytes(&p.end, at->softcap > 0 ? scores * 4 : 0);
    p.row = take_bytes(&p.end, at->keys * 4);
    p.bias = take_bytes(&p.end, at->heads * distances * 4);
    p.dk = take_bytes(&p.end, grads * 4);
    p.dv = take_bytes(&p.end, grads * 4);
    return p;
}

void smp__attention_half_needs(const smp__attention *at, int64_t batch, smp_op_needs *needs)
{
    needs->aux_bytes = at->heads * at->queries * at->keys * 2;
    needs->workspace_bytes = places_of(at, batch).end;
}

static void release(void *state)
{
    attention16 *a = state;
    for (int64_t i = 0; a->block && i < a->n_block; i++)
        for (int p = 0; p < PRODUCTS; p++)
            smp_math_gemm16_destroy(a->block[i].product[p]);
    free(a->block);
    free(a);
}

/* Where the heads of part i lie, those of q `group` apart. */
static smp_strides16 part_strides(const attention16 *a, int i)
{
    const smp__attention *at = &a->at;
    return (smp_strides16){.outer = (i == Q ? at->queries : at->keys) * at->stride[i],
                           .inner = (i == Q ? a->group : 1) * at->width,
                           .row = at->stride[i]};
}

static smp_status make_block(const attention16 *a, block *b, bool training)
{
    const smp__attention *at = &a->at;
    const int64_t rows = b->rows, keys = b->keys, heads = at->kv_heads, w = at->width;
    const smp_strides16 q = part_strides(a, Q), k = part_strides(a, K), v = part_strides(a, V);
    const smp_strides16 o = {at->queries * at->d, a->group * w, at->d};
    const smp_strides16 p = {at->heads * at->queries * at->keys, a->group * at->queries * at->keys,
                             at->keys};
    const smp_strides16 s = {heads * rows * keys, rows * keys, keys};
    const smp_strides16 sum = {heads * at->keys * w, at->keys * w, w};
    const smp_gemm16 products[PRODUCTS] = {
        [SCORES] = {.trans_b = true,
                    .m = rows,
                    .n = keys,
                    .k = w,
                    .scale = at->scale,
                    .wide = true,
                    .at = {q, k, s}},
        [OUT] = {.m = rows, .n = w, .k = keys, .at = {p, v, o}},
        [DP] = {.trans_b = true, .m = rows, .n = keys, .k = w, .wide = true, .at = {o, v, s}},
        [DQ] = {.m = rows, .n = w, .k = keys, .scale = at->scale, .at = {s, k, q}},
        [DK] = {.trans_a = true,
                .m = keys,
                .n = w,
                .k = rows,
                .scale = at->scale,
                .accumulate = true,
                .at = {s, q, sum}},
        [DV] =
            {.trans_a = true, .m = keys, .n = w, .k = rows, .accumulate = true, .at = {p, o, sum}},
    };
    for (int i = 0; i < (training ? PRODUCTS : DP); i++) {
        smp_gemm16 product = products[i];
        product.outer = a->samples;
        product.inner = heads;
        SMP_TRY(smp_math_gemm16_create(&product, &b->product[i]));
    }
    return SMP_OK;
}

static smp_status prepare(const smp_graph *graph, const smp_op *op, int64_t batch, void *device,
                          void **state)
{
    (void)device;
    attention16 *a = calloc(1, sizeof *a);
    if (!a)
        return smp_fail_memory(sizeof *a);
    *state = a;
    a->at = smp__attention_of(graph, op);
    a->samples = chunk_samples(&a->at, batch);
    a->group = a->at.heads / a->at.kv_heads;
    a->n_block = (a->at.queries + SMP__ATTENTION_ROWS - 1) / SMP__ATTENTION_ROWS;
    a->block = calloc((size_t)a->n_block, sizeof *a->block);
    if (!a->block)
        return smp_fail_memory((size_t)a->n_block * sizeof *a->block);
    for (int64_t i = 0; i < a->n_block; i++) {
        block *b = &a->block[i];
        b->begin = i * SMP__ATTENTION_ROWS;
        b->rows = smp__attention_block(&a->at, b->begin);
        b->low = smp__attention_first(&a->at, b->begin);
        b->keys = smp__attention_end(&a->at, b->begin + b->rows) - b->low;
        SMP_TRY(
            smp_fail_context(make_block(a, b, graph->training), "op '%s' (attention)", op->name));
    }
    return SMP_OK;
}

/* The arrays of a call that one of a block's products takes. */
typedef struct run {
    const smp_op_call *call;
    const attention16 *a;
    places place;
    int64_t first; /* sample of the chunk */
    const block *b;
    int64_t g; /* of the heads that share keys */
} run;

static run run_of(const smp_op_call *call)
{
    const attention16 *a = call->state;
    return (run){.call = call, .a = a, .place = places_of(&a->at, call->batch)};
}

static float *scratch(const run *r, int64_t place)
{
    return (float *)((char *)r->call->workspace + place);
}

/* Array i of a part, from the block's first row or key on; NULL: there is no such array. */
static uint16_t *part_of(const run *r, const void *const *arrays, int i)
{
    const smp__attention *at = &r->a->at;
    const int64_t h = i == Q ? r->g : 0, row = i == Q ? r->b->begin : r->b->low;
    const uint16_t *array = arrays[at->input[i]];
    return array ? (uint16_t *)array + smp__attention_place(r->call, at, i, r->first, h) +
                       row * at->stride[i]
                 : NULL;
}

static uint16_t *output_of(const run *r, const void *array)
{
    const smp__attention *at = &r->a->at;
    return (uint16_t *)array + (r->first * at->queries + r->b->begin) * at->d + r->g * at->width;
}

/* P of the block's row of a head. */
static uint16_t *probabilities(const run *r, int64_t sample, int64_t h, int64_t row)
{
    const smp__attention *at = &r->a->at;
    const int64_t head = (r->first + sample) * at->heads + h;
    return (uint16_t *)r->call->aux + (head * at->queries + r->b->begin + row) * at->keys +
           r->b->low;
}

static smp_status multiply(const run *r, int product, const void *a, const void *b, void *c)
{
    return smp_math_gemm16_run(r->b->product[product], a, b, NULL, c);
}

typedef smp_status step(const run *r);

/* All blocks of a chunk. */
static smp_status for_each_block(run *r, step *of_block)
{
    for (int64_t i = 0; i < r->a->n_block; i++) {
        r->b = &r->a->block[i];
        for (r->g = 0; r->g < r->a->group; r->g++)
            SMP_TRY(of_block(r));
    }
    return SMP_OK;
}

/* Calls f for each row of scores of the products' results: of head h of a sample. */
static void for_each_row(const run *r, void (*f)(const run *r, int64_t sample, int64_t h,
                                                 int64_t row, int64_t place))
{
    const int64_t heads = r->a->at.kv_heads;
    int64_t place = 0;
    for (int64_t n = 0; n < r->a->samples; n++)
        for (int64_t j = 0; j < heads; j++)
            for (int64_t row = 0; row < r->b->rows; row++, place += r->b->keys)
                f(r, n, j * r->a->group + r->g, row, place);
}

static void soften(const run *r, int64_t sample, int64_t h, int64_t row, int64_t place)
{
    const smp__attention *at = &r->a->at;
    const int64_t distances = at->queries + at->keys - 1;
    const int32_t *mask = at->mask >= 0 ? r->call->in[at->mask] : NULL;
    const smp__attention_terms terms = {
        .mask = mask ? mask + (r->first + sample) * at->keys : NULL,
        .bias = smp__attention_is_biased(at) ? scratch(r, r->place.bias) + h * distances : NULL};
    float *scores = scratch(r, r->place.scores) + place;
    smp__attention_softmax(at, &terms, scores, r->b->begin + row, r->b->low,
                           r->b->low + r->b->keys);
    smp__to_bf16(probabilities(r, sample, h, row), scores, r->b->keys);
}

static smp_status forward_block(const run *r)
{
    const void *const *in = r->call->in;
    SMP_TRY(multiply(r, SCORES, part_of(r, in, Q), part_of(r, in, K), scratch(r, r->place.scores)));
    for_each_row(r, soften);
    return multiply(r, OUT, probabilities(r, 0, r->g, 0), part_of(r, in, V),
                    output_of(r, r->call->out[0]));
}

static smp_status forward(const smp_op_call *call)
{
    run r = run_of(call);
    const smp__attention *at = &r.a->at;
    if (at->mask >= 0)
        SMP_TRY(smp__attention_check_mask(call, at));
    for (int64_t h = 0; smp__attention_is_biased(at) && h < at->heads; h++)
        smp__attention_fill_bias(call, at, h,
                                 scratch(&r, r.place.bias) + h * (at->queries + at->keys - 1));
    for (; r.first < call->batch; r.first += r.a->samples)
        SMP_TRY(for_each_block(&r, forward_block));
    return SMP_OK;
}

/* dS of a row, in fp32, from dP. */
static float *row_gradient(const run *r, int64_t sample, int64_t h, int64_t row, int64_t place)
{
    float *dp = scratch(r, r->place.scores) + place, *p = scratch(r, r->place.row);
    smp__from_bf16(p, probabilities(r, sample, h, row), r->b->keys);
    smp__attention_gradient(&r->a->at, dp, p, r->b->begin + row, r->b->low, r->b->low + r->b->keys);
    return dp;
}

static void score_row(const run *r, int64_t sample, int64_t h, int64_t row, int64_t place)
{
    float *ds = row_gradient(r, sample, h, row, place);
    if (r->a->at.softcap > 0)
        smp__attention_cap_gradient(ds, scratch(r, r->place.capped) + place, r->a->at.softcap,
                                    r->b->keys);
    smp__to_bf16((uint16_t *)scratch(r, r->place.rounded) + place, ds, r->b->keys);
}

static smp_status multiply_dp(const run *r)
{
    return multiply(r, DP, output_of(r, r->call->dout[0]), part_of(r, r->call->in, V),
                    scratch(r, r->place.scores));
}

static smp_status backward_block(const run *r)
{
    const void *const *in = r->call->in, *const *din = (const void *const *)r->call->din;
    const int64_t sum = r->b->low * r->a->at.width;
    uint16_t *ds = (uint16_t *)scratch(r, r->place.rounded), *dq = part_of(r, din, Q);
    const bool dk = part_of(r, din, K), dv = part_of(r, din, V);
    if (dv)
        SMP_TRY(multiply(r, DV, probabilities(r, 0, r->g, 0), output_of(r, r->call->dout[0]),
                         scratch(r, r->place.dv) + sum));
    if (!dq && !dk)
        return SMP_OK;
    SMP_TRY(multiply_dp(r));
    if (r->a->at.softcap > 0) /* the scores once more */
        SMP_TRY(
            multiply(r, SCORES, part_of(r, in, Q), part_of(r, in, K), scratch(r, r->place.capped)));
    for_each_row(r, score_row);
    if (dq)
        SMP_TRY(multiply(r, DQ, ds, part_of(r, in, K), dq));
    return dk ? multiply(r, DK, ds, part_of(r, in, Q), scratch(r, r->place.dk) + sum) : SMP_OK;
}

/* dK or dV of a chunk, (samples, kv_heads, Tk, width). */
static void round_sums(const run *r, int i, const float *sums)
{
    const smp__attention *at = &r->a->at;
    uint16_t *to = (uint16_t *)r->call->din[at->input[i]];
    for (int64_t n = 0; to && n < r->a->samples; n++)
        for (int64_t j = 0; j < at->kv_heads; j++) {
            uint16_t *head =
                to + smp__attention_place(r->call, at, i, r->first + n, j * r->a->group);
            for (int64_t t = 0; t < at->keys; t++, sums += at->width)
                smp__to_bf16(head + t * at->stride[i], sums, at->width);
        }
}

static smp_status backward_input(const smp_op_call *call)
{
    run r = run_of(call);
    const smp__attention *at = &r.a->at;
    const size_t bytes =
        (size_t)(r.a->samples * at->kv_heads * at->keys * at->width) * sizeof(float);
    for (; r.first < call->batch; r.first += r.a->samples) {
        memset(scratch(&r, r.place.dk), 0, bytes);
        memset(scratch(&r, r.place.dv), 0, bytes);
        SMP_TRY(for_each_block(&r, backward_block));
        round_sums(&r, K, scratch(&r, r.place.dk));
        round_sums(&r, V, scratch(&r, r.place.dv));
    }
    return SMP_OK;
}

/* A row's dS to the sums of its head over equal distances. */
static void sum_row(const run *r, int64_t sample, int64_t h, int64_t row, int64_t place)
{
    const smp__attention *at = &r->a->at;
    const int64_t t = r->b->begin + row, distances = at->queries + at->keys - 1;
    const float *ds = row_gradient(r, sample, h, row, place);
    float *sums = scratch(r, r->place.bias) + h * distances;
    smp__accumulate(sums + at->queries - 1 - t + r->b->low, ds, r->b->keys);
}

static smp_status sum_block(const run *r)
{
    SMP_TRY(multiply_dp(r));
    for_each_row(r, sum_row);
    return SMP_OK;
}

/* The gradient of the learned bias. */
static smp_status backward_weight(const smp_op_call *call)
{
    run r = run_of(call);
    const smp__attention *at = &r.a->at;
    const int64_t distances = at->queries + at->keys - 1;
    float *sums = scratch(&r, r.place.bias);
    memset(sums, 0, (size_t)(at->heads * distances) * sizeof *sums);
    for (; r.first < call->batch; r.first += r.a->samples)
        SMP_TRY(for_each_block(&r, sum_block));
    for (int64_t h = 0; h < at->heads; h++)
        for (int64_t i = 0; i < distances; i++)
            call->dparam[0]
                        [smp__attention_bucket(at, i + 1 - at->queries - at->before) * at->heads +
                         h] += sums[h * distances + i];
    return SMP_OK;
}

const smp_op_kernels smp__attention_half = {.prepare = prepare,
                                            .release = release,
                                            .forward = forward,
                                            .backward_input = backward_input,
                                            .backward_weight = backward_weight};
