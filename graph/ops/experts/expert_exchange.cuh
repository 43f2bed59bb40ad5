/* Experts and tokens on several devices that are GPUs: what expert_exchange.c does, all
 * choices at once. A warp counts the tokens of a run that chose an expert, and which comes before
 * which; from the counts of all devices follow the places and the rows of everybody's tokens, each
 * looked up by who moves it, so that nothing is written twice and nothing depends on the order of
 * blocks. How many rounds the rows take is for the host to know: one number is read in every call,
 * which waits for what is enqueued before it, while the device goes on with what needs no round. */
#ifndef SMP_GRAPH_OPS_EXPERT_EXCHANGE_CUH
#define SMP_GRAPH_OPS_EXPERT_EXCHANGE_CUH

#include "graph/ops/collective/collective.cuh"
#include "graph/ops/experts/routing.cuh"
extern "C" {
#include "graph/ops/experts/expert_exchange.h"
}

/* The index of a count: as in smp__expert_exchange. */
__device__ __forceinline__ int64_t smp_expert_index(const smp__device_exchange &x, int64_t device,
                                                    int64_t b, int64_t k, int64_t run)
{
    return (((device * x.batch + b) * x.r.top_k + k) * x.runs + run) * x.r.experts;
}

/* Rows that have a place, of the tokens that count[i] counts. */
__device__ __forceinline__ int64_t smp_expert_placed(const smp__device_exchange &x, int64_t i)
{
    const int64_t left = x.r.capacity - x.first[i];
    const float count = x.count[i];
    return !(count >= 0) ? 0 : count < (float)left ? (int64_t)count : left;
}

/* The number of a choice's row among those that go to its expert's device; -1: it has no place. */
__device__ __forceinline__ int64_t smp_expert_row(const smp__device_exchange &x, int64_t choice)
{
    const int64_t token = choice / x.r.top_k, b = token / x.r.tokens, t = token - b * x.r.tokens;
    const int64_t run = t / (x.r.tokens / x.runs), before = x.route.slot[choice];
    const int64_t i =
        smp_expert_index(x, x.index, b, choice - token * x.r.top_k, run) + x.route.expert[choice];
    return before < smp_expert_placed(x, i) ? x.start[i] + before : -1;
}

/* The rows that have come back, as they are kept: for smp_choices_sum and smp_gates_gradient. */
struct smp_rows_kept {
    smp__device_exchange x;
    __device__ __forceinline__ int64_t operator()(int64_t sample, int64_t i) const
    {
        const int64_t choice = sample * x.r.tokens * x.r.top_k + i;
        return smp_expert_row(x, choice) < 0 ? -1 : choice;
    }
};

/* A warp takes the tokens of one run of one sample that chose one expert with their choice k. */
static __global__ void __launch_bounds__(SMP_BLOCK) smp_expert_count(smp__device_exchange x)
{
    const int lane = threadIdx.x % SMP_WARP;
    const int64_t length = x.r.tokens / x.runs;
    const int64_t n = x.batch * x.r.top_k * x.runs * x.r.experts;
    for (int64_t i = smp_thread() / SMP_WARP; i < n; i += smp_threads() / SMP_WARP) {
        const int64_t expert = i % x.r.experts, run = i / x.r.experts % x.runs;
        const int64_t k = i / x.r.experts / x.runs % x.r.top_k;
        const int64_t b = i / x.r.experts / x.runs / x.r.top_k;
        const int64_t first = (b * x.r.tokens + run * length) * x.r.top_k + k;
        int64_t used = 0;
        for (int64_t begin = 0; begin < length; begin += SMP_WARP) {
            const int64_t at = first + (begin + lane) * x.r.top_k;
            const bool mine = begin + lane < length && x.route.expert[at] == expert;
            const unsigned all = __ballot_sync(0xffffffffu, mine);
            if (mine)
                x.route.slot[at] = (int32_t)(used + __popc(all & ((1u << lane) - 1)));
            used += __popc(all);
        }
        if (lane == 0)
            x.own[i] = (float)used;
    }
}

/* Finds the place of the first token of every count: by rising choice, then position. In a zigzag
 * the second runs lie in the order of falling devices. */
