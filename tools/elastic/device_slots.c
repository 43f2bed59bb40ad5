/* Devices that come and go; see the header. */
#include "tools/elastic/device_slots.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/elastic/output/events.h"

enum { FILE_BYTES = 64 * 1024 };

static smp_status add_slots(smp__slots *s, int host, int count)
{
    smp__slot *more = realloc(s->slot, ((size_t)s->n + (size_t)count) * sizeof *more);
    if (!more)
        return smp_fail_memory(((size_t)s->n + (size_t)count) * sizeof *more);
    s->slot = more;
    for (int i = 0; i < count; i++)
        s->slot[s->n++] =
            (smp__slot){.host = host, .index = i, .at_hand = true, .present = s->hosts == NULL};
    return SMP_OK;
}

/* Slots of hosts that have come, after the others. */
static smp_status match_hosts(smp__slots *s)
{
    int known = s->n > 0 ? s->slot[s->n - 1].host + 1 : 0;
    for (; s->hosts && known < s->hosts->n; known++) {
        SMP_TRY(add_slots(s, known, s->hosts->host[known].devices));
        s->looked.st_ino = 0; /* the file is read again */
    }
    return SMP_OK;
}

smp_status smp__slots_open(const char *folder, int most, const smp__hosts *hosts, smp__slots *out)
{
    smp_text path = {0};
    *out = (smp__slots){.most = most, .hosts = hosts};
    smp_text_append(&path, "%s/devices", folder);
    out->path = path.data;
    if (path.failed)
        return smp_fail_memory(path.capacity);
    return hosts ? match_hosts(out) : add_slots(out, 0, most);
}

void smp__slots_close(smp__slots *s)
{
    free(s->path);
    free(s->slot);
    *s = (smp__slots){0};
}

const char *smp__slot_name(const smp__slots *s, int slot, char text[SMP__SLOT_NAME])
{
    const smp__slot *at = &s->slot[slot];
    if (s->hosts && s->hosts->n > 1)
        snprintf(text, SMP__SLOT_NAME, "%s:%d", s->hosts->host[at->host].name, at->index);
    else
        snprintf(text, SMP__SLOT_NAME, "%d", slot);
    return text;
}

int smp__slot_find(const smp__slots *s, const char *name)
{
    char text[SMP__SLOT_NAME];
    for (int i = 0; i < s->n; i++)
        if (strcmp(smp__slot_name(s, i, text), name) == 0)
            return i;
    return -1;
}

/* "5" or "0-2", to the end of the word. */
static bool read_range(const char *word, long *from, long *to)
{
    char *end;
    if (!isdigit((unsigned char)*word))
        return false;
    *from = *to = strtol(word, &end, 10);
    if (*end == '-' && isdigit((unsigned char)end[1]))
        *to = strtol(end + 1, &end, 10);
    return *end == '\0';
}

/* "h2" or "h2:0-1". false: it is no such word; SMP_ERR_INPUT: the host has no such device. */
static smp_status read_host(const smp__slots *s, const char *path, const char *word, bool *at_hand,
                            bool *found)
{
    long from = 0, to = LONG_MAX;
    *found = false;
    for (int i = 0; s->hosts && i < s->hosts->n && !*found; i++) {
        const char *name = s->hosts->host[i].name;
        const size_t length = strlen(name);
        const int devices = s->hosts->host[i].devices;
        if (strncmp(word, name, length) != 0 || (word[length] != '\0' && word[length] != ':') ||
            (word[length] == ':' && !read_range(word + length + 1, &from, &to)))
            continue;
        *found = true;
        if (word[length] == ':' && (to < from || to >= devices))
            return smp_fail(SMP_ERR_INPUT, "%s: got '%.80s', expected devices 0 to %d of host %s",
                            path, word, devices - 1, name);
        for (int k = 0; k < s->n; k++)
            if (s->slot[k].host == i && s->slot[k].index >= from && s->slot[k].index <= to)
                at_hand[k] = true;
    }
    return SMP_OK;
}

/* What a text has said so far. */
typedef struct said {
    int count; /* words */
    long most; /* the highest number */
    bool list; /* it is more than one number */
} said;

static smp_status read_word(const smp__slots *s, const char *word, bool *at_hand, said *so_far)
{
    long from = 0, to = 0;
    bool found = false;
    const char *path = s->path;
    so_far->count++;
    if (!read_range(word, &from, &to)) {
        SMP_TRY(read_host(s, path, word, at_hand, &found));
        so_far->list = true;
        return found ? SMP_OK
                     : smp_fail(SMP_ERR_INPUT,
                                "%s: got '%.40s', expected a number of devices, or slots such as "
                                "0-2,5",
                                path, word);
    }
    so_far->list = so_far->list || so_far->count > 1 || strchr(word, '-');
    so_far->most = to > so_far->most ? to : so_far->most;
    for (long i = from; i <= to && i < s->n; i++)
        at_hand[i] = true;
    return to >= from ? SMP_OK
                      : smp_fail(SMP_ERR_INPUT, "%s: got slot %ld, expected slots 0 to %d", path,
                                 to, s->n - 1);
}

