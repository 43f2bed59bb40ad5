/* Weights of this rank: norm of the gradients, update, hash. */
#include "exec/optimizer/weights_like.h"
#include "exec/state/drift.h"
#include "exec/state/weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "exec/device/host_values.h"
#include "exec/state/device_wait.h"
#include "exec/parts/initial_values.h"
#include "exec/state/shards.h"
#include "exec/state/updates.h"
#include "exec/parts/weight_runs.h"
#include "exec/state/weights_state.h"
#include "graph/base/random.h"
#include "graph/base/text.h"

_Static_assert((int)SMP_PIECE_ELEMENTS == (int)SMP_SQUARE_PIECE,
               "no piece of squares goes across two parts");

enum { GRADIENT = -1, AT_ONCE = 64 };

/* Initialises what is here: all of a weight, or its part. */
static smp_status init_param(smp *s, int32_t index)
{
    const smp_memory_param *param = &s->memory->param[index];
    const smp_param *p = &s->graph->param[param->param];
    const smp__range here = smp__held_range(s, index);
    const uint64_t seed = s->options->runtime.seed;
    if (here.begin == here.end)
        return SMP_OK;
    if (s->device->host_memory || smp__weight_is_in_host(s, index)) {
        smp__initial_values(p, seed, here.begin, here.end, smp__weight_at(s, index, here.begin));
        return SMP_OK;
    }
    const int64_t piece = SMP__PIECE_BYTES / (int64_t)sizeof(float);
    for (int64_t begin = here.begin; begin < here.end; begin += piece) {
        int64_t n = here.end - begin < piece ? here.end - begin : piece;
        smp__initial_values(p, seed, begin, begin + n, (float *)s->buffers->piece);
        SMP_TRY(s->device->upload(s->device_context, smp__weight_at(s, index, begin),
                                  s->buffers->piece, n * (int64_t)sizeof(float)));
        SMP_TRY(smp__device_idle(s));
    }
    return SMP_OK;
}

smp_status smp__weights_open(smp *s)
{
    const smp_graph *whole = smp_graph_whole(s->graph);
    const size_t settings = (size_t)whole->n_param + 1,
                 norms = (size_t)s->graph->n_param * (size_t)s->comm->tensor_most + SMP__STEP_SUMS;
    struct smp__weights *w = s->weights = calloc(1, sizeof *s->weights);
    if (!w)
        return smp_fail_memory(sizeof *w);
    w->settings = calloc(settings, sizeof *w->settings);
    w->norm = calloc(norms, sizeof *w->norm);
    if (!w->settings || !w->norm)
        return smp_fail_memory(settings * sizeof *w->settings + norms * sizeof *w->norm);
    return smp_weights_like(&s->options->optimizer, s->optimizer, whole, w->settings);
}

bool smp__weights_are_stale(const smp *s)
{
    return s->weights->stale;
}

void smp__weights_gathered(smp *s)
{
    s->weights->stale = false;
}

void smp__weights_close(smp *s)
{
    struct smp__weights *w = s->weights;
    if (!w)
        return;
    free(w->settings);
    free(w->norm);
    free(w->piece_begin);
    free(w->pieces);
    smp__trust_free(s);
    free(w);
}

static int64_t square_bytes(const smp *s)
{
    return (s->weights->piece_begin[s->memory->n_param] + 7) / 8 * 64;
}

int64_t smp__weights_host_bytes(const smp *s)
{
    return square_bytes(s) + smp__trust_host_bytes(s);
}

smp_status smp__weights_place(smp *s, char *host)
{
    s->weights->square = (double *)host;
    return smp__trust_build(s, host + square_bytes(s));
}

smp_status smp__weights_init(smp *s)
{
    s->weights->nearest_states =
        getenv("SMP_NEAREST_STATES") != NULL; /* to measure what that does */
    for (int32_t i = 0; i < s->memory->n_param; i++) {
        SMP_TRY(init_param(s, i));
        SMP_TRY(smp__comm_answer(s->comm));
    }
    return smp__weights_round(s);
}

/* From host memory, a piece at a time, what of elements begin .. end - 1 of a region is this rank's
 * part. Of what is sharded the others are gathered: when they are read. */
