/* Checkpoints: one file per saved step, "checkpoint-0000000020.smp", in a directory that all ranks
 * see. Layout: a text header of HEADER_BYTES (magic, model, fingerprint, step, optimizer, number of
 * states), then for every weight of the model in its order the values and each optimizer state, all
 * as native floats, and a hash of them. Nothing in it depends on the plan.
 *
 * The file is written under a temporary name by the owners of the weights, each at its own offset,
 * synced, and renamed when every rank is done: a file with the final name is complete. The two
 * newest are kept. */
#include "exec/state/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "exec/state/device_wait.h"
#include "exec/state/weights.h"

enum { HEADER_BYTES = 4096, HASH_BYTES = 8, PATH_BYTES = 4096, KEEP = 2 };

static const char magic[] = "SMP checkpoint 1\n";

static int64_t param_offset(const smp *s, int32_t param)
{
    int64_t elements = 0;
    for (int32_t i = 0; i < param; i++)
        elements += s->graph->param[i].elements;
    return HEADER_BYTES + elements * (1 + smp__job_states(s)) * (int64_t)sizeof(float) +
           (int64_t)param * HASH_BYTES;
}

static smp_status transfer_all(int fd, void *data, int64_t bytes, int64_t offset, bool writing,
                               const char *path)
{
    char *at = data;
    while (bytes > 0) {
        size_t piece = bytes > (1 << 30) ? (size_t)1 << 30 : (size_t)bytes;
        ssize_t done = writing ? pwrite(fd, at, piece, offset) : pread(fd, at, piece, offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return smp_fail(SMP_ERR_FAILED, "%s: cannot %s: %s", path, writing ? "write" : "read",
                            done < 0 ? strerror(errno) : "the file ends early");
        at += done;
        offset += done;
        bytes -= done;
    }
    return SMP_OK;
}

/* One array of the arena to or from the file, and into the hash. */
static smp_status transfer_array(smp *s, char *array, int64_t bytes, int fd, int64_t offset,
                                 bool writing, const char *path, uint64_t *hash)
{
    const void *values = array;
    void *copy = NULL;
    smp_status status = SMP_OK;
    if (writing) {
        SMP_TRY(smp__copy_view(s, array, bytes, &values, &copy));
        status = transfer_all(fd, (void *)values, bytes, offset, true, path);
    } else if (s->device->host_memory) {
        status = transfer_all(fd, array, bytes, offset, false, path);
    } else {
        values = copy = malloc((size_t)bytes + 1);
        status = copy ? transfer_all(fd, copy, bytes, offset, false, path)
                      : smp_fail_memory((size_t)bytes);
        if (status == SMP_OK)
            status = smp__copy_in(s, array, copy, bytes);
    }
    if (status == SMP_OK)
        *hash = smp_hash(*hash, values, (size_t)bytes);
    free(copy);
    return status;
}

/* Values, states and hash of one weight. */
static smp_status transfer_weight(smp *s, const smp_memory_param *param, int fd, bool writing,
                                  const char *path)
{
    int64_t bytes = s->graph->param[param->param].elements * (int64_t)sizeof(float);
    int64_t offset = param_offset(s, param->param);
    uint64_t hash = 0, stored = 0;
    for (int k = 0; k <= smp__job_states(s); k++, offset += bytes)
        SMP_TRY(transfer_array(s, s->arena + (k == 0 ? param->weight : param->state[k - 1]), bytes,
                               fd, offset, writing, path, &hash));
    if (writing)
        return transfer_all(fd, &hash, HASH_BYTES, offset, true, path);
    SMP_TRY(transfer_all(fd, &stored, HASH_BYTES, offset, false, path));
    if (stored != hash)
        return smp_fail(SMP_ERR_INPUT, "%s: weight '%s' is damaged", path,
                        s->graph->param[param->param].name);
    return SMP_OK;
}

/* The weights held here; when writing only those this rank owns. */
static smp_status transfer_weights(smp *s, int fd, bool writing, const char *path)
{
    for (int32_t i = 0; i < s->memory->n_param; i++) {
        const smp_memory_param *param = &s->memory->param[i];
        if (!writing || (param->owner && s->comm.replica == 0))
            SMP_TRY(transfer_weight(s, param, fd, writing, path));
    }
    return writing ? SMP_OK : smp__weights_round(s);
}

static smp_status create_file(smp *s, const char *directory, const char *path)
{
    if (mkdir(directory, 0777) != 0 && errno != EEXIST)
        return smp_fail(SMP_ERR_FAILED, "%s: cannot create the directory: %s", directory,
                        strerror(errno));
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0666);
    if (fd < 0)
        return smp_fail(SMP_ERR_FAILED, "%s: cannot create: %s", path, strerror(errno));
    char header[HEADER_BYTES] = "";
    snprintf(header, sizeof(header),
             "%smodel %s\nfingerprint %016" PRIx64 "\nstep %" PRId64 "\noptimizer %s\nstates %d\n",
             magic, s->graph->name, s->graph->fingerprint, s->step, s->optimizer->name,
             smp__job_states(s));
    smp_status status = transfer_all(fd, header, HEADER_BYTES, 0, true, path);
    if (status == SMP_OK && ftruncate(fd, param_offset(s, s->graph->n_param)) != 0)
        status = smp_fail(SMP_ERR_FAILED, "%s: cannot extend: %s", path, strerror(errno));
    close(fd);
    return status;
}

