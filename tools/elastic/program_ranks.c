/* Ranks that are a program of the user's; see the header. */
#include "tools/elastic/program_ranks.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int smp__program_at(int argc, char **argv)
{
    int at = 1;
    while (at < argc && strcmp(argv[at], "--") != 0)
        at++;
    return at < argc ? at : argc;
}

bool smp__program_allows(const char *option)
{
    static const char *const allowed[] = {"elastic",   "checkpoint",    "device",
                                          "precision", "plugin",        "resume",
                                          "timeout",   "timeout-start", "timeout-save"};
    for (size_t i = 0; i < sizeof allowed / sizeof allowed[0]; i++)
        if (strcmp(option, allowed[i]) == 0)
            return true;
    return false;
}

smp_status smp__program_check(const char *program)
{
    if (!program)
        return smp_fail(SMP_ERR_INPUT, "--: expected a program and its arguments after it");
    if (!strchr(program, '/') || access(program, X_OK) == 0) /* else it is looked for by PATH */
        return SMP_OK;
    return smp_fail(SMP_ERR_INPUT, "%s: cannot be run: %s", program, strerror(errno));
}

const char *const smp__program_variables[] = {SMP__ELASTIC,
                                              SMP__ELASTIC_PLAN,
                                              SMP__ELASTIC_CHECKPOINT,
                                              SMP__ELASTIC_ROWS,
                                              SMP__ELASTIC_KEEP_EVERY,
                                              SMP__ELASTIC_KEEP_IN,
                                              SMP__ELASTIC_DEVICE,
                                              NULL};

smp_status smp__program_tell(const smp__elastic_job *job)
{
    const char *device = job->options->run.train.job.runtime.device;
    char every[24];
    snprintf(every, sizeof every, "%lld", (long long)job->options->keep_every);
    const char *const value[] = {SMP__ELASTIC_VERSION, job->plan, job->folder,
                                 job->rows.path,       every,     job->keep,
                                 device ? device : ""};
    _Static_assert(sizeof smp__program_variables / sizeof *smp__program_variables ==
                       sizeof value / sizeof *value + 1,
                   "each has a value");
    for (int i = 0; smp__program_variables[i]; i++)
        if (setenv(smp__program_variables[i], value[i], 1) != 0)
            return smp_fail_memory(strlen(value[i]));
    return SMP_OK;
}
