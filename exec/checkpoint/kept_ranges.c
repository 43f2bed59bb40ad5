/* States on several machines; see the header. The index of a place is, in the bytes of the machine,
 * a head with a hash, and spans. Its head is within a page, and written at once: a process that is
 * killed has written all of it or nothing. */
#include "exec/checkpoint/kept_ranges.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "exec/checkpoint/checkpoint_file.h"

#define MAGIC "SMPSPAN2"
enum { HEAD_BYTES = 128, MOST_SPANS = 1 << 26 };

typedef struct index_head {
    char magic[8];
    uint64_t id;
    int64_t branch, step, number, begun, bytes, n;
    uint64_t spans_hash, hash; /* of what stands before it */
} index_head;
_Static_assert(sizeof(index_head) <= HEAD_BYTES, "spans come after it");

void smp__kept_state_free(smp__kept_state *state)
{
    smp__spans_free(&state->spans);
    *state = (smp__kept_state){.step = -1};
}

void smp__kept_states_free(smp__kept_state *states, int n)
{
    for (int i = 0; states && i < n; i++)
        smp__spans_free(&states[i].spans);
    free(states);
}

static uint64_t head_hash(const index_head *head)
{
    return smp_hash(0, head, offsetof(index_head, hash));
}

static smp_status put_head(int file, const smp__kept_state *state, int64_t step, const char *path)
{
    const size_t bytes = (size_t)state->spans.n * sizeof(smp__span);
    index_head head = {.magic = MAGIC,
                       .id = state->id,
                       .branch = state->branch,
                       .step = step,
                       .number = state->number,
                       .begun = state->begun,
                       .bytes = state->bytes,
                       .n = state->spans.n,
                       .spans_hash = smp_hash(0, bytes > 0 ? (void *)state->spans.at : "", bytes)};
    head.hash = head_hash(&head);
    return smp__checkpoint_transfer(file, &head, sizeof head, 0, true, path);
}

smp_status smp__kept_index_write(int file, const smp__kept_state *state, bool spans_differ,
                                 const char *path)
{
    if (spans_differ) {
        SMP_TRY(put_head(file, state, -1, path));
        SMP_TRY(smp__checkpoint_transfer(file, state->spans.at,
                                         state->spans.n * (int64_t)sizeof(smp__span), HEAD_BYTES,
                                         true, path));
    }
    return put_head(file, state, state->step, path);
}

smp_status smp__kept_index_reserve(int file, int32_t spans, const char *path)
{
    int error;
    do
        error = posix_fallocate(file, 0, HEAD_BYTES + spans * (off_t)sizeof(smp__span));
    while (error == EINTR);
    if (error == 0)
        return SMP_OK;
    return smp_fail(SMP_ERR_FAILED, "%s: cannot be allocated: %s", path, strerror(error));
}

static bool is_sound(const index_head *head)
{
    const int64_t most = INT64_C(1) << 53;
    return memcmp(head->magic, MAGIC, sizeof head->magic) == 0 && head->hash == head_hash(head) &&
           head->branch >= 0 && head->branch <= most && head->step >= -1 && head->step <= most &&
           head->number >= 0 && head->number <= most && head->begun >= 0 && head->begun <= most &&
           head->bytes >= 0 && head->n >= 0 && head->n <= MOST_SPANS;
}

static bool read_spans(int file, const index_head *head, smp__spans *out)
{
    struct stat info;
    const int64_t bytes = head->n * (int64_t)sizeof(smp__span);
    if (fstat(file, &info) != 0 || info.st_size < HEAD_BYTES + bytes ||
        !(out->at = malloc((size_t)bytes + 1)))
        return false;
    out->n = out->room = (int32_t)head->n;
    return smp__checkpoint_transfer(file, out->at, bytes, HEAD_BYTES, false, "") == SMP_OK &&
           head->spans_hash == smp_hash(0, out->at, (size_t)bytes) &&
           smp__spans_are_set(out->at, out->n, head->bytes);
}

bool smp__kept_index_read(int file, smp__kept_state *out)
{
    index_head head;
    smp__spans spans = {0};
    if (file < 0 || pread(file, &head, sizeof head, 0) != (ssize_t)sizeof head ||
        !is_sound(&head) || !read_spans(file, &head, &spans)) {
        smp__spans_free(&spans);
        return false;
    }
    *out = (smp__kept_state){.id = head.id,
                             .branch = head.branch,
                             .step = head.step,
                             .number = head.number,
                             .begun = head.begun,
                             .bytes = head.bytes,
                             .spans = spans};
    return true;
}

void smp__kept_state_print(const smp__kept_state *state, smp_text *line)
{
    smp_text_append(line,
                    "%016" PRIx64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64
                    " %d %d %" PRId32,
                    state->id, state->branch, state->step, state->number, state->begun,
                    state->bytes, state->named, state->place, state->spans.n);
    for (int32_t i = 0; i < state->spans.n; i++)
        smp_text_append(line, " %" PRId64 "-%" PRId64, state->spans.at[i].begin,
                        state->spans.at[i].end);
}

