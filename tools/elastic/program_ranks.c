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
                                              SMP__ELASTIC_TIMEOUT,
                                              SMP__ELASTIC_TIMEOUT_START,
                                              SMP__ELASTIC_TIMEOUT_SAVE,
                                              NULL};

enum { SECONDS_BYTES = 32 };

/* "": the option ("--timeout=") was not given. */
static const char *seconds_of(const smp__elastic_options *o, const char *option, double s,
                              char text[SECONDS_BYTES])
{
    const char *passed = o->passed.data;
    text[0] = '\0';
    for (int i = 0; i < o->n_passed; i++, passed += strlen(passed) + 1)
        if (strncmp(passed, option, strlen(option)) == 0)
            snprintf(text, SECONDS_BYTES, "%.17g", s);
    return text;
}

smp_status smp__program_tell(const smp__elastic_job *job)
{
    const smp__elastic_options *o = job->options;
    const smp_runtime_options *runtime = &o->run.train.job.runtime;
    char every[24], limit[3][SECONDS_BYTES];
    snprintf(every, sizeof every, "%lld", (long long)o->keep_every);
    const char *const value[] = {
        SMP__ELASTIC_VERSION,
        job->plan,
        job->folder,
        job->rows.path,
        every,
        job->keep,
        runtime->device ? runtime->device : "",
        seconds_of(o, "--timeout=", runtime->timeout_s, limit[0]),
        seconds_of(o, "--timeout-start=", runtime->timeout_start_s, limit[1]),
        seconds_of(o, "--timeout-save=", runtime->timeout_save_s, limit[2])};
    _Static_assert(sizeof smp__program_variables / sizeof *smp__program_variables ==
                       sizeof value / sizeof *value + 1,
                   "each has a value");
    for (int i = 0; smp__program_variables[i]; i++)
        if (setenv(smp__program_variables[i], value[i], 1) != 0)
            return smp_fail_memory(strlen(value[i]));
    return SMP_OK;
}