static smp_status round_far(smp *s, const smp_memory_region *region, int64_t begin, int64_t end)
{
    const smp_dtype half = smp_precision_dtype(s->target->precision);
    const int own = s->comm->shard_rank;
    const int64_t first = region->cut[own], behind = region->cut[own + 1];
    const float *values =
        (const float *)(s->buffers->host_area + region->weight) + region->at[own] - first;
    const int64_t piece = SMP__PIECE_BYTES / 2;
    begin = begin > first ? begin : first;
    end = end < behind ? end : behind;
    SMP_TRY(smp__device_idle(s)); /* it may still read the pieces of an update */
    for (int64_t at = begin, m; at < end; at += m) {
        m = end - at < piece ? end - at : piece;
        smp__host_round(half, s->buffers->piece, values + at, m);
        SMP_TRY(s->device->upload(s->device_context, s->buffers->arena + region->weight16 + 2 * at,
                                  s->buffers->piece, 2 * m));
        SMP_TRY(smp__device_idle(s));
    }
    s->weights->stale |= s->comm->shard_size > 1;
    return SMP_OK;
}

smp_status smp__region_round(smp *s, int32_t index)
{
    const smp_memory_region *region = &s->memory->region[index];
    if (region->weight16 < 0 || region->elements == 0)
        return SMP_OK;
    if (region->in_host)
        return round_far(s, region, 0, region->elements);
    return s->device->round16(s->device_context, smp_precision_dtype(s->target->precision),
                              s->buffers->arena + region->weight16,
                              (const float *)(s->buffers->arena + region->weight),
                              region->elements);
}

smp_status smp__weight_round(smp *s, int32_t index)
{
    const smp_memory_param *param = &s->memory->param[index];
    const smp_memory_region *region = &s->memory->region[param->region];
    return region->in_host
               ? round_far(s, region, param->at, param->at + s->graph->param[param->param].elements)
               : smp__region_round(s, param->region);
}

smp_status smp__weights_round(smp *s)
{
    for (int32_t i = 0; i < s->memory->n_region; i++)
        SMP_TRY(smp__region_round(s, i));
    return SMP_OK;
}

/* Does this rank's shard group count the weight in what is summed over all ranks? What all devices
 * of a tensor group have is the first one's. */
static bool counts(const smp *s, int32_t index)
{
    const smp_memory_param *param = &s->memory->param[index];
    const bool is_split = s->graph->param[param->param].part.spread.way == SMP_SPLIT;
    return param->owner && s->comm->replica < s->comm->shard_size &&
           (is_split || s->comm->tensor_rank == 0);
}

static void *array_at(const smp *s, int32_t index, int k, int64_t element)
{
    return k == GRADIENT ? smp__grad_at(s, index, element) : smp__saved_at(s, index, k, element);
}

static bool is_in_host(const smp *s, int32_t index, int k)
{
    return k == 0 ? smp__weight_is_in_host(s, index) : k > 0 && s->buffers->host_area;
}

/* Enqueued: of the own part of every weight, piece by piece, the gradient's, its own (0) or a
 * state's (k), of many weights at once. */
static smp_status sum_squares(smp *s, int k)
{
    const smp_dtype dtype = smp__saved_dtype(s, k);
    const int32_t last = s->memory->n_param - 1;
    smp_squares batch[AT_ONCE];
    int n = 0;
    for (int32_t i = 0; i <= last; i++) {
        const smp__range own = smp__own_range(s, i);
        const smp_squares one = {.values = array_at(s, i, k, own.begin),
                                 .elements = own.end - own.begin,
                                 .sum = s->weights->square + s->weights->piece_begin[i] +
                                        own.begin / SMP_PIECE_ELEMENTS};
        const bool counted = counts(s, i) && one.elements > 0 && (k == 0 || !smp__is_idle(s, i));
        if (counted && is_in_host(s, i, k)) /* whether they are finite is all that is asked then */
            SMP_TRY(smp_device_find("cpu")->square_sums(NULL, dtype, &one, 1));
        else if (counted)
            batch[n++] = one;
        if (n < AT_ONCE && i < last)
            continue;
        SMP_TRY(s->device->square_sums(s->device_context, dtype, batch, n));
        SMP_TRY(smp__device_pace(s)); /* other ranks' gradients may not be there yet */
        n = 0;
    }
    return SMP_OK;
}

