/* Matrix products of the open op: each algorithm that the device's library gives for one is timed
 * in the part that it is of, with all else that the part does, so that an epilogue and the kernels
 * that do it apart are compared as they will run. The fastest stays: of two that are as good as
 * equal the one that the library gives first. */
#include "exec/probe/probe_op.h"
#include "profile/measure.h"

enum { SAMPLES = 3, MOST_RUNS = 100 };

static const double SAMPLE_US = 500, GAIN = 0.98;

/* The least of some samples: what disturbs a run makes it longer. */
static smp_status sample(smp__probe_state *p, smp_op_part part, double *least_us)
{
    double us;
    SMP_TRY(smp__probe_time(p, part, 1, &us)); /* loads the kernel */
    SMP_TRY(smp__probe_time(p, part, 1, &us));
    const double runs = us > 0 ? SAMPLE_US / us : MOST_RUNS;
    const int repeat = runs < 1 ? 1 : runs > MOST_RUNS ? MOST_RUNS : (int)runs;
    for (int i = 0; i < SAMPLES; i++) {
        SMP_TRY(smp__probe_time(p, part, repeat, &us));
        if (i == 0 || us < *least_us)
            *least_us = us;
    }
    return SMP_OK;
}

static smp_status choose(smp__probe_state *p, smp_op_part part, smp_gemm *product)
{
    int best = -1;
    product->first_us = 0;
    for (int i = 0; i < product->n_algorithm; i++) {
        double us;
        product->chosen = i;
        smp_status status = sample(p, part, &us);
        if (status != SMP_OK && best < 0)
            return status;
        if (status != SMP_OK || product->chosen != i) /* refused */
            continue;
        if (i == 0)
            product->first_us = smp__to_ns(us);
        if (best < 0 || us < GAIN * product->us) {
            best = i;
            product->us = us;
        }
    }
    product->chosen = best;
    if (best == 0)
        product->first_us = 0; /* that is `us` */
    product->us = smp__to_ns(product->us);
    product->used = true;
    return SMP_OK;
}

/* One that a run of the part uses and that was not chosen yet; NULL: there is none. */
static smp_status find(smp__probe_state *p, smp_op_part part, smp_gemm **out)
{
    const smp_gemms *products = p->device->products(p->device_context);
    double us;
    *out = NULL;
    for (int i = 0; i < products->n; i++)
        products->product[i]->runs = 0;
    SMP_TRY(smp__probe_time(p, part, 1, &us));
    for (int i = 0; i < products->n && !*out; i++)
        if (products->product[i]->runs > 0 && !products->product[i]->used)
            *out = products->product[i];
    return SMP_OK;
}

smp_status smp__probe_choose(smp__probe_state *p)
{
    smp_gemm *product;
    for (int part = 0; p->device->products && part < SMP__PROBE_PARTS; part++)
        do {
            SMP_TRY(find(p, (smp_op_part)part, &product));
            if (product)
                SMP_TRY(choose(p, (smp_op_part)part, product));
        } while (product);
    return SMP_OK;
}
