/* The devices of an elastic job: slots 0 to MAX-1 of a host, which of them are at hand, and which
 * are left out because processes there fail. The file DIR/devices says what is at hand: a number,
 * or slots such as 0-2,5; all where there is none. */
#ifndef SMP_TOOLS_ELASTIC_DEVICE_SLOTS_H
#define SMP_TOOLS_ELASTIC_DEVICE_SLOTS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "graph/base/text.h"

typedef struct smp__slot {
    bool at_hand, left_out;
    int failures;
    int64_t failed_at; /* the step of the last */
} smp__slot;

typedef struct smp__slots {
    int n;
    smp__slot *slot;
    char *path;
    bool begun;    /* the file has been looked at: */
    bool is_there; /* it was, then */
    struct stat looked;
} smp__slots;

enum { SMP__FORGIVEN_STEPS = 100 }; /* without a failure a slot begins anew */

smp_status smp__slots_open(const char *folder, int n, smp__slots *out);
void smp__slots_close(smp__slots *slots);
/* Looks at the file. Is what is at hand other than before? A file that cannot be understood changes
 * nothing, and is said to be so once. */
bool smp__slots_look(smp__slots *slots);
static inline bool smp__slot_usable(const smp__slot *slot)
{
    return slot->at_hand && !slot->left_out;
}
int smp__slots_count(const smp__slots *slots);
/* The first n that can be used. */
void smp__slots_pick(const smp__slots *slots, int n, int *picked);
/* A process on the slot has failed at a step: is the slot left out now? */
bool smp__slots_fail(smp__slots *slots, int slot, int64_t step, int allowed);

#endif
