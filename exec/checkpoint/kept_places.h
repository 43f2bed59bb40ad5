/* The inside of a folder of kept states: what its places hold, and the memory that they take. */
#ifndef SMP_EXEC_CHECKPOINT_KEPT_PLACES_H
#define SMP_EXEC_CHECKPOINT_KEPT_PLACES_H

#include "exec/checkpoint/kept_folder.h"

struct smp__kept_folder {
    char *path;
    int directory; /* held */
    int file[SMP__KEPT_PLACES], index[SMP__KEPT_PLACES];
    int64_t step[SMP__KEPT_PLACES]; /* of its name; -1: it has none. The first's */
};

/* Before anything is allocated, as of memory that is not there a process may be killed: is there
 * room for these spans in every place, beside what lies there? */
smp_status smp__kept_check_room(const smp__kept_folder *f, const smp__spans *spans);
/* Gives back what does not lie in these spans; where a file system cannot, it stays. */
void smp__kept_trim(const smp__kept_folder *f, int place, const smp__spans *spans);

#endif
