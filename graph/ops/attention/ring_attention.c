/* ring_attention: attention of devices that each have a part of the positions, of queries as of
 * keys and values, which travel around the group: at any time a device has its own and those of two
 * devices (Liu et al., "Ring Attention", 2023). With the attributes of attention, which becomes
 * this one; of one device it is attention that saves no probabilities.
 *
 * In round r the keys at hand are those of the device r before. Per row of queries the largest
 * score m so far, the sum l of exp(score - m) and the output, not yet divided, are corrected when a
 * larger one comes (Milakov and Gimelshein 2018); m and 1 / l are saved. Backward makes P again
 * and, with D = rowsum(dO * O) as rowsum(P * dP) (Dao et al., "FlashAttention", 2022),
 *   dS = P * (dO V^T - D),  dQ += dS K,  dK += dS^T Q,  dV += P^T dO,
 * where dK and dV travel with their keys and in the end go home. The rounds stand in one order, so
 * the values decide to the bit. While keys are under way the device computes with those it has.
 *
 * Keys that no query of the device sees are passed on and cost nothing; with a window the ring ends
 * where nobody would see any. In two blocks a device has the i-th run of positions from the front
 * and the i-th from the back, which gives all devices of a causal model the same work.
 *
 * O(heads * Tq * Tk * w / devices) time, O(Tk / devices) memory. */
#include "graph/ops/attention/ring_attention.h"

#include "graph/ops/attention/attention_rows.h"
#include "graph/ops/collective/collective.h"
#include "graph/ops/ops.h"

#include <math.h>
#include <string.h>

#include "graph/math/math.h"
#include "graph/math/vector.h"

enum { Q = SMP__Q, K = SMP__K, V = SMP__V, ALIGNMENT = 16 /* floats */ };

static smp_status infer(smp_infer *infer)
{
    const smp_attr_value *attr = infer->attr;
    const int64_t devices = attr[SMP__DEVICES].i, blocks = attr[SMP__BLOCKS].i;
    if (attr[SMP__BUCKETS].i > 0)
        return smp_infer_fail(infer, "buckets: a learned bias is attention's");
    if (attr[SMP__SOFTCAP].f > 0)
        return smp_infer_fail(infer, "softcap: capped scores are attention's");
    if (attr[SMP__AXIS].i != 0 || blocks > 2)
        return smp_infer_fail(infer, "axis %lld, blocks %lld: expected positions, in 1 or 2 blocks",
                              (long long)attr[SMP__AXIS].i, (long long)blocks);
    SMP_TRY(smp__infer_attention(infer, devices, devices));
    for (int i = 0; i < infer->n_in; i++)
        if (infer->in[i]->shape.dim[0] % blocks != 0)
            return smp_infer_fail(infer, "'%s' has %lld rows, expected a multiple of %lld",
                                  infer->in[i]->name, (long long)infer->in[i]->shape.dim[0],
                                  (long long)blocks);
    return SMP_OK;
}

smp__ring smp__ring_of(const smp_graph *graph, const smp_op *op)
{
    const smp_attr_value *attr = op->attr;
    smp__ring r = {.at = smp__attention_of(graph, op),
                   .devices = attr[SMP__DEVICES].i,
                   .runs = attr[SMP__DEVICES].i > 1 ? attr[SMP__BLOCKS].i : 1};
    r.device = r.devices > 1 ? graph->device : 0;
    r.part[0] = r.at.queries;
    r.part[1] = r.at.keys;
    r.kv_columns = r.at.kv_heads * r.at.width;
    r.at.queries /= r.runs;
    r.at.keys /= r.runs;
    const int64_t window = attr[SMP__WINDOW].i;
    const int64_t longest = r.devices * (r.part[0] > r.part[1] ? r.part[0] : r.part[1]);
    r.at.window = window > 0 && window < longest ? window : longest;
    r.rounds = r.devices;
    if (r.at.causal && r.runs == 1) {
        const int64_t back = (r.at.window - 1 + r.part[1] - 1) / r.part[1];
        r.rounds = back + 1 < r.devices ? back + 1 : r.devices;
    }
    return r;
}

