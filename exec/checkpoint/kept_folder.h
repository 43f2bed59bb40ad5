/* Checkpoints in memory that outlives processes: a folder, on tmpfs, with three places of the
 * length of a checkpoint, which are there from the start and written in turn. A place whose
 * checkpoint is complete has its name, too ("checkpoint-0000000041.smp", a second link): so what
 * reads folders of checkpoints reads this one. Of a job on several machines each has such a folder,
 * and in its places some of the bytes (kept_ranges.h).
 *
 * Every process that may write there holds the folder (flock): a later job waits until they have
 * ended, so none of them writes into what it has. */
#ifndef SMP_EXEC_CHECKPOINT_KEPT_FOLDER_H
#define SMP_EXEC_CHECKPOINT_KEPT_FOLDER_H

#include <stdbool.h>
#include <stdint.h>

#include "exec/checkpoint/checkpoint_folder.h"
#include "exec/checkpoint/kept_ranges.h"

typedef struct smp__kept_folder smp__kept_folder;

/* Where jobs that save into a directory keep their states unless they are told: a name of its real
 * path, which need not be there yet. SMP_ERR_INPUT: nor is what it is to lie in. */
smp_status smp__kept_default(const char *checkpoint, char path[SMP__CHECKPOINT_PATH_BYTES]);
/* SMP_ERR_INPUT: the two are one folder, by whatever names. */
smp_status smp__kept_spares(const char *kept, const char *checkpoint);

/* Makes the folder, mode 0700, and holds it. `first`, once for each job and before its other
 * processes come: none of another job does, or within patience_s none is left. SMP_ERR_INPUT: one
 * is, or the folder is not the user's own. */
smp_status smp__kept_enter(const char *path, bool first, double patience_s, smp__kept_folder **out);
void smp__kept_leave(smp__kept_folder *folder);          /* accepts NULL */
int smp__kept_directory(const smp__kept_folder *folder); /* a descriptor */

/* Only to look at what it holds, while nobody writes there: it is not held. */
smp_status smp__kept_peek(const char *path, smp__kept_folder **out);

/* By the first: three places of so many bytes, in which these spans are allocated, and what has a
 * state, which stays. `drops`: but for another model's, which loses its name. SMP_ERR_FAILED: there
 * is no room; SMP_ERR_INPUT: another model's state. */
smp_status smp__kept_reserve(smp__kept_folder *folder, int64_t bytes, const smp__spans *spans,
                             bool drops);
/* By every process, after that. */
smp_status smp__kept_open(smp__kept_folder *folder);
int smp__kept_file(const smp__kept_folder *folder, int place);

/* What follows is the first's, after smp__kept_reserve; or of a folder that is looked at. */

/* What a place holds; out->step -1: nothing. Free it. */
smp_status smp__kept_look(const smp__kept_folder *folder, int place, smp__kept_state *out);
/* What a place, which has no name, is to hold, or (step -1) nothing: other bytes than these are
 * given back. */
smp_status smp__kept_claim(const smp__kept_folder *folder, int place, const smp__kept_state *state);
/* More memory for a place, whatever it holds. SMP_ERR_FAILED: there is no room. */
smp_status smp__kept_allocate(const smp__kept_folder *folder, int place, const smp__spans *spans);
/* As smp__kept_claim where these bytes are there: none are given back. */
smp_status smp__kept_extend(const smp__kept_folder *folder, int place,
                            const smp__kept_state *state);
/* The place after that of the latest step is the one to be written next: it has no name and holds
 * nothing from now on. */
smp_status smp__kept_next(smp__kept_folder *folder, int *next);
/* A place, which has none, gets the name of a step; SMP_ERR_FAILED: it cannot. */
smp_status smp__kept_name(smp__kept_folder *folder, int place, int64_t step);
/* The place has no name from now on; nor has any with that of this step or a later one.
 * SMP_ERR_FAILED: it has. */
smp_status smp__kept_unname(smp__kept_folder *folder, int place);
smp_status smp__kept_forget(smp__kept_folder *folder, int64_t from_step);
/* Has any place a name? */
bool smp__kept_has_state(smp__kept_folder *folder);
/* Removes what jobs have made there, and nothing else; and the folder if it is empty then. */
void smp__kept_remove(smp__kept_folder *folder);

#endif
