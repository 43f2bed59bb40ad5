/* What a rank is doing: in a step its action, outside of steps a few words. For messages, and for
 * signal handlers, which may read it at any moment. */
#ifndef SMP_EXEC_RECORD_RANK_PLACE_H
#define SMP_EXEC_RECORD_RANK_PLACE_H

#include <stdbool.h>

#include "schedule/rules/program.h"

typedef struct smp__place smp__place;

/* What a rank is doing that is in no step and no other call. */
extern const char smp__between_steps[];

/* At the begin of a job: before the first action of a step. */
smp_status smp__place_open(smp__place **out);
void smp__place_close(smp__place *place);

/* A step or an evaluation begins, or goes on with an action. */
void smp__place_begin(smp__place *place);
void smp__place_action(smp__place *place, const smp_action *action);
/* Outside of steps: words of the job's life. */
void smp__place_doing(smp__place *place, const char *doing);

/* NULL: the rank is in a step. */
const char *smp__place_words(const smp__place *place);
/* The action; chunk and microbatch are -1 before the first one. */
smp_action smp__place_at(const smp__place *place);
bool smp__place_is_forward(const smp__place *place);

#endif
