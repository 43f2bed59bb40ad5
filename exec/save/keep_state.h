/* The inside of what keeps the state of a job in memory: checkpoint_keep.h, kept_fetch.h. */
#ifndef SMP_EXEC_SAVE_KEEP_STATE_H
#define SMP_EXEC_SAVE_KEEP_STATE_H

#include "exec/checkpoint/heartbeat.h"
#include "exec/checkpoint/kept_folder.h"
#include "exec/save/byte_messages.h"
#include "exec/save/checkpoint_part.h"
#include "exec/save/machines.h"
#include "exec/transport/own_core.h"

struct smp__keep {
    smp__kept_folder *folder;
    smp__heartbeat *heartbeat; /* NULL: none yet */
    smp__part part;
    smp__worker *worker;         /* NULL: not open */
    smp__machines machines;      /* n is 0: not open */
    smp__byte_messages messages; /* of this rank's part to another machine, and from one to here */
    int awaited;                 /* of them */
    char *map[SMP__KEPT_PLACES]; /* the files of the places */
    int64_t asked;               /* states that it has been asked to write */
    int next;     /* place of the state that is written, or will be: the same on a machine */
    bool pending; /* it is not known to be complete; the same on all ranks */
    bool sending; /* ... and is written here, and on its way */
    bool rewound; /* `next` is to be found, of what has a name; the same on all ranks */
    bool loaded;
    bool entered;          /* all ranks have */
    smp__kept_state state; /* that is written, or will be: the same on all ranks, but for the spans,
                              which are those of a place of this machine */
    int64_t lent;          /* bytes of a place that are another machine's */
    int64_t fetched;       /* bytes that this machine's first rank had from others, to load */
    char note[512];        /* of the first rank of a machine: why names stay as they are; or "" */
};

static inline struct smp__keep *smp__keep_of(const smp *s)
{
    return s->saving ? s->saving->keep : NULL;
}

/* Is this rank the first of its machine, which names the places there? */
static inline bool smp__keep_is_first(const smp *s)
{
    return s->comm->node_rank == 0;
}

#endif
