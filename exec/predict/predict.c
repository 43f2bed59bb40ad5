/* smp_predict: a forward pass that copies one tensor out where it is made, and brings it to rank 0
 * in the order of the samples. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "exec/step/stepping.h"
#include "exec/predict/whole_tensor.h"
#include "graph/math/half.h"

typedef struct prediction {
    smp *s;
    smp__whole_tensor tensor;
    smp_output how;
    smp__tap tap;
    int64_t rows;     /* of a micro-batch: samples, or one */
    int64_t elements; /* of a row of the whole */
    int64_t part;     /* ... of what a device has */
    char *piece;      /* [rows][part], four bytes each */
    char *laid;       /* likewise, as the device has it */
    char *full;       /* rank 0: [rows][elements] */
    double *sum;      /* rank 0, of a mean: likewise */
    char *values;     /* rank 0: the caller's */
    int64_t done;     /* rows */
    int64_t added;    /* micro-batches, of a mean */
} prediction;

static void find_call(prediction *p)
{
    const smp *s = p->s;
    const int32_t op = s->graph->tensor[p->tensor.here].producer;
    p->tap.chunk = smp__job_chunk_of_stage(s, s->work->stage_of_op[op]);
    if (p->tap.chunk < 0)
        return;
    const smp_layout *layout = s->work->chunk[p->tap.chunk].layout;
    for (int i = 0; i < layout->n_call; i++)
        if (layout->call[i].op == op)
            p->tap.call = i;
    p->tap.slot = p->tensor.here - s->graph->op[op].out;
}

static smp_status open_prediction(prediction *p)
{
    const smp *s = p->s;
    const smp_tensor *whole = &smp_graph_whole(s->graph)->tensor[p->tensor.whole];
    const smp_tensor *here = &s->graph->tensor[p->tensor.here];
    p->rows = whole->batched ? s->work->batch : 1;
    p->elements = whole->elements;
    p->part = here->elements;
    p->tap.bytes = smp_tensor_bytes(s->graph, p->tensor.here, s->work->batch);
    find_call(p);
    if (p->tap.chunk >= 0)
        p->tap.values = malloc((size_t)(p->tap.bytes * s->work->microbatches));
    p->piece = malloc((size_t)(p->rows * p->part) * 4);
    p->laid = malloc((size_t)(p->rows * p->part) * 4);
    bool failed = !p->piece || !p->laid || (p->tap.chunk >= 0 && !p->tap.values);
    if (s->comm->world_rank == 0) {
        const size_t full = (size_t)(p->rows * p->elements);
        p->full = malloc(full * 4);
        p->sum = calloc(p->how == SMP_OUTPUT_MEAN ? full : 1, sizeof *p->sum);
        failed = failed || !p->full || !p->sum;
    }
    return failed ? smp_fail_memory((size_t)(p->tap.bytes * s->work->microbatches)) : SMP_OK;
}

static void close_prediction(prediction *p)
{
    free(p->tap.values);
    free(p->piece);
    free(p->laid);
    free(p->full);
    free(p->sum);
}

/* From [rows][H, W, C] to [rows][C, H, W]. */
static void channels_first(const smp_tensor *t, int64_t rows, const char *from, char *to)
{
    const int64_t channels = t->shape.dim[0], pixels = t->elements / channels;
    for (int64_t i = 0; i < rows * t->elements; i++) {
        const int64_t pixel = i / channels, row = pixel / pixels;
        memcpy(to + ((row * channels + i % channels) * pixels + pixel % pixels) * 4, from + i * 4,
               4);
    }
}

/* What this rank has of a micro-batch, as elements of four bytes in the order of the shape. */
static void take_piece(prediction *p, int microbatch)
{
    const char *values = p->tap.values + microbatch * p->tap.bytes;
    const int64_t n = p->rows * p->part;
    const smp_tensor *here = &p->s->graph->tensor[p->tensor.here];
    char *laid = here->channels_last ? p->laid : p->piece;
    if (smp_dtype_is_half(here->dtype))
        smp__from_half(here->dtype, (float *)(void *)laid, values, n);
    else
        memcpy(laid, values, (size_t)n * 4);
    if (laid != p->piece)
        channels_first(here, p->rows, laid, p->piece);
}

/* Rank 0: `rows` of a micro-batch are in p->full. */
static void add_rows(prediction *p, int64_t rows)
{
    const int64_t n = rows * p->elements;
    if (p->how != SMP_OUTPUT_MEAN)
        memcpy(p->values + p->done * p->elements * 4, p->full, (size_t)n * 4);
    const bool is_int = smp_graph_whole(p->s->graph)->tensor[p->tensor.whole].dtype == SMP_I32;
    for (int64_t i = 0; p->how == SMP_OUTPUT_MEAN && i < n; i++)
        p->sum[i] += is_int ? (double)((int32_t *)(void *)p->full)[i]
                            : (double)((float *)(void *)p->full)[i];
    p->done += rows;
    p->added++;
}

