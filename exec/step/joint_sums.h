/* Sums over the replicas that an operator asks for in the middle of a call (smp_op_joint). */
#ifndef SMP_EXEC_STEP_JOINT_SUMS_H
#define SMP_EXEC_STEP_JOINT_SUMS_H

#include "exec/state/handle.h"

/* Room for the longest sum of this rank's operators. SMP_ERR_FAILED where the device has memory of
 * its own. */
smp_status smp__joint_build(smp *s);
void smp__joint_free(smp *s);

/* What a call of the op gets; NULL: it adds up nothing. Holds until the next one. */
const smp_op_joint *smp__joint_of(smp *s, const smp_op *op, int microbatch);

#endif
