/* Fibers: functions with a stack of their own that hand the processor to each other without a
 * system call. A fiber never returns. */
#ifndef SMP_TESTS_EMULATE_EMULATE_FIBER_H
#define SMP_TESTS_EMULATE_EMULATE_FIBER_H

#include <cstddef>

struct emulate_fiber;

/* The stack is `stack_bytes` with a page without access below it. */
emulate_fiber *emulate_fiber_create(size_t stack_bytes, void (*body)());
/* A fiber for the stack that the caller runs on: where others can switch back to. */
emulate_fiber *emulate_fiber_of_caller();
/* Goes on in `to`; comes back when somebody switches to `from`, the caller's own. */
void emulate_fiber_switch(emulate_fiber *from, emulate_fiber *to);

#endif
