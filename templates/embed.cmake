# SPDX-License-Identifier: Apache-2.0
# Embeds every .cuh under templates/ byte for byte, and lists the formats from their folder.
# Sets TILEWRIGHT_EMBEDDED (sources to compile), TILEWRIGHT_GENERATED_DIR (embedded.cpp, format_*.inc) and
# TILEWRIGHT_FORMATS (names).
set(TILEWRIGHT_GENERATED_DIR ${PROJECT_BINARY_DIR}/generated)

# tilewright_embed(FOLDER ROOT...): FOLDER/embedded.cpp from every .cuh under the roots, named as seen from its root.
function(tilewright_embed folder)
  set(names)
  set(paths)
  foreach(root ${ARGN})
    file(GLOB_RECURSE files CONFIGURE_DEPENDS RELATIVE ${root} ${root}/*.cuh)
    list(SORT files)
    foreach(file ${files})
      list(APPEND names ${file})
      list(APPEND paths ${root}/${file})
    endforeach()
  endforeach()
  string(REPLACE ";" "," name_list "${names}")
  string(REPLACE ";" "," path_list "${paths}")
  add_custom_command(
    OUTPUT ${folder}/embedded.cpp
    COMMAND ${CMAKE_COMMAND} -DNAMES=${name_list} -DPATHS=${path_list} -DOUT=${folder}/embedded.cpp
            -P ${PROJECT_SOURCE_DIR}/cmake/embed_files.cmake
    DEPENDS ${paths} ${PROJECT_SOURCE_DIR}/cmake/embed_files.cmake
    VERBATIM)
endfunction()

tilewright_embed(${TILEWRIGHT_GENERATED_DIR} ${PROJECT_SOURCE_DIR}/templates)
set(TILEWRIGHT_EMBEDDED ${TILEWRIGHT_GENERATED_DIR}/embedded.cpp)

# formats/NAME.cuh holds struct tw::fmt::NAME; FORMAT(NAME) per file. formats/NAME.h, if there is one, says what the host alone knows of it.
set(TILEWRIGHT_FORMATS "")
file(GLOB format_files CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/templates/formats ${PROJECT_SOURCE_DIR}/templates/formats/*.cuh)
list(SORT format_files)
file(GLOB format_hosts CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/templates/formats ${PROJECT_SOURCE_DIR}/templates/formats/*.h)
set(format_includes "")
set(host_includes "#include \"templates/formats/shared/format_host.h\"\n")
set(format_list "")
foreach(file ${format_hosts})
  string(APPEND host_includes "#include \"templates/formats/${file}\"\n")
endforeach()
foreach(file ${format_files})
  string(REGEX REPLACE "\\.cuh$" "" name ${file})
  list(APPEND TILEWRIGHT_FORMATS ${name})
  string(APPEND format_includes "#include \"templates/formats/${file}\"\n")
  string(APPEND format_list "FORMAT(${name})\n")
endforeach()
file(CONFIGURE OUTPUT ${TILEWRIGHT_GENERATED_DIR}/format_includes.inc CONTENT "${format_includes}" @ONLY)
file(CONFIGURE OUTPUT ${TILEWRIGHT_GENERATED_DIR}/format_list.inc CONTENT "${format_list}" @ONLY)
file(CONFIGURE OUTPUT ${TILEWRIGHT_GENERATED_DIR}/format_hosts.inc CONTENT "${host_includes}" @ONLY)
