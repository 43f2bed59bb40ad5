/* Reading values out of a loaded document, each with a message that names place, value and what was
 * expected. Lookups: linear in small maps, by bisection in large ones. */
#include "graph/yaml/yaml.h"

#include <stdio.h>
#include <string.h>

#include "graph/base/text.h"
#include "graph/yaml/yaml_node.h"

const char *smp_yaml_file(const smp_yaml *yaml)
{
    return yaml->name;
}

smp_yaml_kind smp_yaml_kind_of(const smp_yaml_node *node)
{
    return (smp_yaml_kind)node->kind;
}

smp_where smp_yaml_where(const smp_yaml_node *node)
{
    return (smp_where){node->yaml->name, node->line, node->column};
}

const char *smp_yaml_text(const smp_yaml_node *node)
{
    return node->kind == SMP_YAML_SCALAR ? node->u.text : NULL;
}

bool smp_yaml_quoted(const smp_yaml_node *node)
{
    return node->kind == SMP_YAML_SCALAR && node->quoted;
}

/* A key without a value, "~" and "null". */
static bool is_null(const smp_yaml_node *node)
{
    return node->kind == SMP_YAML_SCALAR && !node->quoted &&
           (node->u.text[0] == '\0' || strcmp(node->u.text, "~") == 0 ||
            strcmp(node->u.text, "null") == 0);
}

enum { SHOWN_BYTES = 60, DESCRIPTION_BYTES = SHOWN_BYTES + 16 };

/* "a list", "nothing", or the text in quotes, cut between characters where it is long. */
static const char *describe(const smp_yaml_node *node, char buffer[DESCRIPTION_BYTES])
{
    if (node->kind == SMP_YAML_LIST)
        return "a list";
    if (node->kind == SMP_YAML_MAP)
        return "a map";
    if (is_null(node))
        return "nothing";
    size_t shown = strlen(node->u.text);
    const char *tail = "";
    if (shown > SHOWN_BYTES) {
        shown = SHOWN_BYTES;
        while (shown > 0 && ((unsigned char)node->u.text[shown] & 0xc0) == 0x80)
            shown--;
        tail = "...";
    }
    snprintf(buffer, DESCRIPTION_BYTES, "'%.*s%s'", (int)shown, node->u.text, tail);
    return buffer;
}

static smp_status fail_expected(const smp_yaml_node *node, const char *what, const char *expected)
{
    char buffer[DESCRIPTION_BYTES];
    return smp_fail_at(smp_yaml_where(node), "%s: got %s, expected %s", what,
                       describe(node, buffer), expected);
}

/* A key as one of ours might be: of a file of another kind no more is shown. */
static bool is_name(const char *key)
{
    const size_t n = strspn(key, "abcdefghijklmnopqrstuvwxyz0123456789_-");
    return n > 0 && n <= 24 && key[n] == '\0';
}

static smp_status fail_top(const smp_yaml_node *top)
{
    const char *key = top->kind == SMP_YAML_MAP && top->count > 0 ? smp_yaml_map_key(top, 0) : NULL;
    if (top->kind == SMP_YAML_SCALAR)
        return smp_fail_at(smp_yaml_where(top),
                           "file: got %s, expected a map that starts with 'smp: 1'",
                           is_null(top) ? "nothing" : "a text");
    if (top->kind == SMP_YAML_LIST)
        return fail_expected(top, "file", "a map that starts with 'smp: 1'");
    if (key && is_name(key))
        return smp_fail_at(smp_yaml_map_key_where(top, 0),
                           "file: got '%s' as the first key, expected 'smp: 1'", key);
    return smp_fail_at(key ? smp_yaml_map_key_where(top, 0) : smp_yaml_where(top),
                       "file: got %s as the first key, expected 'smp: 1'",
                       key ? "another text" : "nothing");
}

smp_status smp_yaml_top(const smp_yaml *yaml, const smp_yaml_node **out)
{
    const smp_yaml_node *top = yaml->top;
    if (top->kind != SMP_YAML_MAP || top->count == 0 ||
        strcmp(smp_yaml_map_key(top, 0), "smp") != 0)
        return fail_top(top);
    const smp_yaml_node *version = smp_yaml_map_value(top, 0);
    int64_t number;
    if (version->kind != SMP_YAML_SCALAR || !smp_parse_int(version->u.text, &number) || number != 1)
        return fail_expected(version, "smp", "format version 1, the one that this SMP reads");
    *out = top;
    return SMP_OK;
}

const smp_yaml_node *smp_yaml_root(const smp_yaml *yaml)
{
    return yaml->top;
}

int smp_yaml_map_size(const smp_yaml_node *map)
{
    return map->count;
}

