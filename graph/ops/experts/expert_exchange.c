/* Experts on several devices that each have some of the tokens, too. Who gets a place does not
 * depend on the number of devices: first choices by position in the whole sample, then second ones.
 * So the devices tell each other how many of their tokens chose which expert; from that alone
 * everybody knows whose rows are at which places, and rows travel without addresses. Of a pair of
 * devices they come in the order of samples, choices, experts, positions: neighbouring
 * places. Of a zigzag each device has two runs of tokens, which are counted apart.
 *
 * An all_to_all brings as many rows to everybody. What a router makes uneven takes more rounds,
 * whose number all know, rather than room for the worst case: a round has a quarter more than an
 * even share. O(tokens * top_k * d) on each device. */
#include "graph/ops/experts/expert_exchange.h"

#include <string.h>

#include "graph/math/vector.h"

static smp__routing routing_of(const smp_graph *graph, const smp_op *op)
{
    return smp__routing_by_tokens(graph, op, &smp__in(graph, op, 1)->shape);
}

static int64_t devices_of(const smp_op *op)
{
    return op->attr[SMP__ROUTED_BY].i;
}

static int64_t runs_of(const smp_op *op)
{
    return op->attr[SMP__ROUTED_BLOCKS].i;
}

/* Counts of one device and sample. */
static int64_t counts_of(const smp_op *op, const smp__routing *r)
{
    return r->top_k * runs_of(op) * r->experts;
}

static int64_t room_of(const smp__routing *r, int64_t batch, int64_t devices)
{
    const int64_t choices = batch * r->tokens * r->top_k, even = (choices + devices - 1) / devices;
    const int64_t most = batch * r->tokens * (r->top_k < r->own ? r->top_k : r->own);
    return even + even / 4 + 1 < most ? even + even / 4 + 1 : most;
}

int64_t smp__experts_saved(const smp_graph *graph, const smp_op *op)
{
    const smp__routing r = routing_of(graph, op);
    return devices_of(op) * counts_of(op, &r) * (int64_t)sizeof(float);
}

int64_t smp__experts_bytes(const smp_graph *graph, const smp_op *op, int64_t batch, int64_t d)
{
    const smp__routing r = routing_of(graph, op);
    const int64_t devices = devices_of(op), choices = batch * r.tokens * r.top_k;
    const int64_t counts = batch * counts_of(op, &r);
    return ((devices + 2) * counts + 3 * choices + 2 * r.experts +
            2 * devices * room_of(&r, batch, devices) * d) *
           (int64_t)sizeof(float);
}

smp_op_exchange smp__experts_work(const smp_graph *graph, const smp_op *op, int64_t batch,
                                  int64_t d, bool forward)
{
    const smp__routing r = routing_of(graph, op);
    const int64_t devices = devices_of(op);
    const int64_t rows =
        smp__wire_floats(graph, smp__in(graph, op, 0), room_of(&r, batch, devices) * d);
    const int64_t counts = batch * counts_of(op, &r);
    smp_op_exchange sent = smp_op_exchange_each(devices, forward ? (rows + counts + 1) / 2 : rows);
    sent.messages *= forward ? 2 : 1;
    return sent;
}

smp__route smp__experts_route(const smp__expert_exchange *x, int64_t b)
{
    smp__route route = x->route;
    route.expert += b * x->r.tokens * x->r.top_k;
    route.gate += b * x->r.tokens * x->r.top_k;
    return route;
}

/* Rows that have a place, of the tokens that count[i] counts; whatever it holds, no more than there
 * are places. */
static int64_t placed(const smp__expert_exchange *x, int64_t i)
{
    const int64_t left = x->r.capacity - x->first[i];
    const float count = x->count[i];
    return !(count >= 0) ? 0 : count < (float)left ? (int64_t)count : left;
}

static int64_t index_of(const smp__expert_exchange *x, int64_t device, int64_t b, int64_t k,
                        int64_t run)
{
    return (((device * x->batch + b) * x->r.top_k + k) * x->runs + run) * x->r.experts;
}

/* Which device has the tokens of a run that come `place` others of the run after its first. */
static int64_t owner_of(const smp__expert_exchange *x, int64_t run, int64_t place)
{
    return smp_split_part(x->runs, x->devices, run, place) - run * x->devices;
}

/* By rising choice, then position. */
static void set_first(smp__expert_exchange *x)
{
    const int64_t parts = x->runs * x->devices;
    for (int64_t b = 0; b < x->batch; b++)
        for (int64_t e = 0; e < x->r.experts; e++) {
            int64_t taken = 0;
            for (int64_t at = 0; at < x->r.top_k * parts; at++) {
                const int64_t run = at % parts / x->devices;
                const int64_t device = owner_of(x, run, at % x->devices);
                const int64_t i = index_of(x, device, b, at / parts, run) + e;
                x->first[i] = (int32_t)taken;
                taken += placed(x, i);
            }
        }
}

/* Rows from one device to another; `base`, if not NULL, gets the number of the first row of each
 * run. */