static smp_status write_own(smp *s, const char *path)
{
    int fd = open(path, O_WRONLY);
    if (fd < 0)
        return smp_fail(SMP_ERR_FAILED, "%s: cannot open: %s", path, strerror(errno));
    smp_status status = transfer_weights(s, fd, true, path);
    if (status == SMP_OK && fsync(fd) != 0)
        status = smp_fail(SMP_ERR_FAILED, "%s: cannot sync: %s", path, strerror(errno));
    if (close(fd) != 0 && status == SMP_OK)
        status = smp_fail(SMP_ERR_FAILED, "%s: cannot close: %s", path, strerror(errno));
    return status;
}

static void file_name(char *buffer, const char *directory, int64_t step)
{
    snprintf(buffer, PATH_BYTES, "%.4000s/checkpoint-%010" PRId64 ".smp", directory, step);
}

static bool parse_name(const char *name, int64_t *step)
{
    char again[64];
    if (sscanf(name, "checkpoint-%10" SCNd64, step) != 1)
        return false;
    snprintf(again, sizeof(again), "checkpoint-%010" PRId64 ".smp", *step);
    return strcmp(name, again) == 0;
}

/* The newest step in the directory that is below `limit`, -1 if there is none. */
static smp_status newest_below(const char *directory, int64_t limit, int64_t *newest)
{
    DIR *d = opendir(directory);
    if (!d)
        return smp_fail(SMP_ERR_INPUT, "%s: cannot read the checkpoint directory: %s", directory,
                        strerror(errno));
    *newest = -1;
    int64_t step;
    for (struct dirent *entry; (entry = readdir(d));)
        if (parse_name(entry->d_name, &step) && step < limit && step > *newest)
            *newest = step;
    closedir(d);
    return SMP_OK;
}

/* Keeps the file just written and the KEEP - 1 before it. */
static smp_status prune(const char *directory, int64_t saved)
{
    int64_t step = saved;
    for (int kept = 1; kept < KEEP && step >= 0; kept++)
        SMP_TRY(newest_below(directory, step, &step));
    while (step >= 0) {
        SMP_TRY(newest_below(directory, step, &step));
        char path[PATH_BYTES];
        file_name(path, directory, step);
        if (step >= 0 && unlink(path) != 0)
            return smp_fail(SMP_ERR_FAILED, "%s: cannot remove: %s", path, strerror(errno));
    }
    return SMP_OK;
}

static smp_status finish_file(const char *directory, const char *temporary, const char *path,
                              int64_t step)
{
    if (rename(temporary, path) != 0)
        return smp_fail(SMP_ERR_FAILED, "%s: cannot rename: %s", temporary, strerror(errno));
    int fd = open(directory, O_RDONLY | O_DIRECTORY); /* the rename itself must survive too */
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    return prune(directory, step);
}