/* A number and what has to follow it. */
static bool take_number(const char **at, char after, int64_t *number)
{
    char *end;
    if (**at < '0' || **at > '9')
        return false;
    errno = 0;
    const long long value = strtoll(*at, &end, 10);
    if (errno != 0 || (*end != after && *end != '\0'))
        return false;
    *at = *end == '\0' ? end : end + 1;
    *number = value;
    return true;
}

static bool take_spans(const char *at, int64_t n, smp__kept_state *out)
{
    smp__span *span;
    if (n < 0 || n > MOST_SPANS || (size_t)n > strlen(at) || /* each takes more */
        !(out->spans.at = malloc((size_t)n * sizeof *span + 1)))
        return false;
    out->spans.room = (int32_t)n;
    for (out->spans.n = 0; out->spans.n < n; out->spans.n++) {
        span = &out->spans.at[out->spans.n];
        if (!take_number(&at, '-', &span->begin) || !take_number(&at, ' ', &span->end))
            return false;
    }
    return *at == '\0' && smp__spans_are_set(out->spans.at, n, out->bytes);
}

bool smp__kept_state_parse(const char *line, smp__kept_state *out)
{
    smp__kept_state s = {.id = 0};
    int64_t named, place, n;
    char *end;
    s.id = strtoull(line, &end, 16);
    const char *at = end == line + 16 && *end == ' ' ? end + 1 : "";
    if (!take_number(&at, ' ', &s.branch) || !take_number(&at, ' ', &s.step) ||
        !take_number(&at, ' ', &s.number) || !take_number(&at, ' ', &s.begun) ||
        !take_number(&at, ' ', &s.bytes) || !take_number(&at, ' ', &named) ||
        !take_number(&at, ' ', &place) || !take_number(&at, ' ', &n) || named > 1 ||
        place >= SMP__KEPT_PLACES || !take_spans(at, n, &s)) {
        smp__spans_free(&s.spans);
        return false;
    }
    s.named = named == 1;
    s.place = (int)place;
    *out = s;
    return true;
}

smp_status smp__kept_states_parse(char *text, int machines, smp__kept_state **states, int *n)
{
    size_t most = 0;
    for (const char *at = text; (at = strchr(at, '\n')); at++)
        most++;
    *n = 0;
    *states = calloc(most + 1, sizeof **states);
    if (!*states)
        return smp_fail_memory(most * sizeof **states);
    for (char *rest = text, *line; (line = strsep(&rest, "\n")) && *line;) {
        char *of;
        const long machine = strtol(line, &of, 10);
        if (machine < 0 || machine >= machines || *of != ' ' ||
            !smp__kept_state_parse(of + 1, *states + *n))
            return smp_fail(SMP_ERR_FAILED, "machine %ld says what it has kept amiss", machine);
        (*states)[(*n)++].machine = (int)machine;
    }
    return SMP_OK;
}

bool smp__kept_same(const smp__kept_state *a, const smp__kept_state *b)
{
    return a->id == b->id && a->step == b->step && a->bytes == b->bytes;
}

bool smp__kept_is_after(const smp__kept_state *state, int64_t number, int64_t step)
{
    if (state->number != number)
        return state->number > number;
    return state->begun == 0 || state->begun == step;
}

/* Those of its kind from it on: has one a name, and do they have all bytes? */
static smp_status is_complete(const smp__kept_state *states, int n, int first, bool *complete)
{
    smp__spans all = {0};
    bool named = false;
    smp_status status = SMP_OK;
    for (int i = first; i < n && status == SMP_OK; i++) {
        if (!smp__kept_same(&states[first], &states[i]))
            continue;
        named = named || states[i].named;
        for (int32_t k = 0; k < states[i].spans.n && status == SMP_OK; k++)
            status = smp__spans_add(&all, states[i].spans.at[k].begin, states[i].spans.at[k].end);
    }
    smp__spans_join(&all);
    *complete = status == SMP_OK && named && smp__spans_cover(&all, 0, states[first].bytes);
    smp__spans_free(&all);
    return status;
}

bool smp__kept_is_better(const smp__kept_state *a, const smp__kept_state *b)
{
    const bool a_unread = a->number == INT64_MAX, b_unread = b->number == INT64_MAX;
    if (a_unread != b_unread)
        return a_unread;
    if (a->branch != b->branch)
        return a->branch > b->branch;
    return a->number != b->number ? a->number > b->number : a->step > b->step;
}

smp_status smp__kept_choose(const smp__kept_state *states, int n, int *chosen, int *n_chosen)
{
    *n_chosen = 0;
    for (int i = 0; i < n; i++) {
        bool complete = false;
        int before = 0, at = *n_chosen;
        while (before < i && !smp__kept_same(&states[before], &states[i]))
            before++;
        if (before < i || states[i].step < 0)
            continue;
        SMP_TRY(is_complete(states, n, i, &complete));
        if (!complete)
            continue;
        for (; at > 0 && smp__kept_is_better(&states[i], &states[chosen[at - 1]]); at--)
            chosen[at] = chosen[at - 1];
        chosen[at] = i;
        ++*n_chosen;
    }
    return SMP_OK;
}
