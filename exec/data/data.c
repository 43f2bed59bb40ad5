/* Training data: the registry of source kinds, the checks across sources, the samples of a step.
 *
 * A step is a function of its number: pass step / batches, place (step mod batches) * global batch
 * in that pass's order. Nothing is kept between reads, so any rank may ask for any part in any
 * order, and a resumed job needs the step number alone. */
#include "exec/data/data.h"

#include <stdio.h>

#include "exec/data/data_source.h"
#include "graph/model/op.h"

/* The first kind that matches takes the source; text matches everything, so it stands last. */
static const smp_source_kind *const source_kinds[] = {
    &smp__source_npy,
    &smp__source_bin,
    &smp__source_text,
};

/* Where a model input comes from. */
typedef struct input_feed {
    const smp_source *source; /* NULL: not fed yet */
    int slot;
    size_t sample_bytes;
} input_feed;

struct smp_data {
    smp_arena *arena;
    smp_source *source; /* [n_source] */
    input_feed *feed;   /* [n_input] */
    int n_source;       /* opened so far */
    int n_input;
    int64_t samples;
    int64_t global_batch;
    int64_t batches; /* of a pass */
    uint64_t seed;
    bool shuffle;
};

static smp_status open_source(smp_data *data, const smp_graph *graph, const char *spec)
{
    char *copy = smp_arena_strdup(data->arena, spec);
    if (!copy)
        return SMP_ERR_NO_MEMORY;
    smp_source *source = &data->source[data->n_source++];
    size_t k = 0;
    while (!source_kinds[k]->matches(graph, copy))
        k++;
    source->kind = source_kinds[k];
    SMP_TRY(source->kind->open(graph, copy, data->arena, source));

    for (int slot = 0; slot < source->n_feed; slot++) {
        input_feed *feed = &data->feed[source->feed[slot]];
        if (feed->source)
            return smp_fail(SMP_ERR_INPUT, "input '%s' has two sources: %s and %s",
                            graph->tensor[source->feed[slot]].name, feed->source->path,
                            source->path);
        feed->source = source;
        feed->slot = slot;
    }
    return SMP_OK;
}

/* Every input is fed, and all sources have the same number of samples, enough for a batch. */
static smp_status check_sources(smp_data *data, const smp_graph *graph)
{
    for (int i = 0; i < data->n_input; i++) {
        const smp_tensor *tensor = &graph->tensor[i];
        if (!data->feed[i].source)
            return smp_fail(SMP_ERR_INPUT,
                            "input '%s' of model '%s' has no data: give --data %s=FILE.npy%s",
                            tensor->name, graph->name, tensor->name,
                            smp__input_find(graph, "tokens") < 0 ? "" : ", or a text or .bin file");
        data->feed[i].sample_bytes = (size_t)tensor->elements * 4;
    }
    const smp_source *first = &data->source[0];
    for (int s = 1; s < data->n_source; s++) {
        const smp_source *other = &data->source[s];
        if (other->samples != first->samples)
            return smp_fail(SMP_ERR_INPUT, "%s has %lld samples, but %s has %lld", other->path,
                            (long long)other->samples, first->path, (long long)first->samples);
    }
    if (first->samples < data->global_batch)
        return smp_fail(
            SMP_ERR_INPUT,
            "%s: %lld samples are too few: one global batch (replicas * micro-batches * "
            "micro-batch size) needs %lld",
            first->path, (long long)first->samples, (long long)data->global_batch);
    data->samples = first->samples;
    data->batches = data->samples / data->global_batch;
    return SMP_OK;
}

/* The tightest bounds among the ops that read `input`. */
static smp_source_range input_range(const smp_graph *graph, int input)
{
    smp_source_range range = {
        .input = graph->tensor[input].name, .min = INT32_MIN, .max = INT32_MAX};
    for (int64_t c = graph->consumer_begin[input]; c < graph->consumer_begin[input + 1]; c++) {
        const smp_op *op = &graph->op[graph->consumer[c].op];
        int64_t min, max;
        if (!op->kind->index_range ||
            !op->kind->index_range(graph, op, graph->consumer[c].slot, &min, &max))
            continue;
        if (min > range.min) {
            range.min = min;
            range.min_op = op;
        }
        if (max < range.max) {
            range.max = max;
            range.max_op = op;
        }
    }
    return range;
}

