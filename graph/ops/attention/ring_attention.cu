/* ring_attention on a GPU: the tiled kernels of attention (cuda_attention_*.cu), a run of queries
 * against a run of keys at a time, while the keys of the next round travel.
 *
 * Forward: every pair of runs has an output and the logarithm of its sum of exponentials, by which
 * outputs are weighed together, in fp32 and in the order of the rounds. Saved is the logarithm of
 * all, by runs of queries. Backward: with it each pair yields its share of the gradients at once.
 * Those of the queries are added up here; the sums of those of the keys travel a round after their
 * keys, beside the next compute, in fp32, and in the end go home. What a kernel makes of a pair is
 * rounded to the type of the activations. */
#include "graph/cuda/cuda_elementwise.cuh"
#include "graph/ops/attention/attention.cuh"
extern "C" {
#include "graph/ops/collective/collective.h"
#include "graph/ops/attention/ring_attention.h"
}

/* A part of what the queries have seen so far, by heads of rows: (B, rows, heads, width). */
template <typename T> struct ring_merge {
    const T *part;         // (B, rows, heads, width)
    const float *part_lse; // (B, heads, rows)
    float *lse;            // the same of all so far
    attention_part<float> total;
    attention_part<T> out; // where the last one goes
    int64_t batch, rows, heads;
    int width;
    bool first, last;
};

/* total = exp(lse - l) * total + exp(part_lse - l) * part, where l is the logarithm of both sums;
 * eight lanes to a head of a row. Who has seen no key has -infinity, in the end 0. */
template <int W, typename T>
__global__ void __launch_bounds__(SMP_BLOCK) ring_merge_kernel(ring_merge<T> m)
{
    const int lane = threadIdx.x % HEAD_LANES;
    const int64_t n = m.batch * m.rows * m.heads, step = smp_threads() / HEAD_LANES;
    const int64_t begin = smp_thread() / HEAD_LANES;
    /* whole warps stay together: lse is read before it is written */
    for (int64_t i = begin; i - begin % (SMP_WARP / HEAD_LANES) < n; i += step) {
        const int64_t at = min(i, n - 1), row = at / m.heads, sample = row / m.rows;
        const int64_t query = row - sample * m.rows;
        const int head = (int)(at - row * m.heads);
        const int64_t place = (sample * m.heads + head) * m.rows + query;
        const float before = m.first ? -INFINITY : m.lse[place], own = m.part_lse[place];
        const float top = fmaxf(before, own), from = top == -INFINITY ? 0.0f : top;
        const float weight_before = expf(before - from), weight_own = expf(own - from);
        const float sum = weight_before + weight_own, inverse = sum == 0 ? 0.0f : 1.0f / sum;
        __syncwarp();
        if (i >= n)
            continue;
        if (lane == 0)
            m.lse[place] = sum == 0 ? (m.last ? 0.0f : -INFINITY) : from + logf(sum);
        const T *part = m.part + at * m.width;
        float *total = m.total.head(sample, head, m.width) + query * m.total.stride;
        T *out = m.out.head(sample, head, m.width) + query * m.out.stride;
        for (int x = lane * W; x < m.width; x += HEAD_LANES * W) {
            float value[W], so_far[W] = {};
            smp_read<W>(value, part + x);
            if (!m.first)
                smp_read<W>(so_far, total + x);
            for (int e = 0; e < W; e++)
                value[e] =
                    fmaf(weight_own * inverse, value[e], weight_before * inverse * so_far[e]);
            if (m.last)
                smp_write<W>(out + x, value);
            else
                smp_write<W>(total + x, value);
        }
    }
}

/* to = from + part[0] + part[1], in this order, what is NULL left out; (B, rows, columns). */
template <typename T, typename TO> struct ring_sum {
    attention_part<TO> to;
    attention_part<const float> from;
    attention_part<const T> part[2];
    int64_t batch, rows, columns;
};

template <int W, typename T, typename TO>
__global__ void __launch_bounds__(SMP_BLOCK) ring_sum_kernel(ring_sum<T, TO> s)
{
    const int64_t packs = s.columns / W;
    for (int64_t i = smp_thread(); i < s.batch * s.rows * packs; i += smp_threads()) {
        const int64_t row = i / packs, sample = row / s.rows, x = (i - row * packs) * W;
        const int64_t at = row - sample * s.rows;
        float sum[W] = {}, value[W];
        if (s.from.at)
            smp_read<W>(sum, s.from.at + sample * s.from.sample + at * s.from.stride + x);
        for (int k = 0; k < 2; k++) {
            if (!s.part[k].at)
                continue;
            smp_read<W>(value,
                        s.part[k].at + sample * s.part[k].sample + at * s.part[k].stride + x);
            for (int e = 0; e < W; e++)
                sum[e] += value[e];
        }
        smp_write<W>(s.to.at + sample * s.to.sample + at * s.to.stride + x, sum);
    }
}

