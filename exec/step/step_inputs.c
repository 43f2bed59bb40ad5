/* Model inputs on their way to the kernels. A device that reads host memory reads the caller's arrays
 * where they are. For another one they are copied, in its number format, to memory that it can copy
 * from, and to a buffer of its own at the start of the step. The host's copy may be written again
 * after the wait that ends every step. Kernels of such a device cannot refuse an index: it is checked
 * here. O(samples). */
#include "exec/step/step_inputs.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 256 };

smp_status smp__inputs_build(smp *s)
{
    s->input = calloc((size_t)s->graph->n_input + 1, sizeof(*s->input));
    if (!s->input)
        return smp_fail_memory((size_t)s->graph->n_input * sizeof(*s->input));
    for (int i = 0; i < s->graph->n_input; i++) {
        smp__input *input = &s->input[i];
        input->needed = smp_input_needed(s, i);
        input->stride = smp_tensor_bytes(s->graph, i, s->batch);
        if (!s->device->host_memory)
            input->stride = (input->stride + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        input->range = smp__index_range_of(s->graph, i);
    }
    return SMP_OK;
}

int64_t smp__inputs_bytes(const smp *s)
{
    int64_t bytes = 0;
    for (int i = 0; i < s->graph->n_input && !s->device->host_memory; i++)
        if (s->input[i].needed)
            bytes += s->microbatches * s->input[i].stride;
    return bytes;
}

void smp__inputs_place(smp *s, char *device, char *host)
{
    for (int i = 0; i < s->graph->n_input && !s->device->host_memory; i++) {
        smp__input *input = &s->input[i];
        if (!input->needed)
            continue;
        input->data = input->device = device;
        input->host = host;
        device += s->microbatches * input->stride;
        host += s->microbatches * input->stride;
    }
}

static smp_status copy_indices(const smp *s, int index, int mb, const int32_t *from, int64_t n)
{
    const smp__input *input = &s->input[index];
    const smp__index_range *range = &input->range;
    int32_t *to = (int32_t *)(input->host + mb * input->stride);
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

/* To the nearest, ties to even; a NaN stays one. */
static uint16_t round_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static smp_status copy_input(smp *s, int index, const void *values)
{
    const smp__input *input = &s->input[index];
    const smp_tensor *tensor = &s->graph->tensor[index];
    int64_t n = tensor->elements * (tensor->batched ? s->batch : 1);
    for (int mb = 0; mb < s->microbatches; mb++) {
        const char *from = (const char *)values + mb * n * 4;
        char *to = input->host + mb * input->stride;
        if (tensor->dtype == SMP_I32)
            SMP_TRY(copy_indices(s, index, mb, (const int32_t *)from, n));
        else if (tensor->dtype == SMP_F32)
            memcpy(to, from, (size_t)n * 4);
        else
            for (int64_t i = 0; i < n; i++)
                ((uint16_t *)to)[i] = round_bf16(((const float *)from)[i]);
    }
    return s->device->upload(s->device_context, input->device, input->host,
                             s->microbatches * input->stride);
}

smp_status smp__inputs_begin(smp *s, const void *const *inputs)
{
    for (int i = 0; i < s->graph->n_input; i++) {
        if (s->input[i].needed && !inputs[i])
            return smp_fail(SMP_ERR_INPUT, "input '%s' is NULL but this rank needs it",
                            s->graph->tensor[i].name);
        if (s->device->host_memory)
            s->input[i].data = inputs[i];
        else if (s->input[i].needed)
            SMP_TRY(copy_input(s, i, inputs[i]));
    }
    return SMP_OK;
}
