/* Updates of weights whose optimizer states lie in host memory: made there, while the next step has
 * begun.
 *
 * A thread beside the rank makes them in the order in which the forward of a step uses the weights,
 * and an operator of the next one waits for its own weights alone. Of a GPU, weights and gradients
 * come down in pieces, and weights go back, each way on its stream beside the compute stream; of
 * weights that lie in host memory themselves gradients come, and copies in 16 bits go. The rank
 * asks for all of it whenever it looks. Where no core is spare, on a CPU, or the costs of a
 * step are measured, there is no thread, and they are made when they are begun: one code.
 *
 * From `begin` on weights, their gradients and their states are not the rank's until it has waited
 * for them: who reads all of them waits for all (smp__updates_finish). Gradients are zeroed in the
 * next backward, by when all operators of the chunk have been forward. */
#ifndef SMP_EXEC_STATE_UPDATES_H
#define SMP_EXEC_STATE_UPDATES_H

#include "exec/state/handle.h"

typedef struct smp__updates smp__updates;

/* Does the job have such? */
bool smp__updates_are_in_host(const smp *s);
/* Slots of the device's copies that they need. */
int smp__updates_copies_weights(const smp *s);
/* When layouts and the host area are there. first_copy: the number of the first such slot. Fills
 * in smp__call.updates and smp__chunk.updates. The environment variables SMP_UPDATE_THREAD (0 or 1)
 * and SMP_UPDATE_DELAY (microseconds that each update takes longer) are for tests. */
smp_status smp__updates_open(smp *s, int first_copy);
/* The memory of a job that failed stays: its thread may still be at work. */
void smp__updates_close(smp *s);

/* Begins the updates of all weights that are trained, of this rank's own parts; the compute stream
 * is idle, or what it does is of no account. */
smp_status smp__updates_begin(smp *s, int64_t step, float lr, float grad_scale);
/* The measurements of an optimizer instead, whose directions come to stand where the gradients are;
 * what is enqueued from here on finds them. */
smp_status smp__updates_measure(smp *s, int64_t step, float lr, float grad_scale);
/* What is computed, or enqueued, from here on finds the first n updates made. With the watchdog. */
smp_status smp__updates_wait(smp *s, int n);
smp_status smp__updates_finish(smp *s); /* all of them */
smp_status smp__updates_settle(smp *s); /* likewise, all ranks: collective */
/* Moves on what is under way. Never waits. */
smp_status smp__updates_look(smp *s);
/* When the last ones, which are finished, began and ended on the host, in seconds of smp_clock_s;
 * 0: there were none. */
void smp__updates_times(const smp *s, double times_s[2]);

#endif