int64_t smp__ring_run(const smp__ring *r, int64_t device, int64_t run, int64_t length)
{
    return (run == 0 ? device : 2 * r->devices - 1 - device) * length;
}

smp__attention smp__ring_pair(const smp__ring *r, int64_t device, int64_t i, int64_t j)
{
    smp__attention pair = r->at;
    pair.before =
        smp__ring_run(r, r->device, i, pair.queries) - smp__ring_run(r, device, j, pair.keys);
    return pair;
}

static int64_t within(int64_t value, int64_t most)
{
    return value < 0 ? 0 : value > most ? most : value;
}

/* What rows begin .. end-1 see of a run of keys: first_key .. end_key-1, maybe nothing. */
static int64_t first_key(const smp__attention *pair, int64_t begin)
{
    return within(smp__attention_first(pair, begin), pair->keys);
}

static int64_t end_key(const smp__attention *pair, int64_t end)
{
    return within(smp__attention_end(pair, end), pair->keys);
}

bool smp__ring_sees(const smp__attention *pair)
{
    return end_key(pair, pair->queries) > first_key(pair, 0);
}

int64_t smp__ring_source(const smp__ring *r, int64_t round)
{
    return (r->device + r->devices - round) % r->devices;
}

int64_t smp__ring_travelling(const smp__ring *r, int64_t batch)
{
    return 2 * batch * r->part[1] * r->kv_columns;
}

typedef struct places {
    int64_t kv[2], dkv[2], p, dp, bias, sums, end;
} places;

static int64_t take_floats(int64_t *end, int64_t floats)
{
    const int64_t at = *end;
    *end += (floats + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return at;
}

/* Keys and values of two devices, and their gradients. */
static places places_of(const smp__ring *r, int64_t batch, bool backward)
{
    const int64_t scores = smp__attention_block(&r->at, 0) * r->at.keys;
    places p = {0};
    for (int i = 0; i < (r->rounds > 1 ? 2 : 1); i++) {
        p.kv[i] = take_floats(&p.end, smp__ring_travelling(r, batch));
        p.dkv[i] = backward ? take_floats(&p.end, smp__ring_travelling(r, batch)) : 0;
    }
    p.p = take_floats(&p.end, scores);
    p.bias = take_floats(&p.end, r->at.alibi ? r->at.queries + r->at.keys - 1 : 0);
    p.dp = backward ? take_floats(&p.end, scores) : 0;
    p.sums = backward ? take_floats(&p.end, batch * r->at.heads * r->part[0]) : 0;
    return p;
}

smp__ring_room smp__ring_room_of(const smp__ring *r, smp_dtype dtype, int64_t batch, bool backward)
{
    const int64_t heads = r->at.heads, rows = batch * r->at.queries, d = r->at.d;
    const int64_t sent = smp__ring_travelling(r, batch);
    smp__ring_room room = {0};
    int64_t end = 0;
    if (r->devices > 1) {
        for (int i = 0; i < (backward || r->rounds > 1 ? 2 : 1); i++) {
            const int64_t sums = backward ? sent : 0;
            room.sums[i] = take_floats(&end, sums + smp__row_floats(dtype, sent));
            room.kv[i] = room.sums[i] + sums;
        }
        const int64_t outputs = backward ? r->runs * r->runs * rows * d : rows * d;
        room.part = take_floats(&end, smp__row_floats(dtype, outputs));
        room.dkv = take_floats(&end, backward ? smp__row_floats(dtype, r->runs * sent) : 0);
        room.total = take_floats(&end, backward || dtype != SMP_F32 ? r->runs * rows * d : 0);
    }
    room.rows = take_floats(&end, heads * rows * (backward ? r->runs : 1));
    room.bias = take_floats(&end, r->at.alibi ? heads * (r->at.queries + r->at.keys - 1) : 0);
    room.bytes = end;
    int64_t *const offset[] = {&room.sums[0], &room.sums[1], &room.kv[0], &room.kv[1], &room.part,
                               &room.dkv,     &room.rows,    &room.total, &room.bias,  &room.bytes};
    for (size_t i = 0; i < sizeof offset / sizeof offset[0]; i++)
        *offset[i] *= (int64_t)sizeof(float);
    return room;
}

static void needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    const smp__ring r = smp__ring_of(graph, op);
    *needs = (smp_op_needs){
        .input_grad_in = (op->n_in <= 2 ? 1u : 7u) | (r.at.mask >= 0 ? 1u << r.at.mask : 0),
        .input_grad_out = true,
        .input_grad_aux = true,
        .aux_bytes = 2 * r.at.heads * r.part[0] * (int64_t)sizeof(float),
        .workspace_bytes = places_of(&r, batch, graph->training).end * (int64_t)sizeof(float),
    };
}

