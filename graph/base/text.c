/* String builder, hashing and the nearest name. */
#include "graph/base/text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/arena.h"
#include "graph/base/c_locale.h"

/* Room for `more` bytes and the terminator. */
static bool make_room(smp_text *text, size_t more)
{
    if (text->failed)
        return false;
    size_t need = text->length + more + 1;
    if (need < more) {
        smp_fail_memory(more);
        text->failed = true;
        return false;
    }
    if (need > text->capacity) {
        /* Doubling: appends of single bytes are common. */
        size_t wanted = need > text->capacity * 2 ? need : text->capacity * 2;
        text->failed = smp_array_reserve(&text->data, &text->capacity, 1, wanted) != SMP_OK;
    }
    return !text->failed;
}

void smp_text_append(smp_text *text, const char *format, ...)
{
    if (!make_room(text, 64))
        return;
    smp__c_locale locale = smp__c_locale_enter();
    va_list args;
    va_list again;
    va_start(args, format);
    va_copy(again, args);
    size_t room = text->capacity - text->length;
    int n = vsnprintf(text->data + text->length, room, format, args);
    if (n >= 0 && (size_t)n >= room && make_room(text, (size_t)n))
        vsnprintf(text->data + text->length, (size_t)n + 1, format, again);
    va_end(again);
    va_end(args);
    smp__c_locale_leave(locale);
    if (n < 0) {
        smp_fail(SMP_ERR_FAILED, "cannot format text");
        text->failed = true;
    }
    if (text->failed)
        text->data[text->length] = '\0';
    else
        text->length += (size_t)n;
}

void smp_text_append_bytes(smp_text *text, const char *bytes, size_t count)
{
    if (!make_room(text, count))
        return;
    if (count > 0)
        memcpy(text->data + text->length, bytes, count);
    text->length += count;
    text->data[text->length] = '\0';
}

/* 15 digits identify every decimal that short, and %g drops its trailing zeros: the first precision
 * of 15, 16, 17 that reads back equal has the fewest digits. Not finite: null, as JSON has it. */
void smp_text_append_double(smp_text *text, double value)
{
    if (!isfinite(value)) {
        smp_text_append_bytes(text, "null", 4);
        return;
    }
    char buffer[40];
    smp__c_locale locale = smp__c_locale_enter();
    for (int precision = 15; precision <= 17; precision++) {
        snprintf(buffer, sizeof buffer, "%.*g", precision, value);
        if (precision == 17 || strtod(buffer, NULL) == value)
            break;
    }
    smp__c_locale_leave(locale);
    smp_text_append_bytes(text, buffer, strlen(buffer));
}

void smp_text_append_quoted(smp_text *text, const char *value)
{
    smp_text_append_bytes(text, "\"", 1);
    for (const char *c = value; *c; c++) {
        unsigned char byte = (unsigned char)*c;
        if (byte == '"' || byte == '\\') {
            char pair[2] = {'\\', (char)byte};
            smp_text_append_bytes(text, pair, 2);
        } else if (byte == '\n') {
            smp_text_append_bytes(text, "\\n", 2);
        } else if (byte == '\t') {
            smp_text_append_bytes(text, "\\t", 2);
        } else if (byte < 0x20 || byte == 0x7f) {
            smp_text_append(text, "\\u%04x", byte);
        } else {
            smp_text_append_bytes(text, c, 1);
        }
    }
    smp_text_append_bytes(text, "\"", 1);
}

void smp_text_append_choice(smp_text *text, const char *word, int i, int n)
{
    smp_text_append(text, "%s%s", i == 0 ? "" : i == n - 1 ? " or " : ", ", word);
}

smp_status smp_fail_choice(smp_where where, const char *what, const char *got,
                           const char *const *names, int n)
{
    smp_text known = {0};
    for (int i = 0; i < n; i++)
        smp_text_append_choice(&known, names[i], i, n);
    smp_fail_at(where, "%s: got '%s', expected %s", what, got, known.data ? known.data : "another");
    smp_text_free(&known);
    return SMP_ERR_INPUT;
}

