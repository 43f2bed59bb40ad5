/* Checkpoints; smp.h has smp_save and smp_load. */
#ifndef SMP_EXEC_STATE_CHECKPOINT_H
#define SMP_EXEC_STATE_CHECKPOINT_H

#include <stdbool.h>

/* Does the directory hold a complete checkpoint? */
bool smp__checkpoint_exists(const char *path);

#endif