smp_status smp__weights_square(smp *s)
{
    return sum_squares(s, GRADIENT);
}

/* Adds up the pieces of a weight, all of which are known, in their order. */
static double add_pieces(const smp *s, int32_t index)
{
    double sum = 0.0;
    for (int64_t i = s->weights->piece_begin[index]; i < s->weights->piece_begin[index + 1]; i++)
        sum += s->weights->pieces[i];
    return sum;
}

static bool is_trained(const smp_param *param)
{
    return !param->running && !param->frozen;
}

smp_status smp__weights_norm(smp *s, double also[SMP__STEP_SUMS], double *norm)
{
    const int32_t n = s->graph->n_param;
    const int rows = s->comm->tensor_most; /* one of each device: no order of MPI's shows */
    double *own = s->weights->norm + (int64_t)s->comm->tensor_rank * n,
           *others = s->weights->norm + (int64_t)rows * n;
    memcpy(s->weights->pieces, s->weights->square,
           (size_t)s->weights->piece_begin[s->memory->n_param] * sizeof(*s->weights->pieces));
    if (s->comm->replica < s->comm->shard_size)
        SMP_TRY(smp__pieces_share(s, s->weights->pieces));
    memset(s->weights->norm, 0, (size_t)rows * (size_t)n * sizeof(double));
    memcpy(others, also, SMP__STEP_SUMS * sizeof(double));
    for (int32_t i = 0; i < s->memory->n_param; i++)
        if (counts(s, i) && s->comm->replica == 0 && !smp__is_idle(s, i))
            own[s->memory->param[i].param] = add_pieces(s, i);
    SMP_TRY(smp__comm_sum(s->comm, s->weights->norm, rows * n + SMP__STEP_SUMS));
    double sum = 0.0;
    for (int64_t i = 0; i < (int64_t)rows * n; i++) /* not trained: 0, or NaN if not finite */
        sum +=
            is_trained(&s->graph->param[i % n]) ? s->weights->norm[i] : 0.0 * s->weights->norm[i];
    *norm = sqrt(sum);
    memcpy(also, others, SMP__STEP_SUMS * sizeof(double));
    return SMP_OK;
}

/* All weights, or one state of the optimizer of all: one wait for the device. */
static smp_status check_finite(smp *s, int k)
{
    SMP_TRY(sum_squares(s, k));
    SMP_TRY(smp__device_idle(s));
    memcpy(s->weights->pieces, s->weights->square,
           (size_t)s->weights->piece_begin[s->memory->n_param] * sizeof(*s->weights->pieces));
    for (int32_t i = 0; i < s->memory->n_param; i++)
        if (counts(s, i) && (k == 0 || !smp__is_idle(s, i)) && !isfinite(add_pieces(s, i)))
            return smp_fail(SMP_ERR_FAILED, "%s '%s' after step %lld: not finite",
                            k == 0 ? "weight" : "optimizer state of weight",
                            s->graph->param[s->memory->param[i].param].name, (long long)s->step);
    return SMP_OK;
}

smp_status smp__weights_check(smp *s)
{
    SMP_TRY(smp__updates_finish(s));
    for (int k = 0; k <= smp__job_states(s); k++)
        SMP_TRY(check_finite(s, k));
    return SMP_OK;
}

/* A running statistic changes by its accumulator; its states of the optimizer stay zero. */
static smp_status update_running(smp *s, int32_t index, smp__range own)
{
    return s->device->add(s->device_context, SMP_F32, smp__weight_at(s, index, own.begin),
                          smp__grad_at(s, index, own.begin), own.end - own.begin);
}

