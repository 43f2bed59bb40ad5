/* Shared libraries opened at run time. */
#include "graph/base/library.h"

#include <dlfcn.h>
#include <stdio.h>

smp_status smp_library_open(const char *file, const char *folder, int n, const char *const *symbol,
                            void **call)
{
    char path[4096];
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!library && folder) {
        snprintf(path, sizeof path, "%s/%s", folder, file);
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    if (!library)
        return smp_fail(SMP_ERR_FAILED, "%s", dlerror());
    for (int i = 0; i < n; i++) {
        call[i] = dlsym(library, symbol[i]);
        if (!call[i])
            return smp_fail(SMP_ERR_FAILED, "%s has no %s", file, symbol[i]);
    }
    return SMP_OK;
}