static void cuda_needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *out)
{
    const smp__ring r = smp__ring_of(graph, op);
    const smp_dtype dtype = smp__in(graph, op, 0)->dtype;
    const int64_t forward = smp__ring_room_of(&r, dtype, batch, false).bytes;
    const int64_t backward = graph->training ? smp__ring_room_of(&r, dtype, batch, true).bytes : 0;
    needs(graph, op, batch, out);
    out->aux_bytes = r.at.heads * r.part[0] * (int64_t)sizeof(float);
    out->workspace_bytes = forward > backward ? forward : backward;
}

static bool index_range(const smp_graph *graph, const smp_op *op, int slot, int64_t *min,
                        int64_t *max)
{
    (void)graph, (void)op, (void)slot;
    *min = 0;
    *max = 1;
    return true;
}

/* Scores that the last device makes, for which the others wait, and in how many blocks. */
static double scores_of(smp__ring r, double *blocks)
{
    double scores = 0;
    *blocks = 0;
    r.device = r.devices - 1;
    for (int64_t round = 0; round < r.rounds; round++)
        for (int64_t i = 0; i < r.runs * r.runs; i++) {
            const smp__attention pair =
                smp__ring_pair(&r, smp__ring_source(&r, round), i / r.runs, i % r.runs);
            for (int64_t begin = 0; begin < pair.queries; begin += SMP__ATTENTION_ROWS) {
                const int64_t rows = smp__attention_block(&pair, begin);
                const int64_t n = end_key(&pair, begin + rows) - first_key(&pair, begin);
                scores += n > 0 ? (double)rows * (double)n : 0;
                *blocks += n > 0;
            }
        }
    return scores;
}

/* Backward: their gradients as well, which then go home. On a GPU these go with the keys, a round
 * after: messages of a mean length. */
static void set_exchanges(const smp_graph *graph, const smp_op *op, const smp__ring *r,
                          int64_t batch, smp_op_work *work)
{
    const int64_t away = r->rounds - 1, values = smp__ring_travelling(r, batch);
    const int64_t sums = values * (int64_t)sizeof(float);
    const int64_t bytes =
        smp__wire_floats(graph, smp__in(graph, op, 0), values) * (int64_t)sizeof(float);
    const bool together = smp_backend_of(graph->target)->own_memory;
    const int64_t messages = together ? away + 2 : 2 * away + 1;
    if (away == 0)
        return;
    work->forward_exchange = (smp_op_exchange){away, bytes, away};
    work->backward_input_exchange =
        (smp_op_exchange){messages, (away * bytes + (away + 1) * sums) / messages, away};
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    const smp__ring r = smp__ring_of(graph, op);
    const double heads = (double)batch * (double)r.at.heads;
    double blocks;
    const double scores = scores_of(r, &blocks) * heads;
    const int terms = (r.at.mask >= 0) + r.at.alibi;
    smp__work_bytes(graph, op, batch, work);
    smp__work_blocks(graph, blocks * heads, work);
    work->forward_flops = scores * (4.0 * (double)r.at.width + 20 + terms);
    work->backward_input_flops = scores * (10.0 * (double)r.at.width + 22 + terms);
    work->kind = SMP_OP_ATTENTION;
    work->product = (smp_op_product){batch * r.at.heads, r.at.queries, r.at.keys, r.at.width};
    set_exchanges(graph, op, &r, batch, work);
}

