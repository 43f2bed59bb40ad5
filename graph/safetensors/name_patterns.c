/* Patterns of names: which fit, and what their places stand for. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "graph/base/text.h"
#include "graph/safetensors/name_rules.h"

/* A whole number as programs write it: no zeros before it, at most 9 digits. */
static int number_length(const char *text, int64_t *value)
{
    int n = 0;
    *value = 0;
    while (n < 10 && text[n] >= '0' && text[n] <= '9')
        *value = *value * 10 + (text[n++] - '0');
    return n == 0 || n > 9 || (n > 1 && text[0] == '0') ? 0 : n;
}

/* The number that a name in braces stands for so far, or NULL. */
static const int64_t *known_number(const smp_rule_match *match, const char *name, size_t n)
{
    for (int i = 0; i < match->n_number; i++)
        if (strlen(match->number[i].name) == n && memcmp(match->number[i].name, name, n) == 0)
            return &match->number[i].value;
    return NULL;
}

static bool fits(const char *pattern, const char *name, smp_rule_match *match);

static bool fits_number(const char *pattern, const char *name, smp_rule_match *match)
{
    int64_t value;
    const size_t n = strcspn(pattern + 1, "}");
    const int length = number_length(name, &value);
    const int64_t *known = known_number(match, pattern + 1, n);
    if (length == 0 || (known && *known != value))
        return false;
    if (!known) {
        snprintf(match->number[match->n_number].name, sizeof match->number[0].name, "%.*s", (int)n,
                 pattern + 1);
        match->number[match->n_number++].value = value;
    }
    return fits(pattern + n + 2, name + length, match);
}

/* The shortest text first; with at most two `*` that is quadratic. */
static bool fits_text(const char *pattern, const char *name, smp_rule_match *match)
{
    const smp_rule_match before = *match;
    for (int length = 0;; length++) {
        *match = before;
        match->text[match->n_text].begin = name;
        match->text[match->n_text++].length = length;
        if (fits(pattern + 1, name + length, match))
            return true;
        if (name[length] == '\0')
            return false;
    }
}

static bool fits(const char *pattern, const char *name, smp_rule_match *match)
{
    for (; *pattern; pattern++, name++) {
        if (*pattern == '{')
            return fits_number(pattern, name, match);
        if (*pattern == '*')
            return fits_text(pattern, name, match);
        if (*pattern != *name)
            return false;
    }
    return *name == '\0';
}

bool smp_name_rule_fits(const smp_name_rule *rule, const char *weight, smp_rule_match *match)
{
    *match = (smp_rule_match){0};
    return fits(rule->weight, weight, match);
}

void smp_rule_match_item(smp_rule_match *match, int64_t item)
{
    static const char NAME[] = "#";
    const bool first =
        match->n_number == 0 || strcmp(match->number[match->n_number - 1].name, NAME);
    match->n_number += first;
    strcpy(match->number[match->n_number - 1].name, NAME);
    match->number[match->n_number - 1].value = item;
}

/* A place in braces, filled in; returns where it ends. */
static const char *fill_in(const char *place, const smp_rule_match *match, smp_text *text)
{
    const size_t n = strcspn(place + 1, "}+-");
    const int64_t *value = known_number(match, place + 1, n);
    int64_t more = 0;
    number_length(place + n + 2, &more); /* nothing after '}' is meant: then it is not used */
    const char sign = place[n + 1];
    smp_text_append(text, "%" PRId64,
                    (value ? *value : 0) + (sign == '+'   ? more
                                            : sign == '-' ? -more
                                                          : 0));
    return place + strcspn(place, "}");
}

const char *smp_rule_tensor_name(const smp_rule_tensor *tensor, const smp_rule_match *match,
                                 smp_arena *arena)
{
    smp_text text = {0};
    int star = 0;
    for (const char *c = tensor->name; *c; c++) {
        if (*c == '{') {
            c = fill_in(c, match, &text);
        } else if (*c == '*' && star < match->n_text) {
            smp_text_append_bytes(&text, match->text[star].begin, (size_t)match->text[star].length);
            star++;
        } else {
            smp_text_append_bytes(&text, c, 1);
        }
    }
    const char *name = text.failed ? NULL : smp_arena_strdup(arena, text.data ? text.data : "");
    if (text.failed)
        smp_fail_memory(text.length);
    smp_text_free(&text);
    return name;
}
