/* Training data: the registry of source kinds, the checks across sources, samples of the sequence.
 *
 * Sample i of the sequence is sample i mod n, in that pass's order, of pass i / n. Nothing is kept
 * between reads, so any rank may ask for any part in any order, and a resumed job needs its
 * position alone. */
#include "exec/data/data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/data/data_source.h"
#include "graph/base/text.h"

/* The first kind that claims a file gets it; text claims what is left, so it stands last.
 * data_<name>.c defines smp__source_<name>. */
#define SOURCES(X)                                                                                 \
    X(npy)                                                                                         \
    X(idx)                                                                                         \
    X(images)                                                                                      \
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

/* The samples that one source has of an input; those of the next source follow. */
typedef struct feed_part {
    const smp_source *source;
    int slot;
    int64_t begin; /* of the input's samples, the first one of this source */
} feed_part;

/* Where a model input comes from. */
typedef struct input_feed {
    feed_part *part; /* [n_part], as the sources were given; none: not fed */
    int n_part;
    int64_t samples; /* in all of them */
    size_t sample_bytes;
} input_feed;

struct smp_data {
    smp_arena *arena;   /* NULL: the held-out part, in the arena of the whole */
    smp_source *source; /* [n_source] */
    input_feed *feed;   /* [n_input] */
    int n_source;       /* opened so far */
    int n_input;
    int64_t samples;     /* of a pass */
    const int64_t *held; /* [n_held], rising: samples that are held out */
    int64_t n_held;
    bool holds;    /* `held` is what a pass has, else what it lacks */
    int64_t least; /* samples that a pass must have */
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
    smp_source *source = &data->source[data->n_source++];
    SMP_TRY(find_kind(graph, spec, source));
    if (!source->kind || !source->kind->folder)
        SMP_TRY(smp__data_file_open(source->path, &source->file));
    if (!source->kind)
        return fail_unclaimed(graph, source);
    SMP_TRY(source->kind->open(graph, data->arena, source));
    source->unsplit = source->kind->named && graph->tensor[source->feed[0]].unsplit;
    for (int slot = 0; slot < source->n_feed; slot++) {
        const smp_tensor *input = &graph->tensor[source->feed[slot]];
        if (input->unsplit && !source->unsplit)
            return smp_fail(SMP_ERR_INPUT,
                            "%s: the model's input '%s' has split: false, and takes an array of "
                            "its shape (%s=FILE.npy), not samples",
                            source->path, input->name, input->name);
    }
    return SMP_OK;
}

static smp_status open_sources(smp_data *data, const smp_graph *graph,
                               const smp_data_options *options)
{
    smp__spec_list list = {0};
    for (int s = 0; s < options->n_source; s++)
        SMP_TRY(smp__spec_expand(graph, data->arena, options->sources[s], &list));
    data->source = SMP_ARENA_NEW(data->arena, smp_source, (size_t)list.n);
    if (!data->source)
        return SMP_ERR_NO_MEMORY;
    for (const smp__spec *spec = list.first; spec; spec = spec->next)
        SMP_TRY(open_source(data, graph, spec->text));
    return SMP_OK;
}

/* Puts together what the sources feed, in the order in which they were given. */
static smp_status join_sources(smp_data *data, const smp_graph *graph)
{
    for (int s = 0; s < data->n_source; s++)
        for (int slot = 0; slot < data->source[s].n_feed; slot++)
            data->feed[data->source[s].feed[slot]].n_part++;
    for (int i = 0; i < data->n_input; i++) {
        input_feed *feed = &data->feed[i];
        feed->sample_bytes = (size_t)graph->tensor[i].elements * 4;
        feed->part = SMP_ARENA_NEW(data->arena, feed_part, (size_t)feed->n_part);
        if (!feed->part)
            return SMP_ERR_NO_MEMORY;
        feed->n_part = 0;
    }
    for (int s = 0; s < data->n_source; s++)
        for (int slot = 0; slot < data->source[s].n_feed; slot++) {
            const smp_source *source = &data->source[s];
            input_feed *feed = &data->feed[source->feed[slot]];
            if (source->unsplit && feed->n_part > 0)
                return smp_fail(SMP_ERR_INPUT, "input '%s' has two sources: %s and %s",
                                graph->tensor[source->feed[slot]].name, feed->part[0].source->path,
                                source->path);
            feed->part[feed->n_part++] = (feed_part){source, slot, feed->samples};
            if (__builtin_add_overflow(feed->samples, source->samples, &feed->samples))
                return smp_fail(SMP_ERR_INPUT, "%s: the number of samples overflows", source->path);
        }
    return SMP_OK;
}