/* A call under way. */
typedef struct pass {
    const smp_op_call *call;
    smp__ring r;
    const smp_op_group *group;
    float *kv[2], *dkv[2]; /* at hand: [0]; (2: k, v; batch; keys; kv_columns) */
    float *p, *dp, *bias, *sums;
    bool want_q, want_kv; /* gradients */
} pass;

static smp_status begin_pass(const smp_op_call *call, bool backward, pass *s)
{
    *s = (pass){.call = call, .r = smp__ring_of(call->graph, call->op)};
    const places at = places_of(&s->r, call->batch, backward);
    float *base = call->workspace;
    SMP_TRY(smp__group_of(call, s->r.devices, &s->group));
    for (int i = 0; i < 2; i++) {
        s->kv[i] = base + at.kv[i];
        s->dkv[i] = base + at.dkv[i];
    }
    s->p = base + at.p;
    s->dp = base + at.dp;
    s->bias = base + at.bias;
    s->sums = base + at.sums;
    if (s->r.at.mask < 0)
        return SMP_OK;
    smp__attention whole = s->r.at; /* all keys of the sample */
    whole.keys = s->r.devices * s->r.part[1];
    return smp__attention_check_mask(call, &whole);
}

/* Rows of the own keys (part K) or values between their input or its gradient and an array that
 * travels. */
static void copy_rows(const pass *s, int part, float *array, float *kv, bool out)
{
    const smp__ring *r = &s->r;
    const int64_t batch = s->call->batch, n = r->kv_columns;
    const int64_t elements = smp__in(s->call->graph, s->call->op, r->at.input[part])->elements;
    kv += part == V ? batch * r->part[1] * n : 0;
    for (int64_t b = 0; b < batch; b++)
        for (int64_t t = 0; t < r->part[1]; t++, kv += n) {
            float *row = array + b * elements + r->at.offset[part] + t * r->at.stride[part];
            memcpy(out ? row : kv, out ? kv : row, (size_t)n * sizeof *row);
        }
}

static void swap(float *pair[2])
{
    float *first = pair[0];
    pair[0] = pair[1];
    pair[1] = first;
}

/* One head of one sample: a run of queries against a run of keys. */
typedef struct tile {
    smp__attention pair;
    smp__attention_terms terms;
    const float *q, *k, *v, *dout;
    float *out, *dq, *dk, *dv;
    float *saved;      /* (rows, 2): m and l, in the end 1 / l */
    const float *sums; /* D */
    int64_t stride;    /* of k, v, dk, dv */
} tile;

static tile tile_of(const pass *s, int64_t device, int64_t i, int64_t j, int64_t b, int64_t h)
{
    const smp__ring *r = &s->r;
    const smp__attention *at = &r->at;
    const smp_op_call *call = s->call;
    tile t = {.pair = smp__ring_pair(r, device, i, j), .stride = r->kv_columns};
    const int64_t row = i * at->queries, key = j * at->keys;
    const int64_t head = (b * at->heads + h) * r->part[0] + row;
    const int64_t q = smp__attention_place(call, at, Q, b, h) + row * at->stride[Q];
    const int64_t k = (b * r->part[1] + key) * t.stride + smp__attention_head(at, K, h) * at->width;
    const int64_t values = call->batch * r->part[1] * t.stride;
    const int64_t out = (b * r->part[0] + row) * at->d + h * at->width;
    t.q = (const float *)call->in[at->input[Q]] + q;
    t.k = s->kv[0] + k;
    t.v = t.k + values;
    t.out = call->out[0] ? (float *)call->out[0] + out : NULL;
    t.dout = call->dout ? call->dout[0] + out : NULL;
    t.dq = s->want_q ? call->din[at->input[Q]] + q : NULL;
    t.dk = s->want_kv ? s->dkv[0] + k : NULL;
    t.dv = s->want_kv ? t.dk + values : NULL;
    t.saved = (float *)call->aux + 2 * head;
    t.sums = s->sums + head;
    t.terms.bias = at->alibi ? s->bias : NULL;
    if (at->mask >= 0)
        t.terms.mask = (const int32_t *)call->in[at->mask] + b * r->devices * r->part[1] +
                       smp__ring_run(r, device, j, at->keys);
    return t;
}