static smp_state_rounding rounding_of(const smp *s, int32_t index, int64_t step)
{
    const smp_param *param = &s->graph->param[s->memory->param[index].param];
    const smp__runs runs = smp__runs_of(param);
    smp_state_rounding rounding = {.first = smp__own_range(s, index).begin,
                                   .run = runs.run,
                                   .index = runs.index,
                                   .count = runs.count,
                                   .blocks = runs.blocks,
                                   .nearest = s->weights->nearest_states};
    smp_state_rounding_seed(&rounding, s->options->runtime.seed, param->number, step);
    return rounding;
}

smp_update smp__update_of(const smp *s, int32_t index, int64_t step, float lr, float grad_scale)
{
    const smp__range own = smp__own_range(s, index);
    const smp_update_settings *settings =
        &s->weights->settings[s->graph->param[s->memory->param[index].param].number];
    smp_update update = {.weight = smp__weight_at(s, index, own.begin),
                         .grad = smp__grad_at(s, index, own.begin),
                         .elements = own.end - own.begin,
                         .grad_scale = grad_scale,
                         .lr = lr * settings->lr,
                         .trust = s->weights->trust.ratio ? s->weights->trust.ratio[index] : 1.0f,
                         .kept = s->weights->trust.kept ? s->weights->trust.kept[index] : 0.0,
                         .step = step,
                         .settings = settings};
    const int64_t weight16 = s->memory->region[s->memory->param[index].region].weight16;
    if (weight16 >= 0)
        update.weight16 =
            s->buffers->arena + weight16 + 2 * (s->memory->param[index].at + own.begin);
    update.half = smp_precision_dtype(s->target->precision);
    for (int k = 0; k < s->optimizer->states; k++)
        if (s->graph->target.bf16_states)
            update.state16[k] = smp__state_at(s, index, k, own.begin);
        else
            update.state[k] = smp__state_at(s, index, k, own.begin);
    if (s->graph->target.bf16_states)
        update.rounding = rounding_of(s, index, step);
    return update;
}

/* Updates that the device makes at once. */
typedef struct batch {
    int n;
    smp_update update[AT_ONCE];
} batch;

static smp_status make_batch(smp *s, batch *b)
{
    for (int i = 0; i + 1 < b->n; i++)
        b->update[i].next = &b->update[i + 1];
    const int n = b->n;
    b->n = 0;
    return n > 0 ? s->device->update(s->device_context, s->optimizer, b->update) : SMP_OK;
}

static smp_status add_to_batch(smp *s, batch *b, const smp_update *update)
{
    b->update[b->n++] = *update;
    return b->n == AT_ONCE ? make_batch(s, b) : SMP_OK;
}

/* What is not far is enqueued, or done; else it is begun. */
static smp_status update_all(smp *s, int64_t step, float lr, float grad_scale)
{
    batch near = {0};
    for (int32_t i = 0; i < s->memory->n_param; i++) {
        const smp__range own = smp__own_range(s, i);
        const smp_param *param = &s->graph->param[s->memory->param[i].param];
        if (own.begin == own.end || param->frozen || (s->updates && !param->running))
            continue;
        const smp_update update = smp__update_of(s, i, step, lr, grad_scale);
        SMP_TRY(param->running ? update_running(s, i, own) : add_to_batch(s, &near, &update));
    }
    SMP_TRY(make_batch(s, &near));
    return s->updates ? smp__updates_begin(s, step, lr, grad_scale) : SMP_OK;
}

smp_status smp__weights_update(smp *s, int64_t step, float lr, float grad_scale)
{
    if (s->weights->trust.ratio)
        SMP_TRY(smp__weights_trust(s, step, lr, grad_scale));
    SMP_TRY(update_all(s, step, lr, grad_scale));
    s->weights->stale = s->comm->shard_size > 1;
    return SMP_OK;
}

/* A weight's hash is the sum, modulo 2^64, of a mix of each value with its place in the whole
 * weight: whoever has some of the values adds its share, however they are spread. */
static uint64_t hash_values(uint64_t key, const float *values, int64_t place, int64_t n)
{
    const uint64_t far = (uint64_t)place >> 32; /* a run never goes across: see hash_range */
    const uint64_t near_key = smp_random_mix(key + far);
    uint64_t sum = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, values + i, sizeof bits);
        sum += smp_random_mix(near_key ^ ((uint64_t)(uint32_t)(place + i) << 32 | bits));
    }
    return sum;
}

