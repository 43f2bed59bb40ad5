/* Names of backends and number formats, and which go together. */
#include "graph/model/target.h"

#include <string.h>

#include "graph/base/text.h"

static const smp_backend_traits backends[SMP_N_BACKEND] = {
    [SMP_BACKEND_CPU] = {.title = "CPU", .cpu_kernels = true},
    [SMP_BACKEND_CUDA] = {.title = "CUDA",
                          .own_memory = true,
                          .fuses = true,
                          .sends_halves = true,
                          .has_tf32 = true,
                          .channels_last = true,
                          .captures = true,
                          .picks_gemms = true},
};
#define NAME(ID, name) #name,
static const char *const NAMES[SMP_N_BACKEND] = {SMP_BACKENDS(NAME)};
static const char *const PRECISIONS[SMP_N_PRECISION] = {"fp32", "tf32", "bf16", "fp16", "fp8"};

const smp_backend_traits *smp_backend_of(smp_target target)
{
    return &backends[target.backend];
}

const char *smp_backend_name(smp_backend backend)
{
    return NAMES[backend];
}

const char *smp_precision_name(smp_precision precision)
{
    return PRECISIONS[precision];
}

static int find(const char *const *names, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return -1;
}

bool smp_backend_find(const char *name, smp_backend *out)
{
    int found = find(NAMES, SMP_N_BACKEND, name);
    if (found >= 0)
        *out = (smp_backend)found;
    return found >= 0;
}

smp_backend smp_backend_of_device(const char *device)
{
    const size_t length = strcspn(device, ":");
    for (int i = 0; i < SMP_N_BACKEND; i++)
        if (strlen(NAMES[i]) == length && strncmp(NAMES[i], device, length) == 0)
            return (smp_backend)i;
    return SMP_BACKEND_CUDA;
}

const char *smp_precision_word(const char *name)
{
    smp_dtype dtype;
    for (int i = 0; i < SMP_N_PRECISION && smp_dtype_find(name, &dtype); i++)
        if (smp_precision_dtype((smp_precision)i) == dtype) /* of float32 the first, fp32 */
            return PRECISIONS[i];
    return name;
}

bool smp_precision_find(const char *name, smp_precision *out)
{
    int found = find(PRECISIONS, SMP_N_PRECISION, smp_precision_word(name));
    if (found >= 0)
        *out = (smp_precision)found;
    return found >= 0;
}

smp_status smp_backend_read(smp_where where, const char *what, const char *name, smp_backend *out)
{
    return smp_backend_find(name, out) ? SMP_OK
                                       : smp_fail_choice(where, what, name, NAMES, SMP_N_BACKEND);
}

smp_status smp_precision_read(smp_where where, const char *what, const char *name,
                              smp_precision *out)
{
    return smp_precision_find(name, out)
               ? SMP_OK
               : smp_fail_choice(where, what, name, PRECISIONS, SMP_N_PRECISION);
}

static bool has_precision(smp_backend backend, smp_precision precision)
{
    return precision != SMP_PRECISION_TF32 || backends[backend].has_tf32;
}

const char *smp_backend_with(smp_precision precision)
{
    int i = 0;
    while (!has_precision((smp_backend)i, precision))
        i++;
    return NAMES[i];
}

smp_status smp_target_check(smp_target target)
{
    if (!has_precision(target.backend, target.precision))
        return smp_fail(SMP_ERR_INPUT, "%s on the %s: its operators have fp32, bf16, fp16 and fp8",
                        smp_precision_name(target.precision), smp_backend_of(target)->title);
    return SMP_OK;
}

smp_status smp_target_check_devices(smp_target target, int devices)
{
    if (devices > 1 && !smp_target_splits(target))
        return smp_fail(SMP_ERR_INPUT,
                        "fp8: got %d devices that compute ops together, expected 1: scales are of "
                        "whole tensors, of which each would have a part: give --tensor 1, or "
                        "--precision bf16",
                        devices);
    return SMP_OK;
}
