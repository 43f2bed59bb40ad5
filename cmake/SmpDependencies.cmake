# Libraries from the system, each as one imported target. Missing ones are named with their package.
find_package(MPI REQUIRED COMPONENTS C)
find_package(PkgConfig)

function(smp_find_library target header library package)
  find_path(${target}_INCLUDE ${header})
  find_library(${target}_LIBRARY ${library})
  if(NOT ${target}_INCLUDE OR NOT ${target}_LIBRARY)
    message(FATAL_ERROR "${header} or lib${library} not found: install ${package} (Debian) "
                        "or run tests/run.sh, which installs what is missing")
  endif()
  mark_as_advanced(${target}_INCLUDE ${target}_LIBRARY)
  add_library(Smp::${target} UNKNOWN IMPORTED GLOBAL)
  set_target_properties(Smp::${target} PROPERTIES IMPORTED_LOCATION ${${target}_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${${target}_INCLUDE})
endfunction()

smp_find_library(yaml yaml.h yaml libyaml-dev)
smp_find_library(metis metis.h metis libmetis-dev)
smp_find_library(dnnl dnnl.h dnnl libdnnl-dev)