static smp_status check_ranges(const smp_data *data, const smp_graph *graph)
{
    for (int i = 0; i < data->n_input; i++) {
        const input_feed *feed = &data->feed[i];
        if (graph->tensor[i].dtype != SMP_I32)
            continue;
        smp_source_range range = input_range(graph, i);
        SMP_TRY(feed->source->kind->check(feed->source, feed->slot, &range));
    }
    return SMP_OK;
}

static smp_status fail_no_source(const smp_graph *graph)
{
    char list[512];
    char forms[512] = "";
    size_t used = 0;
    for (size_t k = 0; k < sizeof source_kinds / sizeof *source_kinds && used < sizeof forms; k++)
        used += (size_t)snprintf(forms + used, sizeof forms - used, "%s%s", k ? ", " : "",
                                 source_kinds[k]->form);
    return smp_fail(SMP_ERR_INPUT,
                    "no data: model '%s' needs a source for each of its inputs %s: %s", graph->name,
                    smp__input_list(list, sizeof list, graph), forms);
}

static smp_status create(const smp_graph *graph, const smp_data_options *options, smp_data **out)
{
    smp_arena *arena = smp_arena_create();
    if (!arena)
        return smp_fail_memory(sizeof(smp_data));
    smp_data *data = SMP_ARENA_NEW(arena, smp_data, 1);
    if (!data)
        goto fail;
    *data = (smp_data){.arena = arena,
                       .n_input = graph->n_input,
                       .global_batch = options->global_batch,
                       .seed = options->seed,
                       .shuffle = options->shuffle};
    data->source = SMP_ARENA_NEW(arena, smp_source, (size_t)options->n_source);
    data->feed = SMP_ARENA_NEW(arena, input_feed, (size_t)graph->n_input);
    if (!data->source || !data->feed)
        goto fail;
    *out = data;
    return SMP_OK;
fail:
    smp_arena_destroy(arena);
    return SMP_ERR_NO_MEMORY;
}

smp_status smp_data_open(const smp_graph *graph, const smp_data_options *options, smp_data **out)
{
    if (options->global_batch < 1)
        return smp_fail(SMP_ERR_INPUT, "global batch: got %lld samples, expected 1 or more",
                        (long long)options->global_batch);
    if (graph->n_input < 1)
        return smp_fail(SMP_ERR_INPUT, "%s: model '%s' has no inputs: it can be planned, not run",
                        graph->path, graph->name);
    if (options->n_source < 1)
        return fail_no_source(graph);
    smp_data *data = NULL;
    SMP_TRY(create(graph, options, &data));
    smp_status status = SMP_OK;
    for (int s = 0; s < options->n_source && status == SMP_OK; s++)
        status = open_source(data, graph, options->sources[s]);
    if (status == SMP_OK)
        status = check_sources(data, graph);
    if (status == SMP_OK)
        status = check_ranges(data, graph);
    if (status == SMP_OK)
        *out = data;
    else
        smp_data_close(data);
    return status;
}

void smp_data_close(smp_data *data)
{
    if (!data)
        return;
    for (int s = 0; s < data->n_source; s++)
        smp__file_map_close(&data->source[s].file);
    smp_arena_destroy(data->arena);
}

int64_t smp_data_samples(const smp_data *data)
{
    return data->samples;
}

smp_status smp_data_read(smp_data *data, int64_t step, int64_t first, int64_t count, int input,
                         void *buffer)
{
    if (input < 0 || input >= data->n_input)
        return smp_fail(SMP_ERR_INPUT, "data: got input %d, the model has %d", input,
                        data->n_input);
    if (step < 0 || first < 0 || count < 0 || first > data->global_batch ||
        count > data->global_batch - first)
        return smp_fail(
            SMP_ERR_INPUT,
            "data: got step %lld, %lld samples from %lld on, expected step 0 or more and "
            "a part of the %lld samples of a global batch",
            (long long)step, (long long)count, (long long)first, (long long)data->global_batch);
    const input_feed *feed = &data->feed[input];
    const int64_t begin = step % data->batches * data->global_batch + first;
    smp_order order;
    smp__order_init(&order, data->samples, data->seed, (uint64_t)(step / data->batches));
    for (int64_t i = 0; i < count; i++) {
        int64_t sample = data->shuffle ? smp__order_at(&order, begin + i) : begin + i;
        feed->source->kind->read(feed->source, feed->slot, sample,
                                 (char *)buffer + (size_t)i * feed->sample_bytes);
    }
    return SMP_OK;
}