/* A call under way. */
template <typename T> struct ring_pass {
    const smp_op_call *call;
    const smp_op_group *group;
    smp__ring r;
    smp__ring_room room;
    int at_hand; /* which of the two arrays that travel */
    int64_t sent;
    bool want_q, want_kv; /* gradients */

    template <typename U = T> U *place(int64_t offset) const
    {
        return reinterpret_cast<U *>(static_cast<char *>(call->workspace) + offset);
    }
    T *kv(int64_t device_array) const
    {
        return place(room.kv[device_array]);
    }
    float *sums(int64_t device_array) const
    {
        return place<float>(room.sums[device_array]);
    }
    /* Rows of run i of all queries (SMP__Q), or of keys or values, in an array of their own. */
    template <typename U> attention_part<U> run(U *array, int part, int64_t i) const
    {
        const bool queries = part == SMP__Q;
        const int64_t rows = r.part[queries ? 0 : 1], columns = queries ? r.at.d : r.kv_columns;
        U *first = part == SMP__V ? array + call->batch * rows * columns : array;
        return {first + i * (rows / r.runs) * columns, rows * columns, columns};
    }
    /* The logarithms or deltas of run i: (runs, B, heads, rows). */
    float *statistics(float *array, int64_t i) const
    {
        return array + i * call->batch * r.at.heads * r.at.queries;
    }
};

template <typename T>
static smp_status begin(const smp_op_call *call, bool backward, ring_pass<T> *s)
{
    *s = {};
    s->call = call;
    s->r = smp__ring_of(call->graph, call->op);
    s->room =
        smp__ring_room_of(&s->r, smp__in(call->graph, call->op, 0)->dtype, call->batch, backward);
    s->sent = smp__ring_travelling(&s->r, call->batch);
    return smp__group_of(call, s->r.devices, &s->group);
}

template <typename T> static int width_of(const smp__ring &r)
{
    return smp_width<T>(r.at.width);
}

/* Rows [offset, offset + rows of a run) of an input, or of an array like it. */
template <typename T>
static attention_part<T> input_run(const ring_pass<T> &s, int part, T *array, int64_t run)
{
    attention_part<T> of = attention_input(s.call, s.r.at, part, array);
    of.at += run * (part == SMP__Q ? s.r.at.queries : s.r.at.keys) * of.stride;
    return of;
}

/* The own keys and values, side by side, to where they travel. */
template <typename T> static smp_status pack(const ring_pass<T> &s)
{
    for (int i = SMP__K; i <= SMP__V; i++) {
        T *in = static_cast<T *>(const_cast<void *>(s.call->in[s.r.at.input[i]]));
        const attention_part<T> from = attention_input(s.call, s.r.at, i, in);
        const attention_part<T> to = s.run(s.kv(0), i, 0);
        smp_strided c = {};
        c.to = reinterpret_cast<char *>(to.at);
        c.from = reinterpret_cast<const char *>(from.at);
        c.to_stride = c.width = s.r.kv_columns * (int64_t)sizeof(T);
        c.from_stride = from.stride * (int64_t)sizeof(T);
        c.rows = s.call->batch * s.r.part[1];
        SMP_TRY(smp_copy_strided(s.call, c));
    }
    return SMP_OK;
}

/* Run i of the queries against run j of the keys at hand, those of a device; what a query sees of
 * no key is -infinity. */
template <typename T>
static smp_status pair_args(const ring_pass<T> &s, int64_t device, int64_t i, int64_t j,
                            attention_args<T> *made)
{
    const smp__ring &r = s.r;
    const smp__attention pair = smp__ring_pair(&r, device, i, j);
    attention_args<T> args = attention_args_of<T>(s.call, pair);
    args.q.at += i * pair.queries * args.q.stride;
    args.k = s.run(s.kv(s.at_hand), SMP__K, j);
    args.v = s.run(s.kv(s.at_hand), SMP__V, j);
    args.out = s.run(static_cast<T *>(s.call->out[0]), SMP__Q, i);
    args.dout = s.run(attention_dout<T>(s.call), SMP__Q, i);
    if (args.mask) {
        args.mask += smp__ring_run(&r, device, j, pair.keys);
        args.mask_keys = r.devices * r.part[1];
    }
    args.lse_of_none = -INFINITY;
    if (!pair.causal || pair.before + pair.queries <= pair.window) {
        args.window = ATTENTION_MAX_ROWS;
        args.causal = pair.causal && pair.before + 1 < pair.keys;
    }
    SMP_TRY(attention_fill_bias(s.call, pair, s.template place<float>(s.room.bias), &args.bias));
    *made = args;
    return SMP_OK;
}

