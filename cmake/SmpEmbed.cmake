# smp_embed(<target> <file>...): compiles each file into the target as a NUL-terminated array
# smp__file_<name>, dots and hyphens of the name turned to underscores.
function(smp_embed target)
  foreach(file IN LISTS ARGN)
    get_filename_component(name ${file} NAME)
    string(MAKE_C_IDENTIFIER ${name} name)
    file(READ ${CMAKE_CURRENT_SOURCE_DIR}/${file} content HEX)
    string(REGEX REPLACE "(................................)" "\\1\n" content "${content}")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," content "${content}")
    set(source ${CMAKE_CURRENT_BINARY_DIR}/embedded/${name}.c)
    file(CONFIGURE OUTPUT ${source} @ONLY CONTENT
         "extern const unsigned char smp__file_${name}[];\nconst unsigned char smp__file_${name}[] = {\n${content}0};\n")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${file})
    target_sources(${target} PRIVATE ${source})
  endforeach()
endfunction()

# smp_embed_folder(<target> <table> <folder>): smp_embed for every .yaml of a folder, and two arrays, NULL last:
# smp__<table>_names, without .yaml and in their order, and smp__<table>_texts.
function(smp_embed_folder target table folder)
  file(GLOB files CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} ${folder}/*.yaml)
  smp_embed(${target} ${files})
  set(arrays "")
  set(names "")
  set(texts "")
  foreach(file IN LISTS files)
    get_filename_component(name ${file} NAME)
    string(REGEX REPLACE "\\.yaml$" "" key ${name})
    string(MAKE_C_IDENTIFIER ${name} name)
    string(APPEND arrays "extern const unsigned char smp__file_${name}[];\n")
    string(APPEND names "\"${key}\", ")
    string(APPEND texts "smp__file_${name}, ")
  endforeach()
  set(source ${CMAKE_CURRENT_BINARY_DIR}/embedded/${table}.c)
  file(CONFIGURE OUTPUT ${source} @ONLY CONTENT "${arrays}
extern const char *const smp__${table}_names[];
extern const unsigned char *const smp__${table}_texts[];
const char *const smp__${table}_names[] = {${names}0};
const unsigned char *const smp__${table}_texts[] = {${texts}0};
")
  target_sources(${target} PRIVATE ${source})
endfunction()
