/* PNG files, by libpng: palettes and depths other than 8 become 8 bits per channel. Numbers are
 * taken as they stand: gamma and colour profiles change nothing. */
#include "exec/data/decode_image.h"

#ifdef SMP_HAVE_PNG
#include <png.h>
#include <setjmp.h>
#include <stdio.h>

/* A file being decoded. libpng leaves by longjmp: all that is used after it is in here. */
typedef struct reader {
    const smp_data_file *file;
    int64_t at;
    smp_status status; /* of reading the file */
    png_structp png;
    png_infop info;
    char reason[160];
} reader;

static void on_error(png_structp png, png_const_charp message)
{
    reader *r = png_get_error_ptr(png);
    snprintf(r->reason, sizeof r->reason, "%s", message);
    longjmp(png_jmpbuf(png), 1);
}

static void on_warning(png_structp png, png_const_charp message)
{
    (void)png;
    (void)message;
}

static void read_bytes(png_structp png, png_bytep to, size_t n)
{
    reader *r = png_get_io_ptr(png);
    if ((int64_t)n > r->file->bytes - r->at)
        png_error(png, "the file ends early");
    r->status = smp__data_file_read(r->file, r->at, to, n);
    if (r->status != SMP_OK)
        png_error(png, "cannot be read");
    r->at += (int64_t)n;
}

static smp_status open_reader(reader *r)
{
    r->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, r, on_error, on_warning);
    r->info = r->png ? png_create_info_struct(r->png) : NULL;
    if (r->info)
        return SMP_OK;
    png_destroy_read_struct(&r->png, NULL, NULL);
    return smp_fail_memory(sizeof(png_infop));
}

static smp_status close_reader(reader *r, bool done)
{
    png_destroy_read_struct(&r->png, &r->info, NULL);
    if (done || r->status != SMP_OK)
        return r->status;
    return smp_fail(SMP_ERR_INPUT, "%s: broken PNG image: %s", r->file->path, r->reason);
}

static bool read_head(reader *r)
{
    if (setjmp(png_jmpbuf(r->png)))
        return false;
    png_set_read_fn(r->png, r, read_bytes);
    png_read_info(r->png, r->info);
    return true;
}

static smp_status head(const smp_data_file *file, smp__image_size *size)
{
    reader r = {.file = file};
    SMP_TRY(open_reader(&r));
    const bool done = read_head(&r);
    if (done)
        *size = (smp__image_size){
            .width = png_get_image_width(r.png, r.info),
            .height = png_get_image_height(r.png, r.info),
            .grey = (png_get_color_type(r.png, r.info) & PNG_COLOR_MASK_COLOR) == 0};
    return close_reader(&r, done);
}

/* Rows of `stride` bytes. The header may have changed since it was looked at. */
static bool read_rows(reader *r, const smp__image_size *size, int channels, unsigned char *pixels)
{
    const size_t stride = (size_t)(size->width * channels);
    if (setjmp(png_jmpbuf(r->png)))
        return false;
    png_set_expand(r->png);
    png_set_scale_16(r->png);
    png_set_strip_alpha(r->png);
    if (channels == 3)
        png_set_gray_to_rgb(r->png);
    const int passes = png_set_interlace_handling(r->png);
    png_read_update_info(r->png, r->info);
    if (png_get_image_width(r->png, r->info) != size->width ||
        png_get_image_height(r->png, r->info) != size->height ||
        png_get_rowbytes(r->png, r->info) != stride)
        png_error(r->png, "the file has changed");
    for (int pass = 0; pass < passes; pass++)
        for (int64_t y = 0; y < size->height; y++)
            png_read_row(r->png, pixels + (size_t)y * stride, NULL);
    png_read_end(r->png, NULL);
    return true;
}

static smp_status decode(const smp_data_file *file, const smp__image_size *size, int channels,
                         unsigned char *pixels)
{
    reader r = {.file = file};
    SMP_TRY(open_reader(&r));
    return close_reader(&r, read_head(&r) && read_rows(&r, size, channels, pixels));
}
#else
#define head NULL
#define decode NULL
#endif

const smp__image_format smp__image_png = {
    .name = "PNG",
    .library = "libpng",
    .magic = "\x89PNG\r\n\x1a\n",
    .n_magic = 8,
    .head = head,
    .decode = decode,
};
