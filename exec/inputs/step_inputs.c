/* Model inputs on their way to the kernels. A device that reads host memory reads the caller's
 * arrays where they are, but for floats in 16 bits. Otherwise they are copied, in its number
 * format, to memory that it can copy from, and to a buffer of its own at the start of the step. The
 * host's copy may be written again after the wait that ends every step. Kernels of such a device
 * cannot refuse an index: it is checked here. O(samples).
 *
 * An input that is not split (`split: false` in the model) is one sample, which is written as often
 * as a micro-batch has samples: operators know no difference, and all micro-batches read that one.
 *
 * Where a batch is short, its samples may end within a micro-batch of this replica, or before it,
 * and a replica that has fewer blocks of gradients than others begins with micro-batches without
 * samples. Then the kernels read one more micro-batch, for the rest and for all that have none: the
 * samples left, if any, and zeroes, which any index may be. What stands there does not count
 * (smp_op_call.padding), but has to be finite. */
#include "exec/inputs/step_inputs.h"

#include <stdlib.h>
#include <string.h>

#include "graph/math/half.h"

enum { ALIGNMENT = 256 };

/* Is it copied? Else the kernels read the caller's array. */
static bool is_copied(const smp *s, int index)
{
    return !s->device->host_memory || smp_dtype_is_half(s->graph->tensor[index].dtype);
}

