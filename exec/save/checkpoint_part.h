/* One rank's part of a checkpoint: what it copies of the state, and how it writes that to its place
 * in a file, whichever that is (smp__part). And what it does for a save to disk: makes the file,
 * writes, syncs, and, on rank 0, gives the whole file its name (smp__saving). */
#ifndef SMP_EXEC_SAVE_CHECKPOINT_PART_H
#define SMP_EXEC_SAVE_CHECKPOINT_PART_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "exec/checkpoint/checkpoint_file.h"
#include "exec/checkpoint/checkpoint_folder.h"
#include "exec/checkpoint/folder_lock.h"
#include "exec/save/machines.h"
#include "graph/base/text.h"
#include "smp.h"

/* This rank's part of the state after a step. */
typedef struct smp__part {
    smp__checkpoint_header says; /* of the state: smp__part_take */
    smp_text head;               /* what files begin with; says.at is its length */
    bool headed;                 /* it is there */
    char *staging;               /* host memory for a copy, kept for the next one, or NULL */
    const char *copy;            /* what is written: `staging`, or NULL: what stands in the arena */
    double *kept;                /* [memory->n_param], what the optimizer keeps, or NULL */
    char *own;                   /* [says.own_bytes], the program's own state, or NULL */
    smp__sharers sharers;        /* who writes what; n is 0: all that have it */
    bool heads;                  /* this rank writes head and header */
} smp__part;

/* A file that a part is written to. */
typedef struct smp__sink {
    int file;
    char *map;        /* all of it in memory, whose pages are reserved, for values; or NULL */
    const char *path; /* for messages */
} smp__sink;

/* What a checkpoint says of the state, and what is small. Not collective. */
smp_status smp__part_take(smp *s, smp__part *p);
/* Has this rank to copy what is written while weights stay as they are? What lies on a device the
 * host cannot read, and of split weights no rank has what stands together in a file. */
bool smp__part_needs_copy(const smp *s);
/* Host memory for a copy, unless it is there. */
smp_status smp__part_reserve(const smp *s, smp__part *p);
/* Copies this rank's part to host memory. Where devices compute together it is collective, and they
 * give each other what they lack. */
smp_status smp__part_copy(smp *s, smp__part *p);
/* Bytes of the whole file, after smp__part_take. */
int64_t smp__part_file_bytes(const smp *s, const smp__part *p);
/* The bytes that smp__part_put writes, after smp__part_take; and those that a load of the whole
 * state reads, a set. */
smp_status smp__part_spans(const smp *s, const smp__part *p, smp__spans *out);
smp_status smp__part_read_spans(const smp *s, const smp__part *p, smp__spans *out);
/* Writes this rank's part, and one rank of those that share head and header, with this number of
 * the save. Any thread may call it: it asks neither other ranks nor, after a copy, the device. */
smp_status smp__part_put(const smp *s, const smp__part *p, int64_t saved, smp__sink to);
void smp__part_free(smp__part *p);

typedef enum smp__save_phase {
    SMP__SAVE_NONE,  /* none is under way */
    SMP__SAVE_WRITE, /* every rank writes its part */
    SMP__SAVE_NAME   /* all parts are on the disk: rank 0 renames the file, and removes old ones */
} smp__save_phase;

/* The save under way. A thread that writes reads this and what never changes in a job; it alone
 * sets `status` and `message`, before `ended`. */
struct smp__saving {
    smp__save_phase phase; /* the same on every rank */
    char directory[SMP__CHECKPOINT_PATH_BYTES];
    smp__folder_lock *lock; /* of the directory that was saved into last, on rank 0; or NULL */
    char job[SMP__LOCK_ID_BYTES]; /* its number, on every rank: what half a file is called by */
    int64_t number; /* of the save that was begun last, or, if a state was loaded since, of the last
                       one in that directory; 0: neither */
    int64_t begun_step; /* of that save, while it is not known to be complete, else 0; on every
                           rank */
    int file;           /* rank 0's: the new file, or -1 and why there is none: */
    int file_error;     /* an errno */
    smp__part part;
    bool behind;  /* written by a thread, while steps go on */
    bool running; /* `thread` is to be joined */
    pthread_t thread;
    bool failed;           /* the last one that was begun did not become complete; on every rank */
    int64_t complete_step; /* of the last one that became complete, or of what was loaded from the
                              disk since; -1: neither. On every rank */
    atomic_bool ended;     /* this rank's work of the phase; what came of it: */
    smp_status status;
    char message[1024];
    struct smp__keep *keep; /* checkpoint_keep.h; NULL: no state is kept in memory */
    bool tells, untold;     /* smp_elastic_step is to follow each step; the last one */
};

/* What follows asks neither other ranks nor, after a copy, the device: any thread may call it. */

/* Rank 0's, before the others write: a new file under the temporary name. What is wrong with it
 * smp__part_write says. */
void smp__part_create(smp *s);
/* Writes this rank's part to the file's temporary name, and syncs it. */
smp_status smp__part_write(const smp *s);
/* All parts are written: the file gets its name, and only then old ones are removed. */
smp_status smp__part_name(const smp *s);
/* Removes the temporary file. */
void smp__part_abandon(const smp *s);

#endif