static int64_t rows_between(const smp__expert_exchange *x, int64_t from, int64_t to, int32_t *base)
{
    int64_t rows = 0;
    for (int64_t b = 0; b < x->batch; b++)
        for (int64_t k = 0; k < x->r.top_k * x->runs; k++) /* and runs */
            for (int64_t e = to * x->r.own; e < (to + 1) * x->r.own; e++) {
                if (base)
                    base[index_of(x, 0, b, 0, k) + e] = (int32_t)rows;
                rows += placed(x, index_of(x, from, b, 0, k) + e);
            }
    return rows;
}

static void set_places(smp__expert_exchange *x)
{
    const smp__routing *r = &x->r;
    set_first(x);
    x->most = 0;
    for (int64_t from = 0; from < x->devices; from++)
        for (int64_t to = 0; to < x->devices; to++) {
            const int64_t rows =
                rows_between(x, from, to, from == x->group->index ? x->base : NULL);
            x->most = rows > x->most ? rows : x->most;
        }
    for (int64_t b = 0; b < x->batch; b++)
        for (int64_t k = 0; k < r->top_k; k++) {
            int32_t *used = x->route.used;
            for (int64_t t = 0; t < r->tokens; t++) {
                const int64_t i = (b * r->tokens + t) * r->top_k + k;
                const int64_t run = t / (r->tokens / x->runs);
                const int64_t own = index_of(x, x->group->index, b, k, run);
                const int32_t *base = x->base + index_of(x, 0, b, k, run);
                if (t % (r->tokens / x->runs) == 0)
                    memset(used, 0, (size_t)r->experts * sizeof *used);
                const int32_t e = x->route.expert[i], before = used[e]++;
                x->place[i] = before < placed(x, own + e) ? base[e] + before : -1;
            }
        }
}

smp_status smp__experts_begin(const smp_op_call *call, int64_t d, bool gates, bool forward,
                              smp__expert_exchange *x)
{
    *x = (smp__expert_exchange){.r = routing_of(call->graph, call->op),
                                .batch = call->batch,
                                .devices = devices_of(call->op),
                                .runs = runs_of(call->op),
                                .d = d,
                                .count = call->aux};
    const smp__routing *r = &x->r;
    const int64_t choices = x->batch * r->tokens * r->top_k,
                  counts = x->batch * counts_of(call->op, r);
    SMP_TRY(smp__group_of(call, x->devices, &x->group));
    x->room = room_of(r, x->batch, x->devices);
    x->first = call->workspace;
    x->base = x->first + x->devices * counts;
    x->place = x->base + counts;
    x->route.expert = x->place + choices;
    x->route.used = x->route.expert + choices;
    x->route.gate = (float *)(x->route.used + r->experts);
    x->route.share = x->route.gate + choices;
    float *own = x->route.share + r->experts;
    x->sent = own + counts;
    x->got = x->sent + x->devices * x->room * d;
    for (int64_t b = 0; b < x->batch; b++) {
        smp__route route = smp__experts_route(x, b);
        smp__route_choose(r, (const float *)call->in[1] + b * r->tokens * r->experts, gates,
                          &route);
    }
    if (forward) {
        memset(own, 0, (size_t)counts * sizeof *own);
        for (int64_t i = 0; i < choices; i++) {
            const int64_t token = i / r->top_k, t = token % r->tokens;
            own[index_of(x, 0, token / r->tokens, i % r->top_k, t / (r->tokens / x->runs)) +
                x->route.expert[i]]++;
        }
        SMP_TRY(x->group->all_gather(x->group->context, own, call->aux, counts));
    }
    set_places(x);
    return SMP_OK;
}

/* Between the places of this device's experts and what a round brings from or to a device, its rows
 * from `begin` on, [rows][d]. */
static void move_runs(const smp__expert_exchange *x, int64_t device, int64_t begin, int64_t rows,
                      float *round, float *places, bool to_places)
{
    const smp__routing *r = &x->r;
    int64_t row = -begin;
    for (int64_t b = 0; b < x->batch; b++)
        for (int64_t k = 0; k < r->top_k * x->runs; k++) /* and runs */
            for (int64_t e = 0; e < r->own; e++) {
                const int64_t i = index_of(x, device, b, 0, k) + x->group->index * r->own + e;
                const int64_t n = placed(x, i), from = row < 0 ? -row : 0;
                const int64_t to = row + n > rows ? rows - row : n;
                if (from < to) {
                    float *place =
                        places + ((b * r->own + e) * r->capacity + x->first[i] + from) * x->d;
                    float *at = round + (row + from) * x->d;
                    memcpy(to_places ? place : at, to_places ? at : place,
                           (size_t)((to - from) * x->d) * sizeof *place);
                }
                row += n;
            }
}

/* Where the row of choice i lies in a round, or NULL. */
static float *row_of(const smp__expert_exchange *x, float *round, int64_t i, int64_t begin,
                     int64_t rows)
{
    const int64_t row = x->place[i] - begin;
    if (x->place[i] < 0 || row < 0 || row >= rows)
        return NULL;
    return round + (x->route.expert[i] / x->r.own * rows + row) * x->d;
}