/* One device: attention. */
template <typename T> static smp_status args_alone(const ring_pass<T> &s, attention_args<T> *made)
{
    attention_args<T> args = attention_args_of<T>(s.call, s.r.at);
    args.lse = static_cast<float *>(s.call->aux);
    args.delta = s.template place<float>(s.room.rows);
    SMP_TRY(attention_fill_bias(s.call, s.r.at, s.template place<float>(s.room.bias), &args.bias));
    *made = args;
    return SMP_OK;
}

template <typename T>
static smp_status forward_pair(const ring_pass<T> &s, int64_t round, int64_t i, int64_t j,
                               bool first, bool last)
{
    const smp_cuda *cuda = smp_cuda_of(s.call);
    const smp__ring &r = s.r;
    attention_args<T> args;
    SMP_TRY(pair_args(s, smp__ring_source(&r, round), i, j, &args));
    T *part = s.place(s.room.part);
    float *total = sizeof(T) == sizeof(float) ? static_cast<float *>(s.call->out[0])
                                              : s.template place<float>(s.room.total);
    ring_merge<T> m = {};
    m.part = part;
    m.part_lse = args.lse = s.template place<float>(s.room.rows);
    m.lse = s.statistics(static_cast<float *>(s.call->aux), i);
    m.total = s.run(total, SMP__Q, i);
    m.out = args.out;
    m.batch = s.call->batch;
    m.rows = r.at.queries;
    m.heads = r.at.heads;
    m.width = (int)r.at.width;
    m.first = first;
    m.last = last;
    args.out = {part, r.at.queries * r.at.d, r.at.d};
    SMP_TRY(attention_forward(cuda, args));
    const auto kernel =
        width_of<T>(r) > 1 ? ring_merge_kernel<smp_pack<T>::N, T> : ring_merge_kernel<1, T>;
    SMP_LAUNCH(kernel, smp_grid(cuda, m.batch * m.rows * m.heads * HEAD_LANES), SMP_BLOCK, 0,
               cuda->stream, m);
    return smp__cuda_launched("ring_attention, output");
}

/* Does run i of the queries see anything of run j of the keys of a round? */
static bool sees(const smp__ring &r, int64_t round, int64_t i, int64_t j)
{
    const smp__attention pair = smp__ring_pair(&r, smp__ring_source(&r, round), i, j);
    return round < r.rounds && j < r.runs && smp__ring_sees(&pair);
}

/* Is there a pair of run i after (round, j)? */
static bool more_behind(const smp__ring &r, int64_t round, int64_t i, int64_t j)
{
    for (int64_t at = round * r.runs + j + 1; at < r.rounds * r.runs; at++)
        if (sees(r, at / r.runs, i, at % r.runs))
            return true;
    return false;
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    ring_pass<T> s;
    SMP_TRY(begin(call, false, &s));
    const smp__ring &r = s.r;
    const int64_t n = smp__row_floats(smp__in(call->graph, call->op, 0)->dtype, s.sent);
    if (r.devices == 1) {
        attention_args<T> args;
        SMP_TRY(args_alone(s, &args));
        return attention_forward(smp_cuda_of(call), args);
    }
    SMP_TRY(pack(s));
    for (int64_t round = 0; round < r.rounds; round++) {
        const bool travels = round + 1 < r.rounds;
        if (travels)
            SMP_TRY(s.group->shift(s.group->context,
                                   reinterpret_cast<const float *>(s.kv(s.at_hand)),
                                   reinterpret_cast<float *>(s.kv(1 - s.at_hand)), n, 1));
        for (int64_t i = 0; i < r.runs; i++)
            for (int64_t j = 0; j < r.runs; j++)
                if (sees(r, round, i, j)) /* the own keys are run j = i of round 0 */
                    SMP_TRY(forward_pair(s, round, i, j, round == 0 && !(j > 0 && sees(r, 0, i, 0)),
                                         !more_behind(r, round, i, j)));
        if (travels)
            SMP_TRY(s.group->shifted(s.group->context));
        s.at_hand = 1 - s.at_hand;
    }
    return SMP_OK;
}

