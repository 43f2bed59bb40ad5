/* Image files that tests write, by libpng and libjpeg themselves. */
#ifndef SMP_TESTS_EXEC_DATA_IMAGE_FILES_H
#define SMP_TESTS_EXEC_DATA_IMAGE_FILES_H

#include <setjmp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include <jpeglib.h>
#include <png.h>

/* What the rows of a PNG image are. */
typedef struct png_form {
    int width, height, depth, type; /* PNG_COLOR_TYPE_... */
    int interlace;
    size_t stride;
} png_form;

/* Rows as the file has them. palette: NULL, or so many colours. Ends the program if it fails. */
static inline void write_png(const char *path, png_form f, const unsigned char *rows,
                             const png_color *palette, int colours)
{
    FILE *file = fopen(path, "wb");
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);
    if (!file || !info || setjmp(png_jmpbuf(png)))
        abort();
    png_init_io(png, file);
    png_set_IHDR(png, info, (png_uint_32)f.width, (png_uint_32)f.height, f.depth, f.type,
                 f.interlace, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    if (palette)
        png_set_PLTE(png, info, palette, colours);
    png_set_gAMA(png, info, 0.5); /* must change nothing */
    png_write_info(png, info);
    const int passes = png_set_interlace_handling(png);
    for (int pass = 0; pass < passes; pass++)
        for (int y = 0; y < f.height; y++)
            png_write_row(png, rows + (size_t)y * f.stride);
    png_write_end(png, NULL);
    png_destroy_write_struct(&png, &info);
    if (fclose(file) != 0)
        abort();
}

/* channels: 1, 3, or 4 (CMYK). */
static inline void write_jpeg(const char *path, int width, int height, int channels,
                              bool progressive, const unsigned char *rows)
{
    struct jpeg_compress_struct jpeg;
    struct jpeg_error_mgr errors;
    FILE *file = fopen(path, "wb");
    if (!file)
        abort();
    jpeg.err = jpeg_std_error(&errors);
    jpeg_create_compress(&jpeg);
    jpeg_stdio_dest(&jpeg, file);
    jpeg.image_width = (JDIMENSION)width;
    jpeg.image_height = (JDIMENSION)height;
    jpeg.input_components = channels;
    jpeg.in_color_space = channels == 1 ? JCS_GRAYSCALE : channels == 3 ? JCS_RGB : JCS_CMYK;
    jpeg_set_defaults(&jpeg);
    jpeg_set_quality(&jpeg, 100, TRUE);
    if (progressive)
        jpeg_simple_progression(&jpeg);
    jpeg_start_compress(&jpeg, TRUE);
    for (int y = 0; y < height; y++) {
        unsigned char row[4096];
        JSAMPROW at = row;
        for (int i = 0; i < width * channels; i++)
            row[i] = rows[y * width * channels + i];
        jpeg_write_scanlines(&jpeg, &at, 1);
    }
    jpeg_finish_compress(&jpeg);
    jpeg_destroy_compress(&jpeg);
    if (fclose(file) != 0)
        abort();
}

#endif