/* Hashes elements [begin, end) of this rank's part, which `values` are. */
static uint64_t hash_range(const smp_param *param, int64_t begin, int64_t end, const float *values)
{
    const uint64_t key = smp_random_mix((uint64_t)param->number);
    const smp__runs runs = smp__runs_of(param);
    uint64_t sum = 0;
    for (int64_t at = begin, n; at < end; at += n, values += n) {
        const int64_t place = smp__runs_place(runs, at), left = smp__runs_left(runs, at);
        const int64_t near = (INT64_C(1) << 32) - place % (INT64_C(1) << 32);
        n = end - at < left ? end - at : left;
        n = n < near ? n : near;
        sum += hash_values(key, values, place, n);
    }
    return sum;
}

/* This rank's shares of the hashes, by the number of the weight. */
static smp_status hash_own(smp *s, uint64_t *hash)
{
    for (int32_t i = 0; i < s->memory->n_param; i++) {
        const smp_param *param = &s->graph->param[s->memory->param[i].param];
        const smp__range own = smp__own_range(s, i);
        const void *values;
        void *copy;
        if (!s->memory->param[i].owner || own.begin == own.end)
            continue;
        SMP_TRY(smp__copy_view(s, smp__weight_at(s, i, own.begin),
                               (own.end - own.begin) * (int64_t)sizeof(float), &values, &copy));
        hash[param->number] = hash_range(param, own.begin, own.end, values);
        free(copy);
    }
    return SMP_OK;
}

/* What is not split is the same on all devices that compute together, and counts once. `first`: of
 * n numbers. */
static smp_status count_once(smp *s, uint64_t *hash, uint64_t *first, int n)
{
    smp_status status = SMP_OK;
    memcpy(first, hash, (size_t)n * sizeof *first);
    SMP_TRY(smp__comm_finish(
        s->comm, MPI_Ibcast(first, n, MPI_UINT64_T, 0, s->comm->tensor, &s->comm->collective),
        "the hashes of the devices that compute together"));
    for (int32_t i = 0; i < s->graph->n_param; i++) {
        const smp_param *param = &s->graph->param[i];
        if (param->part.spread.way == SMP_SPLIT)
            continue;
        if (hash[param->number] != first[param->number] && status == SMP_OK)
            status = smp_fail(SMP_ERR_FAILED,
                              "weight '%s' is not the same as on rank %d, which computes with "
                              "this one",
                              param->name, s->comm->world_rank - s->comm->tensor_rank);
        if (s->comm->tensor_rank > 0)
            hash[param->number] = 0;
    }
    return smp__comm_agree(s->comm, status);
}

static smp_status add_up(smp *s, uint64_t *hash, int n, MPI_Comm group, const char *what)
{
    return smp__comm_finish(
        s->comm,
        MPI_Iallreduce(MPI_IN_PLACE, hash, n, MPI_UINT64_T, MPI_SUM, group, &s->comm->collective),
        what);
}

smp_status smp_weights_hash(smp *s, uint64_t *hash)
{
    if (!s || !hash)
        return smp_fail(SMP_ERR_INPUT, "smp_weights_hash: a NULL argument");
    SMP_TRY(smp__job_usable(s));
    const int n = s->graph->n_param;
    uint64_t *all = calloc(2 * (size_t)n + 1, sizeof(*all));
    smp_status status =
        smp__comm_agree(s->comm, all ? SMP_OK : smp_fail_memory(2 * (size_t)n * sizeof(*all)));
    if (status == SMP_OK)
        status = smp__updates_settle(s);
    if (status == SMP_OK)
        status = smp__comm_agree(s->comm, hash_own(s, all));
    if (status == SMP_OK && s->comm->tensor_most > 1)
        status = count_once(s, all, all + n, n);
    if (status == SMP_OK)
        status = add_up(s, all, n, s->comm->copy, "the hashes of the other parts of weights");
    if (s->comm->rank_begin && s->comm->tensor_rank > 0)
        memset(all, 0, (size_t)n * sizeof(*all)); /* the first device of a group speaks for all */
    if (status == SMP_OK)
        status = add_up(s, all, n, s->comm->messages, "the other stages' hashes of weights");
    *hash = status == SMP_OK ? smp_hash(0, all, (size_t)n * sizeof(*all)) : 0;
    if (!s->comm->failed) /* MPI may still add to it */
        free(all);
    return status;
}

