# Libraries from the system, each as one imported target. Missing ones are named with their package.
find_package(MPI REQUIRED COMPONENTS C)
find_package(Threads REQUIRED)
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

# smp_find_optional(<target> <header> <library> <package>): defines Smp::<target> and with it
# SMP_HAVE_<TARGET>, where it is installed. Without, what needs it is refused at run time.
function(smp_find_optional target header library package)
  find_path(${target}_INCLUDE ${header})
  find_library(${target}_LIBRARY ${library})
  mark_as_advanced(${target}_INCLUDE ${target}_LIBRARY)
  if(NOT ${target}_INCLUDE OR NOT ${target}_LIBRARY)
    message(STATUS "${header} or lib${library} not found (${package}): built without")
    return()
  endif()
  string(TOUPPER ${target} name)
  add_library(Smp::${target} UNKNOWN IMPORTED GLOBAL)
  set_target_properties(Smp::${target} PROPERTIES IMPORTED_LOCATION ${${target}_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${${target}_INCLUDE}
                        INTERFACE_COMPILE_DEFINITIONS SMP_HAVE_${name})
endfunction()

smp_find_optional(jansson jansson.h jansson libjansson-dev)
smp_find_optional(png png.h png libpng-dev)
smp_find_optional(jpeg jpeglib.h jpeg libjpeg62-turbo-dev)

# Smp::onnx: protobuf-c and what protoc-c makes of the system's schema (SMP_ONNX_SCHEMA, compiled into
# the layer of graphs). Without them the room graph/onnx is not built, and its programs say so.
smp_find_optional(protobufc protobuf-c/protobuf-c.h protobuf-c libprotobuf-c-dev)
find_program(protoc_c_PROGRAM protoc-c)
find_path(onnx_SCHEMA onnx.proto PATH_SUFFIXES onnx)
mark_as_advanced(protoc_c_PROGRAM onnx_SCHEMA)
set(SMP_ONNX_SCHEMA)
if(TARGET Smp::protobufc AND protoc_c_PROGRAM AND onnx_SCHEMA)
  set(made ${CMAKE_CURRENT_BINARY_DIR}/schema)
  file(MAKE_DIRECTORY ${made})
  set(SMP_ONNX_SCHEMA ${made}/onnx.pb-c.c ${made}/onnx.pb-c.h)
  add_custom_command(OUTPUT ${SMP_ONNX_SCHEMA} DEPENDS ${onnx_SCHEMA}/onnx.proto VERBATIM
                     COMMAND ${protoc_c_PROGRAM} --proto_path=${onnx_SCHEMA} --c_out=${made} onnx.proto)
  set_source_files_properties(${SMP_ONNX_SCHEMA} PROPERTIES COMPILE_OPTIONS -w)
  add_library(Smp::onnx INTERFACE IMPORTED GLOBAL)
  target_link_libraries(Smp::onnx INTERFACE Smp::protobufc)
  target_include_directories(Smp::onnx SYSTEM INTERFACE ${made})
  target_compile_definitions(Smp::onnx INTERFACE SMP_HAVE_ONNX)
else()
  message(STATUS "protoc-c or onnx.proto not found (protobuf-c-compiler, libonnx-dev): built without ONNX")
endif()

# What a machine may lack: AUTO takes it when it is found, ON insists, OFF does not look.
set(SMP_WITH_CUDA AUTO CACHE STRING "CUDA: AUTO, ON or OFF")
set(SMP_WITH_NCCL AUTO CACHE STRING "NCCL (needs CUDA): AUTO, ON or OFF")
set(SMP_WITH_CUDNN AUTO CACHE STRING "cuDNN (needs CUDA): AUTO, ON or OFF")
foreach(name SMP_WITH_CUDA SMP_WITH_NCCL SMP_WITH_CUDNN)
  set_property(CACHE ${name} PROPERTY STRINGS AUTO ON OFF)
endforeach()

# Smp::cuda: the static CUDA runtime and the headers of cuBLASLt, NCCL and cuDNN. Those three are
# opened when a GPU is (graph/base/library.h), so programs start fast and where they are missing.
set(SMP_CUDA_ARCH "80;90" CACHE STRING "Compute capabilities that CUDA kernels are compiled for")
option(SMP_CUDA_QUICK "Compile CUDA kernels in the least time: slow ones, to see that they compile" OFF)
set(SMP_HAVE_CUDA OFF)
if(SMP_WITH_CUDA STREQUAL "AUTO" OR SMP_WITH_CUDA)
  find_package(CUDAToolkit QUIET)
  if(CUDAToolkit_FOUND AND TARGET CUDA::cudart_static AND CUDAToolkit_NVCC_EXECUTABLE)
    set(SMP_HAVE_CUDA ON)
    if(NOT CMAKE_CUDA_COMPILER)
      set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
    endif()
    set(CMAKE_CUDA_ARCHITECTURES ${SMP_CUDA_ARCH})
    enable_language(CUDA)
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
    set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -DNDEBUG")
    if(SMP_CUDA_QUICK AND CUDAToolkit_VERSION VERSION_GREATER_EQUAL 13.0) # older ones know no such option
      string(APPEND CMAKE_CUDA_FLAGS_RELEASE " --Ofast-compile=max")
    endif()
    add_library(Smp::cuda INTERFACE IMPORTED GLOBAL)
    target_link_libraries(Smp::cuda INTERFACE CUDA::cudart_static stdc++ ${CMAKE_DL_LIBS})
    target_include_directories(Smp::cuda SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
    target_compile_definitions(Smp::cuda INTERFACE SMP_HAVE_CUDA
                               SMP_CUDA_MAJOR="${CUDAToolkit_VERSION_MAJOR}"
                               SMP_CUDA_LIBRARY_DIR="${CUDAToolkit_LIBRARY_DIR}")
  elseif(NOT SMP_WITH_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "SMP_WITH_CUDA=${SMP_WITH_CUDA}, but no CUDA toolkit with nvcc and "
                        "cudart_static was found: set CUDAToolkit_ROOT, or SMP_WITH_CUDA=OFF")
  endif()
endif()

set(SMP_HAVE_NCCL OFF)
set(SMP_HAVE_CUDNN OFF)
if(SMP_HAVE_CUDA)
  find_path(nccl_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_path(cudnn_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  mark_as_advanced(nccl_INCLUDE cudnn_INCLUDE)
  if(cudnn_INCLUDE) # older ones than 9.8 know no descriptions of devices
    file(GLOB headers ${cudnn_INCLUDE}/cudnn_graph*.h)
    set(known)
    foreach(header IN LISTS headers)
      file(STRINGS ${header} found REGEX CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR LIMIT_COUNT 1)
      list(APPEND known ${found})
    endforeach()
    if(NOT known)
      set(cudnn_INCLUDE cudnn_INCLUDE-NOTFOUND)
    endif()
  endif()
endif()
foreach(library NCCL CUDNN)
  string(TOLOWER ${library} name)
  if(SMP_WITH_${library} STREQUAL "AUTO" OR SMP_WITH_${library})
    if(SMP_HAVE_CUDA AND ${name}_INCLUDE)
      set(SMP_HAVE_${library} ON)
      target_include_directories(Smp::cuda SYSTEM INTERFACE ${${name}_INCLUDE})
      target_compile_definitions(Smp::cuda INTERFACE SMP_HAVE_${library})
    elseif(NOT SMP_WITH_${library} STREQUAL "AUTO")
      message(FATAL_ERROR "SMP_WITH_${library}=${SMP_WITH_${library}}, but ${name}.h was not found "
                          "or CUDA is off: install it, or set SMP_WITH_${library}=OFF")
    endif()
  endif()
endforeach()
message(STATUS "CUDA: ${SMP_HAVE_CUDA}, NCCL: ${SMP_HAVE_NCCL}, cuDNN: ${SMP_HAVE_CUDNN}")
