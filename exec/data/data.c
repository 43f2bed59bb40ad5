/* Training data: the registry of source kinds, the checks across sources, samples of the sequence.
 *
 * Sample i of the sequence is sample i mod n, in that pass's order, of pass i / n. Nothing is kept
 * between reads, so any rank may ask for any part in any order, and a resumed job needs its
 * position alone. */
#include "exec/data/data.h"

#include <string.h>

#include "exec/data/data_source.h"
#include "graph/base/text.h"

/* The first kind that claims a file gets it; text claims what is left, so it stands last.
 * data_<name>.c defines smp__source_<name>. */
#define SOURCES(X)                                                                                 \
    X(npy)                                                                                         \
    X(bin)                                                                                         \
    X(text)

#define DECLARE(name) extern const smp_source_kind smp__source_##name;
SOURCES(DECLARE)

#define ENTRY(name) &smp__source_##name,
static const smp_source_kind *const source_kinds[] = {SOURCES(ENTRY) NULL};

const smp_source_kind *const *smp__source_kinds(void)
{
    return source_kinds;
}

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
    uint64_t seed;
    bool shuffle;
};

/* Sets path and kind (NULL: nobody's), and the input of "image=x.npy". What only ends in .npy or
 * only looks like a name goes to the arrays, too: the message that follows says what is missing. */
static smp_status find_kind(const smp_graph *graph, const char *spec, smp_source *source)
{
    source->feed[0] = smp__input_named(graph, spec);
    const bool named = source->feed[0] >= 0;
    source->path = named ? strchr(spec, '=') + 1 : spec;
    const smp_source_kind *const *kind = source_kinds;
    while (*kind && !(*kind)->claims(source->path, named))
        kind++;
    source->kind = *kind;
    source->n_feed = named;
    return named || !(*kind)->named ? SMP_OK : smp__input_parse(graph, spec, &source->feed[0]);
}

/* "INPUT=FILE.npy (array), ...", of all kinds or of those that feed one named input. */
static void list_forms(bool all, smp_text *text)
{
    for (const smp_source_kind *const *kind = source_kinds; *kind; kind++)
        if (all || (*kind)->named)
            smp_text_append(text, "%s%s", text->length > 0 ? ", " : "", (*kind)->form);
}

static smp_status fail_unclaimed(const smp_graph *graph, const smp_source *source)
{
    smp_text forms = {0};
    list_forms(false, &forms);
    smp_fail(SMP_ERR_INPUT, "%s: no array for the input '%s', expected %s", source->path,
             graph->tensor[source->feed[0]].name, forms.data ? forms.data : "another file");
    smp_text_free(&forms);
    return SMP_ERR_INPUT;
}

static smp_status open_source(smp_data *data, const smp_graph *graph, const char *spec)
{
    char *copy = smp_arena_strdup(data->arena, spec);
    if (!copy)
        return SMP_ERR_NO_MEMORY;
    smp_source *source = &data->source[data->n_source++];
    SMP_TRY(find_kind(graph, copy, source));
    SMP_TRY(smp__data_file_open(source->path, &source->file));
    if (!source->kind)
        return fail_unclaimed(graph, source);
    SMP_TRY(source->kind->open(graph, data->arena, source));
    source->unsplit = source->kind->named && graph->tensor[source->feed[0]].unsplit;

    for (int slot = 0; slot < source->n_feed; slot++) {
        input_feed *feed = &data->feed[source->feed[slot]];
        if (graph->tensor[source->feed[slot]].unsplit && !source->unsplit)
            return smp_fail(SMP_ERR_INPUT,
                            "%s: the model's input '%s' has split: false, and takes an array of "
                            "its shape (%s=FILE.npy), not samples",
                            source->path, graph->tensor[source->feed[slot]].name,
                            graph->tensor[source->feed[slot]].name);
        if (feed->source)
            return smp_fail(SMP_ERR_INPUT, "input '%s' has two sources: %s and %s",
                            graph->tensor[source->feed[slot]].name, feed->source->path,
                            source->path);
        feed->source = source;
        feed->slot = slot;
    }
    return SMP_OK;
}

