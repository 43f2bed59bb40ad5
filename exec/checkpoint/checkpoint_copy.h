/* A state kept in memory into a directory, as if it had been saved there. */
#ifndef SMP_EXEC_CHECKPOINT_CHECKPOINT_COPY_H
#define SMP_EXEC_CHECKPOINT_CHECKPOINT_COPY_H

#include <stdint.h>

#include "graph/base/status.h"

/* Copies the state kept last in `from` to `to`, unless what is there was saved later
 * (smp__kept_is_later): then *step is 0, else its step. It becomes what was saved last, is on the
 * disk, and counts once it is whole. Takes the lock of `to` while it copies. Errors: SMP_ERR_INPUT
 * as of smp__folder_lock_take and smp__kept_is_later; SMP_ERR_FAILED, nothing has changed. */
smp_status smp__checkpoint_copy_last(const char *from, const char *to, int64_t *step);

#endif
