/* Batches of the training loop: exec/batches.h. */
#include "exec/batches.h"

#include <stdlib.h>

smp_status smp__batches_open(smp__trainer *t, const char *const *source, int n, bool shuffle,
                             int64_t least, smp_data **out)
{
    const smp *s = t->job;
    smp_data_options options = {.sources = source,
                                .n_source = n,
                                .global_batch = least,
                                .seed = t->options->data_seed,
                                .shuffle = shuffle};
    return smp__comm_agree(&t->job->comm, smp_data_open(s->graph, &options, out));
}

smp_status smp__buffers_make(smp__trainer *t)
{
    const smp *s = t->job;
    t->buffer = calloc((size_t)s->graph->n_input + 1, sizeof(*t->buffer));
    t->step_us = calloc((size_t)t->options->steps + 1, sizeof(*t->step_us));
    if (!t->buffer || !t->step_us)
        return smp_fail_memory((size_t)t->options->steps * sizeof(*t->step_us));
    for (int i = 0; i < s->graph->n_input; i++) {
        if (!smp_input_needed(s, i))
            continue;
        const int64_t samples = smp_input_is_split(s, i) ? smp_step_samples(s) : 1;
        size_t bytes = (size_t)(samples * s->graph->tensor[i].elements) * 4;
        t->buffer[i] = aligned_alloc(64, (bytes + 63) / 64 * 64);
        if (!t->buffer[i])
            return smp_fail_memory(bytes);
    }
    return SMP_OK;
}

smp__batch smp__next_batch(const smp__trainer *t)
{
    int64_t first = t->job->samples, samples = smp_data_samples(t->data);
    int64_t left = samples - first % samples;
    if (left >= t->global_batch)
        return (smp__batch){first, t->global_batch};
    if (t->options->drop_last)
        return (smp__batch){first + left, t->global_batch};
    return (smp__batch){first, left};
}

smp_status smp__read_batch(smp__trainer *t, smp_data *data, smp__batch b)
{
    const smp *s = t->job;
    int64_t most = smp_step_samples(s), begin = s->comm.replica * most;
    int64_t count = b.samples - begin < most ? b.samples - begin : most;
    for (int i = 0; i < s->graph->n_input && count > 0; i++)
        if (t->buffer[i])
            SMP_TRY(smp_data_read(data, b.first + begin, count, i, t->buffer[i]));
    return SMP_OK;
}
