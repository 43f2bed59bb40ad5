/* The directory of checkpoints: names, which was saved last, what is removed.
 *
 * Steps may fall (a job that begins again, a program that loads an older state and goes on), and
 * clocks of several machines differ, so neither says what was saved last: every save has a number,
 * one more than the highest that the headers in the directory have. */
#include "exec/checkpoint/checkpoint_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "exec/checkpoint/checkpoint_file.h"
#include "graph/base/text.h"

void smp__checkpoint_path(char path[SMP__CHECKPOINT_PATH_BYTES], const char *directory,
                          int64_t step)
{
    snprintf(path, SMP__CHECKPOINT_PATH_BYTES, "%.4000s/checkpoint-%010" PRId64 ".smp", directory,
             step);
}

void smp__checkpoint_part_path(char path[SMP__CHECKPOINT_PATH_BYTES], const char *directory,
                               const char *job, int64_t step)
{
    snprintf(path, SMP__CHECKPOINT_PATH_BYTES, "%.4000s/%.16s.checkpoint-%010" PRId64 ".smp.part",
             directory, job, step);
}

bool smp__checkpoint_step(const char *name, int64_t *step)
{
    char again[64];
    if (sscanf(name, "checkpoint-%10" SCNd64, step) != 1 || *step < 0)
        return false;
    snprintf(again, sizeof(again), "checkpoint-%010" PRId64 ".smp", *step);
    return strcmp(name, again) == 0;
}

bool smp__checkpoint_exists(const char *directory)
{
    DIR *d = opendir(directory);
    bool found = false;
    int64_t step;
    for (struct dirent *entry; d && !found && (entry = readdir(d));)
        found = smp__checkpoint_step(entry->d_name, &step);
    if (d)
        closedir(d);
    return found;
}

static smp__saved read_saved(const char *directory, int64_t step)
{
    char path[SMP__CHECKPOINT_PATH_BYTES];
    smp__checkpoint_path(path, directory, step);
    smp__checkpoint_header header;
    int fd = -1;
    int64_t bytes;
    bool known = smp_file_open(path, &fd, &bytes) == SMP_OK &&
                 smp__checkpoint_header_read(fd, path, &header) == SMP_OK &&
                 header.version <= SMP__CHECKPOINT_VERSION;
    if (fd >= 0)
        close(fd);
    return (smp__saved){.step = step,
                        .saved = known ? header.saved : INT64_MAX,
                        .loss = known && header.evaluated ? header.eval_loss : INFINITY};
}

static int last_saved_first(const void *a, const void *b)
{
    const smp__saved *x = a, *y = b;
    if (x->saved != y->saved)
        return x->saved < y->saved ? 1 : -1;
    return (x->step < y->step) - (x->step > y->step);
}

smp_status smp__checkpoint_list(const char *directory, smp__saved **list, int *n)
{
    DIR *d = opendir(directory);
    if (!d)
        return smp_fail(SMP_ERR_INPUT, "%s: cannot read the checkpoint directory: %s", directory,
                        strerror(errno));
    smp__saved *found = NULL;
    int count = 0;
    smp_status status = SMP_OK;
    int64_t step;
    for (struct dirent *entry; status == SMP_OK && (entry = readdir(d));) {
        if (!smp__checkpoint_step(entry->d_name, &step))
            continue;
        smp__saved *more = realloc(found, ((size_t)count + 1) * sizeof(*found));
        if (more) {
            found = more;
            found[count++] = read_saved(directory, step);
        } else {
            status = smp_fail_memory(((size_t)count + 1) * sizeof(*found));
        }
    }
    closedir(d);
    if (status != SMP_OK) {
        free(found);
        return status;
    }
    if (count > 0)
        qsort(found, (size_t)count, sizeof(*found), last_saved_first);
    *list = found;
    *n = count;
    return SMP_OK;
}

int smp__checkpoint_best(const smp__saved *list, int n)
{
    int best = -1;
    for (int i = 0; i < n; i++) /* what was saved first stands last */
        if (isfinite(list[i].loss) && (best < 0 || list[i].loss <= list[best].loss))
            best = i;
    return best;
}

const smp__saved *smp__checkpoint_last(const smp__saved *list, int n)
{
    int i = 0;
    while (i < n && list[i].saved == INT64_MAX)
        i++;
    return i < n ? &list[i] : NULL;
}

smp_status smp__checkpoint_next(const char *directory, int64_t *saved)
{
    smp__saved *list = NULL;
    int n = 0;
    SMP_TRY(smp__checkpoint_list(directory, &list, &n));
    const smp__saved *last = smp__checkpoint_last(list, n);
    *saved = last ? last->saved + 1 : 1;
    free(list);
    return SMP_OK;
}

