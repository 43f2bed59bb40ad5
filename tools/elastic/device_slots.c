/* Devices that come and go; see the header. */
#include "tools/elastic/device_slots.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/elastic/events.h"

enum { FILE_BYTES = 64 * 1024 };

smp_status smp__slots_open(const char *folder, int n, smp__slots *out)
{
    smp_text path = {0};
    *out = (smp__slots){.n = n};
    smp_text_append(&path, "%s/devices", folder);
    out->path = path.data;
    out->slot = calloc((size_t)n, sizeof *out->slot);
    if (!out->slot || path.failed)
        return smp_fail_memory((size_t)n * sizeof *out->slot);
    for (int i = 0; i < n; i++)
        out->slot[i].at_hand = true;
    return SMP_OK;
}

void smp__slots_close(smp__slots *s)
{
    free(s->path);
    free(s->slot);
    *s = (smp__slots){0};
}

/* "3", the first so many; or slots and ranges with commas or blanks between. at_hand: [n], false.
 * SMP_ERR_INPUT: neither. */
static smp_status read_slots(const char *path, const char *text, int n, bool *at_hand)
{
    int count = 0;
    long from = 0, to = 0, most = 0;
    bool list = false;
    for (const char *at = text; *at;) {
        if (isspace((unsigned char)*at) || *at == ',') {
            list = list || *at == ',';
            at++;
            continue;
        }
        char *end;
        if (!isdigit((unsigned char)*at))
            return smp_fail(SMP_ERR_INPUT,
                            "%s: got '%.40s', expected a number of devices, or slots such as 0-2,5",
                            path, at);
        from = to = strtol(at, &end, 10);
        if (*end == '-' && isdigit((unsigned char)end[1])) {
            to = strtol(end + 1, &end, 10);
            list = true;
        }
        count++;
        at = end;
        most = to > most ? to : most;
        for (long i = from; i <= to && i < n; i++)
            at_hand[i] = true;
        if (to < from)
            return smp_fail(SMP_ERR_INPUT, "%s: got slot %ld, expected slots 0 to %d", path, to,
                            n - 1);
    }
    if (count == 0)
        return smp_fail(SMP_ERR_INPUT, "%s: says nothing; 0 says that no device is at hand", path);
    list = list || count > 1;
    if (list && most >= n)
        return smp_fail(SMP_ERR_INPUT, "%s: got slot %ld, expected slots 0 to %d", path, most,
                        n - 1);
    if (list)
        return SMP_OK;
    for (int i = 0; i < n; i++)
        at_hand[i] = i < from;
    return SMP_OK;
}

static bool take(smp__slots *s, const bool *at_hand)
{
    bool changed = false;
    for (int i = 0; i < s->n; i++) {
        changed = changed || s->slot[i].at_hand != at_hand[i];
        s->slot[i].at_hand = at_hand[i];
    }
    return changed;
}

/* What was left out and is named again gets another chance. */
static bool forgive(smp__slots *s, const bool *at_hand)
{
    bool changed = false;
    for (int i = 0; i < s->n; i++)
        if (at_hand[i] && s->slot[i].left_out) {
            s->slot[i] = (smp__slot){.at_hand = s->slot[i].at_hand};
            changed = true;
        }
    return changed;
}

static bool take_text(smp__slots *s, const char *text)
{
    bool *at_hand = calloc((size_t)s->n, sizeof *at_hand), changed = false;
    if (!at_hand) /* looked at again when it changes again */
        return false;
    if (read_slots(s->path, text, s->n, at_hand) != SMP_OK) {
        smp__events_say("%s; the devices at hand stay as they are", smp_last_error());
    } else {
        changed = s->begun && forgive(s, at_hand);
        changed = take(s, at_hand) || changed;
    }
    free(at_hand);
    return changed;
}

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static bool look(smp__slots *s)
{
    struct stat info;
    char *text = NULL;
    size_t bytes = 0;
    const bool is_there = stat(s->path, &info) == 0;
    if (!is_there && !s->is_there)
        return false;
    if (!is_there) {
        s->is_there = false;
        return take_text(s, "1000000"); /* all */
    }
    if ((s->is_there && is_same(&info, &s->looked)) || info.st_size == 0) /* being written */
        return false;
    s->looked = info;
    s->is_there = true;
    if (smp_file_read(s->path, FILE_BYTES, &text, &bytes) != SMP_OK) {
        smp__events_say("%s", smp_last_error());
        return false;
    }
    const bool changed = take_text(s, text);
    free(text);
    return changed;
}

bool smp__slots_look(smp__slots *s)
{
    const bool changed = look(s);
    s->begun = true;
    return changed;
}

int smp__slots_count(const smp__slots *s)
{
    int n = 0;
    for (int i = 0; i < s->n; i++)
        n += smp__slot_usable(&s->slot[i]);
    return n;
}

void smp__slots_pick(const smp__slots *s, int n, int *picked)
{
    for (int i = 0, k = 0; i < s->n && k < n; i++)
        if (smp__slot_usable(&s->slot[i]))
            picked[k++] = i;
}

bool smp__slots_fail(smp__slots *s, int slot, int64_t step, int allowed)
{
    smp__slot *at = &s->slot[slot];
    at->failures = step >= at->failed_at + SMP__FORGIVEN_STEPS ? 1 : at->failures + 1;
    at->failed_at = step;
    at->left_out = at->left_out || at->failures >= allowed;
    return at->left_out;
}
