/* Model inputs on their way to the kernels. A device that reads host memory reads the caller's
 * arrays where they are, but for floats in bf16. Otherwise they are copied, in its number format,
 * to memory that it can copy from, and to a buffer of its own at the start of the step. The host's
 * copy may be written again after the wait that ends every step. Kernels of such a device cannot
 * refuse an index: it is checked here. O(samples).
 *
 * Where a batch is short, its samples may end within a micro-batch of this replica, or before it.
 * Then the kernels read one more micro-batch, for the rest and for all that come behind: the
 * samples left, if any, and zeroes, which any index may be. What stands there does not count
 * (smp_op_call.padding), but has to be finite. */
#include "exec/step/step_inputs.h"

#include <stdlib.h>
#include <string.h>

#include "graph/math/half.h"

enum { ALIGNMENT = 256 };

/* Is it copied? Else the kernels read the caller's array. */
static bool is_copied(const smp *s, int index)
{
    return !s->device->host_memory || s->graph->tensor[index].dtype == SMP_BF16;
}

smp_status smp__inputs_build(smp *s)
{
    s->input = calloc((size_t)s->graph->n_input + 1, sizeof(*s->input));
    if (!s->input)
        return smp_fail_memory((size_t)s->graph->n_input * sizeof(*s->input));
    for (int i = 0; i < s->graph->n_input; i++) {
        smp__input *input = &s->input[i];
        input->needed = smp_input_needed(s, i);
        input->stride = smp_tensor_bytes(s->graph, i, s->batch);
        if (is_copied(s, i))
            input->stride = (input->stride + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        input->range = smp__index_range_of(s->graph, i);
    }
    return SMP_OK;
}

int64_t smp__inputs_bytes(const smp *s)
{
    int64_t bytes = 0;
    for (int i = 0; i < s->graph->n_input; i++)
        if (s->input[i].needed && is_copied(s, i))
            bytes += s->microbatches * s->input[i].stride;
    return bytes;
}

static int64_t host_bytes(const smp *s, int index)
{
    const smp__input *input = &s->input[index];
    int64_t bytes = is_copied(s, index) ? s->microbatches * input->stride : input->stride;
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
        smp__input *input = &s->input[i];
        if (!input->needed)
            continue;
        input->host = host;
        host += host_bytes(s, i);
        if (!is_copied(s, i))
            continue;
        input->data = input->device = device;
        device += s->microbatches * input->stride;
    }
}

static smp_status copy_indices(const smp *s, int index, int mb, const int32_t *from, int64_t n,
                               int32_t *to)
{
    const smp__index_range *range = &s->input[index].range;
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

/* One micro-batch, its samples and the padding behind them. */
static smp_status copy_microbatch(const smp *s, int index, int mb, const void *values, char *to)
{
    const smp_tensor *tensor = &s->graph->tensor[index];
    const int64_t n = tensor->elements * smp__job_samples(s, s->comm.replica, mb);
    const int64_t bytes = n * smp_dtype_bytes(tensor->dtype);
    memset(to + bytes, 0, (size_t)(s->input[index].stride - bytes));
    if (n == 0)
        return SMP_OK;
    const char *from = (const char *)values + mb * s->batch * tensor->elements * 4;
    if (tensor->dtype == SMP_I32)
        return copy_indices(s, index, mb, (const int32_t *)from, n, (int32_t *)to);
    if (tensor->dtype == SMP_F32)
        memcpy(to, from, (size_t)bytes);
    else
        smp__to_bf16((uint16_t *)to, (const float *)from, n);
    return SMP_OK;
}

/* For a device with memory of its own; the padded micro-batch is the first that is not full. */
static smp_status copy_input(smp *s, int index, int full, const void *values)
{
    smp__input *input = &s->input[index];
    const int n = full < s->microbatches ? full + 1 : full;
    for (int mb = 0; mb < n; mb++)
        SMP_TRY(copy_microbatch(s, index, mb, values, input->host + mb * input->stride));
    input->padded = input->device + full * input->stride;
    return s->device->upload(s->device_context, input->device, input->host, n * input->stride);
}

static smp_status use_input(smp *s, int index, int full, const void *values)
{
    smp__input *input = &s->input[index];
    input->data = values;
    input->padded = input->host;
    return full < s->microbatches ? copy_microbatch(s, index, full, values, input->host) : SMP_OK;
}

smp_status smp__inputs_begin(smp *s, const void *const *inputs)
{
    int full = 0;
    while (full < s->microbatches && smp__job_samples(s, s->comm.replica, full) == s->batch)
        full++;
    const bool none = smp__job_samples(s, s->comm.replica, 0) == 0;
    for (int i = 0; i < s->graph->n_input; i++) {
        if (!s->input[i].needed)
            continue;
        if (!inputs[i] && !none)
            return smp_fail(SMP_ERR_INPUT, "input '%s' is NULL but this rank needs it",
                            s->graph->tensor[i].name);
        SMP_TRY(is_copied(s, i) ? copy_input(s, i, full, inputs[i])
                                : use_input(s, i, full, inputs[i]));
    }
    return SMP_OK;
}