/* Four chains of words, each of them bijective in every word: a single one that differs shows. */
static uint64_t chain_words(uint64_t seed, const void *data, size_t bytes)
{
    static const uint64_t odd = 0x9e3779b97f4a7c15u;
    uint64_t lane[4] = {seed, seed + 1, seed + 2, seed + 3}, word[4];
    const char *at = data;
    for (size_t n; bytes > 0; at += n, bytes -= n) {
        n = bytes < sizeof word ? bytes : sizeof word;
        if (n < sizeof word)
            memset(word, 0, sizeof word);
        memcpy(word, at, n);
        for (int i = 0; i < 4; i++)
            lane[i] = (lane[i] ^ word[i]) * odd;
    }
    return smp_hash(0, lane, sizeof lane);
}

/* Hashes this rank's part of a weight and of its states. */
static smp_status hash_part(smp *s, int32_t index, uint64_t *hash)
{
    enum { WINDOW = 1 << 20 };
    const smp__range own = smp__own_range(s, index);
    const int states = smp__is_idle(s, index) ? 0 : smp__job_states(s);
    *hash = 0;
    for (int k = 0; k <= states; k++) {
        const int64_t each = smp_dtype_bytes(smp__saved_dtype(s, k));
        for (int64_t at = own.begin, n; at < own.end; at += n) {
            const void *values;
            void *copy;
            n = own.end - at < WINDOW ? own.end - at : WINDOW;
            SMP_TRY(smp__copy_view(s, smp__saved_at(s, index, k, at), n * each, &values, &copy));
            *hash = chain_words(*hash, values, (size_t)(n * each));
            free(copy);
        }
    }
    return SMP_OK;
}

static smp_status hash_parts(smp *s, uint64_t *hash)
{
    for (int32_t i = 0; i < s->memory->n_param; i++)
        SMP_TRY(hash_part(s, i, &hash[i]));
    return SMP_OK;
}

/* How many of copies[n] hashes are this one? */
static int count_alike(const uint64_t *copies, int n, int stride, int which)
{
    int alike = 0;
    for (int i = 0; i < n; i++)
        alike += copies[(int64_t)i * stride] == copies[(int64_t)which * stride];
    return alike;
}

/* What differs from what most copies have; with two, or without a majority, all of them. */
static smp_status name_drift(const smp *s, int32_t index, const uint64_t *copies, int n)
{
    const int stride = s->memory->n_param;
    int usual = 0, used = 0, named = 0;
    char text[256] = "";
    for (int i = 1; i < n; i++)
        if (count_alike(copies, n, stride, i) > count_alike(copies, n, stride, usual))
            usual = i;
    const bool known = 2 * count_alike(copies, n, stride, usual) > n;
    for (int i = 0; i < n && used < (int)sizeof text - 16; i++) {
        const bool alike = copies[(int64_t)i * stride] == copies[(int64_t)usual * stride];
        if (!known || !alike)
            used += snprintf(text + used, sizeof text - (size_t)used, named++ > 0 ? ", %d" : "%d",
                             i * s->comm->shard_size + s->comm->shard_rank);
    }
    return smp_fail(
        SMP_ERR_FAILED,
        "replica%s %s differ%s %s weight '%s' or its optimizer states after step %lld%s",
        named > 1 ? "s" : "", text, named > 1 ? "" : "s", known ? "from most others in" : "in",
        s->graph->param[s->memory->param[index].param].name, (long long)s->step,
        known ? "" : ": which one is wrong they cannot tell");
}

/* copies: [n][n_param]. */
static smp_status find_drift(smp *s, const uint64_t *copies, int n)
{
    const int32_t n_param = s->memory->n_param;
    for (int32_t i = 0; i < n_param; i++)
        if (count_alike(copies + i, n, n_param, 0) < n) {
            s->weights->drifted_param = i;
            return name_drift(s, i, copies + i, n);
        }
    return SMP_OK;
}

