/* Agreement on the algorithms of matrix products.
 *
 * A product's list is a pure function of its shape, its types and its epilogue on cards and
 * libraries that are equal; where they are not, the list of the lowest rank counts, and an
 * algorithm that is not there is one that is refused. Each rank takes the first of a list that is
 * not refused when the kernels run for the first time. The greatest choice of all ranks is
 * everybody's, who did not try it before tries it then, and so on: choices only rise, so there are
 * at most as many rounds as algorithms in all lists, and commonly one. Nothing changes after
 * that. */
#include "exec/job/agree_gemms.h"
#include "exec/job/choose_device.h"
#include "exec/job/setup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static smp_gemms *products_of(const smp *s)
{
    return s->device->products ? s->device->products(s->device_context) : NULL;
}

static smp_status check_origin(const smp *s, const smp_gemms *products)
{
    const smp_gemm_choices *choices = &s->plan->products;
    char device[SMP_DEVICE_NAME_BYTES];
    smp_device_profile_name(s->device, s->device_context, device);
    if (strcmp(device, choices->device) == 0 && strcmp(products->library, choices->library) == 0)
        return SMP_OK;
    return smp_fail(SMP_ERR_FAILED, "%s with %s here, it was made on %s with %s", device,
                    products->library, choices->device, choices->library);
}

smp_status smp__gemms_ask(smp *s)
{
    smp_gemms *products = products_of(s);
    if (!products || !s->plan->products.device)
        return SMP_OK;
    smp_status status = smp__comm_agree(s->comm, check_origin(s, products));
    if (s->comm->failed)
        return status;
    if (status == SMP_OK)
        products->choices = &s->plan->products;
    else
        snprintf(s->setup->found->products_note, sizeof s->setup->found->products_note,
                 "the plan's choice of algorithms is not taken: %s", smp_last_error());
    return SMP_OK;
}

static smp_status gather(smp *s, const smp_gemms *products,
                         void (*write)(const smp_gemms *, smp_text *), char **all)
{
    smp_text own = {0};
    size_t total;
    write(products, &own);
    smp_status status = smp__comm_agree(s->comm, own.failed ? smp_fail_memory(1) : SMP_OK);
    if (status == SMP_OK)
        status = smp__comm_gather(s->comm, own.data ? own.data : "", own.length, all, &total);
    smp_text_free(&own);
    return status;
}

smp_status smp__gemms_list(smp *s)
{
    smp_gemms *products = products_of(s);
    char *all;
    if (!products)
        return SMP_OK;
    SMP_TRY(gather(s, products, smp_gemms_list, &all));
    smp_status status = smp_gemms_take(products, all);
    free(all);
    return smp__comm_agree(s->comm, status);
}

smp_status smp__gemms_settle(smp *s, bool *again)
{
    smp_gemms *products = products_of(s);
    char *all;
    if (!products)
        return SMP_OK;
    SMP_TRY(gather(s, products, smp_gemms_say, &all));
    int changed = smp_gemms_agree(products, all);
    free(all);
    SMP_TRY(smp__comm_max(s->comm, &changed));
    *again = *again || changed;
    products->settled = !*again;
    return SMP_OK;
}