typedef smp_status step(const pass *s, const tile *t, int64_t begin, int64_t rows, int64_t low,
                        int64_t keys);

/* All queries of this device against the keys at hand, which are another's: of each block of rows
 * those that any of its queries sees. */
static smp_status for_each_block(const pass *s, int64_t device, step *of_block)
{
    const smp__ring *r = &s->r;
    for (int64_t pair = 0; pair < r->runs * r->runs; pair++)
        for (int64_t h = 0; h < r->at.heads; h++)
            for (int64_t b = 0; b < s->call->batch; b++) {
                if (s->group && s->group->look) /* MPI moves keys only while it is called */
                    SMP_TRY(s->group->look(s->group->context));
                const tile t = tile_of(s, device, pair / r->runs, pair % r->runs, b, h);
                if (b == 0 && r->at.alibi)
                    smp__attention_fill_bias(s->call, &t.pair, h, s->bias);
                for (int64_t begin = 0; begin < t.pair.queries; begin += SMP__ATTENTION_ROWS) {
                    const int64_t rows = smp__attention_block(&t.pair, begin);
                    const int64_t low = first_key(&t.pair, begin);
                    const int64_t keys = end_key(&t.pair, begin + rows) - low;
                    if (keys > 0)
                        SMP_TRY(of_block(s, &t, begin, rows, low, keys));
                }
            }
    return SMP_OK;
}

/* Scores (rows, keys), with what is added to them; the keys that a row of the block does not see
 * are left out by [from, to) of it. */
static smp_status make_scores(const pass *s, const tile *t, int64_t begin, int64_t rows,
                              int64_t low, int64_t keys)
{
    const smp__attention *at = &t->pair;
    return smp_math_gemm(false, true, rows, keys, at->width, at->scale,
                         t->q + begin * at->stride[Q], at->stride[Q], t->k + low * t->stride,
                         t->stride, 0, s->p, keys);
}

/* Adds the terms of a row's scores from key `from` on. */
static void add_terms(const tile *t, int64_t row, float *scores, int64_t from, int64_t n)
{
    if (t->terms.bias)
        smp__accumulate(scores, t->terms.bias + t->pair.queries - 1 - row + from, n);
    for (int64_t k = 0; t->terms.mask && k < n; k++)
        scores[k] = t->terms.mask[from + k] != 0 ? scores[k] : -INFINITY;
}

/* Scores of a row become exp(score - m), with the new m; l and the output follow. */
static void soften(const tile *t, int64_t row, float *p, int64_t low, int64_t keys)
{
    const int64_t from = first_key(&t->pair, row), n = end_key(&t->pair, row + 1) - from;
    float *m = t->saved + 2 * row, *l = m + 1, *scores = p + from - low;
    float top = -INFINITY;
    if (n > 0) {
        add_terms(t, row, scores, from, n);
        top = smp__max(scores, n);
    }
    if (n <= 0 || (t->terms.mask && top == -INFINITY)) {
        memset(p, 0, (size_t)keys * sizeof *p);
        return;
    }
    if (top > *m) {
        float correction = *m;
        smp__exp_row(&correction, &correction, top, 1);
        *l *= correction;
        smp__scale(t->out + row * t->pair.d, correction, t->pair.width);
        *m = top;
    }
    *l += smp__exp_row(scores, scores, *m, n);
    memset(p, 0, (size_t)(from - low) * sizeof *p);
    memset(scores + n, 0, (size_t)(low + keys - from - n) * sizeof *p);
}

