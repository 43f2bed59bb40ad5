/* A folder of kept states: exec/checkpoint/kept_folder.h. Files: place-0 .. place-2; to each of
 * them a second link, called free-0 .. free-2 or as a checkpoint; ranges-0 .. ranges-2, which say
 * what lies in them (kept_ranges.h); beat-RANK (heartbeat.h). A place gets and loses the name of a
 * checkpoint by a rename of that link. A new link would take an inode of the tmpfs, which may have
 * none left. */
#define _GNU_SOURCE /* renameat2 */
#include "exec/checkpoint/kept_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "exec/checkpoint/checkpoint_file.h"
#include "exec/checkpoint/folder_lock.h"
#include "exec/checkpoint/heartbeat.h"
#include "exec/checkpoint/kept_places.h"
#include "graph/base/clock.h"
#include "graph/base/text.h"

enum { NAME_BYTES = 64 };
static const double nap_s = 0.05;

/* Of a place: "place", a name that is free, or what says which ranges lie there. */
static void name_of(char name[NAME_BYTES], const char *of, int place)
{
    snprintf(name, NAME_BYTES, "%s-%d", of, place);
}

static void step_name(char name[NAME_BYTES], int64_t step)
{
    char path[SMP__CHECKPOINT_PATH_BYTES];
    smp__checkpoint_path(path, "", step);
    snprintf(name, NAME_BYTES, "%.60s", path + 1);
}

smp_status smp__kept_default(const char *checkpoint, char path[SMP__CHECKPOINT_PATH_BYTES])
{
    char parent[PATH_MAX], real[PATH_MAX + NAME_MAX + 2];
    size_t length = strlen(checkpoint);
    while (length > 1 && checkpoint[length - 1] == '/')
        length--;
    if (length == 0 || length >= sizeof parent)
        return smp_fail(SMP_ERR_INPUT, "'%s' is no name of a directory", checkpoint);
    snprintf(parent, sizeof parent, "%.*s", (int)length, checkpoint);
    if (!realpath(parent, real)) {
        char *slash = strrchr(parent, '/');
        const char *last = slash ? slash + 1 : parent;
        char name[NAME_MAX + 1];
        snprintf(name, sizeof name, "%.255s", last);
        if (slash)
            slash[slash == parent] = '\0';
        if (!realpath(slash ? parent : ".", real))
            return smp_fail(SMP_ERR_INPUT, "%s: %s", checkpoint, strerror(errno));
        snprintf(real + strlen(real), sizeof real - strlen(real), "%s%s",
                 strcmp(real, "/") == 0 ? "" : "/", name);
    }
    snprintf(path, SMP__CHECKPOINT_PATH_BYTES, "/dev/shm/smp-%ju-%016" PRIx64, (uintmax_t)getuid(),
             smp_hash(0, real, strlen(real)));
    return SMP_OK;
}

smp_status smp__kept_spares(const char *kept, const char *checkpoint)
{
    struct stat one, other;
    if (stat(kept, &one) != 0 || stat(checkpoint, &other) != 0 || one.st_ino != other.st_ino ||
        one.st_dev != other.st_dev)
        return SMP_OK;
    return smp_fail(SMP_ERR_INPUT,
                    "%s: states are kept there, and removed at the end: checkpoints need another "
                    "folder, got %s",
                    kept, checkpoint);
}

static smp_status check_owner(int directory, const char *path)
{
    struct stat info;
    if (fstat(directory, &info) != 0)
        return smp_fail(SMP_ERR_INPUT, "%s: %s", path, strerror(errno));
    if (info.st_uid != geteuid() || (info.st_mode & 077) != 0)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: states are kept in a folder of one's own that nobody else can enter "
                        "(mode 700): got one of user %ju, mode %o",
                        path, (uintmax_t)info.st_uid, (unsigned)(info.st_mode & 0777));
    return SMP_OK;
}

/* The folder, which then nobody else can have put there. */
static smp_status open_own(const char *path, int *directory)
{
    *directory = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (*directory >= 0)
        return check_owner(*directory, path);
    return smp_fail(SMP_ERR_INPUT, "%s: cannot be a folder to keep states in: %s", path,
                    strerror(errno));
}

