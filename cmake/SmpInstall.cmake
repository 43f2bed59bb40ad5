# Install: smp.h, libsmp, the programs and their pages, a CMake package (smp::smp), smp.pc, the examples.
include(CMakePackageConfigHelpers)

install(TARGETS smp EXPORT smpTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS ${SMP_PROGRAMS} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
# Pages for man and completions of bash, as the programs themselves tell them.
if(NOT CMAKE_CROSSCOMPILING)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/man ${PROJECT_BINARY_DIR}/bash)
  foreach(program IN LISTS SMP_PROGRAMS)
    add_custom_command(TARGET ${program} POST_BUILD
                       COMMAND ${program} --help=man > ${PROJECT_BINARY_DIR}/man/${program}.1
                       COMMAND ${program} --help=bash > ${PROJECT_BINARY_DIR}/bash/${program}
                       VERBATIM)
    install(FILES ${PROJECT_BINARY_DIR}/man/${program}.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
    install(FILES ${PROJECT_BINARY_DIR}/bash/${program}
            DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  endforeach()
endif()

install(FILES smp.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY examples/ DESTINATION ${CMAKE_INSTALL_DATADIR}/smp/examples
        FILES_MATCHING PATTERN "*.yaml" PATTERN "*.c" PATTERN "mpi-env.sh")

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/smp)
install(EXPORT smpTargets NAMESPACE smp:: DESTINATION ${package_dir})
configure_package_config_file(cmake/smpConfig.cmake.in ${PROJECT_BINARY_DIR}/smpConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/smpConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/smpConfig.cmake ${PROJECT_BINARY_DIR}/smpConfigVersion.cmake
        DESTINATION ${package_dir})

# The prefix follows from where smp.pc lies, so `cmake --install --prefix` may move it. Outside /usr
# programs find libsmp through an rpath: no LD_LIBRARY_PATH, no ldconfig.
file(RELATIVE_PATH SMP_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" SMP_PC_PREFIX "${SMP_PC_PREFIX}")
set(SMP_PC_RPATH)
if(NOT CMAKE_INSTALL_PREFIX STREQUAL "/usr")
  set(SMP_PC_RPATH " -Wl,-rpath,\${libdir}")
endif()
configure_file(cmake/smp.pc.in ${PROJECT_BINARY_DIR}/smp.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/smp.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
