/* Which splittings were looked at. */
#include "tools/show/explain.h"

#include <stdio.h>

#include "tools/show/text_table.h"

const char *smp__splitting_miss(const smp_tensor_tried *tried)
{
    return !tried->looked_at ? "not looked at for want of effort"
           : tried->slower   ? "cannot be better"
                             : "does not fit";
}

smp_status smp_explain_tensor(const smp_tensor_result *made, smp_text *text)
{
    enum { N = 7 };
    static const char *const heads[N] = {"<tensor",   "memory counts", "ops split", "in pieces",
                                         "samples/s", "highest peak",  "<"};
    smp__table t;
    if (made->n_lean > 0)
        smp_text_append(
            text,
            "products: %d by our kernels (tiled), not by the library that was measured to "
            "be faster: nothing fits with its workspace\n",
            made->n_lean);
    if (made->n_tried <= 1)
        return SMP_OK;
    smp_text_append(text, "splittings (memory counts: times what a micro-batch takes, for all of a "
                          "device's memory):\n");
    SMP_TRY(smp__table_open(&t, N, made->n_tried, heads));
    for (int i = 0; i < made->n_tried; i++) {
        const smp_tensor_tried *tried = &made->tried[i];
        char peak[32];
        if (tried->least > 0)
            smp__table_put(&t, "<%d to %d", tried->least, tried->tensor);
        else
            smp__table_put(&t, "<%d", tried->tensor);
        if (tried->tensor > 1 && tried->least == 0)
            smp__table_put(&t, "%g", tried->memory_price);
        else
            smp__table_put(&t, "-");
        smp__table_put(&t, "%d", (int)tried->n_split);
        smp__table_put(&t, "%d", (int)tried->n_pieces);
        if (tried->fits)
            smp__table_put(&t, "%.1f", 1e6 / tried->sample_us);
        else
            smp__table_put(&t, "-");
        smp__table_put(&t, "%s",
                       tried->fits ? smp_format_bytes(peak, sizeof peak, tried->peak_bytes) : "-");
        const char *state = tried->fits ? "" : smp__splitting_miss(tried);
        const bool is_partial =
            tried->looked_at && !tried->exact && tried->tensor > 1 && tried->least == 0;
        char size[48] = "";
        if (tried->microbatch_size > 1)
            snprintf(size, sizeof size, "micro-batches of %lld%s",
                     (long long)tried->microbatch_size, *state || is_partial ? "; " : "");
        smp__table_put(&t, "<%s%s%s%s", size, state, *state && is_partial ? "; " : "",
                       is_partial ? "not all splittings were compared" : "");
    }
    return smp__table_print(&t, text);
}