void smp_text_free(smp_text *text)
{
    free(text->data);
    *text = (smp_text){0};
}

uint64_t smp_hash_end(uint64_t h)
{
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdu;
    h ^= h >> 33;
    h *= 0xc4ceb9fe1a85ec53u;
    return h ^ (h >> 33);
}

uint64_t smp_hash(uint64_t seed, const void *data, size_t bytes)
{
    const unsigned char *p = data;
    uint64_t h = seed ^ SMP_HASH_BEGIN;
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ p[i]) * SMP_HASH_PRIME;
    return smp_hash_end(h);
}

enum { NEAREST_MAX = 63 };

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* Optimal string alignment (insert, delete, replace, swap of neighbours; case ignored), at most
 * `limit`; more is reported as limit + 1. Needs both lengths <= NEAREST_MAX. */
static int edit_distance(const char *a, int n, const char *b, int m, int limit)
{
    int rows[3][NEAREST_MAX + 1];
    int *before = rows[0]; /* row i - 2 */
    int *above = rows[1];
    int *row = rows[2];
    for (int j = 0; j <= m; j++)
        above[j] = before[j] = j;
    for (int i = 1; i <= n; i++) {
        int best = row[0] = i;
        for (int j = 1; j <= m; j++) {
            int cost = lower(a[i - 1]) != lower(b[j - 1]);
            int d = above[j - 1] + cost;
            if (above[j] + 1 < d)
                d = above[j] + 1;
            if (row[j - 1] + 1 < d)
                d = row[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                before[j - 2] + 1 < d)
                d = before[j - 2] + 1;
            row[j] = d;
            if (d < best)
                best = d;
        }
        if (best > limit)
            return limit + 1;
        int *free_row = before;
        before = above;
        above = row;
        row = free_row;
    }
    return above[m] <= limit ? above[m] : limit + 1;
}

const char *smp_nearest(const char *name, const char *const *candidates, size_t count)
{
    size_t length = strlen(name);
    if (length > NEAREST_MAX)
        return NULL;
    int limit = length < 3 ? 1 : 1 + (int)length / 3;
    const char *nearest = NULL;
    for (size_t i = 0; i < count && limit >= 0; i++) {
        size_t other = strlen(candidates[i]);
        size_t gap = other > length ? other - length : length - other;
        if (other == 0 || other > NEAREST_MAX || gap > (size_t)limit)
            continue;
        int d = edit_distance(name, (int)length, candidates[i], (int)other, limit);
        /* Nothing of the name left: not a misspelling. */
        if (d > limit || d >= (int)(length > other ? length : other))
            continue;
        nearest = candidates[i];
        limit = d - 1; /* only a strictly nearer one replaces it: the first of equals wins */
    }
    return nearest;
}

/* Goes back to the last star only. */
bool smp_text_like(const char *pattern, const char *name)
{
    const char *star = NULL, *resume = NULL;
    while (*name) {
        if (*pattern == '*') {
            star = pattern++;
            resume = name;
        } else if (*pattern == '?' || *pattern == *name) {
            pattern++;
            name++;
        } else if (star) {
            pattern = star + 1;
            name = ++resume;
        } else {
            return false;
        }
    }
    while (*pattern == '*')
        pattern++;
    return !*pattern;
}

/* "a..b" with ops a and b: their places. A name may itself hold dots: every ".." is tried. */

const char *smp_nearest_like(const char *pattern, const char *const *candidates, size_t count)
{
    char *plain = strdup(pattern);
    size_t n = 0;
    if (!plain)
        return NULL;
    for (const char *c = pattern; *c; c++)
        if (*c != '*')
            plain[n++] = *c;
    plain[n] = '\0';
    const char *near = smp_nearest(plain, candidates, count);
    free(plain);
    return near;
}
