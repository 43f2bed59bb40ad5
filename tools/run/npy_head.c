/* Writes headers of .npy files (numpy.lib.format, version 1.0): magic, version, length, a Python
 * dictionary that spaces and a newline fill up to a multiple of 64 bytes. */
#include "tools/run/npy_head.h"

#include <inttypes.h>

enum { PREFIX = 10, ALIGNMENT = 64 };

smp_status smp__npy_write_head(smp_writer *file, const char *descr, const int64_t *dim, int n_dim)
{
    smp_text text = {0};
    smp_text_append(&text, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr);
    for (int i = 0; i < n_dim; i++)
        smp_text_append(&text, "%s%" PRId64 "%s", i > 0 ? " " : "", dim[i],
                        i + 1 < n_dim || n_dim == 1 ? "," : "");
    smp_text_append(&text, "), }");
    while (!text.failed && (PREFIX + text.length + 1) % ALIGNMENT != 0)
        smp_text_append(&text, " ");
    smp_text_append(&text, "\n");
    if (text.failed) {
        smp_text_free(&text);
        return smp_fail_memory(text.length);
    }
    const unsigned char prefix[PREFIX] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, text.length & 0xff, (text.length >> 8) & 0xff};
    smp_status status = smp_writer_add(file, prefix, sizeof prefix);
    if (status == SMP_OK)
        status = smp_writer_add(file, text.data, text.length);
    smp_text_free(&text);
    return status;
}