smp_status smp_save(smp *s, const char *path)
{
    if (!s || !path)
        return smp_fail(SMP_ERR_INPUT, "smp_save: a NULL argument");
    SMP_TRY(smp__job_usable(s));
    SMP_TRY(
        smp__comm_agree(&s->comm, smp_fail_context(smp__weights_check(s), "%s: not saved", path)));
    char final[PATH_BYTES], temporary[PATH_BYTES + 8];
    file_name(final, path, s->step);
    snprintf(temporary, sizeof(temporary), "%s.part", final);
    bool first = s->comm.world_rank == 0;
    smp_status status = smp__comm_agree(&s->comm, first ? create_file(s, path, temporary) : SMP_OK);
    if (status == SMP_OK)
        status = smp__comm_agree(&s->comm, s->comm.replica == 0 ? write_own(s, temporary) : SMP_OK);
    if (status == SMP_OK)
        status = smp__comm_agree(&s->comm,
                                 first ? finish_file(path, temporary, final, s->step) : SMP_OK);
    if (status != SMP_OK && first)
        unlink(temporary);
    return status;
}

static smp_status check_header(const smp *s, int fd, const char *path, int64_t *step)
{
    char header[HEADER_BYTES + 1] = "";
    SMP_TRY(transfer_all(fd, header, HEADER_BYTES, 0, false, path));
    char optimizer[64] = "";
    uint64_t fingerprint = 0;
    int states = -1;
    const char *at = strstr(header, "\nfingerprint ");
    if (strncmp(header, magic, strlen(magic)) != 0 || !at ||
        sscanf(at, " fingerprint %" SCNx64 " step %" SCNd64 " optimizer %63s states %d",
               &fingerprint, step, optimizer, &states) != 4 ||
        *step < 0)
        return smp_fail(SMP_ERR_INPUT, "%s: not a checkpoint of this version", path);
    if (fingerprint != s->graph->fingerprint)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: is of another model (fingerprint %016" PRIx64
                        ", this model has %016" PRIx64 ")",
                        path, fingerprint, s->graph->fingerprint);
    if (strcmp(optimizer, s->optimizer->name) != 0 || states != smp__job_states(s))
        return smp_fail(SMP_ERR_INPUT, "%s: has the state of optimizer %s, not of %s", path,
                        optimizer, s->optimizer->name);
    struct stat info;
    int64_t bytes = param_offset(s, s->graph->n_param);
    if (fstat(fd, &info) != 0 || info.st_size != bytes)
        return smp_fail(SMP_ERR_INPUT, "%s: has %lld bytes, expected %lld", path,
                        (long long)info.st_size, (long long)bytes);
    return SMP_OK;
}

/* Rank 0 chooses, so that all ranks read the same file. */
static smp_status choose(smp *s, const char *directory, int64_t *step)
{
    smp_status status = SMP_OK;
    int64_t newest = -1;
    if (s->comm.world_rank == 0)
        status = newest_below(directory, INT64_MAX, &newest);
    if (status == SMP_OK && s->comm.world_rank == 0 && newest < 0)
        status = smp_fail(SMP_ERR_INPUT, "%s: holds no checkpoint", directory);
    SMP_TRY(smp__comm_agree(&s->comm, status));
    s->result[0] = s->comm.world_rank == 0 ? (double)newest : 0.0; /* below 2^53: exact */
    SMP_TRY(smp__comm_sum(&s->comm, s->result, 1));
    *step = (int64_t)s->result[0];
    return SMP_OK;
}

smp_status smp_load(smp *s, const char *path)
{
    if (!s || !path)
        return smp_fail(SMP_ERR_INPUT, "smp_load: a NULL argument");
    SMP_TRY(smp__job_usable(s));
    int64_t newest = 0, step = 0;
    SMP_TRY(choose(s, path, &newest));
    char file[PATH_BYTES];
    file_name(file, path, newest);
    smp_status status = SMP_OK;
    int fd = open(file, O_RDONLY);
    if (fd < 0)
        status = smp_fail(SMP_ERR_INPUT, "%s: cannot open: %s", file, strerror(errno));
    else
        status = check_header(s, fd, file, &step);
    status = smp__comm_agree(&s->comm, status);
    if (status == SMP_OK) {
        status = smp__comm_agree(&s->comm, transfer_weights(s, fd, false, file));
        s->broken = status != SMP_OK; /* some weights are new, some old */
    }
    if (fd >= 0)
        close(fd);
    if (status == SMP_OK)
        s->step = step;
    return status;
}

bool smp__checkpoint_exists(const char *path)
{
    int64_t newest = -1;
    struct stat info;
    return stat(path, &info) == 0 && newest_below(path, INT64_MAX, &newest) == SMP_OK &&
           newest >= 0;
}