static smp_status forward_block(const pass *s, const tile *t, int64_t begin, int64_t rows,
                                int64_t low, int64_t keys)
{
    SMP_TRY(make_scores(s, t, begin, rows, low, keys));
    for (int64_t i = 0; i < rows; i++)
        soften(t, begin + i, s->p + i * keys, low, keys);
    return smp_math_gemm(false, false, rows, t->pair.width, keys, 1, s->p, keys,
                         t->v + low * t->stride, t->stride, 1, t->out + begin * t->pair.d,
                         t->pair.d);
}

/* P of a row, from its scores. */
static void soften_again(const tile *t, int64_t row, float *p, int64_t low, int64_t keys)
{
    const int64_t from = first_key(&t->pair, row), n = end_key(&t->pair, row + 1) - from;
    const float *saved = t->saved + 2 * row;
    float *scores = p + from - low;
    if (n <= 0 || saved[1] == 0) {
        memset(p, 0, (size_t)keys * sizeof *p);
        return;
    }
    add_terms(t, row, scores, from, n);
    smp__exp_row(scores, scores, saved[0], n);
    smp__scale(scores, saved[1], n);
    memset(p, 0, (size_t)(from - low) * sizeof *p);
    memset(scores + n, 0, (size_t)(low + keys - from - n) * sizeof *p);
}

/* dS = P * (dP - D). */
SMP_VECTOR static void score_row(float *restrict dp, const float *restrict p, float sum, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dp[i] = p[i] * (dp[i] - sum);
}

static smp_status backward_block(const pass *s, const tile *t, int64_t begin, int64_t rows,
                                 int64_t low, int64_t keys)
{
    const smp__attention *at = &t->pair;
    const int64_t w = at->width, first = low * t->stride;
    const float *q = t->q + begin * at->stride[Q], *dout = t->dout + begin * at->d;
    SMP_TRY(make_scores(s, t, begin, rows, low, keys));
    for (int64_t i = 0; i < rows; i++)
        soften_again(t, begin + i, s->p + i * keys, low, keys);
    if (s->want_kv)
        SMP_TRY(smp_math_gemm(true, false, keys, w, rows, 1, s->p, keys, dout, at->d, 1,
                              t->dv + first, t->stride));
    SMP_TRY(smp_math_gemm(false, true, rows, keys, w, 1, dout, at->d, t->v + first, t->stride, 0,
                          s->dp, keys));
    for (int64_t i = 0; i < rows; i++)
        score_row(s->dp + i * keys, s->p + i * keys, t->sums[begin + i], keys);
    if (s->want_q)
        SMP_TRY(smp_math_gemm(false, false, rows, w, keys, at->scale, s->dp, keys, t->k + first,
                              t->stride, 1, t->dq + begin * at->stride[Q], at->stride[Q]));
    if (s->want_kv)
        SMP_TRY(smp_math_gemm(true, false, keys, w, rows, at->scale, s->dp, keys, q, at->stride[Q],
                              1, t->dk + first, t->stride));
    return SMP_OK;
}

static smp_status travel(const pass *s, float *pair[2], int64_t by)
{
    SMP_TRY(s->group->shift(s->group->context, pair[0], pair[1],
                            smp__ring_travelling(&s->r, s->call->batch), (int32_t)by));
    return s->group->shifted(s->group->context);
}

/* Each round computes while the next keys are under way. */
static smp_status go_round(pass *s, step *of_block)
{
    const smp__ring *r = &s->r;
    const int64_t n = smp__ring_travelling(r, s->call->batch);
    const smp_op_call *call = s->call;
    for (int part = K; part <= V; part++)
        copy_rows(s, part, (float *)call->in[r->at.input[part]], s->kv[0], false);
    for (int64_t round = 0; round < r->rounds; round++) {
        const bool more = round + 1 < r->rounds;
        if (more)
            SMP_TRY(s->group->shift(s->group->context, s->kv[0], s->kv[1], n, 1));
        SMP_TRY(for_each_block(s, smp__ring_source(r, round), of_block));
        if (more) {
            SMP_TRY(s->group->shifted(s->group->context));
            swap(s->kv);
        }
        if (more && s->want_kv) {
            SMP_TRY(travel(s, s->dkv, 1));
            swap(s->dkv);
        }
    }
    return SMP_OK;
}