static __global__ void __launch_bounds__(SMP_BLOCK) smp_expert_first(smp__device_exchange x)
{
    const int64_t parts = x.runs * x.devices;
    for (int64_t i = smp_thread(); i < x.batch * x.r.experts; i += smp_threads()) {
        const int64_t b = i / x.r.experts, expert = i - b * x.r.experts;
        int64_t taken = 0;
        for (int64_t at = 0; at < x.r.top_k * parts; at++) {
            const int64_t run = at % parts / x.devices, place = at % x.devices;
            const int64_t device = run == 1 ? x.devices - 1 - place : place;
            const int64_t own = smp_expert_index(x, device, b, at / parts, run) + expert;
            x.first[own] = (int32_t)taken;
            taken += smp_expert_placed(x, own);
        }
    }
}

/* Rows between two devices stand in the order of samples, choices, runs, experts: a warp adds up
 * the counts before each. One block. */
static __global__ void __launch_bounds__(SMP_BLOCK) smp_expert_start(smp__device_exchange x)
{
    __shared__ int32_t longest[SMP_BLOCK / SMP_WARP];
    const int lane = threadIdx.x % SMP_WARP, warp = threadIdx.x / SMP_WARP;
    const int64_t n = x.batch * x.r.top_k * x.runs * x.r.own;
    int64_t most = 0;
    for (int64_t pair = warp; pair < x.devices * x.devices; pair += SMP_BLOCK / SMP_WARP) {
        const int64_t from = pair / x.devices, to = pair - from * x.devices;
        const int64_t base = smp_expert_index(x, from, 0, 0, 0) + to * x.r.own;
        int64_t rows = 0;
        for (int64_t begin = 0; begin < n; begin += SMP_WARP) {
            const int64_t at = begin + lane, counted = at / x.r.own;
            const int64_t i = base + counted * x.r.experts + (at - counted * x.r.own);
            const int own = at < n ? (int)smp_expert_placed(x, i) : 0;
            int sum = own; /* of the lanes up to this one */
            for (int step = 1; step < SMP_WARP; step *= 2) {
                const int before = __shfl_up_sync(0xffffffffu, sum, step);
                sum += lane >= step ? before : 0;
            }
            if (at < n)
                x.start[i] = (int32_t)(rows + sum - own);
            rows += __shfl_sync(0xffffffffu, sum, SMP_WARP - 1);
        }
        most = rows > most ? rows : most;
    }
    if (lane == 0)
        longest[warp] = (int32_t)most;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < SMP_BLOCK / SMP_WARP; i++)
            longest[0] = max(longest[0], longest[i]);
        *x.most = longest[0];
    }
}

/* Whose row is at a place of this device's experts. */
static __global__ void __launch_bounds__(SMP_BLOCK) smp_expert_source(smp__device_exchange x)
{
    for (int64_t i = smp_thread(); i < x.batch * x.r.own * x.r.capacity; i += smp_threads()) {
        const int64_t own = i / x.r.capacity, place = i - own * x.r.capacity, b = own / x.r.own;
        const int64_t expert = x.index * x.r.own + own - b * x.r.own;
        int32_t source = -1;
        for (int64_t at = 0; at < x.devices * x.r.top_k * x.runs && source < 0; at++) {
            const int64_t device = at / (x.r.top_k * x.runs);
            const int64_t k = at / x.runs % x.r.top_k, run = at % x.runs;
            const int64_t of = smp_expert_index(x, device, b, k, run) + expert;
            const int64_t behind = place - x.first[of];
            if (behind >= 0 && behind < smp_expert_placed(x, of))
                source = (int32_t)(device * x.bound + x.start[of] + behind);
        }
        x.route.choice[i] = source;
    }
}

/* One round of rows, of those of number begin .. begin + n - 1, [devices][stride]. */
template <typename T> struct smp_expert_round {
    T *rows;
    int64_t begin, n, stride;
};

/* Rows of tokens, times their gates if there are some, to where the round takes them; or (BACK)
 * from there to the rows of the choices. */
template <int W, bool BACK, typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    smp_move_choices(smp__device_exchange x, smp_expert_round<T> round, const T *from,
                     const float *gate, T *to)
// from (B, tokens, d), to (B, tokens, top_k, d), d a multiple of W
{
    const int64_t columns = x.d / W, choices = x.batch * x.r.tokens * x.r.top_k;
    for (int64_t i = smp_thread(); i < choices * columns; i += smp_threads()) {
        const int64_t choice = i / columns, column = (i - choice * columns) * W;
        const int64_t row = smp_expert_row(x, choice), at = row - round.begin;
        if (row < 0 || at < 0 || at >= round.n)
            continue;
        const int64_t device = x.route.expert[choice] / x.r.own;
        T *place = round.rows + device * round.stride + at * x.d + column;
        float value[W];
        if (BACK) {
            smp_read<W>(value, place);
            smp_write<W>(to + choice * x.d + column, value);
            continue;
        }
        smp_read<W>(value, from + choice / x.r.top_k * x.d + column);
        for (int e = 0; gate && e < W; e++)
            value[e] *= gate[choice];
        smp_write<W>(place, value);
    }
}