template <typename T, typename TO>
static smp_status add(const ring_pass<T> &s, ring_sum<T, TO> sum, int part)
{
    const smp_cuda *cuda = smp_cuda_of(s.call);
    const int width = width_of<T>(s.r);
    const auto kernel =
        width > 1 ? ring_sum_kernel<smp_pack<T>::N, T, TO> : ring_sum_kernel<1, T, TO>;
    sum.batch = s.call->batch;
    sum.columns = part == SMP__Q ? s.r.at.d : s.r.kv_columns;
    SMP_LAUNCH(kernel, smp_grid(cuda, sum.batch * sum.rows * (sum.columns / width)), SMP_BLOCK, 0,
               cuda->stream, sum);
    return smp__cuda_launched("ring_attention, sum");
}

/* Gradients of a round's pairs: of the queries by runs of keys, of keys by runs of queries. */
template <typename T> static T *query_part(const ring_pass<T> &s, int64_t j)
{
    return s.place(s.room.part) + j * s.call->batch * s.r.part[0] * s.r.at.d;
}
template <typename T> static T *key_part(const ring_pass<T> &s, int64_t i)
{
    return s.place(s.room.dkv) + i * s.sent;
}

template <typename T>
static smp_status backward_pair(const ring_pass<T> &s, int64_t round, int64_t i, int64_t j)
{
    attention_args<T> args;
    SMP_TRY(pair_args(s, smp__ring_source(&s.r, round), i, j, &args));
    args.lse = s.statistics(static_cast<float *>(s.call->aux), i);
    args.delta = s.statistics(s.template place<float>(s.room.rows), i);
    if (s.want_q)
        args.dq = s.run(query_part(s, j), SMP__Q, i);
    if (s.want_kv) {
        args.dk = s.run(key_part(s, i), SMP__K, j);
        args.dv = s.run(key_part(s, i), SMP__V, j);
    }
    return attention_backward(smp_cuda_of(s.call), args);
}

/* What a round made for the queries joins what others did, in the last one where it is wanted. */
template <typename T> static smp_status add_queries(const ring_pass<T> &s, int64_t round)
{
    const smp__ring &r = s.r;
    float *total = s.template place<float>(s.room.total);
    const bool last = round + 1 == r.rounds;
    for (int64_t i = 0; i < r.runs; i++) {
        ring_sum<T, float> sum = {};
        bool any = false;
        if (round > 0)
            sum.from = s.run(static_cast<const float *>(total), SMP__Q, i);
        for (int64_t j = 0; j < r.runs; j++)
            if (sees(r, round, i, j)) {
                sum.part[j] = s.run(static_cast<const T *>(query_part(s, j)), SMP__Q, i);
                any = true;
            }
        sum.to = s.run(total, SMP__Q, i);
        sum.rows = r.at.queries;
        if (!last && any)
            SMP_TRY(add(s, sum, SMP__Q));
        if (!last)
            continue;
        T *din = reinterpret_cast<T *>(s.call->din[r.at.input[SMP__Q]]);
        ring_sum<T, T> to_input = {
            input_run(s, SMP__Q, din, i), sum.from, {sum.part[0], sum.part[1]}, 0, sum.rows, 0};
        SMP_TRY(add(s, to_input, SMP__Q));
    }
    return SMP_OK;
}

/* What a round made for the keys at hand joins the sums that have come after them. */
template <typename T> static smp_status add_keys(const ring_pass<T> &s, int64_t round)
{
    const smp__ring &r = s.r;
    float *sums = s.sums(1 - s.at_hand);
    for (int64_t j = 0; j < r.runs; j++)
        for (int part = SMP__K; part <= SMP__V; part++) {
            ring_sum<T, float> sum = {};
            bool any = false;
            if (round > 0)
                sum.from = s.run(static_cast<const float *>(sums), part, j);
            for (int64_t i = 0; i < r.runs; i++)
                if (sees(r, round, i, j)) {
                    sum.part[i] = s.run(static_cast<const T *>(key_part(s, i)), part, j);
                    any = true;
                }
            sum.to = s.run(sums, part, j);
            sum.rows = r.at.keys;
            if (any)
                SMP_TRY(add(s, sum, part));
        }
    return SMP_OK;
}