static smp_status forward(const smp_op_call *call)
{
    pass s;
    SMP_TRY(begin_pass(call, false, &s));
    const smp__ring *r = &s.r;
    const int64_t rows = r->part[0], heads = r->at.heads, w = r->at.width;
    float *saved = call->aux, *out = call->out[0];
    memset(out, 0, (size_t)(call->batch * rows * r->at.d) * sizeof *out);
    for (int64_t i = 0; i < call->batch * heads * rows; i++) {
        saved[2 * i] = -INFINITY;
        saved[2 * i + 1] = 0;
    }
    SMP_TRY(go_round(&s, forward_block));
    for (int64_t i = 0; i < call->batch * heads * rows; i++) {
        const int64_t b = i / (heads * rows), h = i / rows % heads;
        float *inverse = &saved[2 * i + 1];
        *inverse = *inverse == 0 ? 0 : 1 / *inverse; /* nothing was seen */
        smp__scale(out + (b * rows + i % rows) * r->at.d + h * w, *inverse, w);
    }
    return SMP_OK;
}

/* dQ and D before the first round. */
static void begin_backward(pass *s)
{
    const smp__ring *r = &s->r;
    const smp__attention *at = &r->at;
    const smp_op_call *call = s->call;
    const int64_t rows = r->part[0];
    for (int64_t i = 0; i < call->batch * at->heads * rows; i++) {
        const int64_t b = i / (at->heads * rows), h = i / rows % at->heads, t = i % rows;
        const int64_t place = (b * rows + t) * at->d + h * at->width;
        s->sums[i] =
            smp__dot(call->dout[0] + place, (const float *)call->out[0] + place, at->width);
        if (s->want_q)
            memset(call->din[at->input[Q]] + smp__attention_place(call, at, Q, b, h) +
                       t * at->stride[Q],
                   0, (size_t)at->width * sizeof(float));
    }
}

static smp_status backward_input(const smp_op_call *call)
{
    pass s;
    SMP_TRY(begin_pass(call, true, &s));
    const smp__ring *r = &s.r;
    const int64_t away = r->rounds - 1;
    s.want_q = call->din[r->at.input[Q]];
    s.want_kv = call->din[r->at.input[K]] || call->din[r->at.input[V]];
    if (!s.want_q && !s.want_kv)
        return SMP_OK;
    begin_backward(&s);
    memset(s.dkv[0], 0, (size_t)smp__ring_travelling(r, call->batch) * sizeof(float));
    SMP_TRY(go_round(&s, backward_block));
    if (s.want_kv && away > 0) {
        SMP_TRY(travel(&s, s.dkv, r->devices - away));
        swap(s.dkv);
    }
    for (int part = K; part <= V; part++)
        if (call->din[r->at.input[part]])
            copy_rows(&s, part, call->din[r->at.input[part]], s.dkv[0], true);
    return SMP_OK;
}

const smp_op_kind smp__op_ring_attention = {
    .name = "ring_attention",
    .summary = "attention of a part of the positions; keys and values travel around the devices",
    .sample = "inputs:\n"
              "  qkv: {dtype: float32, shape: [4, 12]}\n"
              "ops:\n"
              "  - {op: ring_attention, name: op, in: qkv, out: y, heads: 2, causal: true}\n",
    .min_in = 1,
    .max_in = 4,
    .attrs = smp__attention_attrs,
    .infer = infer,
    .needs = {[SMP_BACKEND_CPU] = needs, [SMP_BACKEND_CUDA] = cuda_needs},
    .work = work,
    .cpu = {.forward = forward, .backward_input = backward_input},
    .index_range = index_range,
};
