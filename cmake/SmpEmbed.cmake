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
