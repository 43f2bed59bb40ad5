/* Copies of one tensor: exec/step/tap.h. */
#include "exec/step/tap.h"

#include "exec/step/stepping.h"

bool smp__tap_parts_pair(const smp *s, int chunk, int call)
{
    return s->stepping->tap && s->stepping->tap->chunk == chunk && s->stepping->tap->call == call;
}

smp_status smp__tap_take(smp *s, int chunk, int call, int microbatch)
{
    const smp__tap *tap = s->stepping->tap;
    if (!tap || tap->chunk != chunk || tap->call != call)
        return SMP_OK;
    const smp_layout_call *layout = s->work->chunk[chunk].call[call].layout;
    const int64_t place = s->given->first_microbatch + microbatch;
    return s->device->download(s->device_context, tap->values + place * tap->bytes,
                               smp__job_address(s, chunk, layout->out[tap->slot], microbatch),
                               tap->bytes);
}