/* Calls `see` for each name in the folder that begins so. */
static smp_status walk(const smp__kept_folder *f, const char *begin,
                       void (*see)(const smp__kept_folder *f, const char *name, void *of), void *of)
{
    const int again = openat(f->directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = again >= 0 ? fdopendir(again) : NULL;
    if (!d) {
        const smp_status status =
            smp_fail(SMP_ERR_FAILED, "%s: cannot be read: %s", f->path, strerror(errno));
        if (again >= 0)
            close(again);
        return status;
    }
    for (struct dirent *entry; (entry = readdir(d));)
        if (strncmp(entry->d_name, begin, strlen(begin)) == 0)
            see(f, entry->d_name, of);
    closedir(d);
    return SMP_OK;
}

/* Nothing that only has such a name. */
static void remove_beat(const smp__kept_folder *f, const char *name, void *of)
{
    smp__beat beat;
    (void)of;
    if (smp__beat_read(f->directory, name, &beat))
        unlinkat(f->directory, name, 0);
}

/* Of those that beat there one that runs, or is stopped. */
static void find_living(const smp__kept_folder *f, const char *name, void *of)
{
    smp__beat *living = of, beat;
    bool over;
    if (smp__beat_read(f->directory, name, &beat) &&
        smp__process_start(beat.pid, &over) == (uint64_t)beat.start_ticks && !over)
        *living = beat;
}

static smp_status refuse(const smp__kept_folder *f)
{
    smp__beat living = {.pid = 0};
    char who[96] = "a process that still runs";
    (void)walk(f, SMP__BEAT_NAME, find_living, &living);
    if (living.pid > 0)
        snprintf(who, sizeof who, "process %" PRId64 " (rank %d)", living.pid, living.world_rank);
    return smp_fail(SMP_ERR_INPUT,
                    "%s: %s of another job keeps its state there: end it, or choose another folder",
                    f->path, who);
}

/* The first has it alone for a moment; then another one may be quicker. */
static smp_status try_lock(const smp__kept_folder *f, bool first, bool *held)
{
    *held = flock(f->directory, (first ? LOCK_EX : LOCK_SH) | LOCK_NB) == 0;
    if (*held && first) {
        (void)walk(f, SMP__BEAT_NAME, remove_beat, NULL); /* of those that have ended */
        *held = flock(f->directory, LOCK_SH | LOCK_NB) == 0;
    }
    if (!*held && errno != EWOULDBLOCK && errno != EINTR)
        return smp_fail(SMP_ERR_INPUT, "%s: cannot be locked: %s", f->path, strerror(errno));
    return SMP_OK;
}

/* Those who had the folder may have removed it meanwhile. */
static bool is_there(const smp__kept_folder *f)
{
    struct stat held, there;
    return fstat(f->directory, &held) == 0 && lstat(f->path, &there) == 0 &&
           held.st_ino == there.st_ino && held.st_dev == there.st_dev;
}

static smp_status hold(smp__kept_folder *f, bool first, double patience_s)
{
    const double until_s = smp_clock_s() + patience_s;
    for (bool held;; f->directory = -1) {
        if (first && mkdir(f->path, 0700) != 0 && errno != EEXIST)
            return smp_fail(SMP_ERR_INPUT, "%s: cannot make the folder to keep states in: %s",
                            f->path, strerror(errno));
        SMP_TRY(open_own(f->path, &f->directory));
        SMP_TRY(try_lock(f, first, &held));
        if (held && is_there(f))
            return SMP_OK;
        if (smp_clock_s() >= until_s)
            return refuse(f);
        close(f->directory);
        nanosleep(&(struct timespec){.tv_nsec = (long)(1e9 * nap_s)}, NULL);
    }
}

static smp__kept_folder *make_folder(const char *path)
{
    smp__kept_folder *f = calloc(1, sizeof *f);
    if (!f || !(f->path = strdup(path))) {
        free(f);
        return NULL;
    }
    for (int i = 0; i < SMP__KEPT_PLACES; i++)
        f->file[i] = f->index[i] = -1, f->step[i] = -1;
    f->directory = -1;
    return f;
}

smp_status smp__kept_enter(const char *path, bool first, double patience_s, smp__kept_folder **out)
{
    smp__kept_folder *f = make_folder(path);
    if (!f)
        return smp_fail_memory(sizeof *f);
    const smp_status status = hold(f, first, patience_s);
    if (status == SMP_OK)
        *out = f;
    else
        smp__kept_leave(f);
    return status;
}

void smp__kept_leave(smp__kept_folder *f)
{
    if (!f)
        return;
    for (int i = 0; i < SMP__KEPT_PLACES; i++) {
        if (f->file[i] >= 0)
            close(f->file[i]);
        if (f->index[i] >= 0)
            close(f->index[i]);
    }
    if (f->directory >= 0)
        close(f->directory);
    free(f->path);
    free(f);
}

int smp__kept_directory(const smp__kept_folder *f)
{
    return f->directory;
}

int smp__kept_file(const smp__kept_folder *f, int place)
{
    return f->file[place];
}

/* Which place has this name; -1: none, whatever has it is not the job's. */
static int place_of(const smp__kept_folder *f, const char *name)
{
    struct stat named, info;
    if (fstatat(f->directory, name, &named, AT_SYMLINK_NOFOLLOW) != 0)
        return -1;
    for (int i = 0; i < SMP__KEPT_PLACES; i++)
        if (f->file[i] >= 0 && fstat(f->file[i], &info) == 0 && info.st_ino == named.st_ino &&
            info.st_dev == named.st_dev)
            return i;
    return -1;
}

static void note_name(const smp__kept_folder *f, const char *name, void *of)
{
    int64_t step;
    const int place = place_of(f, name);
    if (place >= 0 && smp__checkpoint_step(name, &step))
        ((smp__kept_folder *)of)->step[place] = step;
}

static int open_place(const smp__kept_folder *f, const char *name)
{
    struct stat info;
    const int file = openat(f->directory, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (file >= 0 && fstat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid())
        return file;
    if (file >= 0)
        close(file);
    return -1;
}

/* The file of that name, which is there from now on. */
static smp_status make_file(const smp__kept_folder *f, const char *name, int *file)
{
    *file = open_place(f, name);
    if (*file >= 0)
        return SMP_OK;
    unlinkat(f->directory, name, 0);
    *file = openat(f->directory, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (*file < 0)
        return smp_fail(SMP_ERR_FAILED, "%s/%s: cannot create: %s", f->path, name, strerror(errno));
    return SMP_OK;
}

static smp_status make_place(smp__kept_folder *f, int place)
{
    char name[NAME_BYTES];
    name_of(name, "place", place);
    SMP_TRY(make_file(f, name, &f->file[place]));
    name_of(name, "ranges", place);
    return make_file(f, name, &f->index[place]);
}

/* One of another length that has a name is another job's state. */
static smp_status check_length(smp__kept_folder *f, int place, int64_t bytes, bool drops)
{
    struct stat info;
    if (f->step[place] < 0 || fstat(f->file[place], &info) != 0 || info.st_size == bytes)
        return SMP_OK;
    if (drops)
        return smp__kept_unname(f, place);
    return smp_fail(SMP_ERR_INPUT,
                    "%s: holds the state of another model or optimizer (%" PRId64
                    " bytes, this job's has %" PRId64 "): remove it, or choose another folder",
                    f->path, (int64_t)info.st_size, bytes);
}

/* Its second link, as the end of a job, at any moment, may have left it or not. */
static smp_status link_free(const smp__kept_folder *f, int place)
{
    char from[NAME_BYTES], to[NAME_BYTES];
    name_of(from, "place", place);
    name_of(to, "free", place);
    unlinkat(f->directory, to, 0);
    if (f->step[place] >= 0 || linkat(f->directory, from, f->directory, to, 0) == 0)
        return SMP_OK;
    return smp_fail(SMP_ERR_FAILED, "%s/%s: cannot be made: %s", f->path, to, strerror(errno));
}

/* Of one that holds nothing, and so bytes of any kind, these alone stay. One of another length that
 * has no name holds nothing for this job. */
static smp_status prepare(const smp__kept_folder *f, int place, int64_t bytes,
                          const smp__spans *spans)
{
    smp__kept_state here = {.step = -1};
    SMP_TRY(smp__kept_look(f, place, &here));
    const bool useless = here.step < 0 || here.bytes != bytes;
    const bool says = here.step >= 0;
    smp__kept_state_free(&here);
    if (useless)
        smp__kept_trim(f, place, spans);
    return useless && says ? smp__kept_claim(f, place, NULL) : SMP_OK;
}

static smp_status set_length(const smp__kept_folder *f, int place, int64_t bytes)
{
    if (ftruncate(f->file[place], (off_t)bytes) == 0)
        return SMP_OK;
    return smp_fail(SMP_ERR_FAILED, "%s/place-%d: cannot get its length: %s", f->path, place,
                    strerror(errno));
}

smp_status smp__kept_reserve(smp__kept_folder *f, int64_t bytes, const smp__spans *spans,
                             bool drops)
{
    for (int i = 0; i < SMP__KEPT_PLACES; i++)
        SMP_TRY(make_place(f, i));
    SMP_TRY(walk(f, "checkpoint-", note_name, f));
    for (int i = 0; i < SMP__KEPT_PLACES; i++)
        SMP_TRY(check_length(f, i, bytes, drops));
    for (int i = 0; i < SMP__KEPT_PLACES; i++)
        SMP_TRY(prepare(f, i, bytes, spans));
    SMP_TRY(smp__kept_check_room(f, spans));
    for (int i = 0; i < SMP__KEPT_PLACES; i++) {
        SMP_TRY(set_length(f, i, bytes));
        SMP_TRY(smp__kept_allocate(f, i, spans));
        SMP_TRY(link_free(f, i));
    }
    return SMP_OK;
}

smp_status smp__kept_open(smp__kept_folder *f)
{
    for (int i = 0; i < SMP__KEPT_PLACES; i++) {
        char name[NAME_BYTES];
        name_of(name, "place", i);
        if (f->file[i] < 0)
            f->file[i] = open_place(f, name);
        if (f->file[i] < 0)
            return smp_fail(SMP_ERR_FAILED, "%s/%s: cannot open: %s", f->path, name,
                            strerror(errno));
    }
    return SMP_OK;
}

smp_status smp__kept_next(smp__kept_folder *f, int *next)
{
    int last = SMP__KEPT_PLACES - 1;
    for (int i = 0; i < SMP__KEPT_PLACES; i++)
        last = f->step[i] > f->step[last] ? i : last;
    *next = (last + 1) % SMP__KEPT_PLACES;
    SMP_TRY(smp__kept_unname(f, *next));
    return smp__kept_claim(f, *next, NULL);
}

/* Over no other file: a link of the place's own that is there would make it do nothing. */
static int rename_link(const smp__kept_folder *f, const char *from, const char *to)
{
    return renameat2(f->directory, from, f->directory, to, RENAME_NOREPLACE);
}

smp_status smp__kept_name(smp__kept_folder *f, int place, int64_t step)
{
    char from[NAME_BYTES], to[NAME_BYTES];
    name_of(from, "free", place);
    step_name(to, step);
    if (rename_link(f, from, to) != 0)
        return smp_fail(SMP_ERR_FAILED, "%s/%s: cannot name the state of step %" PRId64 ": %s",
                        f->path, from, step, strerror(errno));
    f->step[place] = step;
    return SMP_OK;
}

smp_status smp__kept_unname(smp__kept_folder *f, int place)
{
    char from[NAME_BYTES], to[NAME_BYTES];
    if (f->step[place] < 0)
        return SMP_OK;
    step_name(from, f->step[place]);
    name_of(to, "free", place);
    if (rename_link(f, from, to) != 0 && errno != ENOENT)
        return smp_fail(SMP_ERR_FAILED, "%s/%s: cannot lose its name: %s", f->path, from,
                        strerror(errno));
    f->step[place] = -1;
    return SMP_OK;
}

smp_status smp__kept_forget(smp__kept_folder *f, int64_t from_step)
{
    for (int i = 0; i < SMP__KEPT_PLACES; i++)
        if (f->step[i] >= from_step)
            SMP_TRY(smp__kept_unname(f, i));
    return SMP_OK;
}

/* Of a job that has not come to reserving, too. */
static void find_places(smp__kept_folder *f)
{
    char name[NAME_BYTES];
    for (int i = 0; i < SMP__KEPT_PLACES; i++) {
        name_of(name, "place", i);
        if (f->file[i] < 0)
            f->file[i] = open_place(f, name);
        name_of(name, "ranges", i);
        if (f->index[i] < 0)
            f->index[i] = open_place(f, name);
    }
}

smp_status smp__kept_peek(const char *path, smp__kept_folder **out)
{
    smp__kept_folder *f = make_folder(path);
    if (!f)
        return smp_fail_memory(sizeof *f);
    smp_status status = open_own(path, &f->directory);
    if (status == SMP_OK) {
        find_places(f);
        status = walk(f, "checkpoint-", note_name, f);
    }
    if (status == SMP_OK)
        *out = f;
    else
        smp__kept_leave(f);
    return status;
}

static void note_state(const smp__kept_folder *f, const char *name, void *of)
{
    int64_t step;
    if (place_of(f, name) >= 0 && smp__checkpoint_step(name, &step))
        *(bool *)of = true;
}

bool smp__kept_has_state(smp__kept_folder *f)
{
    bool found = false;
    find_places(f);
    return walk(f, "checkpoint-", note_state, &found) != SMP_OK || found;
}

static void remove_name(const smp__kept_folder *f, const char *name, void *of)
{
    (void)of;
    if (place_of(f, name) >= 0)
        unlinkat(f->directory, name, 0);
}

/* Where there is a regular file of this name, which is the user's own: find_places. */
static void remove_indices(const smp__kept_folder *f)
{
    char name[NAME_BYTES];
    for (int i = 0; i < SMP__KEPT_PLACES; i++) {
        name_of(name, "ranges", i);
        if (f->index[i] >= 0)
            unlinkat(f->directory, name, 0);
    }
}

void smp__kept_remove(smp__kept_folder *f)
{
    find_places(f);
    for (size_t i = 0; i < 3; i++)
        (void)walk(f, (const char *const[]){"checkpoint-", "free-", "place-"}[i], remove_name,
                   NULL);
    remove_indices(f);
    (void)walk(f, SMP__BEAT_NAME, remove_beat, NULL);
    rmdir(f->path);
}
