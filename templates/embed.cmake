# SPDX-License-Identifier: Apache-2.0
# Embeds every .cuh under templates/ byte for byte, and lists the formats from their folder.
# Sets TILEWRIGHT_EMBEDDED (sources to compile), TILEWRIGHT_GENERATED_DIR (embedded.cpp, format_list.inc) and
# TILEWRIGHT_FORMATS (names).
set(TILEWRIGHT_GENERATED_DIR ${PROJECT_BINARY_DIR}/generated)
file(GLOB_RECURSE template_files CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/templates ${PROJECT_SOURCE_DIR}/templates/*.cuh)
file(GLOB format_files CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/templates/formats ${PROJECT_SOURCE_DIR}/templates/formats/*.cuh)
list(SORT template_files)
list(SORT format_files)

set(template_paths)
foreach(file ${template_files})
  list(APPEND template_paths ${PROJECT_SOURCE_DIR}/templates/${file})
endforeach()
string(REPLACE ";" "," template_list "${template_files}")
add_custom_command(
  OUTPUT ${TILEWRIGHT_GENERATED_DIR}/embedded.cpp
  COMMAND ${CMAKE_COMMAND} -DROOT=${PROJECT_SOURCE_DIR}/templates -DFILES=${template_list}
          -DOUT=${TILEWRIGHT_GENERATED_DIR}/embedded.cpp -P ${PROJECT_SOURCE_DIR}/cmake/embed_files.cmake
  DEPENDS ${template_paths} ${PROJECT_SOURCE_DIR}/cmake/embed_files.cmake
  VERBATIM)
set(TILEWRIGHT_EMBEDDED ${TILEWRIGHT_GENERATED_DIR}/embedded.cpp)

# formats/NAME.cuh holds struct tw::NAME; FORMAT(NAME) per file.
set(TILEWRIGHT_FORMATS "")
set(format_includes "")
set(format_list "")
foreach(file ${format_files})
  string(REGEX REPLACE "\\.cuh$" "" name ${file})
  list(APPEND TILEWRIGHT_FORMATS ${name})
  string(APPEND format_includes "#include \"templates/formats/${file}\"\n")
  string(APPEND format_list "FORMAT(${name})\n")
endforeach()
file(CONFIGURE OUTPUT ${TILEWRIGHT_GENERATED_DIR}/format_includes.inc CONTENT "${format_includes}" @ONLY)
file(CONFIGURE OUTPUT ${TILEWRIGHT_GENERATED_DIR}/format_list.inc CONTENT "${format_list}" @ONLY)