/* "3", the first so many; or slots, ranges and hosts with commas or blanks between. at_hand: [n],
 * false. SMP_ERR_INPUT: neither. */
static smp_status read_slots(const smp__slots *s, const char *text, bool *at_hand)
{
    char word[SMP__SLOT_NAME + 64];
    said so_far = {.list = strchr(text, ',') != NULL};
    for (const char *at = text; *at;) {
        const size_t length = strcspn(at, ", \t\r\n\v\f");
        snprintf(word, sizeof word, "%.*s", (int)length, at);
        if (length >= sizeof word)
            return smp_fail(SMP_ERR_INPUT, "%s: got '%.40s...', expected the name of a host",
                            s->path, word);
        if (length > 0)
            SMP_TRY(read_word(s, word, at_hand, &so_far));
        at += length + (at[length] != '\0');
    }
    if (so_far.count == 0)
        return smp_fail(SMP_ERR_INPUT, "%s: says nothing; 0 says that no device is at hand",
                        s->path);
    if (so_far.list && so_far.most >= s->n)
        return smp_fail(SMP_ERR_INPUT, "%s: got slot %ld, expected slots 0 to %d", s->path,
                        so_far.most, s->n - 1);
    for (int i = 0; i < s->n && !so_far.list; i++)
        at_hand[i] = i < so_far.most;
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

/* What was left out and is named again gets another chance; so does what was slow. */
static bool forgive(smp__slots *s, const bool *at_hand)
{
    bool changed = false;
    for (int i = 0; i < s->n; i++) {
        smp__slot *at = &s->slot[i];
        if (!at_hand[i] || (!at->left_out && at->speed == 0.0))
            continue;
        if (at->left_out)
            at->failures = 0;
        at->left_out = false;
        at->speed = 0.0;
        changed = true;
    }
    return changed;
}

static bool take_text(smp__slots *s, const char *text)
{
    bool *at_hand = calloc((size_t)s->n, sizeof *at_hand), changed = false;
    if (!at_hand) /* looked at again when it changes again */
        return false;
    if (read_slots(s, text, at_hand) != SMP_OK) {
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

/* Which hosts are there. */
static bool look_at_hosts(smp__slots *s)
{
    bool changed = false;
    if (match_hosts(s) != SMP_OK) /* their slots are not known yet */
        smp__events_say("%s", smp_last_error());
    for (int i = 0; s->hosts && i < s->n; i++) {
        const bool present = smp__host_usable(&s->hosts->host[s->slot[i].host]);
        changed = changed || present != s->slot[i].present;
        if (s->slot[i].present && !present) /* nothing is known of what comes back */
            s->slot[i].speed = 0.0;
        s->slot[i].present = present;
    }
    return changed;
}

bool smp__slots_look(smp__slots *s)
{
    const bool hosts = look_at_hosts(s), changed = look(s);
    s->begun = true;
    return changed || hosts;
}

int smp__slots_count(const smp__slots *s)
{
    int n = 0;
    for (int i = 0; i < s->n; i++)
        n += smp__slot_usable(&s->slot[i]);
    return n < s->most ? n : s->most;
}

/* The slow one that is needed as the first, where rank 0 is; -1: none. */
static int slow_first(const smp__slots *s)
{
    int slow = -1;
    for (int i = 0; i < s->n; i++) {
        const smp__slot *at = &s->slot[i];
        if (!smp__slot_usable(at) || (s->hosts && !s->hosts->host[at->host].local))
            continue;
        if (at->speed == 0.0)
            return -1;
        slow = slow < 0 ? i : slow;
    }
    return slow;
}

int smp__slots_even(const smp__slots *s)
{
    int n = 0;
    for (int i = 0; i < s->n; i++)
        n += smp__slot_usable(&s->slot[i]) && s->slot[i].speed == 0.0;
    return slow_first(s) >= 0 ? 0 : n < s->most ? n : s->most;
}

void smp__slots_pick(const smp__slots *s, int n, int *picked)
{
    const int first = slow_first(s);
    int slow = n; /* of those that are slow, so many are needed */
    for (int i = 0; i < s->n; i++)
        slow -= smp__slot_usable(&s->slot[i]) && (s->slot[i].speed == 0.0 || i == first);
    for (int i = 0, k = 0; i < s->n && k < n; i++)
        if (smp__slot_usable(&s->slot[i]) && (s->slot[i].speed == 0.0 || i == first || slow-- > 0))
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