/* The places of this device's experts to where the round takes their rows, or (BACK) from there. */
template <int W, bool BACK, typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    smp_move_places(smp__device_exchange x, smp_expert_round<T> round, T *places)
// places (B, own, capacity, d), d a multiple of W
{
    const int64_t columns = x.d / W, n = x.batch * x.r.own * x.r.capacity;
    for (int64_t i = smp_thread(); i < n * columns; i += smp_threads()) {
        const int64_t place = i / columns, column = (i - place * columns) * W;
        const int64_t source = x.route.choice[place], device = source / x.bound;
        const int64_t at = source - device * x.bound - round.begin;
        if (source < 0 || at < 0 || at >= round.n)
            continue;
        T *row = round.rows + device * round.stride + at * x.d + column;
        T *own = places + place * x.d + column;
        float value[W];
        smp_read<W>(value, BACK ? row : own);
        smp_write<W>(BACK ? own : row, value);
    }
}

/* Host side: a call under way. */
template <typename T> struct smp_expert_call {
    const smp_op_call *call;
    const smp_op_group *group;
    smp__device_exchange x;
    int64_t most;
};

template <typename T> static smp_status smp_experts_count(const smp_expert_call<T> &c, bool forward)
{
    const smp_cuda *cuda = smp_cuda_of(c.call);
    const smp__device_exchange &x = c.x;
    const int64_t counts = x.batch * x.r.top_k * x.runs * x.r.experts;
    SMP_LAUNCH(smp_expert_count, smp_grid(cuda, counts * SMP_WARP), SMP_BLOCK, 0, cuda->stream, x);
    SMP_TRY(smp__cuda_launched("experts, counts"));
    if (!forward)
        return SMP_OK;
    if (x.devices == 1)
        return smp_copy_values(c.call, x.count, static_cast<const float *>(x.own), counts);
    return c.group->all_gather(c.group->context, x.own, x.count, counts);
}

/* Routes the micro-batch; a forward call tells the others how many tokens chose which expert, and
 * saves what they tell. rows, saved: as in smp__device_exchange_at. */
template <typename T>
static smp_status smp_experts_begin(const smp_op_call *call, bool gates, bool rows, bool saved,
                                    bool forward, smp_expert_call<T> *c)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    c->call = call;
    c->x = smp__device_exchange_at(call->graph, call->op, call->batch, gates, rows, saved,
                                   call->aux, call->workspace);
    const smp__device_exchange &x = c->x;
    const int64_t tokens = x.batch * x.r.tokens;
    SMP_TRY(smp__group_of(call, x.devices, &c->group));
    SMP_LAUNCH(smp_route_choose<T>, smp_grid(cuda, tokens * SMP_WARP), SMP_BLOCK, 0, cuda->stream,
               static_cast<const T *>(call->in[1]), x.r, x.route, tokens);
    SMP_TRY(smp__cuda_launched("experts, choices"));
    SMP_TRY(smp_experts_count(*c, forward));
    SMP_LAUNCH(smp_expert_first, smp_grid(cuda, x.batch * x.r.experts), SMP_BLOCK, 0, cuda->stream,
               x);
    SMP_LAUNCH(smp_expert_start, 1, SMP_BLOCK, 0, cuda->stream, x);
    SMP_TRY(smp__cuda_launched("experts, rows"));
    if (x.devices > 1)
        SMP_TRY(c->group->read(c->group->context, x.most, sizeof *x.most));
    SMP_LAUNCH(smp_expert_source, smp_grid(cuda, x.batch * x.r.own * x.r.capacity), SMP_BLOCK, 0,
               cuda->stream, x);
    return smp__cuda_launched("experts, places");
}

/* Before the first round: every call that has begun comes here. */
template <typename T> static smp_status smp_experts_have_most(smp_expert_call<T> *c)
{
    int32_t most = 0;
    if (c->x.devices > 1)
        SMP_TRY(c->group->have_read(c->group->context, &most, sizeof most));
    c->most = c->x.devices > 1 ? most : c->x.room; /* alone all rows fit one round */
    return SMP_OK;
}

template <typename T>
static smp_expert_round<T> smp_experts_round(const smp_expert_call<T> &c, int64_t begin)
{
    const int64_t left = c.most - begin, n = left < c.x.room ? left : c.x.room;
    return {static_cast<T *>(c.x.sent), begin, n, smp_row_stride_of<T>(n * c.x.d)};
}