/* *differ: on any rank. total: [2]. */
static smp_status compare_totals(smp *s, const uint64_t *own, uint64_t *total, int *differ)
{
    total[0] = chain_words(0, own, (size_t)s->memory->n_param * sizeof *own);
    total[1] = ~total[0]; /* the least of these is that of the greatest hash */
    SMP_TRY(smp__comm_finish(s->comm,
                             MPI_Iallreduce(MPI_IN_PLACE, total, 2, MPI_UINT64_T, MPI_MIN,
                                            s->comm->across, &s->comm->collective),
                             "the hashes of the other replicas"));
    *differ = total[0] != ~total[1];
    return smp__comm_max(s->comm, differ);
}

smp_status smp_replicas_check(smp *s)
{
    if (!s)
        return smp_fail(SMP_ERR_INPUT, "smp_replicas_check: a NULL argument");
    SMP_TRY(smp__job_usable(s));
    const int n = s->memory->n_param, copies = s->comm->ddp_size / s->comm->shard_size;
    const size_t numbers = (size_t)n * ((size_t)copies + 1) + 2;
    int differ = 0;
    if (copies == 1)
        return SMP_OK;
    uint64_t *all = calloc(numbers, sizeof *all),
             *own = all ? all + (size_t)n * (size_t)copies : NULL;
    smp_status status = smp__comm_agree(s->comm, all ? SMP_OK : smp_fail_memory(numbers * 8));
    if (status == SMP_OK)
        status = smp__updates_settle(s);
    if (status == SMP_OK)
        status = smp__comm_agree(s->comm, hash_parts(s, own));
    if (status == SMP_OK)
        status = compare_totals(s, own, own + n, &differ);
    if (status == SMP_OK && differ) {
        s->weights->drifted_param = -1;
        status = smp__comm_finish(s->comm,
                                  MPI_Iallgather(own, n, MPI_UINT64_T, all, n, MPI_UINT64_T,
                                                 s->comm->across, &s->comm->collective),
                                  "the hashes of the other replicas");
        if (status == SMP_OK)
            status = smp__comm_agree(s->comm, find_drift(s, all, copies));
        s->broken = s->weights->drifted = true;
    }
    if (!s->comm->failed) /* MPI may still write to it */
        free(all);
    return status;
}

bool smp__replicas_differ(const smp *s)
{
    return s->weights->drifted;
}

void smp__replicas_forget(smp *s)
{
    s->broken = s->weights->drifted = false;
}

static int drifted_states(const smp *s)
{
    return smp__is_idle(s, s->weights->drifted_param) ? 0 : smp__job_states(s);
}

smp_status smp__drift_keep(smp *s, float **values)
{
    *values = NULL;
    if (s->weights->drifted_param < 0)
        return SMP_OK;
    const smp__range own = smp__own_range(s, s->weights->drifted_param);
    const int64_t n = own.end - own.begin;
    const int arrays = 1 + drifted_states(s);
    if (!(*values = malloc((size_t)(n * arrays) * sizeof(float))))
        return smp_fail_memory((size_t)(n * arrays) * sizeof(float));
    for (int k = 0; k < arrays; k++)
        SMP_TRY(smp__saved_out(s, s->weights->drifted_param, k, own.begin, n, *values + k * n));
    return SMP_OK;
}

smp_status smp__drift_distance(smp *s, const float *values, double *distance)
{
    float *now;
    *distance = 0.0;
    SMP_TRY(smp__drift_keep(s, &now));
    if (!now)
        return SMP_OK;
    const smp__range own = smp__own_range(s, s->weights->drifted_param);
    const int64_t n = own.end - own.begin;
    for (int k = 0; k <= drifted_states(s); k++) {
        double off = 0.0, size = 1e-30;
        for (int64_t i = k * n; i < (k + 1) * n; i++) {
            off += fabs((double)values[i] - (double)now[i]);
            size += fabs((double)now[i]);
        }
        off = isfinite(off) ? off / size : 1e30;
        *distance = off > *distance ? off : *distance;
    }
    free(now);
    return SMP_OK;
}
