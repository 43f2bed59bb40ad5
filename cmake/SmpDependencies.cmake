# Libraries from the system, each as one imported target. Missing ones are named with their package.
find_package(MPI REQUIRED COMPONENTS C)
find_package(OpenMP REQUIRED COMPONENTS C) # of the compiler; oneDNN's thread count is set through it

# smp_find_library(<target> <header> <library> <package>): defines Smp::<target>.
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

# What a machine may lack: AUTO takes it when it is found, ON insists, OFF does not look.
set(SMP_WITH_CUDA AUTO CACHE STRING "CUDA runtime: AUTO, ON or OFF")
set(SMP_WITH_NCCL AUTO CACHE STRING "NCCL (needs CUDA): AUTO, ON or OFF")
foreach(name SMP_WITH_CUDA SMP_WITH_NCCL)
  set_property(CACHE ${name} PROPERTY STRINGS AUTO ON OFF)
endforeach()

# Smp::cuda: the static CUDA runtime, so that programs start where no CUDA library is installed.
set(SMP_HAVE_CUDA OFF)
if(SMP_WITH_CUDA STREQUAL "AUTO" OR SMP_WITH_CUDA)
  find_package(CUDAToolkit QUIET)
  if(CUDAToolkit_FOUND AND TARGET CUDA::cudart_static)
    set(SMP_HAVE_CUDA ON)
    add_library(Smp::cuda INTERFACE IMPORTED GLOBAL)
    target_link_libraries(Smp::cuda INTERFACE CUDA::cudart_static)
    target_compile_definitions(Smp::cuda INTERFACE SMP_HAVE_CUDA)
  elseif(NOT SMP_WITH_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "SMP_WITH_CUDA=${SMP_WITH_CUDA}, but no CUDA toolkit with cudart_static "
                        "was found: set CUDAToolkit_ROOT, or SMP_WITH_CUDA=OFF")
  endif()
endif()

# NCCL: no transport uses it yet, so only its header is needed and nothing is linked.
set(SMP_HAVE_NCCL OFF)
if(SMP_WITH_NCCL STREQUAL "AUTO" OR SMP_WITH_NCCL)
  if(SMP_HAVE_CUDA)
    find_path(nccl_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
    mark_as_advanced(nccl_INCLUDE)
  endif()
  if(SMP_HAVE_CUDA AND nccl_INCLUDE)
    set(SMP_HAVE_NCCL ON)
    target_include_directories(Smp::cuda SYSTEM INTERFACE ${nccl_INCLUDE})
    target_compile_definitions(Smp::cuda INTERFACE SMP_HAVE_NCCL)
  elseif(NOT SMP_WITH_NCCL STREQUAL "AUTO")
    message(FATAL_ERROR "SMP_WITH_NCCL=${SMP_WITH_NCCL}, but nccl.h was not found or CUDA is off: "
                        "install NCCL, or set SMP_WITH_NCCL=OFF")
  endif()
endif()
message(STATUS "CUDA: ${SMP_HAVE_CUDA}, NCCL: ${SMP_HAVE_NCCL}")
