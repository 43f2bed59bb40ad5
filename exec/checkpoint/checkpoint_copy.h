/* A state kept in memory, of one machine or of several, into a directory, as if it had been saved
 * there. */
#ifndef SMP_EXEC_CHECKPOINT_CHECKPOINT_COPY_H
#define SMP_EXEC_CHECKPOINT_CHECKPOINT_COPY_H

#include <stdint.h>

#include "exec/checkpoint/kept_ranges.h"
#include "graph/base/status.h"

/* What a folder of kept states holds, while nobody writes there: at most SMP__KEPT_PLACES,
 * malloc'ed (smp__kept_states_free). A folder that is not there holds nothing. SMP_ERR_INPUT: it is
 * not the user's own. */
smp_status smp__kept_states(const char *kept, smp__kept_state **states, int *n);
/* Is the best state that has a name there (smp__kept_is_better), of those that can be read, later
 * than what was saved last in the directory (smp__kept_is_after), or is nothing saved there?
 * Without the directory what is kept is of no job that could go on. SMP_ERR_INPUT: as of
 * smp__kept_states, or the directory cannot be read. */
smp_status smp__kept_is_later(const char *kept, const char *checkpoint, bool *later);
/* What a copy calls before each MiB; a failure ends it, and is its own. NULL: nothing. */
typedef struct smp__meanwhile {
    smp_status (*call)(void *of);
    void *of;
} smp__meanwhile;
/* Writes what a folder has of a state (id, step) to a file, at the same offsets, and syncs it.
 * *bytes: how many; 0: it has nothing of it. to_path: for messages. */
smp_status smp__kept_put_ranges(const char *kept, uint64_t id, int64_t step, int to,
                                const char *to_path, const smp__meanwhile *meanwhile,
                                int64_t *bytes);

/* A copy that becomes what was saved last in directory `to`, whose lock it takes: a file of `bytes`
 * under a temporary name, to which machines write what they have, any number at a time.
 * SMP_ERR_INPUT as of smp__folder_lock_take. */
typedef struct smp__checkpoint_copy smp__checkpoint_copy;
smp_status smp__checkpoint_copy_begin(const char *to, int64_t step, int64_t bytes,
                                      smp__checkpoint_copy **out);
const char *smp__checkpoint_copy_path(const smp__checkpoint_copy *copy);
/* With SMP_OK all of it is there: it gets the number of its save and its name, and is on the disk;
 * else nothing is left of it. Frees it. Returns `status`, or why it is not there. */
smp_status smp__checkpoint_copy_end(smp__checkpoint_copy *copy, smp_status status);

/* Copies the state kept last in `from`, where one machine has all of it, to `to`, unless what is
 * there was saved later (smp__kept_is_later): then *step is 0, else its step. It becomes what was
 * saved last, is on the disk, and counts once it is whole. Takes the lock of `to` while it copies.
 * Errors: SMP_ERR_INPUT as of smp__folder_lock_take and smp__kept_is_later; SMP_ERR_FAILED; as of
 * `meanwhile`. Then nothing has changed. */
smp_status smp__checkpoint_copy_last(const char *from, const char *to,
                                     const smp__meanwhile *meanwhile, int64_t *step);

#endif