const char *smp_yaml_map_key(const smp_yaml_node *map, int i)
{
    return map->u.item[2 * (size_t)i]->u.text;
}

smp_where smp_yaml_map_key_where(const smp_yaml_node *map, int i)
{
    return smp_yaml_where(map->u.item[2 * (size_t)i]);
}

const smp_yaml_node *smp_yaml_map_value(const smp_yaml_node *map, int i)
{
    return map->u.item[2 * (size_t)i + 1];
}

const smp_yaml_node *smp_yaml_get(const smp_yaml_node *map, const char *key)
{
    if (!map->order) {
        for (int i = 0; i < map->count; i++) {
            if (strcmp(smp_yaml_map_key(map, i), key) == 0)
                return smp_yaml_map_value(map, i);
        }
        return NULL;
    }
    int low = 0;
    int high = map->count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        int order = strcmp(smp_yaml_map_key(map, map->order[middle]), key);
        if (order == 0)
            return smp_yaml_map_value(map, map->order[middle]);
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

smp_status smp_fail_unknown(smp_where where, const char *what, const char *kind, const char *got,
                            const char *const *known, size_t count)
{
    const char *nearest = smp_nearest(got, known, count);
    if (nearest)
        return smp_fail_at(where, "%s: unknown %s '%.80s', did you mean '%s'?", what, kind, got,
                           nearest);
    smp_text list = {0};
    for (size_t k = 0; k < count; k++)
        smp_text_append(&list, "%s%s", k > 0 ? ", " : "", known[k]);
    smp_status status =
        list.failed ? SMP_ERR_NO_MEMORY
                    : smp_fail_at(where, "%s: unknown %s '%.80s', expected %s%s", what, kind, got,
                                  count > 1 ? "one of " : "", list.data ? list.data : "none");
    smp_text_free(&list);
    return status;
}

smp_status smp_yaml_known_keys(const smp_yaml_node *map, const char *what, const char *const *known,
                               size_t count)
{
    for (int i = 0; i < map->count; i++) {
        const char *key = smp_yaml_map_key(map, i);
        size_t k = 0;
        while (k < count && strcmp(key, known[k]) != 0)
            k++;
        if (k == count)
            return smp_fail_unknown(smp_yaml_map_key_where(map, i), what, "key",
                                    smp_yaml_map_key(map, i), known, count);
    }
    return SMP_OK;
}

/* Kinds of documents, and a key by which one is known. */
static const struct {
    const char *kind, *key;
} documents[] = {
    {"model", "inputs"},
    {"plan", "stages"},
    {"cluster", "devices_per_node"},
    {"profile", "optimizer_bytes_per_s"},
};

/* What a document is that is not of `kind`; NULL: nothing that is known. */
static const char *other_kind(const smp_yaml_node *top, const char *kind)
{
    for (size_t i = 0; i < sizeof documents / sizeof documents[0]; i++)
        if (strcmp(documents[i].kind, kind) != 0 && smp_yaml_get(top, documents[i].key))
            return documents[i].kind;
    return NULL;
}

smp_status smp_yaml_document(const smp_yaml *yaml, const char *kind, const char *const *known,
                             size_t count, const smp_yaml_node **out)
{
    SMP_TRY(smp_yaml_top(yaml, out));
    const smp_status status = smp_yaml_known_keys(*out, kind, known, count);
    const char *other = status == SMP_ERR_INPUT ? other_kind(*out, kind) : NULL;
    if (!other)
        return status;
    const bool unplanned = strcmp(other, "model") == 0 && strcmp(kind, "plan") == 0;
    return smp_fail_at(smp_yaml_where(*out), "this is a %s, expected a %s%s", other, kind,
                       unplanned ? ": plan it first with smp-partition" : "");
}

int smp_yaml_list_size(const smp_yaml_node *list)
{
    return list->count;
}

const smp_yaml_node *smp_yaml_list_at(const smp_yaml_node *list, int i)
{
    return list->u.item[i];
}

smp_status smp_yaml_map(const smp_yaml_node *node, const char *what)
{
    return node->kind == SMP_YAML_MAP ? SMP_OK : fail_expected(node, what, "a map");
}

smp_status smp_yaml_list(const smp_yaml_node *node, const char *what)
{
    return node->kind == SMP_YAML_LIST ? SMP_OK : fail_expected(node, what, "a list");
}

smp_status smp_yaml_string(const smp_yaml_node *node, const char *what, const char **out)
{
    if (node->kind != SMP_YAML_SCALAR || is_null(node))
        return fail_expected(node, what, "a text");
    *out = node->u.text;
    return SMP_OK;
}

smp_status smp_yaml_bool(const smp_yaml_node *node, const char *what, bool *out)
{
    /* YAML 1.1 has all of these; each in lower case, capitalised and in capitals. */
    static const char *const words[2][9] = {
        {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"},
        {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"}};
    if (node->kind == SMP_YAML_SCALAR && !node->quoted) {
        for (int i = 0; i < 18; i++) {
            if (strcmp(node->u.text, words[i % 2][i / 2]) == 0) {
                *out = i % 2;
                return SMP_OK;
            }
        }
    }
    return fail_expected(node, what, "true or false");
}

smp_status smp_yaml_int(const smp_yaml_node *node, const char *what, int64_t min, int64_t max,
                        int64_t *out)
{
    int64_t value;
    if (node->kind == SMP_YAML_SCALAR && smp_parse_int(node->u.text, &value) && value >= min &&
        value <= max) {
        *out = value;
        return SMP_OK;
    }
    char expected[96] = "an integer";
    if (min != INT64_MIN && max != INT64_MAX)
        snprintf(expected, sizeof expected, "an integer from %lld to %lld", (long long)min,
                 (long long)max);
    else if (min != INT64_MIN)
        snprintf(expected, sizeof expected, "an integer of at least %lld", (long long)min);
    else if (max != INT64_MAX)
        snprintf(expected, sizeof expected, "an integer of at most %lld", (long long)max);
    return fail_expected(node, what, expected);
}

smp_status smp_yaml_double(const smp_yaml_node *node, const char *what, double min, double max,
                           double *out)
{
    double value;
    if (node->kind == SMP_YAML_SCALAR && smp_parse_double(node->u.text, &value) && value >= min &&
        value <= max) {
        *out = value;
        return SMP_OK;
    }
    char expected[96];
    bool no_max = max >= 1e300;
    bool no_min = min <= -1e300;
    if (no_min && no_max)
        snprintf(expected, sizeof expected, "a number");
    else if (no_max)
        snprintf(expected, sizeof expected, "a number of at least %g", min);
    else if (no_min)
        snprintf(expected, sizeof expected, "a number of at most %g", max);
    else
        snprintf(expected, sizeof expected, "a number from %g to %g", min, max);
    return fail_expected(node, what, expected);
}

smp_status smp_yaml_us(const smp_yaml_node *node, const char *what, double *out)
{
    double value;
    if (node->kind == SMP_YAML_SCALAR && smp_parse_double(node->u.text, &value) &&
        (value == 0 || (value >= SMP_MIN_US && value <= SMP_MAX_US))) {
        *out = value + 0.0; /* no -0 */
        return SMP_OK;
    }
    return fail_expected(node, what, "microseconds: 0, or 1e-250 to 1e15");
}

smp_status smp_yaml_bytes(const smp_yaml_node *node, const char *what, int64_t *out)
{
    int64_t value;
    if (node->kind == SMP_YAML_SCALAR && smp_parse_bytes(node->u.text, &value) &&
        value <= SMP_MAX_BYTES) {
        *out = value;
        return SMP_OK;
    }
    return fail_expected(node, what, "a size such as 80GB, 512MiB or 1024, up to 1024PiB");
}

/* A rate divides: what makes a time infinite is refused here, once for all. */
static bool is_rate(double value)
{
    return value >= SMP_MIN_RATE && value <= SMP_MAX_RATE;
}

smp_status smp_yaml_rate(const smp_yaml_node *node, const char *what, bool or_none, double *out)
{
    double value;
    if (node->kind == SMP_YAML_SCALAR && smp_parse_double(node->u.text, &value) &&
        (is_rate(value) || (or_none && value == 0))) {
        *out = value + 0.0;
        return SMP_OK;
    }
    return fail_expected(node, what,
                         or_none ? "0 (none), or a rate from 1 to 1e21 per second"
                                 : "a rate from 1 to 1e21 per second");
}

smp_status smp_yaml_bytes_per_s(const smp_yaml_node *node, const char *what, double *out)
{
    double value;
    if (node->kind == SMP_YAML_SCALAR && smp_parse_bytes_per_s(node->u.text, &value) &&
        is_rate(value)) {
        *out = value;
        return SMP_OK;
    }
    return fail_expected(node, what, "a rate such as 450GB/s, from 1 to 1e21 per second");
}

smp_status smp_yaml_flops(const smp_yaml_node *node, const char *what, double *out)
{
    double value;
    if (node->kind == SMP_YAML_SCALAR && smp_parse_flops(node->u.text, &value) && is_rate(value)) {
        *out = value;
        return SMP_OK;
    }
    return fail_expected(node, what, "a rate such as 60TFLOP/s, from 1 to 1e21 per second");
}
