/* What the files of the measurement share. */
#ifndef SMP_PROFILE_MEASURE_H
#define SMP_PROFILE_MEASURE_H

#include "profile/profile.h"

double smp__median(double *values, int64_t n); /* sorts; 0 of nothing */
/* Between the quartiles, by linear interpolation; sorts. */
double smp__quartile_range(double *values, int64_t n);
/* The mean between the quartiles; sorts. As robust against a fourth that others disturbed as the
 * median, and nearer to the mean. */
double smp__middle_mean(double *values, int64_t n);
/* What a deviation is of a mean, by the range between the quartiles of normal samples; at most 1.
 */
double smp__scatter(double range, double middle);
double smp__to_ns(double us); /* times are written so: further digits are noise */

/* Every rank gets the first failure (smp_probe.sync). */
smp_status smp__sync_ranks(const smp_probe *probe, smp_status status);

/* The curves of the links that the probe has, in profile->link, within options->link_s. */
smp_status smp__measure_links(const smp_probe *probe, const smp_profile_options *options,
                              smp_arena *scratch, smp_profile *profile);

#endif
