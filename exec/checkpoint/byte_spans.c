/* Sets of bytes; see the header. Two sets are walked side by side: O(spans of both). */
#include "exec/checkpoint/byte_spans.h"

#include <stdlib.h>

void smp__spans_free(smp__spans *s)
{
    free(s->at);
    *s = (smp__spans){0};
}

smp_status smp__spans_add(smp__spans *s, int64_t begin, int64_t end)
{
    if (begin >= end)
        return SMP_OK;
    if (s->n > 0 && s->at[s->n - 1].end == begin) {
        s->at[s->n - 1].end = end;
        return SMP_OK;
    }
    if (s->n == s->room) {
        const size_t room = 2 * (size_t)s->room + 16;
        smp__span *more =
            room <= INT32_MAX ? realloc(s->at, room * sizeof *more) : NULL; /* counted by int32_t */
        if (!more)
            return smp_fail_memory(room * sizeof *more);
        s->at = more;
        s->room = (int32_t)room;
    }
    s->at[s->n++] = (smp__span){begin, end};
    return SMP_OK;
}

static int by_begin(const void *a, const void *b)
{
    const smp__span *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

void smp__spans_join(smp__spans *s)
{
    int32_t n = 0;
    if (s->n == 0)
        return;
    qsort(s->at, (size_t)s->n, sizeof *s->at, by_begin);
    for (int32_t i = 1; i < s->n; i++) {
        if (s->at[i].begin > s->at[n].end)
            s->at[++n] = s->at[i];
        else if (s->at[i].end > s->at[n].end)
            s->at[n].end = s->at[i].end;
    }
    s->n = n + 1;
}

bool smp__spans_are_set(const smp__span *at, int64_t n, int64_t bytes)
{
    int64_t before = -1; /* the first may begin at 0 */
    for (int64_t i = 0; i < n; i++) {
        if (at[i].begin <= before || at[i].end <= at[i].begin || at[i].end > bytes)
            return false;
        before = at[i].end;
    }
    return true;
}

smp_status smp__spans_common(const smp__spans *a, const smp__spans *b, smp__spans *out)
{
    smp__spans_free(out);
    for (int32_t i = 0, j = 0; i < a->n && j < b->n;) {
        const smp__span x = a->at[i], y = b->at[j];
        SMP_TRY(smp__spans_add(out, x.begin > y.begin ? x.begin : y.begin,
                               x.end < y.end ? x.end : y.end));
        if (x.end < y.end)
            i++;
        else
            j++;
    }
    return SMP_OK;
}

smp_status smp__spans_without(const smp__spans *a, const smp__spans *b, smp__spans *out)
{
    smp__spans_free(out);
    for (int32_t i = 0, j = 0; i < a->n; i++) {
        int64_t at = a->at[i].begin;
        while (j < b->n && b->at[j].end <= at)
            j++;
        for (int32_t k = j; k < b->n && b->at[k].begin < a->at[i].end; k++) {
            SMP_TRY(smp__spans_add(out, at, b->at[k].begin));
            at = b->at[k].end;
        }
        SMP_TRY(smp__spans_add(out, at, a->at[i].end));
    }
    return SMP_OK;
}

smp_status smp__spans_both(const smp__spans *a, const smp__spans *b, smp__spans *out)
{
    smp__spans_free(out);
    for (int32_t i = 0; i < a->n; i++)
        SMP_TRY(smp__spans_add(out, a->at[i].begin, a->at[i].end));
    for (int32_t i = 0; i < b->n; i++)
        SMP_TRY(smp__spans_add(out, b->at[i].begin, b->at[i].end));
    smp__spans_join(out);
    return SMP_OK;
}

smp_status smp__spans_alone(const smp__spans *sets, int n, int own, smp__spans *out)
{
    smp__spans others = {0};
    smp_status status = SMP_OK;
    for (int i = 0; i < n && status == SMP_OK; i++)
        for (int32_t k = 0; i != own && k < sets[i].n && status == SMP_OK; k++)
            status = smp__spans_add(&others, sets[i].at[k].begin, sets[i].at[k].end);
    smp__spans_join(&others);
    if (status == SMP_OK)
        status = smp__spans_without(&sets[own], &others, out);
    smp__spans_free(&others);
    return status;
}

int64_t smp__spans_bytes(const smp__spans *s)
{
    int64_t bytes = 0;
    for (int32_t i = 0; i < s->n; i++)
        bytes += s->at[i].end - s->at[i].begin;
    return bytes;
}

bool smp__spans_cover(const smp__spans *s, int64_t begin, int64_t end)
{
    int32_t low = 0, high = s->n;
    while (low < high) { /* the first that ends after begin */
        const int32_t middle = low + (high - low) / 2;
        if (s->at[middle].end > begin)
            high = middle;
        else
            low = middle + 1;
    }
    return begin >= end || (low < s->n && s->at[low].begin <= begin && end <= s->at[low].end);
}