/* Keys go on as long as there is a round more, the sums of their gradients a round after them. */
template <typename T> static smp_status send(const ring_pass<T> &s, int64_t round, bool *travels)
{
    const bool keys = round + 1 < s.r.rounds, sums = round > 0 && s.want_kv;
    const int64_t n_keys = smp__row_floats(smp__in(s.call->graph, s.call->op, 0)->dtype, s.sent);
    const int from = s.at_hand, to = 1 - from;
    *travels = keys || sums;
    if (!*travels)
        return SMP_OK;
    return s.group->shift(s.group->context,
                          sums ? s.sums(from) : reinterpret_cast<const float *>(s.kv(from)),
                          sums ? s.sums(to) : reinterpret_cast<float *>(s.kv(to)),
                          (sums ? s.sent : 0) + (keys ? n_keys : 0), 1);
}

/* The sums go home and are what is wanted. */
template <typename T> static smp_status finish_keys(ring_pass<T> *s)
{
    const smp__ring &r = s->r;
    const int64_t away = r.rounds - 1;
    if (away > 0) {
        SMP_TRY(s->group->shift(s->group->context, s->sums(s->at_hand), s->sums(1 - s->at_hand),
                                s->sent, (int32_t)(r.devices - away)));
        SMP_TRY(s->group->shifted(s->group->context));
        s->at_hand = 1 - s->at_hand;
    }
    for (int part = SMP__K; part <= SMP__V; part++) {
        T *din = reinterpret_cast<T *>(s->call->din[r.at.input[part]]);
        ring_sum<T, T> sum = {};
        if (!din)
            continue;
        sum.to = input_run(*s, part, din, 0);
        sum.from = s->run(static_cast<const float *>(s->sums(s->at_hand)), part, 0);
        sum.rows = r.part[1];
        SMP_TRY(add(*s, sum, part));
    }
    return SMP_OK;
}

template <typename T> static smp_status backward_of(ring_pass<T> *s)
{
    const smp__ring &r = s->r;
    SMP_TRY(pack(*s));
    for (int64_t i = 0; i < r.runs; i++) {
        attention_args<T> args;
        SMP_TRY(pair_args(*s, r.device, i, i, &args));
        args.delta = s->statistics(s->template place<float>(s->room.rows), i);
        SMP_TRY(attention_fill_delta(smp_cuda_of(s->call), args));
    }
    for (int64_t round = 0; round < r.rounds; round++) {
        bool travels;
        SMP_TRY(send(*s, round, &travels));
        for (int64_t i = 0; i < r.runs; i++)
            for (int64_t j = 0; j < r.runs; j++)
                if (sees(r, round, i, j))
                    SMP_TRY(backward_pair(*s, round, i, j));
        if (s->want_q)
            SMP_TRY(add_queries(*s, round));
        if (travels)
            SMP_TRY(s->group->shifted(s->group->context));
        if (s->want_kv)
            SMP_TRY(add_keys(*s, round));
        s->at_hand = 1 - s->at_hand;
    }
    return s->want_kv ? finish_keys(s) : SMP_OK;
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    ring_pass<T> s;
    SMP_TRY(begin(call, true, &s));
    const int *input = s.r.at.input;
    s.want_q = call->din[input[SMP__Q]];
    s.want_kv = call->din[input[SMP__K]] || call->din[input[SMP__V]];
    if (!s.want_q && !s.want_kv)
        return SMP_OK;
    if (s.r.devices > 1)
        return backward_of(&s);
    attention_args<T> args;
    SMP_TRY(args_alone(s, &args));
    attention_part<T> *const grad[3] = {&args.dq, &args.dk, &args.dv};
    for (int i = SMP__Q; i <= SMP__V; i++)
        if (call->din[input[i]])
            *grad[i] = attention_input(call, s.r.at, i, reinterpret_cast<T *>(call->din[input[i]]));
    SMP_TRY(attention_fill_delta(smp_cuda_of(call), args));
    return attention_backward(smp_cuda_of(call), args);
}

static smp_status prepare(const smp_graph *graph, const smp_op *op, int64_t batch, void *device,
                          void **state)
{
    (void)batch, (void)device;
    const smp__ring r = smp__ring_of(graph, op);
    const int64_t longest = r.devices * (r.part[0] > r.part[1] ? r.part[0] : r.part[1]);
    *state = NULL;
    return attention_check(graph, op, &r.at, longest);
}

SMP_CUDA_KERNELS(ring_attention) = {
    .prepare = prepare,
    .forward = SMP_TYPED(forward),
    .backward_input = SMP_TYPED(backward_input),
};
