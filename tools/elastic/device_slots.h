/* The devices of an elastic job: slots of its hosts, which of them are at hand, and which are left
 * out because processes there fail. The file DIR/devices says what is at hand: a number, or slots
 * such as 0-2,5, or those of a host, h2:0-1 or h2; all where there is none. */
#ifndef SMP_TOOLS_ELASTIC_DEVICE_SLOTS_H
#define SMP_TOOLS_ELASTIC_DEVICE_SLOTS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "graph/base/text.h"
#include "tools/elastic/hosts/hosts.h"

typedef struct smp__slot {
    int host, index; /* which of the host's it is */
    bool at_hand, left_out;
    bool present; /* its host is there */
    int failures;
    int64_t failed_at; /* the step of the last */
    double speed;      /* share of the usual one at which it was found (slow_devices.h); 0: usual */
    double told_speed; /* as events have it */
    int times_slow;    /* found so, one after another */
    double slow_s;     /* smp_clock_s of the last */
    int slow_in;       /* ... incarnation */
} smp__slot;

typedef struct smp__slots {
    const smp__hosts *hosts; /* the caller's */
    int n, most;             /* slots; of them are used */
    smp__slot *slot;         /* host by host */
    char *path;
    bool begun;    /* the file has been looked at: */
    bool is_there; /* it was, then */
    struct stat looked;
} smp__slots;

enum { SMP__SLOT_NAME = SMP__HOST_NAME + 16 };
enum { SMP__FORGIVEN_STEPS = 100 }; /* without a failure a slot begins anew */

/* hosts: NULL: one, with `most` devices that are always there. */
smp_status smp__slots_open(const char *folder, int most, const smp__hosts *hosts, smp__slots *out);
void smp__slots_close(smp__slots *slots);
/* Looks at the hosts, and at the file. Is what is at hand other than before? A file that cannot be
 * understood changes nothing, and is said to be so once. */
bool smp__slots_look(smp__slots *slots);
static inline bool smp__slot_usable(const smp__slot *slot)
{
    return slot->at_hand && !slot->left_out && slot->present;
}
int smp__slots_count(const smp__slots *slots); /* at most `most` */
/* ... of them those that are not slow; 0: none of these is on the supervisor's host. */
int smp__slots_even(const smp__slots *slots);
/* How it is called: "3", with several hosts "h2:1". */
const char *smp__slot_name(const smp__slots *slots, int slot, char text[SMP__SLOT_NAME]);
int smp__slot_find(const smp__slots *slots, const char *name); /* -1: none is called so */
/* The first n that can be used; slow ones only where there are too few others, or none on the
 * supervisor's host. */
void smp__slots_pick(const smp__slots *slots, int n, int *picked);
/* A process on the slot has failed at a step: is the slot left out now? */
bool smp__slots_fail(smp__slots *slots, int slot, int64_t step, int allowed);

#endif
