/* Where one file lies as seen from another, so that both can be moved together. */
#ifndef SMP_SCHEDULE_PLAN_RELATIVE_PATH_H
#define SMP_SCHEDULE_PLAN_RELATIVE_PATH_H

/* `target` as seen from the folder of `file`, which need not exist; malloc'ed. NULL: as given. */
char *smp_relative_path(const char *file, const char *target);

#endif