smp_status smp__checkpoint_folder_make(const char *directory)
{
    if (mkdir(directory, 0777) != 0)
        return errno == EEXIST ? SMP_OK
                               : smp_fail(SMP_ERR_INPUT, "%s: cannot create the directory: %s",
                                          directory, strerror(errno));
    char parent[SMP__CHECKPOINT_PATH_BYTES];
    snprintf(parent, sizeof(parent), "%.4000s/..", directory);
    smp_status status = smp__checkpoint_folder_sync(parent);
    if (status != SMP_OK)
        rmdir(directory); /* so that the next attempt syncs, too */
    return status;
}

smp_status smp__checkpoint_folder_sync(const char *directory)
{
    int fd = open(directory, O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        return smp_fail(SMP_ERR_FAILED, "%s: cannot open to sync: %s", directory, strerror(errno));
    smp_status status = smp__checkpoint_sync(fd, directory);
    close(fd);
    return status;
}

/* "0123456789abcdef.checkpoint-0000000004.smp.part", or, of older programs, without the job. */
static bool parse_part(const char *name)
{
    char whole[64];
    int64_t step;
    if (strspn(name, "0123456789abcdef") == 16 && name[16] == '.')
        name += 17;
    const size_t length = strlen(name), end = sizeof ".part" - 1;
    if (length < end || length - end >= sizeof whole || strcmp(name + length - end, ".part") != 0)
        return false;
    snprintf(whole, sizeof whole, "%.*s", (int)(length - end), name);
    return smp__checkpoint_step(whole, &step);
}

/* What jobs that died while they saved have left: a directory has one save at a time. */
static smp_status remove_parts(const char *directory)
{
    DIR *d = opendir(directory);
    smp_status status = SMP_OK;
    if (!d)
        return smp_fail(SMP_ERR_FAILED, "%s: cannot read the checkpoint directory: %s", directory,
                        strerror(errno));
    for (struct dirent *entry; status == SMP_OK && (entry = readdir(d));) {
        if (!parse_part(entry->d_name))
            continue;
        char path[SMP__CHECKPOINT_PATH_BYTES + 256];
        snprintf(path, sizeof(path), "%.4000s/%s", directory, entry->d_name);
        if (unlink(path) != 0)
            status = smp_fail(SMP_ERR_FAILED, "%s: cannot remove: %s", path, strerror(errno));
    }
    closedir(d);
    return status;
}

smp_status smp__checkpoint_prune(const char *directory, int keep)
{
    smp__saved *list = NULL;
    int n = 0, kept = 0;
    smp_status status = smp__checkpoint_list(directory, &list, &n);
    const int best = status == SMP_OK ? smp__checkpoint_best(list, n) : -1;
    for (int i = 0; i < n && status == SMP_OK; i++) {
        if (list[i].saved == INT64_MAX || kept++ < keep || i == best)
            continue;
        char path[SMP__CHECKPOINT_PATH_BYTES];
        smp__checkpoint_path(path, directory, list[i].step);
        if (unlink(path) != 0)
            status = smp_fail(SMP_ERR_FAILED, "%s: cannot remove: %s", path, strerror(errno));
    }
    free(list);
    return status == SMP_OK ? remove_parts(directory) : status;
}

smp_status smp__checkpoint_receipt(const char *path, char receipt[SMP__RECEIPT_BYTES])
{
    smp__checkpoint_header header = {0};
    int fd;
    int64_t bytes;
    SMP_TRY(smp_file_open(path, &fd, &bytes));
    const smp_status status = smp__checkpoint_header_read(fd, path, &header);
    close(fd);
    if (status == SMP_OK)
        memcpy(receipt, header.receipt, SMP__RECEIPT_BYTES);
    return status;
}

smp_status smp__checkpoint_find_receipt(const char *directory, bool best, bool *found,
                                        char receipt[SMP__RECEIPT_BYTES])
{
    smp__saved *list = NULL;
    int n = 0;
    receipt[0] = '\0';
    *found = false;
    if (!smp__checkpoint_exists(directory))
        return SMP_OK;
    SMP_TRY(smp__checkpoint_list(directory, &list, &n));
    *found = n > 0;
    const int first = best ? smp__checkpoint_best(list, n) : 0, end = best ? first + 1 : n;
    for (int i = first < 0 ? end : first; i < end; i++) {
        char path[SMP__CHECKPOINT_PATH_BYTES];
        smp__checkpoint_path(path, directory, list[i].step);
        if (smp__checkpoint_receipt(path, receipt) ==
            SMP_OK) /* else passed over, as when it is loaded */
            break;
    }
    free(list);
    return SMP_OK;
}

const char *smp__receipt_value(const char *receipt, const char *word, size_t *length)
{
    const size_t n = strlen(word);
    const char *line = receipt && *receipt == '\n' ? receipt + 1 : receipt;
    for (const char *end; line && (end = strchr(line, '\n')); line = end + 1)
        if (strncmp(line, word, n) == 0 && line[n] == ' ') {
            *length = (size_t)(end - line) - n - 1;
            return line + n + 1;
        }
    return NULL;
}
