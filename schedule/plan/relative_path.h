/* Where one file lies as seen from another, so that both can be moved together. */
#ifndef SMP_SCHEDULE_PLAN_RELATIVE_PATH_H
#define SMP_SCHEDULE_PLAN_RELATIVE_PATH_H

#include "graph/base/status.h"

/* `target` as seen from the folder of `file`; neither file need exist; malloc'ed. NULL, and no
 * failure, where one of the folders does not exist: as given. */
smp_status smp_relative_path(const char *file, const char *target, char **out);

#endif
