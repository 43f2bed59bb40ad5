/* Names of types; see the header. */
#include "graph/model/dtype.h"

#include <stddef.h>
#include <string.h>

#define SMP_DTYPE_NAME(id, name, other, bytes, is_float) name,
const char *const smp_dtype_names[] = {SMP_DTYPE_LIST(SMP_DTYPE_NAME) NULL};
#undef SMP_DTYPE_NAME

#define SMP_DTYPE_OTHER(id, name, other, bytes, is_float) other,
static const char *const others[] = {SMP_DTYPE_LIST(SMP_DTYPE_OTHER)};
#undef SMP_DTYPE_OTHER

bool smp_dtype_find(const char *name, smp_dtype *out)
{
    for (int i = 0; smp_dtype_names[i]; i++)
        if (strcmp(name, smp_dtype_names[i]) == 0 || (others[i] && strcmp(name, others[i]) == 0)) {
            *out = (smp_dtype)i;
            return true;
        }
    return false;
}
