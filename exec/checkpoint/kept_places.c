/* What places hold, and their memory; see the header. */
#define _GNU_SOURCE /* fallocate */
#include "exec/checkpoint/kept_places.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "exec/checkpoint/checkpoint_file.h"
#include "graph/base/text.h"

/* Of the machine; INT64_MAX: not known. */
static int64_t available_memory(void)
{
    char line[256];
    int64_t kilobytes = -1;
    FILE *file = fopen("/proc/meminfo", "re");
    while (file && kilobytes < 0 && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %" SCNd64, &kilobytes) != 1)
            kilobytes = -1;
    if (file)
        fclose(file);
    return kilobytes < 0 ? INT64_MAX : kilobytes * 1024;
}

/* What a file system has room for; of one in memory, what the machine has too. */
static int64_t room_in(int directory)
{
    struct statvfs room;
    struct statfs kind;
    if (fstatvfs(directory, &room) != 0)
        return INT64_MAX; /* allocating finds out */
    const int64_t left = room.f_blocks > 0 ? (int64_t)room.f_bavail * (int64_t)room.f_frsize
                                           : INT64_MAX; /* 0: without a limit */
    if (fstatfs(directory, &kind) != 0 || kind.f_type != TMPFS_MAGIC)
        return left;
    const int64_t memory = available_memory();
    return memory < left ? memory : left;
}

/* What a place has to get. What lies in one that holds nothing is used again. */
static smp_status count_missing(const smp__kept_folder *f, int place, const smp__spans *spans,
                                int64_t *missing)
{
    smp__kept_state here = {.step = -1};
    smp__spans more = {0};
    struct stat info = {.st_blocks = 0};
    smp_status status = smp__kept_look(f, place, &here);
    if (status == SMP_OK)
        status = smp__spans_without(spans, &here.spans, &more);
    int64_t bytes = smp__spans_bytes(&more);
    if (here.step < 0 && fstat(f->file[place], &info) == 0)
        bytes -= (int64_t)info.st_blocks * 512;
    *missing += bytes > 0 ? bytes : 0;
    smp__spans_free(&more);
    smp__kept_state_free(&here);
    return status;
}

smp_status smp__kept_check_room(const smp__kept_folder *f, const smp__spans *spans)
{
    char wanted[32], free_text[32];
    int64_t missing = 0;
    for (int i = 0; i < SMP__KEPT_PLACES; i++)
        SMP_TRY(count_missing(f, i, spans, &missing));
    const int64_t left = room_in(f->directory), bytes = smp__spans_bytes(spans);
    if (left >= missing)
        return SMP_OK;
    return smp_fail(SMP_ERR_FAILED,
                    "%s: to keep states takes %d x %s there, %s of them are free (%" PRId64
                    " bytes wanted, %" PRId64 " free)",
                    f->path, SMP__KEPT_PLACES, smp_format_bytes(wanted, sizeof wanted, bytes),
                    smp_format_bytes(free_text, sizeof free_text, left), missing, left);
}

static smp_status allocate_span(const smp__kept_folder *f, int place, smp__span span)
{
    char text[32];
    int error;
    do
        error = posix_fallocate(f->file[place], span.begin, span.end - span.begin);
    while (error == EINTR);
    if (error == 0)
        return SMP_OK;
    return smp_fail(SMP_ERR_FAILED, "%s/place-%d: %s cannot be allocated: %s", f->path, place,
                    smp_format_bytes(text, sizeof text, span.end - span.begin), strerror(error));
}

/* As smp__kept_check_room, of one place: for what comes from another machine. */
static smp_status check_place(const smp__kept_folder *f, int place, const smp__spans *spans)
{
    char wanted[32], free_text[32];
    int64_t missing = 0;
    SMP_TRY(count_missing(f, place, spans, &missing));
    const int64_t left = room_in(f->directory);
    if (left >= missing)
        return SMP_OK;
    return smp_fail(SMP_ERR_FAILED, "%s/place-%d: a state takes %s more there, %s are free",
                    f->path, place, smp_format_bytes(wanted, sizeof wanted, missing),
                    smp_format_bytes(free_text, sizeof free_text, left));
}

smp_status smp__kept_allocate(const smp__kept_folder *f, int place, const smp__spans *spans)
{
    char path[SMP__CHECKPOINT_PATH_BYTES];
    SMP_TRY(check_place(f, place, spans));
    for (int32_t i = 0; i < spans->n; i++)
        SMP_TRY(allocate_span(f, place, spans->at[i]));
    snprintf(path, sizeof path, "%.4000s/ranges-%d", f->path, place);
    return smp__kept_index_reserve(f->index[place], spans->n, path);
}

void smp__kept_trim(const smp__kept_folder *f, int place, const smp__spans *spans)
{
    struct stat info;
    int64_t at = 0;
    if (fstat(f->file[place], &info) != 0)
        return;
    for (int32_t i = 0; i <= spans->n; i++) {
        const int64_t end = i < spans->n ? spans->at[i].begin : (int64_t)info.st_size;
        if (at < end)
            (void)!fallocate(f->file[place], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at,
                             end - at);
        at = i < spans->n ? spans->at[i].end : at;
    }
}

/* What has a name without saying more is a state of one machine: all of it. */
static smp_status look_at_whole(const smp__kept_folder *f, int place, smp__kept_state *out)
{
    struct stat info;
    smp__checkpoint_header header;
    char path[SMP__CHECKPOINT_PATH_BYTES];
    if (fstat(f->file[place], &info) != 0)
        return SMP_OK;
    smp__checkpoint_path(path, f->path, f->step[place]);
    const bool known = smp__checkpoint_header_read(f->file[place], path, &header) == SMP_OK;
    *out = (smp__kept_state){
        .step = f->step[place], .number = known ? header.saved : INT64_MAX, .bytes = info.st_size};
    return smp__spans_add(&out->spans, 0, info.st_size);
}

smp_status smp__kept_look(const smp__kept_folder *f, int place, smp__kept_state *out)
{
    struct stat info;
    const int64_t named = f->step[place];
    *out = (smp__kept_state){.step = -1};
    if (f->file[place] < 0)
        return SMP_OK;
    if (!smp__kept_index_read(f->index[place], out) || fstat(f->file[place], &info) != 0 ||
        out->bytes != info.st_size || (named >= 0 && named != out->step))
        smp__kept_state_free(out);
    if (out->step < 0)
        smp__kept_state_free(out);
    if (named >= 0 && out->step < 0)
        SMP_TRY(look_at_whole(f, place, out));
    out->named = named >= 0;
    out->place = place;
    return SMP_OK;
}

static bool are_alike(const smp__spans *a, const smp__spans *b)
{
    return a->n == b->n && (a->n == 0 || memcmp(a->at, b->at, (size_t)a->n * sizeof *a->at) == 0);
}

static smp_status write_index(const smp__kept_folder *f, int place, const smp__kept_state *state,
                              bool trims)
{
    smp__kept_state here = {.step = -1};
    char path[SMP__CHECKPOINT_PATH_BYTES];
    snprintf(path, sizeof path, "%.4000s/ranges-%d", f->path, place);
    const bool known = smp__kept_index_read(f->index[place], &here);
    const bool differ = state && (!known || !are_alike(&here.spans, &state->spans));
    here.step = -1;
    if (differ && trims)
        smp__kept_trim(f, place, &state->spans);
    const smp_status status =
        smp__kept_index_write(f->index[place], state ? state : &here, differ, path);
    smp__kept_state_free(&here);
    return status;
}

smp_status smp__kept_claim(const smp__kept_folder *f, int place, const smp__kept_state *state)
{
    return write_index(f, place, state, true);
}

smp_status smp__kept_extend(const smp__kept_folder *f, int place, const smp__kept_state *state)
{
    return write_index(f, place, state, false);
}
