/* Loading operators of a user's own: shared objects with one function, smp_plugin_register. They
 * are never unloaded: graphs and jobs hold pointers into them. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/text.h"
#include "graph/ops/custom_op.h"

typedef smp_status register_function(void);

static void *loaded[SMP_CUSTOM_MAX_OPS]; /* every plugin has an operator at least */
static int n_loaded;

/* A name without a slash is a file here, as everywhere else; dlopen would look for it among the
 * system's libraries. */
static smp_status open_file(const char *file, void **out)
{
    smp_text path = {0};
    smp_text_append(&path, "%s%s", strchr(file, '/') ? "" : "./", file);
    if (path.failed)
        return SMP_ERR_NO_MEMORY;
    *out = dlopen(path.data, RTLD_NOW | RTLD_LOCAL);
    smp_text_free(&path);
    if (*out)
        return SMP_OK;
    return smp_fail(SMP_ERR_INPUT, "plugin '%s' cannot be loaded: %s", file, dlerror());
}

static bool is_loaded(const void *handle)
{
    for (int i = 0; i < n_loaded; i++)
        if (loaded[i] == handle)
            return true;
    return false;
}

static smp_status register_ops(const char *file, void *handle)
{
    const int before = smp__custom_ops();
    register_function *function;
    void *symbol = dlsym(handle, "smp_plugin_register");
    if (!symbol)
        return smp_fail(
            SMP_ERR_INPUT,
            "plugin '%s': expected a function smp_plugin_register, which smp.h declares", file);
    memcpy(&function, &symbol, sizeof function); /* ISO C has no cast for it */
    smp_status status = function();
    if (status != SMP_OK)
        status = smp_fail_context(status, "plugin '%s'", file);
    else if (smp__custom_ops() == before)
        status = smp_fail(SMP_ERR_INPUT, "plugin '%s': it registers no operator", file);
    if (status != SMP_OK)
        smp__custom_ops_keep(before);
    return status;
}

static smp_status load(const char *file)
{
    void *handle;
    if (!file || !*file)
        return smp_fail(SMP_ERR_INPUT, "plugin: got an empty name, expected a file");
    SMP_TRY(open_file(file, &handle));
    smp_status status = is_loaded(handle) ? SMP_OK : register_ops(file, handle);
    if (status != SMP_OK || is_loaded(handle))
        dlclose(handle);
    else
        loaded[n_loaded++] = handle;
    return status;
}

smp_status smp_plugins_load(const char *const *files, int n)
{
    for (int i = 0; i < n; i++)
        SMP_TRY(load(files[i]));
    return SMP_OK;
}
