/* See metis_call.h. */
#include "partition/solve/metis_call.h"

#include <stdlib.h>

void smp__metis_begin(smp__metis_call *call, uint64_t seed, idx_t options[METIS_NOPTIONS])
{
    sigaction(SIGABRT, NULL, &call->on_abort);
    sigaction(SIGTERM, NULL, &call->on_term);
    call->random = initstate(1, call->own_random, sizeof call->own_random);
    METIS_SetDefaultOptions(options);
    options[METIS_OPTION_SEED] = (idx_t)(seed & 0x7fffffff);
    options[METIS_OPTION_NUMBERING] = 0;
}

smp_status smp__metis_end(smp__metis_call *call, int code)
{
    setstate(call->random);
    sigaction(SIGTERM, &call->on_term, NULL);
    sigaction(SIGABRT, &call->on_abort, NULL);
    if (code == METIS_ERROR_MEMORY)
        return smp_fail(SMP_ERR_NO_MEMORY, "METIS ran out of memory");
    if (code != METIS_OK)
        return smp_fail(SMP_ERR_FAILED, "METIS failed with code %d", code);
    return SMP_OK;
}