/* "a.npy", "a.npy and 2 more"; returns the buffer. */
static const char *sources_name(char *buffer, size_t size, const input_feed *feed)
{
    if (feed->n_part == 1)
        snprintf(buffer, size, "%s", feed->part[0].source->path);
    else
        snprintf(buffer, size, "%s and %d more", feed->part[0].source->path, feed->n_part - 1);
    return buffer;
}

/* The first input that has samples; there is one. */
static const input_feed *first_feed(const smp_data *data)
{
    const input_feed *feed = data->feed;
    while (feed->part[0].source->unsplit)
        feed++;
    return feed;
}

static smp_status check_enough(const smp_data *data)
{
    char name[512];
    if (data->samples >= data->least)
        return SMP_OK;
    return smp_fail(SMP_ERR_INPUT,
                    "%s: got %lld samples, expected %lld or more, a global batch (replicas * "
                    "micro-batches * micro-batch size): give more data, or make a plan with a "
                    "smaller batch (--microbatches, --microbatch-size)",
                    sources_name(name, sizeof name, first_feed(data)), (long long)data->samples,
                    (long long)data->least);
}

/* Every input is fed, and all have the same number of samples, as many as there must be. */
static smp_status check_sources(smp_data *data, const smp_graph *graph)
{
    const input_feed *first = NULL;
    char name[2][512];
    for (int i = 0; i < data->n_input; i++) {
        const input_feed *feed = &data->feed[i];
        const char *input = graph->tensor[i].name;
        if (feed->n_part == 0)
            return smp_fail(SMP_ERR_INPUT,
                            "input '%s' of model '%s' has no data: give --data %s=FILE.npy%s",
                            input, graph->name, input,
                            smp__input_find(graph, "tokens") < 0 ? "" : ", or a text or .bin file");
        if (graph->tensor[i].unsplit)
            continue;
        first = first ? first : feed;
        if (feed->samples != first->samples)
            return smp_fail(SMP_ERR_INPUT, "%s has %lld samples, but %s has %lld",
                            sources_name(name[0], sizeof name[0], feed), (long long)feed->samples,
                            sources_name(name[1], sizeof name[1], first),
                            (long long)first->samples);
    }
    if (!first)
        return smp_fail(SMP_ERR_INPUT,
                        "model '%s': all inputs have split: false, so nothing says how many "
                        "samples there are",
                        graph->name);
    data->samples = first->samples;
    return check_enough(data);
}

static smp_status check_ranges(const smp_data *data, const smp_graph *graph)
{
    for (int i = 0; i < data->n_input; i++) {
        const input_feed *feed = &data->feed[i];
        if (graph->tensor[i].dtype != SMP_I32)
            continue;
        smp__index_range range = smp__index_range_of(graph, i);
        for (const feed_part *p = feed->part; p < feed->part + feed->n_part; p++)
            SMP_TRY(p->source->kind->check(p->source, p->slot, &range));
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
                       .least = options->global_batch,
                       .seed = options->seed,
                       .shuffle = options->shuffle};
    data->feed = SMP_ARENA_NEW(arena, input_feed, (size_t)graph->n_input);
    if (!data->feed)
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
    smp_status status = open_sources(data, graph, options);
    if (status == SMP_OK)
        status = join_sources(data, graph);
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
    if (!data || !data->arena)
        return;
    for (int s = 0; s < data->n_source; s++)
        smp__data_file_close(&data->source[s].file);
    smp_arena_destroy(data->arena);
}