/* What a round has sent becomes what has come. */
template <typename T>
static smp_status smp_experts_exchange(const smp_expert_call<T> &c, smp_expert_round<T> *round)
{
    T *got = static_cast<T *>(c.x.got);
    if (c.x.devices > 1)
        SMP_TRY(smp_exchange_rows<T>(c.group, round->rows, got, round->n * c.x.d));
    round->rows = got;
    return SMP_OK;
}

template <bool BACK, typename T>
static smp_status smp_experts_choices(const smp_expert_call<T> &c, smp_expert_round<T> round,
                                      const T *rows, const float *gate)
{
    const smp_cuda *cuda = smp_cuda_of(c.call);
    const int width = smp_width<T>(c.x.d);
    const auto kernel =
        width > 1 ? smp_move_choices<smp_pack<T>::N, BACK, T> : smp_move_choices<1, BACK, T>;
    SMP_LAUNCH(kernel, smp_grid(cuda, c.x.batch * c.x.r.tokens * c.x.r.top_k * (c.x.d / width)),
               SMP_BLOCK, 0, cuda->stream, c.x, round, rows, gate, static_cast<T *>(c.x.rows));
    return smp__cuda_launched("experts, rows of tokens");
}

template <bool BACK, typename T>
static smp_status smp_experts_places(const smp_expert_call<T> &c, smp_expert_round<T> round,
                                     T *places)
{
    const smp_cuda *cuda = smp_cuda_of(c.call);
    const int width = smp_width<T>(c.x.d);
    const auto kernel =
        width > 1 ? smp_move_places<smp_pack<T>::N, BACK, T> : smp_move_places<1, BACK, T>;
    SMP_LAUNCH(kernel, smp_grid(cuda, c.x.batch * c.x.r.own * c.x.r.capacity * (c.x.d / width)),
               SMP_BLOCK, 0, cuda->stream, c.x, round, places);
    return smp__cuda_launched("experts, rows of places");
}

/* Sends rows (B, tokens, d) to each expert that a token chose, times their gates if there are some;
 * places (B, own, capacity, d), zeroes where nobody is. */
template <typename T>
static smp_status smp_experts_send(smp_expert_call<T> &c, const T *rows, const float *gate,
                                   T *places)
{
    const smp__device_exchange &x = c.x;
    SMP_TRY(SMP_CUDA(cudaMemsetAsync, places, 0,
                     (size_t)(x.batch * x.r.own * x.r.capacity * x.d) * sizeof(T),
                     smp_cuda_of(c.call)->stream));
    SMP_TRY(smp_experts_have_most(&c));
    for (int64_t begin = 0; begin < c.most; begin += x.room) {
        smp_expert_round<T> round = smp_experts_round(c, begin);
        SMP_TRY((smp_experts_choices<false, T>(c, round, rows, gate)));
        SMP_TRY(smp_experts_exchange(c, &round));
        SMP_TRY((smp_experts_places<true, T>(c, round, places)));
    }
    return SMP_OK;
}

/* The rows at the places of the choices, to x.rows, which are left as they are where there is no
 * place. */
template <typename T> static smp_status smp_experts_return(smp_expert_call<T> &c, T *places)
{
    SMP_TRY(smp_experts_have_most(&c));
    for (int64_t begin = 0; begin < c.most; begin += c.x.room) {
        smp_expert_round<T> round = smp_experts_round(c, begin);
        SMP_TRY((smp_experts_places<false, T>(c, round, places)));
        SMP_TRY(smp_experts_exchange(c, &round));
        SMP_TRY((smp_experts_choices<true, T>(c, round, NULL, NULL)));
    }
    return SMP_OK;
}

/* For `prepare`. */
static inline smp_status smp_experts_prepare(const smp_graph *graph, const smp_op *op,
                                             int64_t batch, void *device, void **state)
{
    (void)device;
    const smp__device_exchange x =
        smp__device_exchange_at(graph, op, batch, false, false, false, NULL, NULL);
    *state = NULL;
    SMP_TRY(smp_route_check(graph, op, x.r));
    if (x.devices * x.bound <= INT32_MAX)
        return SMP_OK;
    return smp_fail_at(smp_op_where(graph, op),
                       "op '%s' (%s): %lld rows from each of %lld devices, expected fewer than "
                       "2^31 in all on a GPU",
                       op->name, op->kind->name, (long long)x.bound, (long long)x.devices);
}

#endif
