/* Trust ratios: what optimizers such as LAMB and LARS make of the norms of a whole weight and of
 * the direction that it is to go in, however the weight is spread.
 *
 * The squares are summed per piece (exec/state/shards.h), then per weight in the order of its
 * pieces, then over the parts that devices have in their order: neither shards, replicas nor stages
 * show in the bits. Who has all of a weight needs nobody; shards tell each other all their weights
 * in one sum, and so do the devices of a tensor group. What several ranks hold (tied weights,
 * replicas) each of them finds for itself, from the same numbers. */
#include <stdlib.h>
#include <string.h>

#include "exec/device/host_values.h"
#include "exec/state/device_wait.h"
#include "exec/state/shards.h"
#include "exec/state/updates.h"
#include "exec/state/weights.h"
#include "exec/state/weights_state.h"

enum { WEIGHT, DIRECTION, N_NORM };

static int64_t n_piece(const smp *s)
{
    return s->weights->piece_begin[s->memory->n_param];
}

int64_t smp__trust_host_bytes(const smp *s)
{
    const int64_t bytes = N_NORM * n_piece(s) * (int64_t)sizeof(double);
    return s->optimizer->trust && s->graph->training ? (bytes + 63) / 64 * 64 : 0;
}

smp_status smp__trust_build(smp *s, char *host)
{
    const size_t sums = (size_t)s->comm->tensor_size * N_NORM * (size_t)s->graph->n_param;
    const size_t pieces = N_NORM * (size_t)n_piece(s), n = (size_t)s->memory->n_param;
    if (smp__trust_host_bytes(s) == 0)
        return SMP_OK;
    struct smp__trust *trust = &s->weights->trust;
    trust->square = (double *)host;
    trust->pieces = calloc(pieces + 1, sizeof(double));
    trust->sum = calloc(sums + 1, sizeof(double));
    trust->ratio = calloc(n + 1, sizeof(float));
    if (s->optimizer->keep)
        trust->kept = calloc(n + 1, sizeof(double));
    return trust->pieces && trust->sum && trust->ratio && !trust->kept == !s->optimizer->keep
               ? SMP_OK
               : smp_fail_memory((pieces + sums + 2 * n) * sizeof(double));
}

void smp__trust_free(smp *s)
{
    free(s->weights->trust.pieces);
    free(s->weights->trust.sum);
    free(s->weights->trust.ratio);
    free(s->weights->trust.kept);
}

static bool has_ratio(const smp *s, int32_t index)
{
    const smp_param *param = &s->graph->param[s->memory->param[index].param];
    return !param->running && !param->frozen && (s->optimizer->keep || param->shape.n_dim >= 2);
}

/* Enqueued: the direction of the own part of a weight, unless the host has made it, and the squares
 * of both. */
static smp_status measure(smp *s, int32_t index, smp_update update)
{
    const smp__range own = smp__own_range(s, index);
    double *square =
        s->weights->trust.square + s->weights->piece_begin[index] + own.begin / SMP_PIECE_ELEMENTS;
    update.direction = smp__grad_at(s, index, own.begin);
    if (s->optimizer->measure && !s->updates)
        SMP_TRY(s->device->update(s->device_context, s->optimizer, &update));
    if (!has_ratio(s, index))
        return smp__device_pace(s); /* it is 1 */
    const smp_squares both[] = {{update.weight, update.elements, square},
                                {update.direction, update.elements, square + n_piece(s)}};
    const bool in_host = smp__weight_is_in_host(s, index);
    if (in_host)
        smp__host_squares(update.weight, update.elements, square);
    SMP_TRY(s->device->square_sums(s->device_context, SMP_F32, both + in_host, 2 - in_host));
    return smp__device_pace(s);
}

static double *sum_at(const smp *s, int device, int norm, int32_t index)
{
    const int32_t n = s->graph->n_param;
    return &s->weights->trust
                .sum[((int64_t)device * N_NORM + norm) * n + s->memory->param[index].param];
}

static bool is_split(const smp *s, int32_t index)
{
    return s->graph->param[s->memory->param[index].param].part.spread.way == SMP_SPLIT;
}

/* Pieces of all members of the shard group, in order, then of all devices. */
static smp_status add_up(smp *s)
{
    const int devices = s->comm->tensor_size;
    const int64_t pieces = n_piece(s), sums = (int64_t)devices * N_NORM * s->graph->n_param;
    memcpy(s->weights->trust.pieces, s->weights->trust.square,
           N_NORM * (size_t)pieces * sizeof(double));
    if (s->comm->shard_size > 1)
        SMP_TRY(smp__comm_sum_group(s->comm, s->comm->shard, s->weights->trust.pieces,
                                    (int)(N_NORM * pieces), "the other ranks of the shard group"));
    memset(s->weights->trust.sum, 0, (size_t)sums * sizeof(double));
    for (int32_t i = 0; i < s->memory->n_param; i++)
        for (int norm = 0; norm < N_NORM; norm++)
            for (int64_t k = s->weights->piece_begin[i]; k < s->weights->piece_begin[i + 1]; k++)
                *sum_at(s, s->comm->tensor_rank, norm, i) +=
                    s->weights->trust.pieces[norm * pieces + k];
    if (devices == 1)
        return SMP_OK;
    return smp__comm_sum_group(s->comm, s->comm->tensor, s->weights->trust.sum, (int)sums,
                               "the devices that compute together");
}

/* Every device has all of what is not split. */
static double squares_of(const smp *s, int norm, int32_t index)
{
    double sum = 0.0;
    if (!is_split(s, index))
        return *sum_at(s, s->comm->tensor_rank, norm, index);
    for (int device = 0; device < s->comm->tensor_size; device++)
        sum += *sum_at(s, device, norm, index);
    return sum;
}

smp_status smp__weights_trust(smp *s, int64_t step, float lr, float grad_scale)
{
    if (s->optimizer->measure && s->updates)
        SMP_TRY(smp__updates_measure(s, step, lr, grad_scale));
    for (int32_t i = 0; i < s->memory->n_param; i++) {
        const smp_update update = smp__update_of(s, i, step, lr, grad_scale);
        const smp_param *param = &s->graph->param[s->memory->param[i].param];
        if (update.elements > 0 && !param->running && !param->frozen)
            SMP_TRY(measure(s, i, update));
    }
    SMP_TRY(smp__device_idle(s));
    SMP_TRY(add_up(s));
    for (int32_t i = 0; i < s->memory->n_param; i++) {
        smp_update update = smp__update_of(s, i, step, lr, grad_scale);
        s->weights->trust.ratio[i] =
            has_ratio(s, i) ? smp_trust_of(s->optimizer, &update, squares_of(s, WEIGHT, i),
                                           squares_of(s, DIRECTION, i))
                            : 1.0f;
        if (s->weights->trust.kept)
            s->weights->trust.kept[i] = update.kept;
    }
    return SMP_OK;
}
