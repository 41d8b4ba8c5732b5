# SPDX-License-Identifier: Apache-2.0
# cmake -DROOT=checkout -DOUT=header -P tree_hash.cmake
# One hash over the names and contents of templates/, jit/ and tuner/: what a result measured on a device stands for.
get_filename_component(ROOT ${ROOT} ABSOLUTE)
set(text "")
foreach(folder templates jit tuner)
  file(GLOB_RECURSE files RELATIVE ${ROOT} ${ROOT}/${folder}/*)
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