static smp_status mark_file(const smp_data_file *file, uint64_t *hash)
{
    char piece[SMP_DATA_PIECE];
    const size_t n = file->bytes < SMP_DATA_PIECE ? (size_t)file->bytes : SMP_DATA_PIECE;
    SMP_TRY(smp__data_file_read(file, 0, piece, n));
    *hash = smp_hash(*hash, piece, n);
    SMP_TRY(smp__data_file_read(file, file->bytes - (int64_t)n, piece, n));
    *hash = smp_hash(*hash, piece, n);
    return SMP_OK;
}

smp_status smp_data_mark(const smp_data *data, int64_t *bytes, uint64_t *hash)
{
    *bytes = 0;
    *hash = 0;
    for (int i = 0; i < data->n_source; i++) {
        const smp_source *source = &data->source[i];
        const int64_t size = source->kind->folder ? source->samples : source->file.bytes;
        *bytes += source->kind->folder ? 0 : size;
        *hash = smp_hash(*hash, &size, sizeof size);
        if (!source->kind->folder)
            SMP_TRY(mark_file(&source->file, hash));
    }
    return SMP_OK;
}

int64_t smp_data_samples(const smp_data *data)
{
    return data->samples;
}

static int compare(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

smp_status smp_data_split(smp_data *data, double share, smp_data **held_out)
{
    const int64_t n = data->samples, k = (int64_t)(share * (double)n + 0.5);
    char name[512];
    if (!(share > 0.0 && share < 1.0) || k < 1 || k >= n)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: %g of %lld samples cannot be held out: some must be left for training "
                        "and some for the evaluation",
                        sources_name(name, sizeof name, first_feed(data)), share, (long long)n);
    int64_t *held = SMP_ARENA_NEW(data->arena, int64_t, (size_t)k);
    smp_data *part = SMP_ARENA_NEW(data->arena, smp_data, 1);
    if (!held || !part)
        return SMP_ERR_NO_MEMORY;
    smp_order order;
    smp__order_init(&order, n, data->seed, UINT64_MAX); /* a pass that no training gets to */
    for (int64_t i = 0; i < k; i++)
        held[i] = smp__order_at(&order, i);
    qsort(held, (size_t)k, sizeof *held, compare);
    data->held = held;
    data->n_held = k;
    *part = *data;
    part->arena = NULL;
    part->holds = true;
    part->shuffle = false;
    part->samples = k;
    data->samples = n - k;
    SMP_TRY(check_enough(data));
    *held_out = part;
    return SMP_OK;
}

/* The place among all samples of sample i of those that are left, or held out. */
static int64_t place_of(const smp_data *data, int64_t i)
{
    if (data->holds)
        return data->held[i];
    int64_t begin = 0, end = data->n_held; /* how many of those held out stand before it */
    while (begin < end) {
        const int64_t middle = begin + (end - begin) / 2;
        if (data->held[middle] - middle <= i)
            begin = middle + 1;
        else
            end = middle;
    }
    return i + begin;
}

static smp_status read_sample(const input_feed *feed, int64_t sample, void *buffer)
{
    int begin = 0, end = feed->n_part; /* the last part that begins at the sample or before it */
    while (end - begin > 1) {
        const int middle = begin + (end - begin) / 2;
        if (feed->part[middle].begin <= sample)
            begin = middle;
        else
            end = middle;
    }
    const feed_part *part = &feed->part[begin];
    return part->source->kind->read(part->source, part->slot, sample - part->begin, buffer);
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
    if (feed->part[0].source->unsplit)
        return feed->part[0].source->kind->read(feed->part[0].source, feed->part[0].slot, 0,
                                                buffer);
    int64_t place = first % data->samples, pass = first / data->samples;
    smp_order order;
    smp__order_init(&order, data->samples, data->seed, (uint64_t)pass);
    for (int64_t i = 0; i < count; i++, place++) {
        if (place == data->samples) {
            place = 0;
            smp__order_init(&order, data->samples, data->seed, (uint64_t)++pass);
        }
        int64_t sample = data->shuffle ? smp__order_at(&order, place) : place;
        SMP_TRY(read_sample(feed, place_of(data, sample),
                            (char *)buffer + (size_t)i * feed->sample_bytes));
    }
    return SMP_OK;
}
