/* What one rank does for a checkpoint that is being saved: copies its part of the state, writes it
 * at its place in the file, and, on rank 0, gives the whole file its name. */
#ifndef SMP_EXEC_SAVE_CHECKPOINT_PART_H
#define SMP_EXEC_SAVE_CHECKPOINT_PART_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "exec/checkpoint/checkpoint_file.h"
#include "exec/checkpoint/checkpoint_folder.h"
#include "exec/checkpoint/folder_lock.h"
#include "smp.h"

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
    int file;                     /* rank 0's: the new file, or -1 and why there is none: */
    int file_error;               /* an errno */
    smp__checkpoint_header says;  /* of the state that is saved: smp__progress_save */
    char *staging;    /* host memory for this rank's part, kept for the next save, or NULL */
    const char *part; /* what is written: `staging`, or NULL: what stands in the arena */
    double *kept;     /* [memory->n_param], what the optimizer keeps, or NULL */
    bool behind;      /* written by a thread, while steps go on */
    bool running;     /* `thread` is to be joined */
    pthread_t thread;
    bool failed;       /* the last one that was begun did not become complete; on every rank */
    atomic_bool ended; /* this rank's work of the phase; what came of it: */
    smp_status status;
    char message[1024];
};

/* Copies this rank's part to host memory, which the first call reserves. Where devices compute
 * together it is collective, and they give each other what they lack. */
smp_status smp__part_copy(smp *s);

/* What follows asks neither other ranks nor, after a copy, the device: any thread may call it. */

/* Rank 0's, before the others write: a new file under the temporary name. What is wrong with it
 * smp__part_write says. */
void smp__part_create(smp *s);
/* Writes this rank's part, and on rank 0 the header, to the file's temporary name, and syncs it. */
smp_status smp__part_write(const smp *s);
/* All parts are written: the file gets its name, and only then old ones are removed. */
smp_status smp__part_name(const smp *s);
/* Removes the temporary file. */
void smp__part_abandon(const smp *s);

#endif
