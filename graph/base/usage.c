/* Command-line errors; see the header. */
#include "graph/base/usage.h"

#include <string.h>

#include "graph/base/text.h"

enum { MAX_OPTIONS = 64 };

smp_status smp_usage_bad_option(const char *given, bool no_value, const struct option *options)
{
    if (no_value)
        return smp_fail(SMP_ERR_INPUT, "%s: its value is missing; --help lists the options", given);
    const char *names[MAX_OPTIONS];
    size_t n = 0;
    for (; n < MAX_OPTIONS && options[n].name; n++)
        names[n] = options[n].name;
    const char *near = strncmp(given, "--", 2) == 0 ? smp_nearest(given + 2, names, n) : NULL;
    return smp_fail(SMP_ERR_INPUT, "%s: unknown option%s%s; --help lists the options", given,
                    near ? ", nearest is --" : "", near ? near : "");
}