static int64_t rows_of_round(const smp__expert_exchange *x, int64_t begin)
{
    return x->most - begin < x->room ? x->most - begin : x->room;
}

smp_status smp__experts_send(const smp__expert_exchange *x, const float *rows, bool by_gate,
                             float *places)
{
    const smp__routing *r = &x->r;
    const int64_t choices = x->batch * r->tokens * r->top_k, d = x->d;
    memset(places, 0, (size_t)(x->batch * r->own * r->capacity * d) * sizeof *places);
    for (int64_t begin = 0, n; begin < x->most; begin += n) {
        n = rows_of_round(x, begin);
        for (int64_t i = 0; i < choices; i++) {
            float *to = row_of(x, x->sent, i, begin, n);
            const float *from = rows + i / r->top_k * d;
            if (to && !by_gate)
                memcpy(to, from, (size_t)d * sizeof *to);
            for (int64_t c = 0; to && by_gate && c < d; c++)
                to[c] = x->route.gate[i] * from[c];
        }
        SMP_TRY(x->group->all_to_all(x->group->context, x->sent, x->got, n * d));
        for (int64_t device = 0; device < x->devices; device++)
            move_runs(x, device, begin, n, x->got + device * n * d, places, true);
    }
    return SMP_OK;
}

smp_status smp__experts_return(const smp__expert_exchange *x, const float *places, bool sum,
                               float *choices)
{
    const smp__routing *r = &x->r;
    const int64_t n_choice = x->batch * r->tokens * r->top_k, d = x->d;
    for (int64_t begin = 0, n; begin < x->most; begin += n) {
        n = rows_of_round(x, begin);
        for (int64_t device = 0; device < x->devices; device++)
            move_runs(x, device, begin, n, x->sent + device * n * d, (float *)places, false);
        SMP_TRY(x->group->all_to_all(x->group->context, x->sent, x->got, n * d));
        for (int64_t i = 0; i < n_choice; i++) {
            const float *from = row_of(x, x->got, i, begin, n);
            if (from && sum)
                smp__accumulate(choices + i / r->top_k * d, from, d);
            else if (from)
                memcpy(choices + i * d, from, (size_t)d * sizeof *from);
        }
    }
    return SMP_OK;
}

/* Floats of the rows of a sample's choices. */
static int64_t kept_rows(const smp_graph *graph, const smp_op *op, const smp__routing *r)
{
    const smp_tensor *in = smp__in(graph, op, 0);
    return smp__row_floats(in->dtype, r->tokens * r->top_k * smp__columns(in));
}

int64_t smp__device_exchange_saved(const smp_graph *graph, const smp_op *op, bool rows)
{
    const smp__routing r = routing_of(graph, op);
    const int64_t floats = devices_of(op) * counts_of(op, &r);
    return (floats + (rows ? kept_rows(graph, op, &r) : 0)) * (int64_t)sizeof(float);
}

/* So many numbers of 4 bytes at the next multiple of 64; base NULL: no array. */
static void *take_numbers(void *base, int64_t *end, int64_t numbers)
{
    void *at = base ? (char *)base + *end : NULL;
    *end += (numbers * (int64_t)sizeof(float) + 63) / 64 * 64;
    return at;
}

smp__device_exchange smp__device_exchange_at(const smp_graph *graph, const smp_op *op,
                                             int64_t batch, bool gates, bool rows, bool saved,
                                             void *aux, void *workspace)
{
    const smp_tensor *in = smp__in(graph, op, 0);
    smp__device_exchange x = {.r = routing_of(graph, op),
                              .batch = batch,
                              .devices = devices_of(op),
                              .index = graph->device,
                              .runs = runs_of(op),
                              .d = smp__columns(in)};
    const smp__routing *r = &x.r;
    const int64_t by_tokens = r->tokens * (r->top_k < r->own ? r->top_k : r->own);
    const int64_t places = r->own * r->capacity, counts = batch * counts_of(op, r);
    const int64_t kept = batch * kept_rows(graph, op, r);
    x.room = room_of(r, batch, x.devices);
    x.bound = batch * (by_tokens < places ? by_tokens : places);
    const int64_t sent = x.devices * smp__row_floats(in->dtype, x.room * x.d);
    const int64_t route = smp__device_route_bytes(r, batch, gates) / (int64_t)sizeof(float);
    void *at = take_numbers(workspace, &x.bytes, route);
    if (at)
        x.route = smp__device_route_at(r, batch, gates, at);
    x.own = take_numbers(workspace, &x.bytes, counts);
    x.first = take_numbers(workspace, &x.bytes, x.devices * counts);
    x.start = take_numbers(workspace, &x.bytes, x.devices * counts);
    x.most = take_numbers(workspace, &x.bytes, 1);
    x.sent = take_numbers(workspace, &x.bytes, sent);
    x.got = x.devices > 1 ? take_numbers(workspace, &x.bytes, sent) : x.sent;
    if (rows)
        x.rows = saved ? aux : take_numbers(workspace, &x.bytes, kept);
    if (aux)
        x.count = (float *)aux + (rows && saved ? kept : 0);
    return x;
}
