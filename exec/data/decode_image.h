/* Image files decoded to rows of 8-bit pixels: one format per file, listed in data_images.c.
 * Private to this room. */
#ifndef SMP_EXEC_DATA_DECODE_IMAGE_H
#define SMP_EXEC_DATA_DECODE_IMAGE_H

#include "exec/data/data_source.h"

typedef struct smp__image_size {
    int64_t width, height;
    bool grey;
} smp__image_size;

/* Both calls fail with the file and what is wrong with it: SMP_ERR_INPUT, or SMP_ERR_FAILED where
 * it cannot be read. They keep nothing. */
typedef struct smp__image_format {
    const char *name, *library;
    const char *magic; /* the file's first bytes; */
    size_t n_magic;    /* so many */
    /* Reads the header alone. NULL: built without the library. */
    smp_status (*head)(const smp_data_file *file, smp__image_size *size);
    /* pixels: [height][width][channels], channels 1 (of a grey image) or 3 (of any: grey three
     * times; transparency is left out). `size` is what `head` found. */
    smp_status (*decode)(const smp_data_file *file, const smp__image_size *size, int channels,
                         unsigned char *pixels);
} smp__image_format;

extern const smp__image_format smp__image_png, smp__image_jpeg;

#endif