smp_status smp__inputs_build(smp *s)
{
    s->given->input = calloc((size_t)s->graph->n_input + 1, sizeof(*s->given->input));
    if (!s->given->input)
        return smp_fail_memory((size_t)s->graph->n_input * sizeof(*s->given->input));
    for (int i = 0; i < s->graph->n_input; i++) {
        smp__input *input = &s->given->input[i];
        input->needed = smp_input_needed(s, i);
        const bool unsplit = s->graph->tensor[i].unsplit;
        input->bytes = smp_tensor_bytes(s->graph, i, s->work->batch);
        if (is_copied(s, i) || unsplit)
            input->bytes = (input->bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        input->stride = unsplit ? 0 : input->bytes;
        input->places = !is_copied(s, i) ? 1 : s->work->microbatches;
        if (unsplit) /* a full one, and one with padding */
            input->places = s->work->microbatches > 1 ? 2 : 1;
        input->range = smp__index_range_of(s->graph, i);
    }
    return SMP_OK;
}

int64_t smp__inputs_bytes(const smp *s)
{
    int64_t bytes = 0;
    for (int i = 0; i < s->graph->n_input; i++)
        if (s->given->input[i].needed && is_copied(s, i))
            bytes += s->given->input[i].places * s->given->input[i].bytes;
    return bytes;
}

static int64_t host_bytes(const smp *s, int index)
{
    const smp__input *input = &s->given->input[index];
    const int64_t bytes = input->places * input->bytes;
    return input->needed ? (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : 0;
}

int64_t smp__inputs_host_bytes(const smp *s)
{
    int64_t bytes = 0;
    for (int i = 0; i < s->graph->n_input; i++)
        bytes += host_bytes(s, i);
    return bytes;
}

void smp__inputs_place(smp *s, char *device, char *host)
{
    for (int i = 0; i < s->graph->n_input; i++) {
        smp__input *input = &s->given->input[i];
        if (!input->needed)
            continue;
        input->host = host;
        host += host_bytes(s, i);
        if (!is_copied(s, i))
            continue;
        input->data = input->device = device;
        device += input->places * input->bytes;
    }
}

static smp_status copy_indices(const smp *s, int index, int mb, const int32_t *from, int64_t n,
                               int32_t *to)
{
    const smp__index_range *range = &s->given->input[index].range;
    for (int64_t i = 0; i < n; i++) {
        if (from[i] < range->min || from[i] > range->max) {
            const smp_op *op = from[i] < range->min ? range->min_op : range->max_op;
            return smp_fail(SMP_ERR_INPUT,
                            "input '%s': %d at position %lld of micro-batch %d, op '%s' (%s) "
                            "expects %lld to %lld",
                            range->input, (int)from[i], (long long)i, mb, op->name, op->kind->name,
                            (long long)range->min, (long long)range->max);
        }
        to[i] = from[i];
    }
    return SMP_OK;
}

/* n elements in the number format of the device. */
static smp_status copy_values(const smp *s, int index, int mb, const char *from, int64_t n,
                              char *to)
{
    const smp_dtype dtype = s->graph->tensor[index].dtype;
    if (dtype == SMP_I32)
        return copy_indices(s, index, mb, (const int32_t *)from, n, (int32_t *)to);
    if (dtype == SMP_F32)
        memcpy(to, from, (size_t)n * sizeof(float));
    else
        smp__to_half(dtype, to, (const float *)from, n);
    return SMP_OK;
}

/* One micro-batch, its samples and the padding after them. */
static smp_status copy_microbatch(const smp *s, int index, int mb, const void *values, char *to)
{
    const smp_tensor *tensor = &s->graph->tensor[index];
    const int64_t samples = smp__job_samples(s, s->comm->replica, mb);
    const int64_t bytes = tensor->elements * smp_dtype_bytes(tensor->dtype); /* of a sample */
    memset(to + samples * bytes, 0, (size_t)(s->given->input[index].bytes - samples * bytes));
    if (samples == 0)
        return SMP_OK;
    if (!tensor->unsplit)
        return copy_values(s, index, mb,
                           (const char *)values + (mb - smp__job_first(s, s->comm->replica)) *
                                                      s->work->batch * tensor->elements * 4,
                           samples * tensor->elements, to);
    SMP_TRY(copy_values(s, index, mb, values, tensor->elements, to));
    for (int64_t k = 1; k < samples; k++)
        memcpy(to + k * bytes, to, (size_t)bytes);
    return SMP_OK;
}

/* What of this replica's micro-batches is there: [first, full) have all their samples. `padded` is
 * the one that those read which have not: the next, or one that has none; -1: all are full. */
typedef struct filled {
    int first, full, padded;
} filled;

static filled find_filled(const smp *s)
{
    const int n = s->work->microbatches, first = smp__job_first(s, s->comm->replica);
    filled is = {.first = first, .full = first, .padded = -1};
    while (is.full < n && smp__job_samples(s, s->comm->replica, is.full) == s->work->batch)
        is.full++;
    if (is.full < n || first > 0)
        is.padded = is.full < n ? is.full : 0;
    return is;
}

/* One array for all micro-batches, and its padded one after it where there are both. */
static smp_status spread_input(smp *s, int index, filled is, const void *values)
{
    smp__input *input = &s->given->input[index];
    const int64_t behind = (input->places - 1) * input->bytes;
    const bool full = is.full > is.first, padded = is.padded >= 0;
    char *const seen = is_copied(s, index) ? input->device : input->host;
    input->data = seen;
    input->padded = seen + behind;
    if (full)
        SMP_TRY(copy_microbatch(s, index, is.first, values, input->host));
    if (padded)
        SMP_TRY(copy_microbatch(s, index, is.padded, values, input->host + behind));
    if (!is_copied(s, index))
        return SMP_OK;
    const int64_t begin = full ? 0 : behind, end = padded ? behind : 0;
    return s->device->upload(s->device_context, seen + begin, input->host + begin,
                             end + input->bytes - begin);
}

/* For a device with memory of its own: micro-batches at their places, the padded one too. */
static smp_status copy_input(smp *s, int index, filled is, const void *values)
{
    smp__input *input = &s->given->input[index];
    const int64_t begin = is.first * input->bytes, padded = is.padded * input->bytes;
    const int n = is.padded == is.full ? is.full + 1 : is.full;
    for (int mb = is.first; mb < n; mb++)
        SMP_TRY(copy_microbatch(s, index, mb, values, input->host + mb * input->bytes));
    input->data = input->device + begin;
    input->padded = input->device + padded;
    if (is.padded >= 0 && is.padded < is.first) {
        SMP_TRY(copy_microbatch(s, index, is.padded, values, input->host + padded));
        SMP_TRY(s->device->upload(s->device_context, input->device + padded, input->host + padded,
                                  input->bytes));
    }
    return s->device->upload(s->device_context, input->device + begin, input->host + begin,
                             n * input->bytes - begin);
}

static smp_status use_input(smp *s, int index, filled is, const void *values)
{
    smp__input *input = &s->given->input[index];
    input->data = values;
    input->padded = input->host;
    return is.padded >= 0 ? copy_microbatch(s, index, is.padded, values, input->host) : SMP_OK;
}

smp_status smp__inputs_begin(smp *s, const void *const *inputs)
{
    const filled is = find_filled(s);
    const bool none = smp__job_samples(s, s->comm->replica, is.first) == 0;
    for (int i = 0; i < s->graph->n_input; i++) {
        if (!s->given->input[i].needed)
            continue;
        if (!inputs[i] && !none)
            return smp_fail(SMP_ERR_INPUT, "input '%s' is NULL but this rank needs it",
                            s->graph->tensor[i].name);
        SMP_TRY(s->graph->tensor[i].unsplit ? spread_input(s, i, is, inputs[i])
                : is_copied(s, i)           ? copy_input(s, i, is, inputs[i])
                                            : use_input(s, i, is, inputs[i]));
    }
    return SMP_OK;
}
