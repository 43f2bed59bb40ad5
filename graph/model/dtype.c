/* Names of types; see the header. */
#include "graph/model/dtype.h"

#include <stddef.h>

#define SMP_DTYPE_NAME(id, name, bytes, is_float) name,
const char *const smp_dtype_names[] = {SMP_DTYPE_LIST(SMP_DTYPE_NAME) NULL};
#undef SMP_DTYPE_NAME
