/* JPEG files, by libjpeg-turbo, with the integer transform, whose bits are the same on every
 * processor. What ends early is broken; what has superfluous bytes, as of some cameras, is not. */
#include "exec/data/decode_image.h"

#ifdef SMP_HAVE_JPEG
#include <setjmp.h>
#include <stdio.h>

#include <jpeglib.h>

#include <jerror.h>

enum { MOST_SCANS = 500 }; /* of a progressive image: each may be tiny and cost a whole image */

/* A file being decoded. libjpeg leaves by longjmp: all that is used after it is in here. */
typedef struct reader {
    struct jpeg_decompress_struct jpeg; /* first: libjpeg passes its address */
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr source;
    struct jpeg_progress_mgr progress;
    jmp_buf leave;
    const smp_data_file *file;
    int64_t at;        /* in the file, after what the source has */
    smp_status status; /* of reading the file */
    char reason[JMSG_LENGTH_MAX];
    unsigned char piece[SMP_DATA_PIECE];
} reader;

static void fail(reader *r, const char *reason)
{
    snprintf(r->reason, sizeof r->reason, "%s", reason);
    longjmp(r->leave, 1);
}

static void on_error(j_common_ptr jpeg)
{
    reader *r = (reader *)(void *)jpeg;
    jpeg->err->format_message(jpeg, r->reason);
    longjmp(r->leave, 1);
}

static void on_message(j_common_ptr jpeg, int level)
{
    const int code = jpeg->err->msg_code;
    const bool harmless =
        code == JWRN_EXTRANEOUS_DATA || code == JWRN_ADOBE_XFORM || code == JWRN_JFIF_MAJOR;
    if (level < 0 && !harmless)
        on_error(jpeg);
}

static void on_progress(j_common_ptr jpeg)
{
    reader *r = (reader *)(void *)jpeg;
    if (r->jpeg.input_scan_number > MOST_SCANS)
        fail(r, "more scans than any image needs");
}

static void begin_source(j_decompress_ptr jpeg)
{
    (void)jpeg;
}

static boolean fill_source(j_decompress_ptr jpeg)
{
    reader *r = (reader *)(void *)jpeg;
    const int64_t left = r->file->bytes - r->at;
    const size_t n = left < SMP_DATA_PIECE ? (size_t)left : SMP_DATA_PIECE;
    if (left <= 0)
        fail(r, "the file ends early");
    r->status = smp__data_file_read(r->file, r->at, r->piece, n);
    if (r->status != SMP_OK)
        fail(r, "cannot be read");
    r->at += (int64_t)n;
    r->source.next_input_byte = r->piece;
    r->source.bytes_in_buffer = n;
    return TRUE;
}

static void skip_source(j_decompress_ptr jpeg, long n)
{
    reader *r = (reader *)(void *)jpeg;
    if (n <= 0)
        return;
    const size_t here = r->source.bytes_in_buffer;
    if ((size_t)n < here) {
        r->source.next_input_byte += n;
        r->source.bytes_in_buffer -= (size_t)n;
        return;
    }
    r->at += (int64_t)((size_t)n - here);
    r->source.bytes_in_buffer = 0;
}

static void end_source(j_decompress_ptr jpeg)
{
    (void)jpeg;
}

static void open_reader(reader *r, const smp_data_file *file)
{
    *r = (reader){.file = file};
    r->jpeg.err = jpeg_std_error(&r->errors);
    r->errors.error_exit = on_error;
    r->errors.emit_message = on_message;
    r->progress.progress_monitor = on_progress;
    r->source = (struct jpeg_source_mgr){.init_source = begin_source,
                                         .fill_input_buffer = fill_source,
                                         .skip_input_data = skip_source,
                                         .resync_to_restart = jpeg_resync_to_restart,
                                         .term_source = end_source};
}

static smp_status close_reader(reader *r, bool done)
{
    jpeg_destroy_decompress(&r->jpeg);
    if (done || r->status != SMP_OK)
        return r->status;
    return smp_fail(SMP_ERR_INPUT, "%s: broken JPEG image: %s", r->file->path, r->reason);
}

static bool read_head(reader *r)
{
    if (setjmp(r->leave))
        return false;
    jpeg_create_decompress(&r->jpeg);
    r->jpeg.src = &r->source;
    r->jpeg.progress = &r->progress;
    jpeg_read_header(&r->jpeg, TRUE);
    if (r->jpeg.num_components != 1 && r->jpeg.num_components != 3)
        fail(r, "neither grey nor of three colours");
    return true;
}

static smp_status head(const smp_data_file *file, smp__image_size *size)
{
    reader r;
    open_reader(&r, file);
    const bool done = read_head(&r);
    if (done)
        *size = (smp__image_size){.width = r.jpeg.image_width,
                                  .height = r.jpeg.image_height,
                                  .grey = r.jpeg.num_components == 1};
    return close_reader(&r, done);
}

/* The header may have changed since it was looked at. */
static bool read_rows(reader *r, const smp__image_size *size, int channels, unsigned char *pixels)
{
    if (setjmp(r->leave))
        return false;
    if (r->jpeg.image_width != size->width || r->jpeg.image_height != size->height ||
        (channels == 1 && r->jpeg.num_components != 1))
        fail(r, "the file has changed");
    r->jpeg.out_color_space = channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    r->jpeg.dct_method = JDCT_ISLOW;
    jpeg_start_decompress(&r->jpeg);
    while (r->jpeg.output_scanline < r->jpeg.output_height) {
        JSAMPROW row = pixels + (size_t)r->jpeg.output_scanline * (size_t)(size->width * channels);
        jpeg_read_scanlines(&r->jpeg, &row, 1);
    }
    jpeg_finish_decompress(&r->jpeg);
    return true;
}

static smp_status decode(const smp_data_file *file, const smp__image_size *size, int channels,
                         unsigned char *pixels)
{
    reader r;
    open_reader(&r, file);
    return close_reader(&r, read_head(&r) && read_rows(&r, size, channels, pixels));
}
#else
#define head NULL
#define decode NULL
#endif

const smp__image_format smp__image_jpeg = {
    .name = "JPEG",
    .library = "libjpeg-turbo",
    .magic = "\xff\xd8\xff",
    .n_magic = 3,
    .head = head,
    .decode = decode,
};
