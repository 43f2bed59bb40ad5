/* The files of a folder of images, by class. Private to this room. */
#ifndef SMP_EXEC_DATA_IMAGE_FOLDER_H
#define SMP_EXEC_DATA_IMAGE_FOLDER_H

#include "exec/data/data_source.h"

typedef struct smp__image_file {
    const char *path;
    int32_t label; /* number of the class */
} smp__image_file;

typedef struct smp__image_folder {
    smp__image_file *file; /* [n_file]: class by class */
    int64_t n_file;
    int32_t n_class; /* 0: the images lie in the folder itself, and have no class */
} smp__image_folder;

bool smp__is_folder(const char *path);
/* Sub-folders in the order of the bytes of their names are the classes, likewise the files in them
 * the samples; names that begin with a dot are passed over. All lies in the arena. SMP_ERR_INPUT:
 * unreadable, empty, an empty class, files beside classes, a folder in a class. */
smp_status smp__image_folder_list(smp_arena *arena, const char *path, smp__image_folder *folder);

#endif