/* Every input is fed, and all sources have the same number of samples, as many as there must be. */
static smp_status check_sources(smp_data *data, const smp_graph *graph, int64_t global_batch)
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
    const smp_source *first = NULL;
    for (int s = 0; s < data->n_source; s++) {
        const smp_source *other = &data->source[s];
        if (other->unsplit)
            continue;
        first = first ? first : other;
        if (other->samples != first->samples)
            return smp_fail(SMP_ERR_INPUT, "%s has %lld samples, but %s has %lld", other->path,
                            (long long)other->samples, first->path, (long long)first->samples);
    }
    if (!first)
        return smp_fail(SMP_ERR_INPUT,
                        "model '%s': all inputs have split: false, so nothing says how many "
                        "samples there are",
                        graph->name);
    if (first->samples < global_batch)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: %lld samples are too few: one global batch (replicas * micro-batches "
                        "* micro-batch size) needs %lld, and one that is shorter is left out",
                        first->path, (long long)first->samples, (long long)global_batch);
    data->samples = first->samples;
    return SMP_OK;
}

static smp_status check_ranges(const smp_data *data, const smp_graph *graph)
{
    for (int i = 0; i < data->n_input; i++) {
        const input_feed *feed = &data->feed[i];
        if (graph->tensor[i].dtype != SMP_I32)
            continue;
        smp__index_range range = smp__index_range_of(graph, i);
        SMP_TRY(feed->source->kind->check(feed->source, feed->slot, &range));
    }
    return SMP_OK;
}

static smp_status fail_no_source(const smp_graph *graph)
{
    char list[512];
    smp_text forms = {0};
    list_forms(true, &forms);
    smp_fail(SMP_ERR_INPUT, "no data: model '%s' needs a source for each of its inputs %s: %s",
             graph->name, smp__input_list(list, sizeof list, graph), forms.data ? forms.data : "");
    smp_text_free(&forms);
    return SMP_ERR_INPUT;
}

static smp_status create(const smp_graph *graph, const smp_data_options *options, smp_data **out)
{
    smp_arena *arena = smp_arena_create();
    if (!arena)
        return SMP_ERR_NO_MEMORY;
    smp_data *data = SMP_ARENA_NEW(arena, smp_data, 1);
    if (!data)
        goto fail;
    *data = (smp_data){.arena = arena,
                       .n_input = graph->n_input,
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
        status = check_sources(data, graph, options->global_batch);
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
        smp__data_file_close(&data->source[s].file);
    smp_arena_destroy(data->arena);
}

int64_t smp_data_samples(const smp_data *data)
{
    return data->samples;
}

smp_status smp_data_read(smp_data *data, int64_t first, int64_t count, int input, void *buffer)
{
    if (input < 0 || input >= data->n_input)
        return smp_fail(SMP_ERR_INPUT, "data: got input %d, the model has %d", input,
                        data->n_input);
    if (first < 0 || count < 0 || count > INT64_MAX - first)
        return smp_fail(SMP_ERR_INPUT, "data: got %lld samples from %lld on, expected 0 or more",
                        (long long)count, (long long)first);
    const input_feed *feed = &data->feed[input];
    if (feed->source->unsplit)
        return feed->source->kind->read(feed->source, feed->slot, 0, buffer);
    int64_t place = first % data->samples, pass = first / data->samples;
    smp_order order;
    smp__order_init(&order, data->samples, data->seed, (uint64_t)pass);
    for (int64_t i = 0; i < count; i++, place++) {
        if (place == data->samples) {
            place = 0;
            smp__order_init(&order, data->samples, data->seed, (uint64_t)++pass);
        }
        int64_t sample = data->shuffle ? smp__order_at(&order, place) : place;
        SMP_TRY(feed->source->kind->read(feed->source, feed->slot, sample,
                                         (char *)buffer + (size_t)i * feed->sample_bytes));
    }
    return SMP_OK;
}
