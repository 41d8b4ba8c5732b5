# SPDX-License-Identifier: Apache-2.0
# cmake -DROOT=checkout [-DOUT=header] -P tree_hash.cmake
# One hash over the names and contents of templates/, jit/ and tuner/: what a result measured on a device stands for. It leaves out what no
# GPU's kernel is made of: kernels for CPUs and what loads them (cpu/), and what only the host knows of a format (formats/NAME.h).
if(NOT CMAKE_SCRIPT_MODE_FILE)
  # Included: a target that writes `header` with every build. (A file that is gone makes nothing newer, so that no dependency would tell.)
  function(tilewright_tree_hash target root header)
    add_custom_target(${target} COMMAND ${CMAKE_COMMAND} -DROOT=${root} -DOUT=${header} -P ${CMAKE_CURRENT_FUNCTION_LIST_FILE}
      BYPRODUCTS ${header} VERBATIM)
  endfunction()
  return()
endif()
get_filename_component(ROOT ${ROOT} ABSOLUTE)
set(text "")
foreach(folder templates jit tuner)
  file(GLOB_RECURSE files RELATIVE ${ROOT} ${ROOT}/${folder}/*)
  list(FILTER files EXCLUDE REGEX "/cpu/|^templates/formats/[a-z0-9_]+[.]h$")
  list(SORT files)
  foreach(file ${files})
    file(SHA256 ${ROOT}/${file} hash)
    string(APPEND text "${file} ${hash}\n")
  endforeach()
endforeach()
string(SHA256 hash "${text}")
if(OUT)  # the file stays as it is where the hash does
  file(CONFIGURE OUTPUT ${OUT} CONTENT "#define TILEWRIGHT_TREE_HASH \"${hash}\"\n")
else()
  message("${hash}")
endif()
