/* Folders of images as data: `image=FOLDER`, whose sub-folders are the classes.
 *
 * The pixels feed the named input, [C, H, W] or [H, W], scaled by 1/255 as bytes of arrays are; the
 * number of the class feeds the model's int32 input of one value. Headers of all files are looked
 * at when the folder is opened; a file is open only while it is read. */
#include "exec/data/decode_image.h"
#include "exec/data/image_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/model/op.h"

static const smp__image_format *const formats[] = {&smp__image_png, &smp__image_jpeg, NULL};

typedef struct images {
    smp__image_folder folder;
    smp__image_size size;
    int channels;
} images;

static bool claims(const char *path, bool named)
{
    return named && (smp__is_folder(path) || smp__ends_with(path, "/"));
}

/* The format whose first bytes the file has; NULL: none. */
static smp_status find_format(const smp_data_file *file, const smp__image_format **out)
{
    char first[16] = "";
    const size_t n = file->bytes < (int64_t)sizeof first ? (size_t)file->bytes : sizeof first;
    SMP_TRY(smp__data_file_read(file, 0, first, n));
    const smp__image_format *const *format = formats;
    while (*format &&
           (n < (*format)->n_magic || memcmp(first, (*format)->magic, (*format)->n_magic)))
        format++;
    *out = *format;
    return SMP_OK;
}

static smp_status open_image(const char *path, smp_data_file *file,
                             const smp__image_format **format)
{
    SMP_TRY(smp__data_file_open(path, file));
    smp_status status = find_format(file, format);
    if (status == SMP_OK && !*format)
        status = smp_fail(SMP_ERR_INPUT, "%s: neither a PNG nor a JPEG image", path);
    else if (status == SMP_OK && !(*format)->head)
        status = smp_fail(SMP_ERR_INPUT, "%s: a %s image: this program was built without %s", path,
                          (*format)->name, (*format)->library);
    if (status != SMP_OK)
        smp__data_file_close(file);
    return status;
}

/* What the input wants of every image. */
static smp_status read_input(const smp_source *source, const smp_tensor *input, images *im)
{
    const int64_t *dim = input->shape.dim;
    const int n = input->shape.n_dim;
    const bool fits = n == 2 || (n == 3 && (dim[0] == 1 || dim[0] == 3));
    char shape[128];
    if (input->unsplit)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: the model's input '%s' has split: false, and takes an array of its "
                        "shape, not a folder of images",
                        source->path, input->name);
    if (input->dtype != SMP_F32 || !fits)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: images feed a float32 input of shape [1, H, W], [3, H, W] or [H, W], "
                        "'%s' is %s %s",
                        source->path, input->name, input->dtype == SMP_F32 ? "float32" : "int32",
                        smp_shape_format(shape, sizeof shape, &input->shape));
    im->channels = n == 2 ? 1 : (int)dim[0];
    im->size = (smp__image_size){.width = dim[n - 1], .height = dim[n - 2]};
    return SMP_OK;
}

static smp_status check_image(const images *im, const char *path, const char *input)
{
    smp_data_file file = {0};
    const smp__image_format *format;
    smp__image_size size = {0};
    SMP_TRY(open_image(path, &file, &format));
    smp_status status = format->head(&file, &size);
    smp__data_file_close(&file);
    SMP_TRY(status);
    if (size.width != im->size.width || size.height != im->size.height)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: got an image of %lld x %lld pixels, expected %lld x %lld for the "
                        "input '%s'",
                        path, (long long)size.width, (long long)size.height,
                        (long long)im->size.width, (long long)im->size.height, input);
    if (im->channels == 1 && !size.grey)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: got an image in colour, expected a grey one for the "
                        "input '%s'",
                        path, input);
    return SMP_OK;
}

/* The input that takes the class: the only one of a single int32; -1: none. */
static smp_status find_label(const smp_graph *graph, const smp_source *source, int *label)
{
    *label = -1;
    for (int i = 0; i < graph->n_input; i++) {
        const smp_tensor *tensor = &graph->tensor[i];
        if (tensor->dtype != SMP_I32 || tensor->elements != 1)
            continue;
        if (*label >= 0)
            return smp_fail(SMP_ERR_INPUT,
                            "%s: the classes could feed the input '%s' or '%s': give the images in "
                            "one folder, without classes, and arrays for these inputs",
                            source->path, graph->tensor[*label].name, tensor->name);
        *label = i;
    }
    return SMP_OK;
}

static smp_status open_images(const smp_graph *graph, smp_arena *arena, smp_source *source)
{
    const smp_tensor *input = &graph->tensor[source->feed[0]];
    images *im = SMP_ARENA_NEW(arena, images, 1);
    if (!im)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(read_input(source, input, im));
    SMP_TRY(smp__image_folder_list(arena, source->path, &im->folder));
    for (int64_t i = 0; i < im->folder.n_file; i++)
        SMP_TRY(check_image(im, im->folder.file[i].path, input->name));
    source->state = im;
    source->samples = im->folder.n_file;
    if (im->folder.n_class > 0) {
        int label;
        SMP_TRY(find_label(graph, source, &label));
        if (label >= 0)
            source->feed[source->n_feed++] = label;
    }
    return SMP_OK;
}

/* [H][W][C] bytes to [C][H][W] floats. */
static void to_planes(const images *im, const unsigned char *pixels, float *planes)
{
    const int64_t n = im->size.width * im->size.height;
    for (int c = 0; c < im->channels; c++)
        for (int64_t i = 0; i < n; i++)
            planes[c * n + i] = (float)pixels[i * im->channels + c] / 255.0f;
}

static smp_status read_images(const smp_source *source, int slot, int64_t sample, void *buffer)
{
    const images *im = source->state;
    const smp__image_file *image = &im->folder.file[sample];
    const smp__image_format *format;
    smp_data_file file = {0};
    if (slot == 1) {
        *(int32_t *)buffer = image->label;
        return SMP_OK;
    }
    const size_t bytes = (size_t)(im->size.width * im->size.height * im->channels);
    unsigned char *pixels = malloc(bytes);
    if (!pixels)
        return smp_fail_memory(bytes);
    smp_status status = open_image(image->path, &file, &format);
    if (status == SMP_OK)
        status = format->decode(&file, &im->size, im->channels, pixels);
    if (status == SMP_OK)
        to_planes(im, pixels, buffer);
    smp__data_file_close(&file);
    free(pixels);
    return status;
}

static smp_status check_images(const smp_source *source, int slot, const smp__index_range *range)
{
    const images *im = source->state;
    const int64_t least = 0, most = im->folder.n_class - 1;
    const int64_t value = range->min > least ? least : most;
    char text[768];
    (void)slot;
    if (value >= range->min && value <= range->max)
        return SMP_OK;
    return smp_fail(SMP_ERR_INPUT, "%s: has %lld classes, 0 to %lld: %s", source->path,
                    (long long)im->folder.n_class, (long long)most,
                    smp__index_range_format(text, sizeof text, range, value));
}

const smp_source_kind smp__source_images = {
    .name = "images",
    .form = "INPUT=FOLDER (PNG or JPEG images, sub-folders are the classes)",
    .named = true,
    .folder = true,
    .claims = claims,
    .open = open_images,
    .read = read_images,
    .check = check_images,
};