static smp_status bring_microbatch(prediction *p, int replica, int microbatch, int64_t rows)
{
    smp *s = p->s;
    const int stage = s->work->stage_of_op[s->graph->tensor[p->tensor.here].producer];
    const int first = smp_plan_first_process(s->plan, replica, s->work->stage_rank[stage]);
    const bool split = p->tensor.way.way == SMP_SPLIT;
    for (int device = 0; device < (split ? p->tensor.devices : 1); device++) {
        if (s->comm->world_rank == first + device)
            take_piece(p, microbatch);
        SMP_TRY(smp__comm_hand(s->comm, p->piece, rows * p->part * 4, first + device, 0));
        if (s->comm->world_rank == 0 && split)
            smp__whole_tensor_put(s, &p->tensor, device, rows, p->piece, p->full);
        else if (s->comm->world_rank == 0)
            memcpy(p->full, p->piece, (size_t)(rows * p->part) * 4);
    }
    if (s->comm->world_rank == 0)
        add_rows(p, rows);
    return SMP_OK;
}

/* Micro-batches in the order of the samples: by replica, then by place. */
static smp_status bring_all(prediction *p)
{
    const smp *s = p->s;
    const bool batched = p->rows > 1 || smp_graph_whole(s->graph)->tensor[p->tensor.whole].batched;
    for (int replica = 0; replica < s->comm->ddp_size; replica++)
        for (int mb = 0; mb < s->work->microbatches; mb++) {
            const int64_t samples = smp__job_samples(s, replica, mb);
            if (samples > 0)
                SMP_TRY(bring_microbatch(p, replica, mb, batched ? samples : 1));
        }
    for (int64_t i = 0;
         s->comm->world_rank == 0 && p->how == SMP_OUTPUT_MEAN && i < p->rows * p->elements; i++)
        ((float *)(void *)p->values)[i] = (float)(p->sum[i] / (double)p->added);
    return SMP_OK;
}

/* What every rank finds alike. */
static smp_status check(const smp *s, int64_t samples, smp_output how, const void *values)
{
    if (how != SMP_OUTPUT_CONCAT && how != SMP_OUTPUT_STACK && how != SMP_OUTPUT_MEAN)
        return smp_fail(SMP_ERR_INPUT, "smp_predict: got %d as a form of output", (int)how);
    if (how != SMP_OUTPUT_CONCAT && samples % s->work->batch != 0)
        return smp_fail(SMP_ERR_INPUT,
                        "smp_predict: %" PRId64 " samples are no whole micro-batches of %" PRId64,
                        samples, s->work->batch);
    if (s->comm->world_rank == 0 && !values)
        return smp_fail(SMP_ERR_INPUT, "smp_predict: a NULL argument");
    return SMP_OK;
}

static smp_status predict(prediction *p, const void *const *inputs, int64_t samples)
{
    smp *s = p->s;
    smp_step_result ignored;
    s->stepping->tap = p->tap.chunk >= 0 ? &p->tap : NULL;
    smp_status status = smp_evaluate_short(s, inputs, samples, &ignored);
    s->stepping->tap = NULL;
    SMP_TRY(status);
    smp__place_doing(s->place, "bringing a prediction together");
    return smp__job_leave(s, bring_all(p));
}

smp_status smp_predict(smp *s, const void *const *inputs, int64_t samples, const char *tensor,
                       smp_output how, void *values)
{
    if (!s || !inputs)
        return smp_fail(SMP_ERR_INPUT, "smp_predict: a NULL argument");
    SMP_TRY(smp__job_usable(s));
    prediction p = {.s = s, .how = how, .values = values, .tap = {.chunk = -1}};
    smp_status status = check(s, samples, how, values);
    if (status == SMP_OK)
        status = smp__whole_tensor_find(s, tensor, &p.tensor);
    if (status == SMP_OK)
        status = open_prediction(&p);
    status = smp__comm_agree(s->comm, status);
    if (status == SMP_OK)
        status = predict(&p, inputs, samples);
    close_prediction(&p);
    return status;
}

smp_status smp_tensor_describe(const smp *s, const char *tensor, smp_tensor_description *out)
{
    smp__whole_tensor found;
    if (!s || !out)
        return smp_fail(SMP_ERR_INPUT, "smp_tensor_describe: a NULL argument");
    SMP_TRY(smp__whole_tensor_find(s, tensor, &found));
    const smp_graph *whole = smp_graph_whole(s->graph);
    const smp_tensor *t = &whole->tensor[found.whole];
    smp_tensor_description d = {.name = t->name,
                                .op = whole->op[t->producer].name,
                                .elements = t->elements,
                                .is_int = t->dtype == SMP_I32,
                                .per_microbatch = !t->batched,
                                .n_dim = t->batched ? t->shape.n_dim : 0};
    for (int i = 0; i < d.n_dim; i++)
        d.dim[i] = t->shape.dim[i];
    *out = d;
    return SMP_OK;
}
