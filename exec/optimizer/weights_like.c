/* Settings of single weights by patterns of their names; see the header. O(entries * weights). */
#include "exec/optimizer/weights_like.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/text.h"

/* What may be set, and by which numbers: as those of the job are. */
static const struct key {
    const char *name;
    size_t at;
    double most;
    bool all; /* optimizers read it, else those whose `reads` has it */
} keys[] = {
#define AT(field) offsetof(smp_update_settings, field)
#define KEY(field, option, most, ...) {option, AT(field), most, false},
    {"lr", AT(lr), 1e6, true},
    {"weight-decay", AT(weight_decay), 1e3, true},
    SMP_UPDATE_SETTINGS(KEY, SMP_NO_SETTING) /* numbers alone */
};
enum { N_KEY = sizeof keys / sizeof *keys };

static float *find_setting(smp_update_settings *settings, const struct key *key)
{
    return (float *)((char *)settings + key->at);
}

static bool is_read(const struct key *key, const smp_optimizer *optimizer)
{
    smp_update_settings reads = optimizer->reads;
    return key->all || *find_setting(&reads, key) != 0.0f;
}

/* One entry, cut into strings. */
typedef struct entry {
    const char *whole; /* for messages */
    char *text;        /* owned: the pattern, then the settings, each with a 0 after it */
    char *settings;
} entry;

static smp_where place(const entry *e, const char *at)
{
    return (smp_where){"weights-like", 1, (int)(at - e->text) + 1};
}

/* The pattern ends at the last colon: a name may have some. */
static smp_status open_entry(const char *text, entry *e)
{
    char *colon;
    *e = (entry){.whole = text, .text = text ? strdup(text) : NULL};
    if (!text)
        return smp_fail(SMP_ERR_INPUT, "weights-like: got NULL, expected PATTERN:KEY=VALUE,...");
    if (!e->text)
        return smp_fail_memory(strlen(text) + 1);
    colon = strrchr(e->text, ':');
    if (!colon || colon == e->text || !colon[1])
        return smp_fail_at(place(e, e->text),
                           "got '%.200s', expected PATTERN:KEY=VALUE,..., as in "
                           "h*.ln*:weight-decay=0,lr=0.1",
                           text);
    *colon = '\0';
    e->settings = colon + 1;
    return SMP_OK;
}

static smp_status fail_key(const entry *e, const char *at, const smp_optimizer *optimizer)
{
    const char *names[N_KEY];
    smp_text known = {0};
    int n = 0;
    for (int i = 0; i < N_KEY; i++)
        if (is_read(&keys[i], optimizer))
            names[n++] = keys[i].name;
    for (int i = 0; i < n; i++)
        smp_text_append_choice(&known, names[i], i, n);
    const char *near = smp_nearest(at, names, (size_t)n);
    smp_status status =
        smp_fail_at(place(e, at), "'%.200s': got key '%.40s'%s%s%s, optimizer '%s' has %s",
                    e->whole, at, near ? ", nearest is '" : "", near ? near : "", near ? "'" : "",
                    optimizer->name, known.data ? known.data : "others");
    smp_text_free(&known);
    return status;
}

/* "key=value" at `text`: found, and read. */
static smp_status read_setting(const entry *e, char *text, const smp_optimizer *optimizer,
                               const struct key **key, float *value)
{
    char *equals = strchr(text, '=');
    double number;
    if (!equals)
        return smp_fail_at(place(e, text), "'%.200s': got '%.40s', expected KEY=VALUE", e->whole,
                           text);
    *equals = '\0';
    for (int i = 0; i < N_KEY; i++)
        if (strcmp(keys[i].name, text) == 0 && is_read(&keys[i], optimizer))
            *key = &keys[i];
    if (!*key)
        return fail_key(e, text, optimizer);
    if (!smp_parse_double(equals + 1, &number) || !(number >= 0.0 && number <= (*key)->most))
        return smp_fail_at(place(e, equals + 1),
                           "'%.200s': %s: got '%.40s', expected a number from 0 to %g", e->whole,
                           text, equals + 1, (*key)->most);
    *value = (float)number;
    return SMP_OK;
}

static bool matches(const entry *e, const smp_param *param)
{
    return !param->running && !param->frozen && smp_text_like(e->text, param->name);
}

static smp_status fail_no_match(const entry *e, const smp_graph *graph)
{
    const char **names = malloc(((size_t)graph->n_param + 1) * sizeof *names);
    if (!names)
        return smp_fail_memory(((size_t)graph->n_param + 1) * sizeof *names);
    for (int32_t i = 0; i < graph->n_param; i++)
        names[i] = graph->param[i].name;
    const char *near = smp_nearest_like(e->text, names, (size_t)graph->n_param);
    const smp_status status = smp_fail_at(
        place(e, e->text), "'%.200s': no trained weight of model '%s' matches '%.200s'%s%s%s",
        e->whole, graph->name, e->text, near ? ", nearest is '" : "", near ? near : "",
        near ? "'" : "");
    free(names);
    return status;
}

static smp_status apply(const entry *e, const smp_optimizer *optimizer, const smp_graph *graph,
                        smp_update_settings *settings)
{
    int32_t first = 0;
    while (first < graph->n_param && !matches(e, &graph->param[first]))
        first++;
    if (first == graph->n_param)
        return fail_no_match(e, graph);
    for (char *text = e->settings, *next; text; text = next) {
        const struct key *key = NULL;
        float value = 0.0f;
        next = strchr(text, ',');
        if (next)
            *next++ = '\0';
        SMP_TRY(read_setting(e, text, optimizer, &key, &value));
        for (int32_t i = first; i < graph->n_param; i++)
            if (matches(e, &graph->param[i]))
                *find_setting(&settings[i], key) = value;
    }
    return SMP_OK;
}

smp_status smp_weights_like(const smp_optimizer_options *options, const smp_optimizer *optimizer,
                            const smp_graph *graph, smp_update_settings *settings)
{
    if (options->n_weights_like < 0 || (options->n_weights_like > 0 && !options->weights_like))
        return smp_fail(SMP_ERR_INPUT, "n_weights_like: got %d without as many in weights_like",
                        options->n_weights_like);
    for (int32_t i = 0; i < graph->n_param; i++) {
        settings[i] = smp_update_settings_of(options);
        if (!graph->param[i].decay)
            settings[i].weight_decay = 0.0f;
    }
    for (int i = 0; i < options->n_weights_like; i++) {
        entry e;
        smp_status status = open_entry(options->weights_like[i], &e);
        if (status == SMP_OK)
            status = apply(&e, optimizer, graph, settings);
        free(e.text);
        SMP_TRY(status);
    }
    return SMP_OK;
}
